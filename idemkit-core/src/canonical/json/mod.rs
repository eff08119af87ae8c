//! Canonical JSON: members by name, no white space, one spelling for each string and number.
//!
//! Two passes over the text, neither of which calls itself, however deep the document is nested: `outline` checks the
//! grammar and notes where the members of each object lie, in order; `emit` walks the text once more and takes each
//! object's members in that order. Nothing is copied but to the output, and the notes are a fixed number of words for
//! each object and member: time is linear in the text but for sorting the names, and memory proportional to it.
//!
//! Not through serde_json: its features, such as `arbitrary_precision`, are switched on for the whole program by
//! anything in it, and fingerprints must not change when a user adds a dependency.

mod emit;
mod number;
mod outline;
mod string;
#[cfg(test)]
mod tests;

/// The canonical form of a JSON document in UTF-8, or nothing if it is none.
///
/// A number beyond the range of a double becomes `Infinity`, which is not JSON, and neither is the canonical form then.
pub(super) fn canonical(body: &[u8]) -> Option<String> {
    const BYTE_ORDER_MARK: &[u8] = b"\xEF\xBB\xBF";
    let text = std::str::from_utf8(body.strip_prefix(BYTE_ORDER_MARK).unwrap_or(body)).ok()?;
    let outline = outline::Outline::of(text)?;
    Some(emit::emit(text, &outline))
}

fn is_white_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | b'\n' | b'\r')
}

//! Second pass: the text again, each object's members in canonical order.

use super::outline::Outline;
use super::{is_white_space, number, string};

/// An object that has begun in the output.
struct OpenObject {
    /// Its number in the outline.
    number: usize,
    /// Its next member to write, an index of [`Outline::members`].
    next_member: usize,
    /// Where the stretch of text ends that the object lies in.
    end: usize,
}

/// The text must be the one that the outline is of.
///
/// Arrays need no account: outside of objects the order of the text is kept, so brackets and commas are copied as they
/// come.
pub(super) fn emit(text: &str, outline: &Outline) -> String {
    let bytes = text.as_bytes();
    let mut out = String::with_capacity(text.len());
    let mut open: Vec<OpenObject> = vec![];
    // The stretch of text to write, and the number of the first object in it. At first that is all of it, then one
    // member each.
    let (mut at, mut end, mut number) = (0, text.len(), 0);
    loop {
        while at < end {
            match bytes[at] {
                b'{' => {
                    out.push('{');
                    open.push(OpenObject { number, next_member: outline.objects[number].members_start, end });
                    break;
                }
                b'"' => at = string::write(text, at, &mut out),
                b'-' | b'0'..=b'9' => {
                    let token_end = number::end(bytes, at).unwrap_or(end);
                    number::write(&text[at..token_end], &mut out);
                    at = token_end;
                }
                byte => {
                    // Brackets, commas, colons, and the letters of literals.
                    if !is_white_space(byte) {
                        out.push(char::from(byte));
                    }
                    at += 1;
                }
            }
        }
        let Some(innermost) = open.last_mut() else { return out };
        let object = outline.objects[innermost.number];
        if innermost.next_member < object.members_end {
            if innermost.next_member > object.members_start {
                out.push(',');
            }
            let member = outline.members[innermost.next_member];
            innermost.next_member += 1;
            (at, end, number) = (member.start, member.end, member.next_object);
        } else {
            out.push('}');
            (at, end, number) = (object.end, innermost.end, object.next_object);
            open.pop();
        }
    }
}

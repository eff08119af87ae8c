//! Strings, each at the offset of its opening quote.

use std::fmt::Write as _;

/// The offset just after the closing quote. Nothing, if there is none, or if the string has a control character or an
/// escape that does not stand for a character.
pub(super) fn end(text: &str, start: usize) -> Option<usize> {
    let bytes = text.as_bytes();
    let mut at = start + 1;
    loop {
        match bytes.get(at)? {
            b'"' => return Some(at + 1),
            b'\\' => at += unescape(&bytes[at..])?.1,
            0..=0x1F => return None,
            _ => at += 1,
        }
    }
}

/// Writes the string with only those escapes that JSON requires. Returns the offset just after it.
pub(super) fn write(text: &str, start: usize, out: &mut String) -> usize {
    let bytes = text.as_bytes();
    let (mut at, mut copied) = (start + 1, start);
    loop {
        match bytes.get(at) {
            Some(b'"') => {
                out.push_str(&text[copied..=at]);
                return at + 1;
            }
            Some(b'\\') => {
                out.push_str(&text[copied..at]);
                let (character, len) = unescape(&bytes[at..]).unwrap_or(('\\', 1));
                escape(character, out);
                at += len;
                copied = at;
            }
            Some(_) => at += 1,
            None => return text.len(),
        }
    }
}

/// The characters that the string stands for.
pub(super) fn characters(text: &str, start: usize) -> impl Iterator<Item = char> {
    let mut rest = text.get(start + 1..).unwrap_or_default();
    std::iter::from_fn(move || {
        let (character, len) = match rest.chars().next()? {
            '"' => return None,
            '\\' => unescape(rest.as_bytes())?,
            character => (character, character.len_utf8()),
        };
        rest = rest.get(len..).unwrap_or_default();
        Some(character)
    })
}

/// What the escape at the beginning of the bytes stands for, and its length in bytes.
fn unescape(bytes: &[u8]) -> Option<(char, usize)> {
    let character = match bytes.get(1)? {
        b'"' => '"',
        b'\\' => '\\',
        b'/' => '/',
        b'b' => '\u{8}',
        b'f' => '\u{C}',
        b'n' => '\n',
        b'r' => '\r',
        b't' => '\t',
        b'u' => return unescape_code_point(bytes),
        _ => return None,
    };
    Some((character, 2))
}

fn unescape_code_point(bytes: &[u8]) -> Option<(char, usize)> {
    let high = code_unit(bytes)?;
    // The first half of a pair is nothing without the second, and the second is nothing alone.
    if !(0xD800..0xDC00).contains(&high) {
        return Some((char::from_u32(high)?, 6));
    }
    let low = code_unit(bytes.get(6..)?)?;
    if !(0xDC00..0xE000).contains(&low) {
        return None;
    }
    Some((char::from_u32(0x1_0000 + ((high - 0xD800) << 10) + (low - 0xDC00))?, 12))
}

/// Of `\uXXXX`, the number.
fn code_unit(bytes: &[u8]) -> Option<u32> {
    let digits = bytes.get(..6)?.strip_prefix(b"\\u")?;
    // Digit by digit: std's number parsing would take a sign as well.
    digits.iter().try_fold(0, |value, digit| Some(value << 4 | char::from(*digit).to_digit(16)?))
}

fn escape(character: char, out: &mut String) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\u{8}' => out.push_str("\\b"),
        '\u{C}' => out.push_str("\\f"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        '\0'..='\u{1F}' => {
            // Writing to a String cannot fail.
            let _ = write!(out, "\\u{:04x}", u32::from(character));
        }
        _ => out.push(character),
    }
}

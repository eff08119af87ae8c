//! Lower-case hexadecimal text for byte arrays of a fixed size.

use std::fmt::Write as _;

/// A text is not the lower-case hexadecimal form that was expected.
///
/// The text itself is never part of the error: a raw idempotency key that was passed by mistake must not reach a log
/// this way.
///
/// ```
/// use idemkit_core::{EffectiveKey, ParseHexError};
///
/// let error = "order-4711".parse::<EffectiveKey>().unwrap_err();
/// assert_eq!(error, ParseHexError::Length { expected: 64, found: 10 });
/// assert!(!error.to_string().contains("4711"));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseHexError {
    /// The text is too short or too long.
    #[error("expected {expected} lower-case hex digits, found {found} bytes")]
    Length {
        /// Hex digits that the value has.
        expected: usize,
        /// Bytes that the text has.
        found: usize,
    },
    /// The text has the right length, and something in it that is not one of `0123456789abcdef`.
    #[error("expected lower-case hex digits, found something else at byte {at}")]
    Digit {
        /// Offset in bytes, from 0, of the first byte that is no such digit.
        at: usize,
    },
}

pub(crate) fn encode(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

pub(crate) fn decode<const N: usize>(text: &str) -> Result<[u8; N], ParseHexError> {
    let text = text.as_bytes();
    if text.len() != N * 2 {
        return Err(ParseHexError::Length { expected: N * 2, found: text.len() });
    }
    if let Some(at) = text.iter().position(|byte| nibble(*byte).is_none()) {
        return Err(ParseHexError::Digit { at });
    }
    let mut bytes = [0; N];
    for (byte, pair) in bytes.iter_mut().zip(text.chunks_exact(2)) {
        *byte = pair.iter().fold(0, |value, digit| value << 4 | nibble(*digit).unwrap_or_default());
    }
    Ok(bytes)
}

/// Lower case only, so that one value has one text: stores compare keys as text.
fn nibble(digit: u8) -> Option<u8> {
    match digit {
        b'0'..=b'9' => Some(digit - b'0'),
        b'a'..=b'f' => Some(digit - b'a' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[test]
    fn every_byte_survives_both_directions() {
        let bytes: [u8; 256] = std::array::from_fn(|index| index as u8);
        let text = encode(&bytes);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"));
        assert_eq!(decode(&text), Ok(bytes));
    }

    #[rstest]
    #[case("", ParseHexError::Length { expected: 4, found: 0 })]
    #[case("abc", ParseHexError::Length { expected: 4, found: 3 })]
    #[case("abcde", ParseHexError::Length { expected: 4, found: 5 })]
    #[case(" abcd", ParseHexError::Length { expected: 4, found: 5 })]
    #[case("ABCD", ParseHexError::Digit { at: 0 })]
    #[case("abcg", ParseHexError::Digit { at: 3 })]
    #[case("+1-1", ParseHexError::Digit { at: 0 })]
    #[case("0x12", ParseHexError::Digit { at: 1 })]
    #[case("éé", ParseHexError::Digit { at: 0 })]
    #[case("00 0", ParseHexError::Digit { at: 2 })]
    fn other_text_is_refused(#[case] text: &str, #[case] error: ParseHexError) {
        assert_eq!(decode::<2>(text), Err(error));
    }
}

//! The value of `Idempotency-Key`: an RFC 8941 string, or bare text, as many clients send it.

use std::fmt;

use http::{HeaderMap, HeaderName};

const BYTES_MAX: usize = 255;

/// A key as its client chose it. It goes no further than into a hash: `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct IdempotencyKey(Vec<u8>);

/// Why a header is no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidKey {
    /// Which of them would count?
    #[error("there is more than one Idempotency-Key header")]
    Repeated,
    /// Between the quotes, or at all.
    #[error("the key is empty")]
    Empty,
    /// Counted without quotes and escapes.
    #[error("the key is longer than {BYTES_MAX} bytes")]
    TooLong,
    /// A quote that is not closed, something behind it, or an escape that is none.
    #[error("the key is not a string as RFC 8941 has it")]
    NotAString,
    /// A comma, a quote or a control character in bare text.
    #[error("the key has a character that bare text must not have")]
    NotBareText,
}

impl IdempotencyKey {
    /// The key of a request; nothing where it has none.
    ///
    /// # Errors
    /// [`InvalidKey`], where there is a header and it is no key.
    pub fn of(headers: &HeaderMap, name: &HeaderName) -> Result<Option<Self>, InvalidKey> {
        let mut values = headers.get_all(name).iter();
        let Some(value) = values.next() else { return Ok(None) };
        if values.next().is_some() {
            return Err(InvalidKey::Repeated);
        }
        Self::parse(value.as_bytes()).map(Some)
    }

    /// A key that did not come as the header: out of a body or a path, say.
    ///
    /// # Errors
    /// [`InvalidKey::Empty`] and [`InvalidKey::TooLong`].
    pub fn new(key: impl Into<Vec<u8>>) -> Result<Self, InvalidKey> {
        let key = key.into();
        match key.len() {
            0 => Err(InvalidKey::Empty),
            1..=BYTES_MAX => Ok(Self(key)),
            _ => Err(InvalidKey::TooLong),
        }
    }

    /// The key in a header's value.
    ///
    /// # Errors
    /// [`InvalidKey`], where it is none.
    pub fn parse(value: &[u8]) -> Result<Self, InvalidKey> {
        let value = value.trim_ascii();
        match value.split_first() {
            Some((b'"', rest)) => {
                let (key, behind) = string(rest)?;
                parameters(behind)?;
                Self::new(key)
            }
            _ if value.iter().all(|byte| is_bare(*byte)) => Self::new(value),
            _ => Err(InvalidKey::NotBareText),
        }
    }

    /// Its bytes, for a hash.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

/// The string that begins behind its first quote, and what is behind its last.
fn string(rest: &[u8]) -> Result<(Vec<u8>, &[u8]), InvalidKey> {
    let mut key = vec![];
    let mut rest = rest;
    loop {
        match rest {
            [b'"', behind @ ..] => return Ok((key, behind)),
            [b'\\', escaped @ (b'"' | b'\\'), behind @ ..] => {
                key.push(*escaped);
                rest = behind;
            }
            [b'\\', ..] => return Err(InvalidKey::NotAString),
            [plain @ 0x20..=0x7e, behind @ ..] => {
                key.push(*plain);
                rest = behind;
            }
            _ => return Err(InvalidKey::NotAString),
        }
    }
}

/// Parameters behind a string are allowed, and mean nothing here. What is none, the second of two keys above all, is refused.
fn parameters(mut rest: &[u8]) -> Result<(), InvalidKey> {
    while let Some((separator, behind)) = rest.split_first() {
        if *separator != b';' {
            return Err(InvalidKey::NotAString);
        }
        let behind = behind.trim_ascii_start();
        if !behind.first().is_some_and(|first| first.is_ascii_lowercase() || *first == b'*') {
            return Err(InvalidKey::NotAString);
        }
        let is_name = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"_-.*".contains(byte);
        rest = match after(behind, is_name) {
            [b'=', b'"', text @ ..] => string(text)?.1,
            [b'=', value @ ..] => {
                let behind = after(value, |byte| byte.is_ascii_graphic() && !b"\",;()".contains(byte));
                if behind.len() == value.len() {
                    return Err(InvalidKey::NotAString);
                }
                behind
            }
            behind => behind,
        };
    }
    Ok(())
}

/// What is behind the bytes that are such.
fn after(bytes: &[u8], are_such: impl Fn(&u8) -> bool) -> &[u8] {
    let length = bytes.iter().take_while(|byte| are_such(byte)).count();
    bytes.get(length..).unwrap_or_default()
}

fn is_bare(byte: u8) -> bool {
    !byte.is_ascii_control() && !matches!(byte, b',' | b'"')
}

impl fmt::Debug for IdempotencyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IdempotencyKey").field("bytes", &self.0.len()).finish()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(b"8e03978e-40d5-43dd-bc93-6894a57f9324", b"8e03978e-40d5-43dd-bc93-6894a57f9324")]
    #[case(b"\"8e03978e-40d5\"", b"8e03978e-40d5")]
    #[case(b"  \"spaces inside\"  ", b"spaces inside")]
    #[case(b"\"a \\\"quote\\\" and a \\\\\"", b"a \"quote\" and a \\")]
    #[case(b"\"a,b\"", b"a,b")]
    #[case(b"\"key\";version=1", b"key")]
    #[case(b"\"key\"; a; b=\"x;,\";c=?1;d=:YQ==:", b"key")]
    #[case(b"caf\xc3\xa9", b"caf\xc3\xa9")]
    fn a_key_is_read(#[case] value: &[u8], #[case] key: &[u8]) {
        assert_eq!(IdempotencyKey::parse(value).unwrap().as_bytes(), key);
    }

    #[rstest]
    #[case(b"", InvalidKey::Empty)]
    #[case(b"   ", InvalidKey::Empty)]
    #[case(b"\"\"", InvalidKey::Empty)]
    #[case(b"\"open", InvalidKey::NotAString)]
    #[case(b"\"ends in an escape\\", InvalidKey::NotAString)]
    #[case(b"\"\\n\"", InvalidKey::NotAString)]
    #[case(b"\"one\" \"two\"", InvalidKey::NotAString)]
    #[case(b"\"one\";x, \"two\"", InvalidKey::NotAString)]
    #[case(b"\"one\"; \"open", InvalidKey::NotAString)]
    #[case(b"\"one\";a=\"open", InvalidKey::NotAString)]
    #[case(b"\"one\";", InvalidKey::NotAString)]
    #[case(b"\"one\";A", InvalidKey::NotAString)]
    #[case(b"\"one\";a=", InvalidKey::NotAString)]
    #[case(b"\"caf\xc3\xa9\"", InvalidKey::NotAString)]
    #[case(b"a,b", InvalidKey::NotBareText)]
    #[case(b"half\"quoted", InvalidKey::NotBareText)]
    #[case(b"tab\tinside", InvalidKey::NotBareText)]
    fn what_is_no_key(#[case] value: &[u8], #[case] why: InvalidKey) {
        assert_eq!(IdempotencyKey::parse(value), Err(why));
    }

    #[test]
    fn its_length_is_counted_without_quotes_and_escapes() {
        let longest = "k".repeat(BYTES_MAX);
        assert!(IdempotencyKey::parse(longest.as_bytes()).is_ok());
        assert!(IdempotencyKey::parse(format!("\"{longest}\"").as_bytes()).is_ok());
        assert!(IdempotencyKey::parse(format!("\"{}\"", "\\\"".repeat(BYTES_MAX)).as_bytes()).is_ok());
        assert_eq!(IdempotencyKey::parse(format!("{longest}k").as_bytes()), Err(InvalidKey::TooLong));
    }

    #[test]
    fn two_headers_are_none_and_no_text_shows_a_key() {
        let name = HeaderName::from_static("idempotency-key");
        let mut headers = HeaderMap::new();
        assert_eq!(IdempotencyKey::of(&headers, &name), Ok(None));
        headers.append(&name, "s3cret".parse().unwrap());
        let key = IdempotencyKey::of(&headers, &name).unwrap().unwrap();
        assert!(!format!("{key:?}").contains("s3cret"));
        headers.append(&name, "other".parse().unwrap());
        assert_eq!(IdempotencyKey::of(&headers, &name), Err(InvalidKey::Repeated));
    }
}

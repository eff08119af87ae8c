//! Any value of the header.

use idemkit_http::IdempotencyKey;
use proptest::prelude::*;

/// A string of RFC 8941, written out.
fn quoted(key: &str) -> String {
    format!("\"{}\"", key.replace('\\', "\\\\").replace('"', "\\\""))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn no_value_panics_and_what_is_read_is_within_bounds(value in prop::collection::vec(any::<u8>(), 0..600)) {
        if let Ok(key) = IdempotencyKey::parse(&value) {
            prop_assert!((1..=255).contains(&key.as_bytes().len()));
        }
    }

    #[test]
    fn a_key_is_the_same_however_it_is_quoted(key in "[ -~]{1,255}") {
        let read = IdempotencyKey::parse(quoted(&key).as_bytes()).unwrap();
        prop_assert_eq!(read.as_bytes(), key.as_bytes());
        // Bare, where it can be.
        if !key.contains([',', '"']) && key.trim() == key {
            prop_assert_eq!(IdempotencyKey::parse(key.as_bytes()).unwrap(), read);
        }
    }

    /// Another's reading of RFC 8941: what it takes for a string is that string here, and what begins as one and is none is none.
    #[test]
    fn strings_are_read_as_another_parser_does(value in "\"[ -~\"\\\\]{0,20}\"?[ ]{0,1}(;[ ]{0,2}[a-z*A-]{0,3}(=[0-9?.:\"a-z]{0,3})?){0,2}[;, ]{0,1}") {
        let theirs = sfv::Parser::new(&value).parse::<sfv::Item>().ok().and_then(|item| match item.bare_item {
            sfv::BareItem::String(text) => Some(text.as_str().as_bytes().to_vec()),
            _ => None,
        });
        let ours = IdempotencyKey::parse(value.as_bytes()).ok().map(|key| key.as_bytes().to_vec());
        // Where a string is read. Ours leaves the parameters unread, and takes no empty key.
        if let Some(theirs) = theirs {
            prop_assert_eq!(ours.unwrap_or_default(), theirs);
        } else if let Some(ours) = ours {
            // The values of parameters are not looked at.
            prop_assert!(value.contains('='), "{:?} is read as {:?}", value, ours);
        }
    }
}

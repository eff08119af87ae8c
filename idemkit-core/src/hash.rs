//! `H(parts)`: the one way in which this library hashes a list of byte strings.
//!
//! Each part is preceded by its length, so that no two different lists feed the digest the same bytes: `["a", "b"]` and
//! `["ab", ""]` hash differently, whatever the parts contain.

use sha2::digest::Update;
use sha2::{Digest, Sha256};

/// SHA-256 over the length-prefixed parts.
pub(crate) fn hash(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> [u8; 32] {
    let mut digest = Sha256::default();
    absorb(&mut digest, parts);
    digest.finalize().into()
}

/// Feeds the parts, each after its length, to any digest: SHA-256 and HMAC-SHA-256 share the encoding.
pub(crate) fn absorb(digest: &mut impl Update, parts: impl IntoIterator<Item = impl AsRef<[u8]>>) {
    for part in parts {
        let part = part.as_ref();
        absorb_length(digest, part.len());
        digest.update(part);
    }
}

/// The length as a big-endian `u32`. From 2^32 - 1 on it does not fit: then `0xFFFFFFFF`, which no shorter length
/// writes, announces a big-endian `u64`. The encoding stays unambiguous, and no length is an error.
fn absorb_length(digest: &mut impl Update, len: usize) {
    match u32::try_from(len) {
        Ok(short) if short != u32::MAX => digest.update(&short.to_be_bytes()),
        _ => {
            digest.update(&u32::MAX.to_be_bytes());
            digest.update(&(len as u64).to_be_bytes());
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::hex;

    /// A digest that only remembers what it was fed.
    #[derive(Default)]
    struct Fed(Vec<u8>);

    impl Update for Fed {
        fn update(&mut self, data: &[u8]) {
            self.0.extend_from_slice(data);
        }
    }

    fn fed(parts: &[Vec<u8>]) -> Vec<u8> {
        let mut digest = Fed::default();
        absorb(&mut digest, parts);
        digest.0
    }

    #[rstest]
    #[case(0, &[0, 0, 0, 0])]
    #[case(1, &[0, 0, 0, 1])]
    #[case(0x0102_0304, &[1, 2, 3, 4])]
    #[case(0xFFFF_FFFE, &[0xFF, 0xFF, 0xFF, 0xFE])]
    #[cfg_attr(target_pointer_width = "64", case(0xFFFF_FFFF, &[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0, 0xFF, 0xFF, 0xFF, 0xFF]))]
    #[cfg_attr(target_pointer_width = "64", case(0x1_0000_0000, &[0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 1, 0, 0, 0, 0]))]
    #[cfg_attr(target_pointer_width = "64", case(usize::MAX, &[0xFF; 12]))]
    fn length_prefix(#[case] len: usize, #[case] expected: &[u8]) {
        let mut digest = Fed::default();
        absorb_length(&mut digest, len);
        assert_eq!(digest.0, expected);
    }

    #[test]
    fn no_parts_is_the_hash_of_nothing() {
        let empty: [&str; 0] = [];
        assert_eq!(hex::encode(&hash(empty)), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    }

    proptest! {
        #[test]
        fn different_lists_feed_different_bytes(
            one in prop::collection::vec(prop::collection::vec(0_u8..3, 0..6), 0..5),
            other in prop::collection::vec(prop::collection::vec(0_u8..3, 0..6), 0..5),
        ) {
            prop_assert_eq!(one == other, fed(&one) == fed(&other));
        }
    }
}

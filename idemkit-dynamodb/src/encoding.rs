//! How a body is stored: plain, or compressed where that is worth it (feature `gzip`).

use bytes::Bytes;

/// A body as it is stored, and what `body_encoding` says of it.
pub(crate) struct Encoded {
    pub(crate) body: Vec<u8>,
    pub(crate) encoding: Option<&'static str>,
}

#[cfg(feature = "gzip")]
mod gzip {
    use std::io::{Read, Write};

    use flate2::{Compression, read::GzDecoder, write::GzEncoder};

    /// The bodies that are compressed: shorter ones are not worth the time, and longer ones take too much of it.
    pub(super) const WORTH_IT: std::ops::RangeInclusive<usize> = 1024..=16 * 1024 * 1024;
    /// The longest body that is decompressed: far more than this build compresses, and not what some other writer makes of
    /// a few bytes.
    const BODY_BYTES_MAX: u64 = 64 * 1024 * 1024;

    pub(super) const NAME: &str = "gzip";

    pub(super) fn compress(body: &[u8]) -> Option<Vec<u8>> {
        let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
        encoder.write_all(body).ok()?;
        encoder.finish().ok()
    }

    pub(super) fn decompress(body: &[u8]) -> Option<Vec<u8>> {
        let mut plain = vec![];
        GzDecoder::new(body).take(BODY_BYTES_MAX + 1).read_to_end(&mut plain).ok()?;
        (plain.len() as u64 <= BODY_BYTES_MAX).then_some(plain)
    }
}

/// Compresses `body` where that makes it shorter.
pub(crate) fn encode(body: &Bytes) -> Encoded {
    #[cfg(feature = "gzip")]
    if gzip::WORTH_IT.contains(&body.len())
        && let Some(compressed) = gzip::compress(body)
        && compressed.len() < body.len()
    {
        return Encoded { body: compressed, encoding: Some(gzip::NAME) };
    }
    Encoded { body: body.to_vec(), encoding: None }
}

/// Whether this build can read a body that is stored like this.
pub(crate) fn is_known(encoding: &str) -> bool {
    known().contains(&encoding)
}

/// The encodings that this build can read, beside none.
pub(crate) fn known() -> &'static [&'static str] {
    #[cfg(feature = "gzip")]
    return &[gzip::NAME];
    #[cfg(not(feature = "gzip"))]
    &[]
}

/// The body as it was; nothing where it does not decode.
pub(crate) fn decode(stored: Bytes, encoding: Option<&str>) -> Option<Bytes> {
    match encoding {
        None => Some(stored),
        #[cfg(feature = "gzip")]
        Some(gzip::NAME) => gzip::decompress(&stored).map(Bytes::from),
        Some(_) => None,
    }
}

#[cfg(all(test, feature = "gzip"))]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::empty(0, false)]
    #[case::short(1_023, false)]
    #[case::long(1_024, true)]
    #[case::the_longest(16 * 1024 * 1024, true)]
    // What is compressed must be readable again, or a result would be taken for garbage.
    #[case::longer_than_is_compressed(16 * 1024 * 1024 + 1, false)]
    fn a_body_comes_back_whatever_its_length(#[case] length: usize, #[case] compressed: bool) {
        let body = Bytes::from(vec![7; length]);
        let stored = encode(&body);
        assert_eq!(stored.encoding.is_some(), compressed);
        assert!(decode(stored.body.into(), stored.encoding) == Some(body));
    }

    #[test]
    fn what_does_not_get_shorter_stays_plain() {
        let mut random = fastrand::Rng::with_seed(1);
        let body: Bytes = std::iter::repeat_with(|| random.u8(..)).take(4_096).collect();
        assert_eq!(encode(&body).encoding, None);
    }

    #[rstest]
    #[case::no_gzip(b"plain".to_vec())]
    #[case::cut_off({ let mut all = gzip::compress(&[7; 2_000]).unwrap(); all.truncate(20); all })]
    fn what_does_not_decode_is_nothing(#[case] stored: Vec<u8>) {
        assert_eq!(decode(stored.into(), Some(gzip::NAME)), None);
    }
}

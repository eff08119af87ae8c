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

    /// Shorter bodies are not worth the time.
    pub(super) const WORTH_IT: usize = 1024;
    /// The longest body that is decompressed: what it was before, at least, since items are smaller than this by far, and
    /// not what some other writer makes of a few bytes.
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
    if body.len() >= gzip::WORTH_IT
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

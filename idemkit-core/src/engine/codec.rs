//! How a typed result becomes a stored one, and back.

use std::error::Error;

use crate::StoredResult;

/// Turns a value into a stored result and back.
///
/// ```
/// use idemkit_core::{Codec, CodecError, StoredResult};
///
/// struct Text;
///
/// impl Codec<String> for Text {
///     fn encode(&self, value: &String) -> Result<StoredResult, CodecError> {
///         Ok(StoredResult::new(200, value.clone()))
///     }
///     fn decode(&self, stored: &StoredResult) -> Result<String, CodecError> {
///         String::from_utf8(stored.body.to_vec()).map_err(CodecError::new)
///     }
/// }
/// ```
pub trait Codec<T> {
    /// The stored form of `value`.
    ///
    /// # Errors
    /// Where it has none; the policy says then what is recorded.
    fn encode(&self, value: &T) -> Result<StoredResult, CodecError>;

    /// The value of a stored form.
    ///
    /// # Errors
    /// Where `stored` is not of this type: an earlier version of the program may have recorded it.
    fn decode(&self, stored: &StoredResult) -> Result<T, CodecError>;
}

/// A value that cannot be encoded, or a recorded result that cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("a result cannot be encoded or decoded")]
pub struct CodecError(#[source] Box<dyn Error + Send + Sync>);

impl CodecError {
    /// With the codec's own error as its source.
    #[must_use]
    pub fn new(source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Self(source.into())
    }
}

/// Stored results as they are: nothing is encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct Raw;

impl Codec<StoredResult> for Raw {
    fn encode(&self, value: &StoredResult) -> Result<StoredResult, CodecError> {
        Ok(value.clone())
    }

    fn decode(&self, stored: &StoredResult) -> Result<StoredResult, CodecError> {
        Ok(stored.clone())
    }
}

/// Any serde type as JSON, with status 200 and `content-type: application/json`.
#[cfg(feature = "json")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Json;

#[cfg(feature = "json")]
impl<T: serde::Serialize + serde::de::DeserializeOwned> Codec<T> for Json {
    fn encode(&self, value: &T) -> Result<StoredResult, CodecError> {
        let body = serde_json::to_vec(value).map_err(CodecError::new)?;
        Ok(StoredResult::new(200, body).with_header("content-type", "application/json"))
    }

    fn decode(&self, stored: &StoredResult) -> Result<T, CodecError> {
        serde_json::from_slice(&stored.body).map_err(CodecError::new)
    }
}

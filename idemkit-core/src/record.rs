//! What a key holds: claim tokens, stored results, and records.

use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};

use bytes::Bytes;

use crate::{CompletedRecord, Fingerprint, ParseHexError, Timestamp, hex};

/// The largest attempt: where a store's integer ends. Further take-overs keep counting as this one.
pub const ATTEMPT_MAX: u32 = i32::MAX as u32;

/// A fencing token: 128 random bits, drawn by the caller before it asks for a claim, and never used again after release
/// or completion.
///
/// A record carries the token of the claim that wrote it, and a store lets only that token renew, complete or release.
/// The same token sent again, because an acknowledgement was lost, is recognised as its own claim.
///
/// `Debug` shows only the first bytes: whoever knows a token can end its claim.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct ClaimToken([u8; 16]);

impl ClaimToken {
    /// Draws a token from the operating system.
    ///
    /// # Errors
    /// The operating system's own, where it has no randomness to give.
    pub fn random() -> Result<Self, getrandom::Error> {
        let mut bytes = [0; 16];
        // Not a generator of our own: a fork or a snapshot of the machine would draw the same tokens twice.
        getrandom::fill(&mut bytes)?;
        Ok(Self(bytes))
    }

    /// A token read back from a store.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// Its 16 bytes.
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 16] {
        &self.0
    }
}

impl fmt::Display for ClaimToken {
    /// The stored form: 32 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for ClaimToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClaimToken({}…)", hex::encode(&self.0[..2]))
    }
}

impl FromStr for ClaimToken {
    type Err = ParseHexError;

    /// Reads the stored form.
    fn from_str(text: &str) -> Result<Self, ParseHexError> {
        hex::decode(text).map(Self)
    }
}

/// Header fields of a stored result: lower-case names, and values as bytes, in order within a name.
///
/// Cloning is cheap.
///
/// ```
/// use idemkit_core::Headers;
///
/// let mut headers = Headers::default();
/// headers.append("Link", "</a>");
/// headers.append("link", "</b>");
/// headers.append("x-empty", "");
/// assert_eq!(headers.get_all("LINK").map(|v| &v[..]).collect::<Vec<_>>(), [b"</a>", b"</b>"]);
/// assert_eq!(headers.len(), 3);
/// ```
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Headers {
    // Shared, so that a replay copies none; nothing where there are none, so that it allocates and touches nothing.
    by_name: Option<Arc<BTreeMap<Box<str>, Vec<Bytes>>>>,
}

impl Headers {
    /// Adds a value behind those that the name already has. The name is lowered (ASCII).
    pub fn append(&mut self, name: &str, value: impl Into<Bytes>) {
        let by_name = Arc::make_mut(self.by_name.get_or_insert_default());
        by_name.entry(name.to_ascii_lowercase().into()).or_default().push(value.into());
    }

    /// The values of `name`, in order.
    pub fn get_all(&self, name: &str) -> impl Iterator<Item = &Bytes> {
        let values = self.by_name.as_ref().and_then(|by_name| by_name.get(name.to_ascii_lowercase().as_str()));
        values.into_iter().flatten()
    }

    /// Each name with its values, in the order of the names. No name is without a value.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Bytes])> {
        self.by_name.iter().flat_map(|by_name| by_name.iter()).map(|(name, values)| (&**name, values.as_slice()))
    }

    /// How many values there are in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.iter().map(|(_, values)| values.len()).sum()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_name.is_none()
    }
}

impl fmt::Debug for Headers {
    /// Names only: values may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|(name, _)| name)).finish()
    }
}

/// A result as it is stored and replayed, byte for byte. Cloning copies no body.
///
/// ```
/// use idemkit_core::StoredResult;
///
/// let result = StoredResult::new(201, "created").with_header("location", "/orders/7");
/// assert_eq!(result.status, 201);
/// assert_eq!(&result.body[..], b"created");
/// ```
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoredResult {
    /// An HTTP status, or whatever integer the caller gives a meaning to.
    pub status: u16,
    /// Header fields, or whatever metadata the caller keeps beside the body.
    pub headers: Headers,
    /// The body.
    pub body: Bytes,
}

impl StoredResult {
    /// A result without headers.
    #[must_use]
    pub fn new(status: u16, body: impl Into<Bytes>) -> Self {
        Self { status, headers: Headers::default(), body: body.into() }
    }

    /// With one more header value.
    #[must_use]
    pub fn with_header(mut self, name: &str, value: impl Into<Bytes>) -> Self {
        self.headers.append(name, value);
        self
    }

    /// Bytes of the body and of the headers' names and values: what a store without a measure of its own counts.
    #[must_use]
    pub fn size(&self) -> u64 {
        let headers =
            self.headers.iter().flat_map(|(name, values)| values.iter().map(|value| name.len() + value.len()));
        headers.fold(self.body.len() as u64, |sum, len| sum.saturating_add(len as u64))
    }
}

impl fmt::Debug for StoredResult {
    /// Without the body, which is somebody's business data.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoredResult")
            .field("status", &self.status)
            .field("headers", &self.headers)
            .field("body_bytes", &self.body.len())
            .finish()
    }
}

/// How a completed operation ended, as the record keeps it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// `result`: it succeeded; duplicates get this.
    Result(StoredResult),
    /// `error`: it failed for good; duplicates get this error.
    Error(StoredResult),
    /// `unavailable`: it is done, and there is nothing to replay. It must not run again.
    Unavailable,
}

impl Outcome {
    /// The bytes to store, where there are some.
    #[must_use]
    pub fn stored(&self) -> Option<&StoredResult> {
        match self {
            Self::Result(stored) | Self::Error(stored) => Some(stored),
            Self::Unavailable => None,
        }
    }
}

/// What a store holds under a key. One key has one record or none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// CLAIMED: somebody holds, or held, the right to execute.
    Claimed(Claimed),
    /// COMPLETED: the outcome is recorded.
    Completed(Completed),
    /// Does not decode, and says of itself neither a newer schema nor an unknown encoding.
    Garbage,
    /// Written by a newer schema, or with an encoding that this build cannot read.
    Newer,
}

/// A record in state CLAIMED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claimed {
    /// The request that the claim belongs to.
    pub fingerprint: Fingerprint,
    /// The holder's fencing token.
    pub token: ClaimToken,
    /// 1 for a fresh claim, one more for each take-over.
    pub attempt: u32,
    /// When the present holder claimed it.
    pub claimed_at: Timestamp,
    /// The claim lapses when the deciding clock reads this or later.
    pub lease_until: Timestamp,
}

/// A record in state COMPLETED.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completed {
    /// The request that the outcome belongs to.
    pub fingerprint: Fingerprint,
    /// The token of the claim that completed it.
    pub token: ClaimToken,
    /// When it was completed.
    pub completed_at: Timestamp,
    /// The record counts as absent when the deciding clock reads this or later (the stored field `lease_until`).
    pub expires_at: Timestamp,
    /// How the operation ended.
    pub outcome: Outcome,
}

impl Completed {
    /// What a duplicate is told of it when the deciding clock reads `now`.
    #[must_use]
    pub fn seen_at(&self, now: Timestamp) -> CompletedRecord {
        CompletedRecord {
            fingerprint: self.fingerprint,
            outcome: self.outcome.clone(),
            age: now.left_at(self.completed_at),
            expires_in: self.expires_at.left_at(now),
        }
    }
}

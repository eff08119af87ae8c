//! What can go wrong in a store, sorted by what the caller can do about it.

use std::{borrow::Cow, error::Error, fmt, sync::Arc};

use crate::InvalidDuration;

/// What a caller can do about a [`StoreError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum StoreErrorKind {
    /// A retry may help: refused, reset, timed out, throttled, no pool slot, a failover under way.
    Unavailable,
    /// Someone must mend the deployment: a table is missing, access is denied, the schema has another version. The
    /// error's text says which command mends it.
    Misconfigured,
    /// The request itself can never work.
    InvalidArgument,
    /// The result is larger than the store can hold. Nothing was written, and the claim stays.
    ResultTooLarge {
        /// The size of the refused result, in bytes as the store counts them.
        size: u64,
        /// The largest size that the store takes, in bytes.
        max: u64,
    },
    /// The record was written by a newer schema, or with an encoding that this build cannot read. It is left as it is.
    CorruptRecord,
    /// Anything else; the source tells.
    Other,
}

impl fmt::Display for StoreErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unavailable => f.write_str("unavailable"),
            Self::Misconfigured => f.write_str("misconfigured"),
            Self::InvalidArgument => f.write_str("invalid argument"),
            Self::ResultTooLarge { size, max } => write!(f, "result too large: {size} bytes, the store takes {max}"),
            Self::CorruptRecord => f.write_str("corrupt record"),
            Self::Other => f.write_str("failed"),
        }
    }
}

/// Whether the write of a failed operation may have taken effect.
///
/// A timed-out write is *unknown*, never "not applied". Either way the operation may be sent again with the same token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Applied {
    /// Certainly not: the request never left, or the store refused it.
    No,
    /// Perhaps: the acknowledgement is missing.
    Unknown,
}

/// An error of a store: its kind, whether the write may have been applied, and the driver's error as its source.
///
/// Cloning is cheap, so that one failure can be told to many waiters. **For store authors:** neither the detail nor the
/// source's text may contain a raw idempotency key, a password, or a connection string with one.
///
/// ```
/// use idemkit_core::{Applied, StoreError, StoreErrorKind};
///
/// let error = StoreError::new("redis", StoreErrorKind::Unavailable, Applied::Unknown)
///     .with_detail("no answer within 10 s")
///     .with_source(std::io::Error::from(std::io::ErrorKind::TimedOut));
/// assert!(error.is_retryable() && error.may_be_applied());
/// assert_eq!(error.to_string(), "redis: unavailable: no answer within 10 s (the write may have been applied)");
/// ```
#[derive(Clone)]
pub struct StoreError {
    // One pointer, so that the `Result` of every store call stays small.
    inner: Arc<Inner>,
}

#[derive(Clone)]
struct Inner {
    kind: StoreErrorKind,
    store: &'static str,
    applied: Applied,
    detail: Cow<'static, str>,
    source: Option<Arc<dyn Error + Send + Sync>>,
}

impl StoreError {
    /// An error of the store named `store`.
    #[must_use]
    pub fn new(store: &'static str, kind: StoreErrorKind, applied: Applied) -> Self {
        Self { inner: Arc::new(Inner { kind, store, applied, detail: Cow::Borrowed(""), source: None }) }
    }

    /// With a sentence on what happened, or on what mends it.
    #[must_use]
    pub fn with_detail(mut self, detail: impl Into<Cow<'static, str>>) -> Self {
        Arc::make_mut(&mut self.inner).detail = detail.into();
        self
    }

    /// With the driver's own error.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Self {
        Arc::make_mut(&mut self.inner).source = Some(Arc::from(source.into()));
        self
    }

    /// With what became of an earlier try of the same request, or an earlier step of it. Once that is unknown it stays so,
    /// whatever a later one was told.
    #[must_use]
    pub fn with_applied(mut self, applied: Applied) -> Self {
        if applied == Applied::Unknown {
            Arc::make_mut(&mut self.inner).applied = applied;
        }
        self
    }

    /// What the caller can do about it.
    #[must_use]
    pub fn kind(&self) -> StoreErrorKind {
        self.inner.kind
    }

    /// The name of the store, as in its [`Capabilities`](crate::Capabilities).
    #[must_use]
    pub fn store(&self) -> &'static str {
        self.inner.store
    }

    /// Whether sending the same request again, with the same token, may help.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        self.inner.kind == StoreErrorKind::Unavailable
    }

    /// Whether the write may have been applied.
    #[must_use]
    pub fn may_be_applied(&self) -> bool {
        self.inner.applied == Applied::Unknown
    }
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.inner.store, self.inner.kind)?;
        if !self.inner.detail.is_empty() {
            write!(f, ": {}", self.inner.detail)?;
        }
        if self.may_be_applied() {
            f.write_str(" (the write may have been applied)")?;
        }
        Ok(())
    }
}

impl fmt::Debug for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreError")
            .field("store", &self.inner.store)
            .field("kind", &self.inner.kind)
            .field("applied", &self.inner.applied)
            .field("detail", &self.inner.detail)
            .field("source", &self.inner.source)
            .finish()
    }
}

impl Error for StoreError {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.inner.source.as_deref().map(|source| source as &(dyn Error + 'static))
    }
}

impl From<InvalidDuration> for StoreError {
    fn from(invalid: InvalidDuration) -> Self {
        Self::new("idemkit", StoreErrorKind::InvalidArgument, Applied::No)
            .with_source(invalid)
            .with_detail("duration of zero")
    }
}

//! What a store author implements.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idemkit_core::{EffectiveKey, Store};

/// Any error of a factory. It makes the vector fail, with its text.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Opens a store for the suite: the only thing that a store author writes.
///
/// Each vector works in a [namespace](Opening::namespace) of its own, so that all of them run at once on one server,
/// and opens several handles in it, as several processes would.
#[async_trait]
pub trait Factory: Send + Sync + 'static {
    /// Opens a handle on the records of `opening`'s namespace: a new one each time, with connections and notices of its
    /// own where the store has any. Handles on one namespace see the same records, and handles on different ones never
    /// each other's.
    ///
    /// What the store needs there, a table for instance, is made here.
    ///
    /// # Errors
    /// Whatever went wrong: the vector fails with it.
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError>;

    /// Puts something under `key` that this build cannot read, whatever was there: past the store, with the driver
    /// alone.
    ///
    /// A factory that cannot says why ([`Spoiled::Impossible`]); the vectors that need it are then *not applicable*,
    /// with that reason in the report.
    ///
    /// # Errors
    /// Whatever went wrong: the vector fails with it.
    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError>;

    /// Removes all that was made in `namespace`. Called when a vector has passed; what a failed one needs for its
    /// explanation stays.
    ///
    /// # Errors
    /// Whatever went wrong: the vector fails with it.
    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError>;
}

/// Which handle a [`Factory`] shall open.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Opening {
    namespace: String,
    clock_ahead_by: Duration,
    clock_behind_by: Duration,
    grace: Option<Duration>,
}

impl Opening {
    /// A handle on `namespace`, of a host whose clock is right.
    pub(crate) fn new(namespace: String) -> Self {
        Self { namespace, clock_ahead_by: Duration::ZERO, clock_behind_by: Duration::ZERO, grace: None }
    }

    pub(crate) fn ahead_by(mut self, skew: Duration) -> Self {
        self.clock_ahead_by = skew;
        self
    }

    pub(crate) fn behind_by(mut self, skew: Duration) -> Self {
        self.clock_behind_by = skew;
        self
    }

    pub(crate) fn with_grace(mut self, grace: Duration) -> Self {
        self.grace = Some(grace);
        self
    }

    /// Where the handle's records live: at most 40 lower-case letters, digits and underscores, beginning with a letter.
    /// Fit for the name of a table, or for a part of a key.
    #[must_use]
    pub fn namespace(&self) -> &str {
        &self.namespace
    }

    /// How far ahead of the present the clock of the handle's host shall be. A store that never asks the host for the
    /// time of day has no use for this; any other must be given a clock that is so wrong, or the suite cannot tell
    /// whether its [declared clock](idemkit_core::DecidingClock) is the one that decides.
    #[must_use]
    pub fn clock_ahead_by(&self) -> Duration {
        self.clock_ahead_by
    }

    /// How far behind the present the clock of the handle's host shall be; see
    /// [`clock_ahead_by`](Self::clock_ahead_by). At most one of the two is not zero.
    #[must_use]
    pub fn clock_behind_by(&self) -> Duration {
        self.clock_behind_by
    }

    /// How much longer than its lease the handle shall keep a claim's record, where the store can be told (rule C7); nothing
    /// where its default of a minute or so is right. Short ones show whether what reaps goes by the lease that was
    /// renewed.
    #[must_use]
    pub fn grace(&self) -> Option<Duration> {
        self.grace
    }
}

/// What [`Factory::spoil`] shall put there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Spoil {
    /// A record that does not decode: a state that does not exist, say. It must not look like a newer schema.
    Garbage,
    /// A record of a newer schema: `schema_version` 2 or more, otherwise as the store likes.
    NewerSchema,
    /// A completed record, far from its expiry, with a `body_encoding` that does not exist.
    UnknownEncoding,
}

/// Whether it was done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spoiled {
    /// It is there.
    Done,
    /// The store has no such thing, for this reason.
    Impossible(&'static str),
}

//! What is asked of a store, and what it answers. Only durations cross, never points in time.

use std::time::Duration;

use crate::{ClaimToken, Fingerprint, Outcome, Ttl};

/// Asks for the right to execute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Claim {
    /// Drawn by the caller for this claim; the same one when the request is sent again.
    pub token: ClaimToken,
    /// The request that the claim is for.
    pub fingerprint: Fingerprint,
    /// How long the claim holds without renewal.
    pub lease: Ttl,
}

impl Claim {
    /// A claim of `fingerprint`'s request by the holder of `token`.
    #[must_use]
    pub const fn new(token: ClaimToken, fingerprint: Fingerprint, lease: Ttl) -> Self {
        Self { token, fingerprint, lease }
    }
}

/// Records how the operation ended, if the caller still holds the claim.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Complete {
    /// The token of the claim.
    pub token: ClaimToken,
    /// What to record.
    pub outcome: Outcome,
    /// How long it is replayed, counted from this completion.
    pub expires_after: Ttl,
}

impl Complete {
    /// A completion by the holder of `token`.
    #[must_use]
    pub const fn new(token: ClaimToken, outcome: Outcome, expires_after: Ttl) -> Self {
        Self { token, outcome, expires_after }
    }
}

/// Prolongs the lease, if the caller still holds the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renew {
    /// The token of the claim.
    pub token: ClaimToken,
    /// How long the claim holds from now, unless it already holds longer.
    pub lease: Ttl,
}

impl Renew {
    /// A renewal by the holder of `token`.
    #[must_use]
    pub const fn new(token: ClaimToken, lease: Ttl) -> Self {
        Self { token, lease }
    }
}

/// Gives the claim up, so that the key is vacant at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Release {
    /// The token of the claim.
    pub token: ClaimToken,
}

impl Release {
    /// A release by the holder of `token`.
    #[must_use]
    pub const fn new(token: ClaimToken) -> Self {
        Self { token }
    }
}

/// Reads a key without changing it: what a waiter does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Look;

/// The answer to [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ClaimOutcome {
    /// The caller holds the claim.
    Acquired(Acquired),
    /// Another holds it.
    InFlight(InFlight),
    /// The key belongs to another request, whose holder lapsed. Nothing was changed.
    Mismatch,
    /// The operation is done.
    Completed(CompletedRecord),
}

/// How a claim came about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ClaimKind {
    /// Nobody held the key.
    Fresh,
    /// Taken over from a holder that lapsed: its effect may have happened.
    Reclaimed,
    /// The record did not decode and was replaced: what happened before is unknown.
    Recovered,
}

/// A claim that the caller holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquired {
    /// How it came about.
    pub kind: ClaimKind,
    /// 1 for a fresh claim, one more each time a lapsed claim is taken over.
    pub attempt: u32,
    /// How long the lease holds. The caller counts from the moment it first sent the request, on its monotonic clock.
    pub lease_left: Duration,
}

/// A claim that another holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The holder's request: compare it with [`Fingerprint::matches`].
    pub fingerprint: Fingerprint,
    /// The holder's attempt.
    pub attempt: u32,
    /// How long until the claim could be taken over, if it is not renewed.
    pub lease_left: Duration,
}

/// A completed operation, as a duplicate sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompletedRecord {
    /// The request that was completed: compare it with [`Fingerprint::matches`] before anything is replayed.
    pub fingerprint: Fingerprint,
    /// How it ended.
    pub outcome: Outcome,
    /// How long ago it was completed.
    pub age: Duration,
    /// How much longer it is replayed.
    pub expires_in: Duration,
}

/// The answer to [`Complete`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompleteOutcome {
    /// The outcome is recorded: by this request, or by an earlier one with the same token.
    Applied,
    /// The caller no longer holds the claim. Nothing was changed.
    Fenced,
}

/// The answer to [`Renew`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenewOutcome {
    /// The claim holds.
    Renewed {
        /// For how long. The caller counts from the moment it first sent the request, on its monotonic clock.
        lease_left: Duration,
    },
    /// The caller's own completion has been recorded: there is nothing to renew.
    Completed,
    /// The caller no longer holds the claim. Nothing was changed.
    Fenced,
}

/// The answer to [`Release`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReleaseOutcome {
    /// The record is gone.
    Applied,
    /// There was no claim of this token. That is no failure.
    NotHeld,
}

/// The answer to [`Look`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The operation is done.
    Completed(CompletedRecord),
    /// Released, lapsed, expired or absent: go and claim.
    Vacant,
    /// Held, for at least this long if it is not renewed.
    Held {
        /// How long until the claim could be taken over, if it is not renewed.
        lease_left: Duration,
    },
}

/// How a wait ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WaitOutcome {
    /// The operation is done.
    Completed(CompletedRecord),
    /// Released, lapsed, expired or absent: go and claim.
    Vacant,
    /// The claim was held for the whole time-out.
    TimedOut {
        /// How long until it could be taken over, if it is not renewed, as far as the last look knows; nothing where no look
        /// could be had in all the time.
        lease_left: Option<Duration>,
    },
}

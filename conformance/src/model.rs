//! The transition rules as the suite asks them: the same requests as a store gets, and answers without the times.

use std::{fmt, time::Duration};

use idemkit_core::{
    Acquired, Claim, ClaimOutcome, Complete, CompleteOutcome, CompletedRecord, EffectiveKey, InFlight, Record, Release,
    ReleaseOutcome, Renew, RenewOutcome, Store, StoreError, StoreErrorKind, Timestamp,
    machine::{Request, Rules, Write, step},
};

/// How long an operation may take that concerns no lease.
const DEADLINE: Duration = Duration::from_secs(10);

/// A request to a store.
#[derive(Clone, PartialEq, Eq)]
pub(crate) enum Op {
    Claim(Claim),
    Complete(Complete),
    Renew(Renew),
    Release(Release),
}

/// What it answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Claim(ClaimOutcome),
    Complete(CompleteOutcome),
    Renew(RenewOutcome),
    Release(ReleaseOutcome),
    Error(StoreErrorKind),
}

impl Op {
    /// Asks the store.
    pub(crate) async fn send(&self, store: &dyn Store, key: &EffectiveKey) -> Result<Reply, StoreError> {
        Ok(match self {
            Self::Claim(claim) => Reply::Claim(store.claim(key, claim).await?),
            Self::Complete(complete) => Reply::Complete(store.complete(key, complete).await?),
            Self::Renew(renew) => Reply::Renew(store.renew(key, renew).await?),
            Self::Release(release) => Reply::Release(store.release(key, release).await?),
        })
    }

    /// How long a store may take over it, where nothing else is set: never longer than the lease that it concerns.
    pub(crate) fn may_take(&self) -> Duration {
        match self {
            Self::Claim(Claim { lease, .. }) | Self::Renew(Renew { lease, .. }) => lease.as_duration().min(DEADLINE),
            Self::Complete(_) | Self::Release(_) => DEADLINE,
        }
    }
}

impl fmt::Debug for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Claim(claim) => claim.fmt(f),
            Self::Complete(complete) => complete.fmt(f),
            Self::Renew(renew) => renew.fmt(f),
            Self::Release(release) => release.fmt(f),
        }
    }
}

impl Reply {
    /// The same answer as it is compared: durations depend on the moment, and have vectors of their own.
    pub(crate) fn without_times(self) -> Self {
        let lease_left = Duration::ZERO;
        match self {
            Self::Claim(ClaimOutcome::Acquired(acquired)) => {
                Self::Claim(ClaimOutcome::Acquired(Acquired { lease_left, ..acquired }))
            }
            Self::Claim(ClaimOutcome::InFlight(held)) => {
                Self::Claim(ClaimOutcome::InFlight(InFlight { lease_left, ..held }))
            }
            Self::Claim(ClaimOutcome::Completed(record)) => Self::Claim(ClaimOutcome::Completed(CompletedRecord {
                age: Duration::ZERO,
                expires_in: Duration::ZERO,
                ..record
            })),
            Self::Renew(RenewOutcome::Renewed { .. }) => Self::Renew(RenewOutcome::Renewed { lease_left }),
            Self::Claim(ClaimOutcome::Mismatch)
            | Self::Complete(_)
            | Self::Renew(RenewOutcome::Completed | RenewOutcome::Fenced)
            | Self::Release(_)
            | Self::Error(_) => self,
        }
    }
}

/// One key, as the rules have it.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    pub(crate) record: Option<Record>,
    pub(crate) now: Timestamp,
    rules: Rules,
}

impl Model {
    pub(crate) fn new(take_over_margin: Duration) -> Self {
        Self { record: None, now: Timestamp::from_millis(1), rules: Rules { take_over_margin } }
    }

    /// What the rules answer, having written what they write.
    pub(crate) fn apply(&mut self, op: &Op) -> Reply {
        let reply = match op {
            Op::Claim(claim) => self.step(claim, Reply::Claim),
            Op::Complete(complete) => self.step(complete, Reply::Complete),
            Op::Renew(renew) => self.step(renew, Reply::Renew),
            Op::Release(release) => self.step(release, Reply::Release),
        };
        reply.without_times()
    }

    fn step<R: Request>(&mut self, request: &R, told: fn(R::Answer) -> Reply) -> Reply {
        let step = step(self.record.as_ref(), request, self.now, self.rules);
        match step.write {
            Write::Nothing => {}
            Write::Put(record) => self.record = Some(record),
            Write::Delete => self.record = None,
        }
        step.answer.map_or(Reply::Error(StoreErrorKind::CorruptRecord), told)
    }
}

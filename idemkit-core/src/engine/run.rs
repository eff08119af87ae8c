//! What `run` gives back.

use std::time::Duration;

use super::{CodecError, Completion, LeaseLoss};
use crate::StoreError;

/// An operation's value, and where it comes from.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Run<T> {
    /// The value: of this call's own execution, or recorded.
    pub value: T,
    /// Where it comes from, and whether it is recorded.
    pub provenance: Provenance,
}

impl<T> Run<T> {
    /// The value alone.
    pub fn into_value(self) -> T {
        self.value
    }

    /// Whether the value was recorded by an earlier execution.
    #[must_use]
    pub fn is_replayed(&self) -> bool {
        matches!(self.provenance, Provenance::Replayed)
    }
}

/// Where a value or an error comes from.
#[derive(Clone, Debug)]
pub enum Provenance {
    /// The operation ran in this call.
    Executed {
        /// Its attempt.
        attempt: u32,
        /// What became of its outcome.
        recording: Recording,
    },
    /// An earlier attempt had already done it, as the reconcile hook found; the operation did not run.
    Reconciled {
        /// The attempt that found it.
        attempt: u32,
        /// What became of its outcome.
        recording: Recording,
    },
    /// It was recorded by an earlier execution; nothing ran.
    Replayed,
    /// The operation ran in this call without protection, since the store was unavailable. Nothing is recorded.
    Unprotected(StoreError),
}

impl Provenance {
    /// The attempt that ran or reconciled the operation in this call; `None` where nothing ran, or nothing was counted.
    #[must_use]
    pub fn attempt(&self) -> Option<u32> {
        match self {
            Self::Executed { attempt, .. } | Self::Reconciled { attempt, .. } => Some(*attempt),
            Self::Replayed | Self::Unprotected(_) => None,
        }
    }
}

/// What became of an outcome.
#[derive(Clone, Debug)]
pub enum Recording {
    /// It is recorded: duplicates get it.
    Recorded,
    /// It is recorded that the operation is done, without a result to replay.
    RecordedUnavailable,
    /// It is not recorded, and the claim is released: a retry may run at once.
    Released,
    /// It is not recorded, and the claim is left to lapse.
    Held,
    /// The operation handed its claim to a transaction, which has recorded it or has not.
    HandedOver,
    /// It could not be recorded for want of storage, and the claim is left to lapse: after that the operation may run
    /// again.
    Failed(StoreError),
}

/// Why `run` has no value to give.
#[derive(Debug, thiserror::Error)]
pub enum RunError<E> {
    /// The operation failed, now or, where the error was recorded as final, earlier.
    #[error("{error}")]
    Operation {
        /// The operation's own error.
        #[source]
        error: E,
        /// Where it comes from, and what became of it.
        provenance: Provenance,
    },
    /// The operation is done, and there is no result to replay. It does not run again.
    #[error("the operation is done, and its result is not available")]
    ResultUnavailable,
    /// The key was used with another request.
    #[error("the idempotency key was used with another request")]
    Mismatch,
    /// The operation is under way elsewhere, and still was when the wait budget ended.
    #[error("the operation is still in progress")]
    InProgress {
        /// How long the present holder's claim holds, if it is not renewed.
        retry_after: Duration,
    },
    /// The store failed or its record cannot be read. The operation did not run.
    #[error("refused, since the store cannot tell whether the operation may run")]
    Refused(#[source] StoreError),
    /// Another took over. The operation was dropped, or its outcome was fenced: what is recorded is the other's.
    #[error("the claim was lost while the operation was running")]
    LeaseLost(LeaseLoss),
    /// The operation ran longer than the policy allows. It was dropped, and the claim is left to lapse.
    #[error("the operation took longer than it may")]
    TimedOut,
    /// The reconcile hook could not tell whether an earlier attempt had its effect. The claim is left to lapse, so that
    /// the next attempt asks again.
    #[error("it is not known whether an earlier attempt had its effect")]
    Unreconciled,
    /// What is recorded is not of this type: an earlier version of the program may have recorded it.
    #[error("the recorded result cannot be decoded")]
    Undecodable(#[source] CodecError),
}

impl<E> RunError<E> {
    /// The operation's own error, where that is what it is: everything else is this library's refusal or loss.
    #[must_use]
    pub fn operation(&self) -> Option<&E> {
        match self {
            Self::Operation { error, .. } => Some(error),
            _ => None,
        }
    }
}

impl Recording {
    /// What became of an outcome by its completion; the loss, where it was fenced.
    pub(super) fn of(completion: Completion) -> Result<Self, LeaseLoss> {
        match completion {
            Completion::Recorded => Ok(Self::Recorded),
            Completion::RecordedUnavailable => Ok(Self::RecordedUnavailable),
            Completion::Released => Ok(Self::Released),
            Completion::Held => Ok(Self::Held),
            Completion::Failed(error) => Ok(Self::Failed(error)),
            Completion::Fenced => Err(LeaseLoss::Fenced),
        }
    }
}

//! The transition rules, as a pure function of (record, request, now): no I/O, no clock, no async.
//!
//! This is the only place where the rules stand as code. [`MemoryStore`](crate::MemoryStore) runs them as they are;
//! every other store expresses the same table in its own language, and is compared with this one.
//!
//! | request | absent | live | lapsed | completed | garbage | newer |
//! |---|---|---|---|---|---|---|
//! | [`Claim`] | write CLAIMED, attempt 1: *fresh* | own token: unchanged, acquired again; other: *in flight* | own token: lease anew, acquired again; other with the same fingerprint: *reclaimed*, attempt + 1; other fingerprint: *mismatch* | *completed*, with the record | replaced: *recovered* | error |
//! | [`Complete`] | fenced | own: write COMPLETED; other: fenced | as live | own: applied, unchanged; other: fenced | fenced | error |
//! | [`Renew`] | fenced | own: the later of the present end and now + lease; other: fenced | as live | own: completed; other: fenced | fenced | error |
//! | [`Release`] | not held | own: delete; other: not held | as live | not held | not held | error |
//! | [`Look`] | vacant | held | vacant | completed | vacant | error |
//!
//! ```
//! use std::time::Duration;
//! use idemkit_core::{Claim, ClaimOutcome, ClaimToken, Fingerprint, Timestamp, Ttl};
//! use idemkit_core::machine::{Rules, Write, step};
//!
//! let claim = Claim::new(ClaimToken::random()?, Fingerprint::of_payload("pay 5"), Ttl::new(Duration::from_secs(30))?);
//! let first = step(None, &claim, Timestamp::from_millis(0), Rules::default());
//! let Write::Put(record) = first.write else { panic!("a fresh claim writes") };
//!
//! let other = Claim::new(ClaimToken::random()?, claim.fingerprint, claim.lease);
//! let second = step(Some(&record), &other, Timestamp::from_millis(29_999), Rules::default());
//! assert!(matches!(second.answer, Ok(ClaimOutcome::InFlight(_))));
//! let third = step(Some(&record), &other, Timestamp::from_millis(30_000), Rules::default());
//! assert!(matches!(third.answer, Ok(ClaimOutcome::Acquired(acquired)) if acquired.attempt == 2));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

use std::time::Duration;

use crate::{
    ATTEMPT_MAX, Acquired, Claim, ClaimKind, ClaimOutcome, Claimed, Complete, CompleteOutcome, Completed, InFlight,
    Look, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Timestamp,
};

/// What a deployment may set about the rules.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// A lapsed claim is taken over only so much later (by default at once), for deployments whose deciding clock can
    /// change.
    pub take_over_margin: Duration,
}

/// What a transition does to the record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Write {
    /// Leaves it exactly as it was.
    Nothing,
    /// Replaces it, or makes it.
    Put(Record),
    /// Removes it.
    Delete,
}

/// A transition: what happens to the record and what the caller is told, in one atomic step.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step<A> {
    /// What happens to the record.
    pub write: Write,
    /// What the caller is told.
    pub answer: Result<A, Unreadable>,
}

/// The record is from a newer schema or in an unknown encoding: it is refused, and left as it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the record was written by a newer version of the library, or in an encoding that this build cannot read")]
pub struct Unreadable;

/// In which condition a record is, seen at a time of the deciding clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition<'r> {
    /// No record, or a completed one that has expired.
    Absent,
    /// Claimed, and the lease runs.
    Live(&'r Claimed),
    /// Claimed, and the lease is over. Its holder holds it until somebody takes it over.
    Lapsed(&'r Claimed),
    /// Completed, and not expired.
    Completed(&'r Completed),
    /// Does not decode.
    Garbage,
    /// From a newer schema, or in an unknown encoding.
    Newer,
}

impl<'r> Condition<'r> {
    /// The condition of `record` when the deciding clock reads `now`. A lease or an expiry is over at its very
    /// millisecond.
    #[must_use]
    pub fn of(record: Option<&'r Record>, now: Timestamp) -> Self {
        match record {
            None => Self::Absent,
            Some(Record::Claimed(claimed)) if now < claimed.lease_until => Self::Live(claimed),
            Some(Record::Claimed(claimed)) => Self::Lapsed(claimed),
            Some(Record::Completed(completed)) if now < completed.expires_at => Self::Completed(completed),
            Some(Record::Completed(_)) => Self::Absent,
            Some(Record::Garbage) => Self::Garbage,
            Some(Record::Newer) => Self::Newer,
        }
    }
}

/// A request that the rules know: [`Claim`], [`Complete`], [`Renew`], [`Release`] and [`Look`].
pub trait Request: sealed::Sealed {
    /// What the caller is told.
    type Answer;

    /// One column of the table for each condition. Use [`step`].
    #[doc(hidden)]
    fn apply(&self, condition: Condition<'_>, now: Timestamp, rules: Rules) -> Step<Self::Answer>;
}

mod sealed {
    pub trait Sealed {}
    impl Sealed for crate::Claim {}
    impl Sealed for crate::Complete {}
    impl Sealed for crate::Renew {}
    impl Sealed for crate::Release {}
    impl Sealed for crate::Look {}
}

/// The rules: what `request` does to `record` when the deciding clock reads `now`.
///
/// Pure and total: it never fails, never blocks and never panics. Atomicity is the store's part: nothing may change the
/// record between the read that gave `record` and the write of [`Step::write`].
#[must_use]
pub fn step<R: Request>(record: Option<&Record>, request: &R, now: Timestamp, rules: Rules) -> Step<R::Answer> {
    request.apply(Condition::of(record, now), now, rules)
}

impl Request for Claim {
    type Answer = ClaimOutcome;

    fn apply(&self, condition: Condition<'_>, now: Timestamp, rules: Rules) -> Step<ClaimOutcome> {
        match condition {
            Condition::Absent => self.acquire(ClaimKind::Fresh, 1, now),
            Condition::Live(held) if held.token == self.token => {
                unchanged(ClaimOutcome::Acquired(acquired_again(held, held.lease_until.left_at(now))))
            }
            Condition::Live(held) => unchanged(in_flight(held, now, rules)),
            Condition::Lapsed(held) if held.token == self.token => {
                let lease_until = now.after(self.lease);
                let answer = ClaimOutcome::Acquired(acquired_again(held, lease_until.left_at(now)));
                put(Record::Claimed(Claimed { lease_until, ..held.clone() }), answer)
            }
            // A lapsed claim belongs to its request.
            Condition::Lapsed(held) if !held.fingerprint.matches(&self.fingerprint) => {
                unchanged(ClaimOutcome::Mismatch)
            }
            Condition::Lapsed(held) if now < take_over_at(held, rules) => unchanged(in_flight(held, now, rules)),
            Condition::Lapsed(held) => {
                self.acquire(ClaimKind::Reclaimed, held.attempt.saturating_add(1).min(ATTEMPT_MAX), now)
            }
            Condition::Completed(completed) => unchanged(ClaimOutcome::Completed(completed.seen_at(now))),
            Condition::Garbage => self.acquire(ClaimKind::Recovered, 1, now),
            Condition::Newer => unreadable(),
        }
    }
}

impl Claim {
    fn acquire(&self, kind: ClaimKind, attempt: u32, now: Timestamp) -> Step<ClaimOutcome> {
        let lease_until = now.after(self.lease);
        let claimed =
            Claimed { fingerprint: self.fingerprint, token: self.token, attempt, claimed_at: now, lease_until };
        let answer = Acquired { kind, attempt, lease_left: lease_until.left_at(now) };
        put(Record::Claimed(claimed), ClaimOutcome::Acquired(answer))
    }
}

impl Request for Complete {
    type Answer = CompleteOutcome;

    fn apply(&self, condition: Condition<'_>, now: Timestamp, _: Rules) -> Step<CompleteOutcome> {
        match condition {
            Condition::Live(held) | Condition::Lapsed(held) if held.token == self.token => {
                let completed = Completed {
                    fingerprint: held.fingerprint,
                    token: held.token,
                    completed_at: now,
                    expires_at: now.after(self.expires_after),
                    outcome: self.outcome.clone(),
                };
                put(Record::Completed(completed), CompleteOutcome::Applied)
            }
            Condition::Completed(completed) if completed.token == self.token => unchanged(CompleteOutcome::Applied),
            Condition::Newer => unreadable(),
            Condition::Absent
            | Condition::Live(_)
            | Condition::Lapsed(_)
            | Condition::Completed(_)
            | Condition::Garbage => unchanged(CompleteOutcome::Fenced),
        }
    }
}

impl Request for Renew {
    type Answer = RenewOutcome;

    fn apply(&self, condition: Condition<'_>, now: Timestamp, _: Rules) -> Step<RenewOutcome> {
        match condition {
            Condition::Live(held) | Condition::Lapsed(held) if held.token == self.token => {
                let lease_until = held.lease_until.max(now.after(self.lease));
                let answer = RenewOutcome::Renewed { lease_left: lease_until.left_at(now) };
                put(Record::Claimed(Claimed { lease_until, ..held.clone() }), answer)
            }
            Condition::Completed(completed) if completed.token == self.token => unchanged(RenewOutcome::Completed),
            Condition::Newer => unreadable(),
            Condition::Absent
            | Condition::Live(_)
            | Condition::Lapsed(_)
            | Condition::Completed(_)
            | Condition::Garbage => unchanged(RenewOutcome::Fenced),
        }
    }
}

impl Request for Release {
    type Answer = ReleaseOutcome;

    fn apply(&self, condition: Condition<'_>, _: Timestamp, _: Rules) -> Step<ReleaseOutcome> {
        match condition {
            Condition::Live(held) | Condition::Lapsed(held) if held.token == self.token => {
                Step { write: Write::Delete, answer: Ok(ReleaseOutcome::Applied) }
            }
            Condition::Newer => unreadable(),
            Condition::Absent
            | Condition::Live(_)
            | Condition::Lapsed(_)
            | Condition::Completed(_)
            | Condition::Garbage => unchanged(ReleaseOutcome::NotHeld),
        }
    }
}

impl Request for Look {
    type Answer = Sight;

    fn apply(&self, condition: Condition<'_>, now: Timestamp, rules: Rules) -> Step<Sight> {
        match condition {
            Condition::Live(held) | Condition::Lapsed(held) if now < take_over_at(held, rules) => {
                unchanged(Sight::Held { lease_left: take_over_at(held, rules).left_at(now) })
            }
            Condition::Completed(completed) => unchanged(Sight::Completed(completed.seen_at(now))),
            Condition::Newer => unreadable(),
            // The claim that follows tells what a vacant key is.
            Condition::Absent | Condition::Live(_) | Condition::Lapsed(_) | Condition::Garbage => {
                unchanged(Sight::Vacant)
            }
        }
    }
}

fn take_over_at(held: &Claimed, rules: Rules) -> Timestamp {
    held.lease_until.saturating_add(rules.take_over_margin)
}

fn in_flight(held: &Claimed, now: Timestamp, rules: Rules) -> ClaimOutcome {
    let lease_left = take_over_at(held, rules).left_at(now);
    ClaimOutcome::InFlight(InFlight { fingerprint: held.fingerprint, attempt: held.attempt, lease_left })
}

fn acquired_again(held: &Claimed, lease_left: Duration) -> Acquired {
    let kind = if held.attempt == 1 { ClaimKind::Fresh } else { ClaimKind::Reclaimed };
    Acquired { kind, attempt: held.attempt, lease_left }
}

fn put<A>(record: Record, answer: A) -> Step<A> {
    Step { write: Write::Put(record), answer: Ok(answer) }
}

fn unchanged<A>(answer: A) -> Step<A> {
    Step { write: Write::Nothing, answer: Ok(answer) }
}

fn unreadable<A>() -> Step<A> {
    Step { write: Write::Nothing, answer: Err(Unreadable) }
}

#[cfg(test)]
mod exploration;
#[cfg(test)]
mod properties;
#[cfg(test)]
mod tests;

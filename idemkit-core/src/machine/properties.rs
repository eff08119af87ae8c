//! What holds over any sequence of requests, checked on the rules, and on rules that are broken on purpose: each of
//! those must be caught.

use std::time::Duration;

use proptest::{
    prelude::*,
    test_runner::{Config, TestCaseError, TestError, TestRunner},
};

use super::{Condition, Rules, Write, step};
use crate::{
    Claim, ClaimKind, ClaimOutcome, ClaimToken, Claimed, Complete, CompleteOutcome, Completed, Fingerprint, Outcome,
    Record, Release, ReleaseOutcome, Renew, RenewOutcome, StoredResult, Timestamp, Ttl,
};

/// A request of one of a few actors, in a world of a few milliseconds, so that everything meets everything.
#[derive(Clone, Debug)]
pub(super) enum Request {
    Claim(Claim),
    Complete(Complete),
    Renew(Renew),
    Release(Release),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Answer {
    Claim(ClaimOutcome),
    Complete(CompleteOutcome),
    Renew(RenewOutcome),
    Release(ReleaseOutcome),
    Unreadable,
}

impl Request {
    pub(super) fn token(&self) -> ClaimToken {
        match self {
            Self::Claim(claim) => claim.token,
            Self::Complete(complete) => complete.token,
            Self::Renew(renew) => renew.token,
            Self::Release(release) => release.token,
        }
    }
}

/// Rules as a function that the checks can be run on.
pub(super) type Transition = fn(Option<&Record>, &Request, Timestamp) -> (Write, Answer);

pub(super) fn sound(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
    fn told<A>(step: super::Step<A>, answer: fn(A) -> Answer) -> (Write, Answer) {
        (step.write, step.answer.map_or(Answer::Unreadable, answer))
    }
    let rules = Rules::default();
    match request {
        Request::Claim(claim) => told(step(record, claim, now, rules), Answer::Claim),
        Request::Complete(complete) => told(step(record, complete, now, rules), Answer::Complete),
        Request::Renew(renew) => told(step(record, renew, now, rules), Answer::Renew),
        Request::Release(release) => told(step(record, release, now, rules), Answer::Release),
    }
}

fn token(actor: u8) -> ClaimToken {
    ClaimToken::from_bytes([actor; 16])
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap_or(Ttl::MIN)
}

fn request() -> impl Strategy<Value = Request> {
    let fingerprint = (1..=3_u32, 0..2_u8).prop_map(|(version, hash)| {
        // Two known requests, and one of a version that is not known.
        Fingerprint::from_stored(if version == 3 { 99 } else { 1 }, [hash; 32])
    });
    let claim = (1..=3_u8, fingerprint, 1..6_u64)
        .prop_map(|(actor, fingerprint, lease)| Request::Claim(Claim::new(token(actor), fingerprint, ttl(lease))));
    let complete = (1..=3_u8, any::<u16>(), 1..6_u64).prop_map(|(actor, status, expiry)| {
        Request::Complete(Complete::new(token(actor), Outcome::Result(StoredResult::new(status, "")), ttl(expiry)))
    });
    let renew = (1..=3_u8, 1..6_u64).prop_map(|(actor, lease)| Request::Renew(Renew::new(token(actor), ttl(lease))));
    let release = (1..=3_u8).prop_map(|actor| Request::Release(Release::new(token(actor))));
    prop_oneof![4 => claim, 2 => complete, 2 => renew, 1 => release]
}

fn history() -> impl Strategy<Value = (Option<Record>, Vec<(u64, Request)>)> {
    let first = prop_oneof![8 => Just(None), 1 => Just(Some(Record::Garbage)), 1 => Just(Some(Record::Newer))];
    // Time stands still, or goes on for up to a lease.
    (first, prop::collection::vec((0..4_u64, request()), 1..40))
}

/// Runs a history and checks each step.
fn check(transition: Transition, first: Option<Record>, history: Vec<(u64, Request)>) -> Result<(), TestCaseError> {
    let (mut record, mut now) = (first, 0);
    for (pause, request) in history {
        now += pause;
        let at = Timestamp::from_millis(now);
        let (write, answer) = transition(record.as_ref(), &request, at);
        let before = record.clone();
        match write {
            Write::Nothing => {}
            Write::Put(put) => record = Some(put),
            Write::Delete => record = None,
        }
        check_step(before.as_ref(), &request, at, &answer, record.as_ref())?;
    }
    Ok(())
}

fn check_step(
    before: Option<&Record>,
    request: &Request,
    now: Timestamp,
    answer: &Answer,
    after: Option<&Record>,
) -> Result<(), TestCaseError> {
    let own = |record: Option<&Record>| match record {
        Some(Record::Claimed(claimed)) => claimed.token == request.token(),
        Some(Record::Completed(completed)) => completed.token == request.token(),
        _ => false,
    };
    let seen = Condition::of(before, now);
    // At most one holder: what one holds, another neither takes nor ends while its lease runs.
    if let Condition::Live(held) = seen
        && !own(before)
    {
        prop_assert_eq!(after, before, "a live claim of {:?} was changed by another", held.token);
        prop_assert!(!matches!(answer, Answer::Claim(ClaimOutcome::Acquired(_))), "two holders");
    }
    // A completed result never changes before its expiry, and a newer record never.
    if matches!(seen, Condition::Completed(_) | Condition::Newer) {
        prop_assert_eq!(after, before, "a completed or newer record was changed");
    }
    // A refused call changes nothing.
    let refused = matches!(
        answer,
        Answer::Claim(ClaimOutcome::InFlight(_) | ClaimOutcome::Mismatch | ClaimOutcome::Completed(_))
            | Answer::Complete(CompleteOutcome::Fenced)
            | Answer::Renew(RenewOutcome::Fenced | RenewOutcome::Completed)
            | Answer::Release(ReleaseOutcome::NotHeld)
            | Answer::Unreadable
    );
    if refused {
        prop_assert_eq!(after, before, "a refused call changed the record");
    }
    if let (Some(Record::Claimed(was)), Some(Record::Claimed(is))) = (before, after) {
        check_claim_goes_on(was, is, answer)?;
    }
    if let (Answer::Claim(ClaimOutcome::Acquired(acquired)), Some(Record::Claimed(is))) = (answer, after) {
        prop_assert_eq!(is.token, request.token());
        prop_assert_eq!(acquired.attempt, is.attempt);
        prop_assert_eq!(acquired.lease_left, is.lease_until.left_at(now), "the lease told is not the lease written");
    }
    check_own_repeat(seen, own(before), request, answer)?;
    if let Answer::Complete(CompleteOutcome::Applied) = answer {
        prop_assert!(own(after), "applied, and another's record stands");
    }
    Ok(())
}

/// Within one claim's life attempts only grow, by one for each take-over, and no lease is lowered by its holder.
fn check_claim_goes_on(was: &Claimed, is: &Claimed, answer: &Answer) -> Result<(), TestCaseError> {
    if was.token == is.token {
        prop_assert_eq!(was.attempt, is.attempt);
        prop_assert!(was.lease_until <= is.lease_until, "a lease was lowered");
        prop_assert_eq!(was.fingerprint, is.fingerprint);
    } else {
        prop_assert_eq!(is.attempt, was.attempt + 1, "a take-over counts one attempt");
        prop_assert!(was.fingerprint.matches(&is.fingerprint), "taken over by another request");
        let told =
            matches!(answer, Answer::Claim(ClaimOutcome::Acquired(acquired)) if acquired.kind == ClaimKind::Reclaimed);
        prop_assert!(told, "a take-over was not told as one");
    }
    Ok(())
}

/// A repeat with the token that is in the record succeeds.
fn check_own_repeat(seen: Condition<'_>, own: bool, request: &Request, answer: &Answer) -> Result<(), TestCaseError> {
    if !own {
        return Ok(());
    }
    let succeeded = match (seen, request) {
        (Condition::Live(_) | Condition::Lapsed(_), _) => matches!(
            answer,
            Answer::Claim(ClaimOutcome::Acquired(_))
                | Answer::Complete(CompleteOutcome::Applied)
                | Answer::Renew(RenewOutcome::Renewed { .. })
                | Answer::Release(ReleaseOutcome::Applied)
        ),
        (Condition::Completed(_), Request::Complete(_)) => *answer == Answer::Complete(CompleteOutcome::Applied),
        (Condition::Completed(_), Request::Renew(_)) => *answer == Answer::Renew(RenewOutcome::Completed),
        _ => true,
    };
    prop_assert!(succeeded, "{:?} was answered {:?} to the holder itself", request, answer);
    Ok(())
}

fn run(transition: Transition) -> Result<(), String> {
    let mut runner = TestRunner::new(Config { cases: 4_096, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&history(), |(first, history)| check(transition, first, history));
    checked.map_err(|error| match error {
        TestError::Fail(reason, history) => format!("{reason}: {history:?}"),
        TestError::Abort(reason) => reason.to_string(),
    })
}

#[test]
fn the_rules_keep_their_promises_over_any_history() {
    run(sound).unwrap();
}

/// Rules that are sound but for one thing.
mod broken {
    use super::*;

    /// Whoever completes, completes.
    pub(super) fn unfenced_completion(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Live(held) | Condition::Lapsed(held), Request::Complete(complete)) => {
                let complete = Request::Complete(Complete { token: held.token, ..complete.clone() });
                sound(record, &complete, now)
            }
            _ => sound(record, request, now),
        }
    }

    pub(super) fn unfenced_renewal(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Live(held), Request::Renew(renew)) => {
                sound(record, &Request::Renew(Renew { token: held.token, ..*renew }), now)
            }
            _ => sound(record, request, now),
        }
    }

    pub(super) fn unfenced_release(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Live(_), Request::Release(_)) => (Write::Delete, Answer::Release(ReleaseOutcome::Applied)),
            _ => sound(record, request, now),
        }
    }

    pub(super) fn renewal_lowers(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (sound(record, request, now), request) {
            ((Write::Put(Record::Claimed(claimed)), Answer::Renew(_)), Request::Renew(renew)) => {
                let lease_until = now.after(renew.lease);
                let answer = RenewOutcome::Renewed { lease_left: lease_until.left_at(now) };
                (Write::Put(Record::Claimed(Claimed { lease_until, ..claimed })), Answer::Renew(answer))
            }
            (step, _) => step,
        }
    }

    /// A lease ends a millisecond early.
    pub(super) fn early_lapse(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (record, request) {
            (Some(Record::Claimed(claimed)), Request::Claim(claim)) if claim.token != claimed.token => {
                let early = Timestamp::from_millis(claimed.lease_until.as_millis().saturating_sub(1));
                sound(Some(&Record::Claimed(Claimed { lease_until: early, ..claimed.clone() })), request, now)
            }
            _ => sound(record, request, now),
        }
    }

    /// A lapsed claim is anybody's.
    pub(super) fn any_request_takes_over(
        record: Option<&Record>,
        request: &Request,
        now: Timestamp,
    ) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Lapsed(held), Request::Claim(claim)) if held.token != claim.token => {
                let same = Record::Claimed(Claimed { fingerprint: claim.fingerprint, ..held.clone() });
                sound(Some(&same), request, now)
            }
            _ => sound(record, request, now),
        }
    }

    pub(super) fn completed_is_overwritten(
        record: Option<&Record>,
        request: &Request,
        now: Timestamp,
    ) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Completed(completed), Request::Complete(complete)) if completed.token == complete.token => {
                let again = Completed { outcome: complete.outcome.clone(), ..completed.clone() };
                (Write::Put(Record::Completed(again)), Answer::Complete(CompleteOutcome::Applied))
            }
            _ => sound(record, request, now),
        }
    }

    /// A retry after a lost acknowledgement is told that somebody else holds the key.
    pub(super) fn own_repeat_refused(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request) {
            (Condition::Live(held), Request::Claim(claim)) if held.token == claim.token => {
                sound(record, &Request::Claim(Claim { token: token(9), ..*claim }), now)
            }
            _ => sound(record, request, now),
        }
    }

    pub(super) fn attempt_not_counted(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request, sound(record, request, now)) {
            (Condition::Lapsed(held), Request::Claim(_), (Write::Put(Record::Claimed(claimed)), answer)) => {
                (Write::Put(Record::Claimed(Claimed { attempt: held.attempt, ..claimed })), answer)
            }
            (_, _, step) => step,
        }
    }

    pub(super) fn reading_prolongs(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (Condition::of(record, now), request, sound(record, request, now)) {
            (Condition::Completed(completed), Request::Claim(_), (_, answer)) => {
                let expires_at = completed.expires_at.after(Ttl::MIN);
                (Write::Put(Record::Completed(Completed { expires_at, ..completed.clone() })), answer)
            }
            (_, _, step) => step,
        }
    }

    pub(super) fn newer_is_replaced(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match record {
            Some(Record::Newer) => sound(Some(&Record::Garbage), request, now),
            _ => sound(record, request, now),
        }
    }
}

#[rstest::rstest]
#[case::unfenced_completion(broken::unfenced_completion)]
#[case::unfenced_renewal(broken::unfenced_renewal)]
#[case::unfenced_release(broken::unfenced_release)]
#[case::renewal_lowers(broken::renewal_lowers)]
#[case::early_lapse(broken::early_lapse)]
#[case::any_request_takes_over(broken::any_request_takes_over)]
#[case::completed_is_overwritten(broken::completed_is_overwritten)]
#[case::own_repeat_refused(broken::own_repeat_refused)]
#[case::attempt_not_counted(broken::attempt_not_counted)]
#[case::reading_prolongs(broken::reading_prolongs)]
#[case::newer_is_replaced(broken::newer_is_replaced)]
fn broken_rules_are_caught(#[case] transition: Transition) {
    run(transition).expect_err("these rules are broken, and no history shows it");
}

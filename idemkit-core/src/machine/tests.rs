//! Every cell of the table, as a case of its own.

use std::time::Duration;

use rstest::rstest;

use super::{Rules, Unreadable, Write, step};
use crate::{
    ATTEMPT_MAX, Acquired, Claim, ClaimKind, ClaimOutcome, ClaimToken, Claimed, Complete, CompleteOutcome, Completed,
    CompletedRecord, Fingerprint, InFlight, Look, Outcome, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight,
    StoredResult, Timestamp, Ttl,
};

const NOW: Timestamp = Timestamp::from_millis(1_000_000);
const OWN: ClaimToken = ClaimToken::from_bytes([1; 16]);
const OTHER: ClaimToken = ClaimToken::from_bytes([2; 16]);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(ms(millis)).unwrap()
}

/// `NOW` and so many milliseconds, which may be negative.
fn at(offset: i64) -> Timestamp {
    Timestamp::from_millis(NOW.as_millis().checked_add_signed(offset).unwrap())
}

fn request() -> Fingerprint {
    Fingerprint::of_payload("5 EUR")
}

fn other_request() -> Fingerprint {
    Fingerprint::of_payload("6 EUR")
}

fn outcome(body: &'static str) -> Outcome {
    Outcome::Result(StoredResult::new(200, body).with_header("x", "y"))
}

/// A claim of `OWN` that is on its third attempt.
fn claimed(lease_until: i64) -> Claimed {
    Claimed { fingerprint: request(), token: OWN, attempt: 3, claimed_at: at(-500), lease_until: at(lease_until) }
}

fn completed(expires_at: i64) -> Completed {
    Completed {
        fingerprint: request(),
        token: OWN,
        completed_at: at(-300),
        expires_at: at(expires_at),
        outcome: outcome("done"),
    }
}

/// The conditions of the table. The lease or expiry of a record that still counts has 7 ms left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Seen {
    Nothing,
    Expired,
    Live,
    Lapsed,
    Completed,
    Garbage,
    Newer,
}

impl Seen {
    fn record(self) -> Option<Record> {
        match self {
            Self::Nothing => None,
            Self::Expired => Some(Record::Completed(completed(0))),
            Self::Live => Some(Record::Claimed(claimed(7))),
            Self::Lapsed => Some(Record::Claimed(claimed(0))),
            Self::Completed => Some(Record::Completed(completed(7))),
            Self::Garbage => Some(Record::Garbage),
            Self::Newer => Some(Record::Newer),
        }
    }
}

fn acquired(kind: ClaimKind, attempt: u32, left_ms: u64) -> Result<ClaimOutcome, Unreadable> {
    Ok(ClaimOutcome::Acquired(Acquired { kind, attempt, lease_left: ms(left_ms) }))
}

fn in_flight(left_ms: u64) -> Result<ClaimOutcome, Unreadable> {
    Ok(ClaimOutcome::InFlight(InFlight { fingerprint: request(), attempt: 3, lease_left: ms(left_ms) }))
}

fn recorded() -> CompletedRecord {
    CompletedRecord { fingerprint: request(), outcome: outcome("done"), age: ms(300), expires_in: ms(7) }
}

/// A claim of `token` for 50 ms from now, as it stands in the record.
fn put(token: ClaimToken, fingerprint: Fingerprint, attempt: u32) -> Write {
    Write::Put(Record::Claimed(Claimed { fingerprint, token, attempt, claimed_at: NOW, lease_until: at(50) }))
}

/// `OWN`'s claim with another lease.
fn put_lease(lease_until: i64) -> Write {
    Write::Put(Record::Claimed(claimed(lease_until)))
}

#[rstest]
#[case::absent(Seen::Nothing, OTHER, request(), put(OTHER, request(), 1), acquired(ClaimKind::Fresh, 1, 50))]
#[case::absent_since_expired(
    Seen::Expired,
    OTHER,
    request(),
    put(OTHER, request(), 1),
    acquired(ClaimKind::Fresh, 1, 50)
)]
#[case::expired_other_request(
    Seen::Expired,
    OTHER,
    other_request(),
    put(OTHER, other_request(), 1),
    acquired(ClaimKind::Fresh, 1, 50)
)]
#[case::expired_own_token(Seen::Expired, OWN, request(), put(OWN, request(), 1), acquired(ClaimKind::Fresh, 1, 50))]
#[case::live_own(Seen::Live, OWN, request(), Write::Nothing, acquired(ClaimKind::Reclaimed, 3, 7))]
#[case::live_other(Seen::Live, OTHER, request(), Write::Nothing, in_flight(7))]
#[case::live_other_request(Seen::Live, OTHER, other_request(), Write::Nothing, in_flight(7))]
#[case::lapsed_own(Seen::Lapsed, OWN, request(), put_lease(50), acquired(ClaimKind::Reclaimed, 3, 50))]
#[case::lapsed_other(Seen::Lapsed, OTHER, request(), put(OTHER, request(), 4), acquired(ClaimKind::Reclaimed, 4, 50))]
#[case::lapsed_other_request(Seen::Lapsed, OTHER, other_request(), Write::Nothing, Ok(ClaimOutcome::Mismatch))]
#[case::completed_own(Seen::Completed, OWN, request(), Write::Nothing, Ok(ClaimOutcome::Completed(recorded())))]
#[case::completed_other(Seen::Completed, OTHER, request(), Write::Nothing, Ok(ClaimOutcome::Completed(recorded())))]
#[case::completed_other_request(
    Seen::Completed,
    OTHER,
    other_request(),
    Write::Nothing,
    Ok(ClaimOutcome::Completed(recorded()))
)]
#[case::garbage(Seen::Garbage, OTHER, request(), put(OTHER, request(), 1), acquired(ClaimKind::Recovered, 1, 50))]
#[case::newer(Seen::Newer, OTHER, request(), Write::Nothing, Err(Unreadable))]
fn claim(
    #[case] seen: Seen,
    #[case] token: ClaimToken,
    #[case] fingerprint: Fingerprint,
    #[case] write: Write,
    #[case] answer: Result<ClaimOutcome, Unreadable>,
) {
    let step = step(seen.record().as_ref(), &Claim::new(token, fingerprint, ttl(50)), NOW, Rules::default());
    assert_eq!((step.write, step.answer), (write, answer));
}

fn put_completed() -> Write {
    let completed = Completed { completed_at: NOW, expires_at: at(90), outcome: outcome("new"), ..completed(0) };
    Write::Put(Record::Completed(completed))
}

#[rstest]
#[case::absent(Seen::Nothing, OWN, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::expired_own(Seen::Expired, OWN, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::live_own(Seen::Live, OWN, put_completed(), Ok(CompleteOutcome::Applied))]
#[case::live_other(Seen::Live, OTHER, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::lapsed_own(Seen::Lapsed, OWN, put_completed(), Ok(CompleteOutcome::Applied))]
#[case::lapsed_other(Seen::Lapsed, OTHER, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::completed_own(Seen::Completed, OWN, Write::Nothing, Ok(CompleteOutcome::Applied))]
#[case::completed_other(Seen::Completed, OTHER, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::garbage(Seen::Garbage, OWN, Write::Nothing, Ok(CompleteOutcome::Fenced))]
#[case::newer(Seen::Newer, OWN, Write::Nothing, Err(Unreadable))]
fn complete(
    #[case] seen: Seen,
    #[case] token: ClaimToken,
    #[case] write: Write,
    #[case] answer: Result<CompleteOutcome, Unreadable>,
) {
    let step = step(seen.record().as_ref(), &Complete::new(token, outcome("new"), ttl(90)), NOW, Rules::default());
    assert_eq!((step.write, step.answer), (write, answer));
}

fn renewed(left_ms: u64) -> Result<RenewOutcome, Unreadable> {
    Ok(RenewOutcome::Renewed { lease_left: ms(left_ms) })
}

#[rstest]
#[case::absent(Seen::Nothing, OWN, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::expired_own(Seen::Expired, OWN, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::live_own(Seen::Live, OWN, 50, put_lease(50), renewed(50))]
#[case::live_own_for_less_than_it_has(Seen::Live, OWN, 3, put_lease(7), renewed(7))]
#[case::live_other(Seen::Live, OTHER, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::lapsed_own(Seen::Lapsed, OWN, 50, put_lease(50), renewed(50))]
#[case::lapsed_other(Seen::Lapsed, OTHER, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::completed_own(Seen::Completed, OWN, 50, Write::Nothing, Ok(RenewOutcome::Completed))]
#[case::completed_other(Seen::Completed, OTHER, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::garbage(Seen::Garbage, OWN, 50, Write::Nothing, Ok(RenewOutcome::Fenced))]
#[case::newer(Seen::Newer, OWN, 50, Write::Nothing, Err(Unreadable))]
fn renew(
    #[case] seen: Seen,
    #[case] token: ClaimToken,
    #[case] lease_ms: u64,
    #[case] write: Write,
    #[case] answer: Result<RenewOutcome, Unreadable>,
) {
    let step = step(seen.record().as_ref(), &Renew::new(token, ttl(lease_ms)), NOW, Rules::default());
    assert_eq!((step.write, step.answer), (write, answer));
}

#[rstest]
#[case::absent(Seen::Nothing, OWN, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::expired_own(Seen::Expired, OWN, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::live_own(Seen::Live, OWN, Write::Delete, Ok(ReleaseOutcome::Applied))]
#[case::live_other(Seen::Live, OTHER, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::lapsed_own(Seen::Lapsed, OWN, Write::Delete, Ok(ReleaseOutcome::Applied))]
#[case::lapsed_other(Seen::Lapsed, OTHER, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::completed_own(Seen::Completed, OWN, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::completed_other(Seen::Completed, OTHER, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::garbage(Seen::Garbage, OWN, Write::Nothing, Ok(ReleaseOutcome::NotHeld))]
#[case::newer(Seen::Newer, OWN, Write::Nothing, Err(Unreadable))]
fn release(
    #[case] seen: Seen,
    #[case] token: ClaimToken,
    #[case] write: Write,
    #[case] answer: Result<ReleaseOutcome, Unreadable>,
) {
    let step = step(seen.record().as_ref(), &Release::new(token), NOW, Rules::default());
    assert_eq!((step.write, step.answer), (write, answer));
}

#[rstest]
#[case::absent(Seen::Nothing, Ok(Sight::Vacant))]
#[case::expired(Seen::Expired, Ok(Sight::Vacant))]
#[case::live(Seen::Live, Ok(Sight::Held { lease_left: ms(7) }))]
#[case::lapsed(Seen::Lapsed, Ok(Sight::Vacant))]
#[case::completed(Seen::Completed, Ok(Sight::Completed(recorded())))]
#[case::garbage(Seen::Garbage, Ok(Sight::Vacant))]
#[case::newer(Seen::Newer, Err(Unreadable))]
fn look(#[case] seen: Seen, #[case] answer: Result<Sight, Unreadable>) {
    let step = step(seen.record().as_ref(), &Look, NOW, Rules::default());
    assert_eq!((step.write, step.answer), (Write::Nothing, answer));
}

/// A lease and an expiry are over at their very millisecond.
#[rstest]
#[case::a_millisecond_before(-1, false)]
#[case::at_the_millisecond(0, true)]
#[case::a_millisecond_after(1, true)]
fn boundaries(#[case] offset: i64, #[case] over: bool) {
    let claim = Claim::new(OTHER, request(), ttl(50));
    let lapsing = step(Some(&Record::Claimed(claimed(0))), &claim, at(offset), Rules::default());
    assert_eq!(matches!(lapsing.answer, Ok(ClaimOutcome::Acquired(_))), over);
    let expiring = step(Some(&Record::Completed(completed(0))), &claim, at(offset), Rules::default());
    assert_eq!(matches!(expiring.answer, Ok(ClaimOutcome::Acquired(_))), over);
    assert_eq!(!matches!(expiring.answer, Ok(ClaimOutcome::Completed(_))), over);
}

/// Within the margin a lapsed claim is in flight to others, and its holder's own all the same.
#[rstest]
#[case::before_the_lease_ends(-1, Some(101))]
#[case::at_the_leases_end(0, Some(100))]
#[case::before_the_margin_ends(99, Some(1))]
#[case::at_the_margins_end(100, None)]
#[case::after_the_margin(101, None)]
fn take_over_margin(#[case] offset: i64, #[case] left_ms: Option<u64>) {
    let rules = Rules { take_over_margin: ms(100) };
    let record = Record::Claimed(claimed(0));
    let other = step(Some(&record), &Claim::new(OTHER, request(), ttl(50)), at(offset), rules).answer;
    let sight = step(Some(&record), &Look, at(offset), rules).answer;
    match left_ms {
        Some(left_ms) => {
            assert_eq!(other, in_flight(left_ms));
            assert_eq!(
                sight,
                Ok(Sight::Held { lease_left: ms(left_ms) }),
                "a waiter must not be sent to claim too early"
            );
        }
        None => {
            assert!(matches!(
                other,
                Ok(ClaimOutcome::Acquired(Acquired { kind: ClaimKind::Reclaimed, attempt: 4, .. }))
            ));
            assert_eq!(sight, Ok(Sight::Vacant));
        }
    }
    let own = step(Some(&record), &Claim::new(OWN, request(), ttl(50)), at(offset), rules).answer;
    assert!(matches!(own, Ok(ClaimOutcome::Acquired(Acquired { attempt: 3, .. }))), "{own:?}");
    let renewed = step(Some(&record), &Renew::new(OWN, ttl(50)), at(offset), rules).answer;
    assert!(matches!(renewed, Ok(RenewOutcome::Renewed { .. })));
    if offset >= 0 {
        let mismatch = step(Some(&record), &Claim::new(OTHER, other_request(), ttl(50)), at(offset), rules).answer;
        assert_eq!(mismatch, Ok(ClaimOutcome::Mismatch));
    }
}

#[rstest]
#[case::first(1, ClaimKind::Fresh)]
#[case::second(2, ClaimKind::Reclaimed)]
fn acquired_again_is_fresh_where_the_attempt_is_1(#[case] attempt: u32, #[case] kind: ClaimKind) {
    for lease_until in [7, 0] {
        let record = Record::Claimed(Claimed { attempt, ..claimed(lease_until) });
        let answer = step(Some(&record), &Claim::new(OWN, request(), ttl(50)), NOW, Rules::default()).answer;
        assert!(matches!(answer, Ok(ClaimOutcome::Acquired(again)) if (again.kind, again.attempt) == (kind, attempt)));
    }
}

#[test]
fn a_fingerprint_version_that_is_not_known_never_equals() {
    let unknown = Fingerprint::from_stored(99, *request().hash());
    let record = Record::Claimed(Claimed { fingerprint: unknown, ..claimed(0) });
    for fingerprint in [unknown, request()] {
        let step = step(Some(&record), &Claim::new(OTHER, fingerprint, ttl(50)), NOW, Rules::default());
        assert_eq!((step.write, step.answer), (Write::Nothing, Ok(ClaimOutcome::Mismatch)));
    }
}

#[rstest]
#[case(ATTEMPT_MAX - 1, ATTEMPT_MAX)]
#[case(ATTEMPT_MAX, ATTEMPT_MAX)]
#[case(u32::MAX, ATTEMPT_MAX)]
fn attempts_end_where_a_stores_integer_does(#[case] before: u32, #[case] after: u32) {
    let record = Record::Claimed(Claimed { attempt: before, ..claimed(0) });
    let answer = step(Some(&record), &Claim::new(OTHER, request(), ttl(50)), NOW, Rules::default()).answer;
    assert!(matches!(answer, Ok(ClaimOutcome::Acquired(acquired)) if acquired.attempt == after));
}

#[test]
fn time_ends_without_an_overflow() {
    let end = Timestamp::from_millis(u64::MAX);
    let rules = Rules { take_over_margin: Duration::MAX };
    let Write::Put(record) = step(None, &Claim::new(OWN, request(), Ttl::MAX), end, rules).write else {
        panic!("not written")
    };
    assert!(matches!(&record, Record::Claimed(claimed) if claimed.lease_until == end));
    for now in [Timestamp::from_millis(0), end] {
        assert!(step(Some(&record), &Claim::new(OTHER, request(), Ttl::MAX), now, rules).answer.is_ok());
        assert!(step(Some(&record), &Complete::new(OWN, Outcome::Unavailable, Ttl::MAX), now, rules).answer.is_ok());
        assert!(step(Some(&record), &Renew::new(OWN, Ttl::MAX), now, rules).answer.is_ok());
        assert!(step(Some(&record), &Look, now, rules).answer.is_ok());
    }
}

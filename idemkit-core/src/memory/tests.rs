//! The memory store: its capacity, its sweeping, and what it does to the bytes that it keeps.

mod capacity;
mod contention;
mod differential;

use rstest::rstest;

use super::*;
use crate::{Acquired, ClaimKind, ClaimToken, Fingerprint, ManualClock, Outcome, StoredResult};

const FINGERPRINT: Fingerprint = Fingerprint::from_stored(1, [7; 32]);
const LEASE_MS: u64 = 1_000;
const EXPIRY_MS: u64 = 5_000;
const GRACE_MS: u64 = 300;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(ms(millis)).unwrap()
}

fn key(number: u64) -> EffectiveKey {
    EffectiveKey::from_parts([number.to_be_bytes()])
}

fn token(number: u64) -> ClaimToken {
    ClaimToken::from_bytes(u128::from(number).to_be_bytes())
}

fn claim(by: u64) -> Claim {
    Claim::new(token(by), FINGERPRINT, ttl(LEASE_MS))
}

fn complete(by: u64, body: &'static str) -> Complete {
    Complete::new(token(by), Outcome::Result(StoredResult::new(200, body)), ttl(EXPIRY_MS))
}

/// A store under a clock that stands at one second.
fn store_of(capacity: usize) -> (MemoryStore, ManualClock) {
    let clock = ManualClock::default();
    clock.advance(ms(1_000));
    (MemoryStore::builder().capacity(capacity).grace(ms(GRACE_MS)).clock(clock.clone()).build(), clock)
}

fn slots(store: &MemoryStore) -> usize {
    store.inner.shards.iter().map(|shard| shard.lock().slot_count()).sum()
}

fn fresh() -> ClaimOutcome {
    ClaimOutcome::Acquired(Acquired { kind: ClaimKind::Fresh, attempt: 1, lease_left: ms(LEASE_MS) })
}

#[tokio::test]
async fn clones_share_their_records() {
    let (store, _) = store_of(10);
    let clone = store.clone();
    assert_eq!(store.claim(&key(1), &claim(1)).await.unwrap(), fresh());
    assert!(matches!(clone.claim(&key(1), &claim(2)).await, Ok(ClaimOutcome::InFlight(_))));
    drop(store);
    assert_eq!((clone.len(), clone.complete(&key(1), &complete(1, "x")).await.unwrap()), (1, CompleteOutcome::Applied));
}

/// Leases and expiries last longer, and nothing else happens.
#[tokio::test]
async fn a_clock_that_goes_backwards_only_prolongs() {
    let (store, clock) = store_of(10);
    store.claim(&key(1), &claim(1)).await.unwrap();
    store.claim(&key(2), &claim(2)).await.unwrap();
    store.complete(&key(2), &complete(2, "x")).await.unwrap();
    clock.set(Timestamp::from_millis(0));
    assert_eq!(store.sweep(), 0);
    let Ok(ClaimOutcome::InFlight(held)) = store.claim(&key(1), &claim(3)).await else { panic!("in flight") };
    assert_eq!(held.lease_left, ms(1_000 + LEASE_MS));
    let Ok(ClaimOutcome::Completed(seen)) = store.claim(&key(2), &claim(3)).await else { panic!("completed") };
    assert_eq!((seen.age, seen.expires_in), (Duration::ZERO, ms(1_000 + EXPIRY_MS)));
    assert_eq!(
        store.renew(&key(1), &Renew::new(token(1), ttl(5))).await.unwrap(),
        RenewOutcome::Renewed { lease_left: ms(1_000 + LEASE_MS) }
    );
    assert_eq!(store.claim(&key(3), &claim(3)).await.unwrap(), fresh());
    clock.set(Timestamp::from_millis(1_000 + EXPIRY_MS));
    assert_eq!((store.sweep(), store.len()), (3, 0));
}

#[tokio::test]
async fn a_sweep_says_how_many_went() {
    let (store, clock) = store_of(1_000);
    for number in 0..100 {
        store.claim(&key(number), &claim(number)).await.unwrap();
        if number % 4 == 0 {
            store.complete(&key(number), &complete(number, "x")).await.unwrap();
        }
    }
    store.plant(key(1_000), Record::Garbage);
    store.plant(key(1_001), Record::Newer);
    assert_eq!((store.sweep(), store.len()), (0, 102));
    clock.advance(ms(LEASE_MS + GRACE_MS - 1));
    assert_eq!((store.sweep(), store.len()), (0, 102), "a lapsed claim is kept for the grace");
    clock.advance(ms(1));
    assert_eq!((store.sweep(), store.len()), (75, 27));
    clock.advance(ms(EXPIRY_MS - LEASE_MS - GRACE_MS - 1));
    assert_eq!(store.sweep(), 0, "a result is kept until it expires");
    clock.advance(ms(1));
    assert_eq!((store.sweep(), store.len()), (25, 2), "what cannot be read is never swept");
    clock.set(Timestamp::from_millis(u64::MAX));
    assert_eq!((store.sweep(), store.len()), (0, 2));
}

#[tokio::test]
async fn a_newer_record_is_an_error_for_all_and_stays() {
    let (store, _) = store_of(10);
    store.plant(key(1), Record::Newer);
    let errors = [
        store.claim(&key(1), &claim(1)).await.unwrap_err(),
        store.complete(&key(1), &complete(1, "x")).await.unwrap_err(),
        store.renew(&key(1), &Renew::new(token(1), ttl(5))).await.unwrap_err(),
        store.release(&key(1), &Release::new(token(1))).await.unwrap_err(),
        store.wait(&key(1), ttl(5_000)).await.unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::CorruptRecord, false), "{error}");
        assert_eq!(error.store(), "memory");
    }
    assert_eq!(store.record(&key(1)), Some(Record::Newer));
}

#[rstest]
#[case::body(StoredResult::new(200, vec![0; 101]), 101)]
#[case::header(StoredResult::new(200, vec![0; 90]).with_header("x-long", "12345"), 101)]
#[case::repeated_header(StoredResult::new(200, "").with_header("x", vec![0; 49]).with_header("x", vec![0; 50]), 101)]
#[tokio::test]
async fn a_result_that_is_too_large_leaves_the_claim(#[case] result: StoredResult, #[case] size: u64) {
    let store = MemoryStore::builder().result_bytes_max(100).build();
    assert_eq!(store.capabilities().result_bytes_max, Some(100));
    store.claim(&key(1), &claim(1)).await.unwrap();
    let before = store.record(&key(1));
    for outcome in [Outcome::Result(result.clone()), Outcome::Error(result)] {
        let error = store.complete(&key(1), &Complete::new(token(1), outcome, ttl(5_000))).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::ResultTooLarge { size, max: 100 });
        assert!(!error.may_be_applied() && error.to_string().contains("101 bytes, the store takes 100"), "{error}");
        assert_eq!(store.record(&key(1)), before);
    }
    let fits = Complete::new(token(1), Outcome::Result(StoredResult::new(200, vec![0; 100])), ttl(5_000));
    assert_eq!(store.complete(&key(1), &fits).await.unwrap(), CompleteOutcome::Applied);
}

#[rstest]
#[case::empty(StoredResult::new(0, ""))]
#[case::large(StoredResult::new(u16::MAX, vec![b'x'; 64 * 1024]))]
#[case::all_bytes(StoredResult::new(200, (0..=u8::MAX).collect::<Vec<_>>()))]
#[case::headers(
    StoredResult::new(201, "x").with_header("Link", "</b>").with_header("link", "</a>").with_header("LINK", "</b>")
        .with_header("x-empty", "").with_header("x-bytes", (0..=u8::MAX).collect::<Vec<_>>())
        .with_header("größe", "µ\u{1F600}").with_header("$where", "{\"$gt\": \"\"}").with_header("a.b", "'; --")
)]
#[tokio::test]
async fn a_result_comes_back_byte_for_byte_and_is_not_copied(#[case] result: StoredResult) {
    let (store, _) = store_of(10);
    for (number, outcome) in [(1, Outcome::Result(result.clone())), (2, Outcome::Error(result.clone()))] {
        store.claim(&key(number), &claim(1)).await.unwrap();
        store.complete(&key(number), &Complete::new(token(1), outcome.clone(), ttl(EXPIRY_MS))).await.unwrap();
        let Ok(ClaimOutcome::Completed(claimed)) = store.claim(&key(number), &claim(2)).await else {
            panic!("completed")
        };
        let Ok(WaitOutcome::Completed(waited)) = store.wait(&key(number), ttl(1_000)).await else {
            panic!("completed")
        };
        for seen in [claimed, waited] {
            assert_eq!((&seen.outcome, seen.fingerprint), (&outcome, FINGERPRINT));
            let stored = seen.outcome.stored().unwrap();
            assert_eq!(stored.body.as_ptr(), result.body.as_ptr(), "the body was copied");
        }
    }
}

#[tokio::test]
async fn an_outcome_without_a_result_is_kept_as_such() {
    let (store, _) = store_of(10);
    store.claim(&key(1), &claim(1)).await.unwrap();
    store.complete(&key(1), &Complete::new(token(1), Outcome::Unavailable, ttl(EXPIRY_MS))).await.unwrap();
    let Ok(ClaimOutcome::Completed(seen)) = store.claim(&key(1), &claim(2)).await else { panic!("completed") };
    assert_eq!(seen.outcome, Outcome::Unavailable);
}

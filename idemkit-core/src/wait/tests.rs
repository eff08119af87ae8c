//! Waiting: how it ends, when it looks, what it leaves behind.

mod failures;
mod sharing;

use std::sync::atomic::AtomicUsize;

use rstest::rstest;

use super::*;
use crate::{
    Claim, ClaimToken, Complete, CompletedRecord, Fingerprint, MemoryStore, Outcome, Release, Renew, Store,
    StoredResult,
};

const KEY: EffectiveKey = EffectiveKey::from_bytes([7; 32]);
const FINGERPRINT: Fingerprint = Fingerprint::from_stored(1, [7; 32]);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(ms(millis)).unwrap()
}

fn token(number: u8) -> ClaimToken {
    ClaimToken::from_bytes([number; 16])
}

fn held_for(millis: u64) -> Result<Sight, StoreError> {
    Ok(Sight::Held { lease_left: ms(millis) })
}

fn record() -> CompletedRecord {
    let outcome = Outcome::Result(StoredResult::new(200, "done"));
    CompletedRecord { fingerprint: FINGERPRINT, outcome, age: ms(1), expires_in: ms(1_000) }
}

fn error_of(kind: StoreErrorKind) -> StoreError {
    StoreError::new("scripted", kind, Applied::No)
}

/// A record whose state is set by the test, and which counts how often it is looked at.
#[derive(Clone)]
struct Scripted {
    looks: Arc<AtomicUsize>,
    sight: Arc<Mutex<Result<Sight, StoreError>>>,
}

impl Scripted {
    fn new(sight: Result<Sight, StoreError>) -> Self {
        Self { looks: Arc::default(), sight: Arc::new(Mutex::new(sight)) }
    }

    fn set(&self, sight: Result<Sight, StoreError>) {
        *self.sight.lock() = sight;
    }

    fn looks(&self) -> usize {
        self.looks.load(Ordering::SeqCst)
    }

    /// Whether nobody but the test holds it.
    fn is_forgotten(&self) -> bool {
        Arc::strong_count(&self.looks) == 1
    }

    fn look(&self) -> impl Fn() -> std::future::Ready<Result<Sight, StoreError>> + Clone + Send + 'static {
        let scripted = self.clone();
        move || {
            scripted.looks.fetch_add(1, Ordering::SeqCst);
            std::future::ready(scripted.sight.lock().clone())
        }
    }
}

/// Ends what was aborted, so that it can be asserted that nothing is left.
async fn settle() {
    for _ in 0..10 {
        tokio::task::yield_now().await;
    }
}

#[rstest]
#[case::completed(Ok(Sight::Completed(record())), Ok(WaitOutcome::Completed(record())))]
#[case::vacant(Ok(Sight::Vacant), Ok(WaitOutcome::Vacant))]
#[case::misconfigured(Err(error_of(StoreErrorKind::Misconfigured)), Err(StoreErrorKind::Misconfigured))]
#[case::corrupt(Err(error_of(StoreErrorKind::CorruptRecord)), Err(StoreErrorKind::CorruptRecord))]
#[case::other(Err(error_of(StoreErrorKind::Other)), Err(StoreErrorKind::Other))]
#[tokio::test(start_paused = true)]
async fn what_is_decided_at_the_first_look_ends_at_once(
    #[case] sight: Result<Sight, StoreError>,
    #[case] expected: Result<WaitOutcome, StoreErrorKind>,
) {
    let (watches, scripted) = (Watches::default(), Scripted::new(sight));
    let began = Instant::now();
    let outcome = watches.wait(&KEY, ttl(10_000), scripted.look()).await;
    assert_eq!(outcome.map_err(|error| error.kind()), expected);
    assert_eq!((began.elapsed(), scripted.looks()), (Duration::ZERO, 1));
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

#[rstest]
#[case::shortest(1)]
#[case::before_the_first_poll(20)]
#[case::some_polls(730)]
#[case::many_polls(60_000)]
#[tokio::test(start_paused = true)]
async fn it_times_out_to_the_millisecond(#[case] timeout_ms: u64) {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let began = Instant::now();
    assert!(matches!(
        watches.wait(&KEY, ttl(timeout_ms), scripted.look()).await.unwrap(),
        WaitOutcome::TimedOut { .. }
    ));
    let elapsed = began.elapsed();
    assert!(elapsed >= ms(timeout_ms) && elapsed <= ms(timeout_ms + 1), "{elapsed:?}");
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

/// 50 ms doubling to 1 s, each with up to half of it taken off by jitter.
#[tokio::test(start_paused = true)]
async fn it_polls_on_schedule() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    watches.wait(&KEY, ttl(60_000), scripted.look()).await.unwrap();
    // Five doublings take 0.8 to 1.6 s, and each second after them has one or two looks.
    assert!((60..=125).contains(&scripted.looks()), "{} looks", scripted.looks());
}

#[rstest]
#[case::completed(Sight::Completed(record()), WaitOutcome::Completed(record()))]
#[case::vacant(Sight::Vacant, WaitOutcome::Vacant)]
#[tokio::test(start_paused = true)]
async fn without_a_notice_the_poll_finds_it_within_a_second(#[case] sight: Sight, #[case] expected: WaitOutcome) {
    for after in [10, 300, 2_500, 20_123] {
        let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
        let look = scripted.look();
        let waiter = tokio::spawn(async move { watches.wait(&KEY, ttl(60_000), look).await });
        tokio::time::sleep(ms(after)).await;
        scripted.set(Ok(sight.clone()));
        let changed = Instant::now();
        assert_eq!(waiter.await.unwrap().unwrap(), expected);
        assert!(changed.elapsed() <= ms(1_001), "{:?} after {after} ms", changed.elapsed());
    }
}

#[tokio::test(start_paused = true)]
async fn a_notice_wakes_at_once() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let (waiting, look) = (watches.clone(), scripted.look());
    let waiter = tokio::spawn(async move { waiting.wait(&KEY, ttl(60_000), look).await });
    // Far into the backoff, when a poll would take up to a second.
    tokio::time::sleep(ms(10_000)).await;
    scripted.set(Ok(Sight::Vacant));
    let changed = Instant::now();
    watches.notify(&EffectiveKey::from_bytes([8; 32]));
    watches.notify(&KEY);
    assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Vacant);
    assert_eq!(changed.elapsed(), Duration::ZERO);
}

/// A notice that comes while a look is under way may be of a write that the look did not see.
#[tokio::test(start_paused = true)]
async fn a_notice_during_a_look_makes_it_look_again() {
    let (watches, looks) = (Watches::default(), Arc::new(AtomicUsize::new(0)));
    let (waiting, counted) = (watches.clone(), Arc::clone(&looks));
    let began = Instant::now();
    let waiter = tokio::spawn(async move {
        let look = move || {
            let first = counted.fetch_add(1, Ordering::SeqCst) == 0;
            async move {
                tokio::time::sleep(ms(5)).await;
                if first { held_for(3_600_000) } else { Ok(Sight::Vacant) }
            }
        };
        waiting.wait(&KEY, ttl(60_000), look).await
    });
    tokio::time::sleep(ms(2)).await;
    watches.notify(&KEY);
    assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Vacant);
    assert!(began.elapsed() < ms(20), "{:?}: the notice was lost", began.elapsed());
}

#[tokio::test(start_paused = true)]
async fn at_the_lease_end_it_looks_again() {
    for lease_ms in [1, 7, 40, 333, 5_017] {
        let watches = Watches::default();
        let began = Instant::now();
        let look = move || {
            let left = ms(lease_ms).saturating_sub(began.elapsed());
            std::future::ready(Ok(if left.is_zero() { Sight::Vacant } else { Sight::Held { lease_left: left } }))
        };
        assert_eq!(watches.wait(&KEY, ttl(60_000), look).await.unwrap(), WaitOutcome::Vacant);
        let late = began.elapsed().checked_sub(ms(lease_ms)).expect("not before the lease's end");
        assert!(late <= ms(2), "{late:?} after a lease of {lease_ms} ms");
    }
}

/// Nothing left of the lease and yet held, as a store that rounds may say: no hot loop.
#[tokio::test(start_paused = true)]
async fn a_lease_with_nothing_left_is_no_hot_loop() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(0)));
    assert!(matches!(watches.wait(&KEY, ttl(500), scripted.look()).await.unwrap(), WaitOutcome::TimedOut { .. }));
    assert!(scripted.looks() <= 501, "{} looks in 500 ms", scripted.looks());
}

/// A memory store in which the key is claimed, and a waiter of it.
async fn claimed() -> (MemoryStore, tokio::task::JoinHandle<Result<WaitOutcome, StoreError>>) {
    let store = MemoryStore::new();
    store.claim(&KEY, &Claim::new(token(1), FINGERPRINT, ttl(30_000))).await.unwrap();
    let waiting = store.clone();
    let waiter = tokio::spawn(async move { waiting.wait(&KEY, ttl(100_000)).await });
    tokio::time::sleep(ms(7_000)).await;
    assert_eq!(store.watched_keys(), 1);
    (store, waiter)
}

#[tokio::test(start_paused = true)]
async fn memory_completed_and_expired() {
    let (store, waiter) = claimed().await;
    let changed = Instant::now();
    let outcome = Outcome::Result(StoredResult::new(200, "x"));
    store.complete(&KEY, &Complete::new(token(1), outcome.clone(), ttl(500))).await.unwrap();
    let WaitOutcome::Completed(seen) = waiter.await.unwrap().unwrap() else { panic!("completed") };
    assert_eq!((seen.outcome, seen.fingerprint, changed.elapsed()), (outcome, FINGERPRINT, Duration::ZERO));
    tokio::time::sleep(ms(500)).await;
    assert_eq!(store.wait(&KEY, ttl(1_000)).await.unwrap(), WaitOutcome::Vacant, "it has expired");
    settle().await;
    assert_eq!(store.watched_keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn memory_released_and_absent() {
    let (store, waiter) = claimed().await;
    let changed = Instant::now();
    store.release(&KEY, &Release::new(token(1))).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Vacant);
    assert_eq!(store.wait(&KEY, ttl(1_000)).await.unwrap(), WaitOutcome::Vacant);
    assert_eq!(changed.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn memory_lapsed_after_a_renewal() {
    let (store, waiter) = claimed().await;
    let renewed = Instant::now();
    store.renew(&KEY, &Renew::new(token(1), ttl(40_000))).await.unwrap();
    assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Vacant);
    let elapsed = renewed.elapsed();
    assert!(elapsed >= ms(40_000) && elapsed <= ms(40_002), "{elapsed:?}");
}

#[tokio::test(start_paused = true)]
async fn memory_times_out() {
    let store = MemoryStore::new();
    store.claim(&KEY, &Claim::new(token(1), FINGERPRINT, ttl(30_000))).await.unwrap();
    let began = Instant::now();
    let WaitOutcome::TimedOut { lease_left: Some(left) } = store.wait(&KEY, ttl(2_345)).await.unwrap() else {
        panic!("held")
    };
    assert_eq!(left, ms(30_000) - began.elapsed(), "what is left of the lease is told");
    assert!(began.elapsed() >= ms(2_345) && began.elapsed() <= ms(2_346), "{:?}", began.elapsed());
}

#[test]
fn outside_a_runtime_it_is_an_error() {
    use futures_util::FutureExt;
    let error = Watches::default().wait(&KEY, ttl(5), Scripted::new(held_for(5)).look()).now_or_never();
    assert_eq!(error.map(|outcome| outcome.map_err(|error| error.kind())), Some(Err(StoreErrorKind::Unavailable)));
}

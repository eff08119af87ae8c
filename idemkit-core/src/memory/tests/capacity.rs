//! The capacity holds exactly, nothing that counts is evicted, and memory is given back.

use std::{sync::Barrier, thread};

use futures_util::FutureExt;

use super::*;

fn assert_full(answer: Result<ClaimOutcome, StoreError>) {
    let error = answer.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(error.is_retryable() && error.to_string().contains("full"), "{error}");
}

#[tokio::test]
async fn the_capacity_is_exact_and_nothing_that_counts_is_evicted() {
    let (store, clock) = store_of(100);
    for number in 0..100 {
        assert_eq!(store.claim(&key(number), &claim(1)).await.unwrap(), fresh(), "{number}");
        if number < 50 {
            store.complete(&key(number), &complete(1, "kept")).await.unwrap();
        }
    }
    assert_eq!(store.len(), 100);
    let before: Vec<_> = (0..100).map(|number| store.record(&key(number))).collect();
    for number in 100..300 {
        assert_full(store.claim(&key(number), &claim(2)).await);
        assert_eq!(store.record(&key(number)), None, "a refused claim is not applied");
    }
    let after: Vec<_> = (0..100).map(|number| store.record(&key(number))).collect();
    assert!(before == after && store.len() == 100);
    // What is there goes on working.
    assert!(matches!(store.claim(&key(0), &claim(2)).await, Ok(ClaimOutcome::Completed(_))));
    assert!(matches!(store.claim(&key(99), &claim(2)).await, Ok(ClaimOutcome::InFlight(_))));
    assert_eq!(store.complete(&key(98), &complete(1, "x")).await.unwrap(), CompleteOutcome::Applied);
    // A release makes room for one, and for one alone.
    assert_eq!(store.release(&key(99), &Release::new(token(1))).await.unwrap(), ReleaseOutcome::Applied);
    assert_eq!(store.claim(&key(100), &claim(2)).await.unwrap(), fresh());
    assert_full(store.claim(&key(101), &claim(2)).await);
    clock.advance(ms(1));
    assert_full(store.claim(&key(101), &claim(2)).await);
}

#[tokio::test]
async fn expired_results_make_room_at_once_and_lapsed_claims_after_the_grace() {
    let (store, clock) = store_of(10);
    for number in 0..10 {
        store.claim(&key(number), &claim(1)).await.unwrap();
    }
    clock.advance(ms(LEASE_MS + GRACE_MS - 1));
    assert_full(store.claim(&key(10), &claim(2)).await);
    clock.advance(ms(1));
    for number in 10..20 {
        assert_eq!(store.claim(&key(number), &claim(2)).await.unwrap(), fresh());
        store.complete(&key(number), &complete(2, "x")).await.unwrap();
    }
    clock.advance(ms(EXPIRY_MS - 1));
    assert_full(store.claim(&key(20), &claim(3)).await);
    clock.advance(ms(1));
    for number in 20..30 {
        assert_eq!(store.claim(&key(number), &claim(3)).await.unwrap(), fresh());
    }
    assert_full(store.claim(&key(30), &claim(3)).await);
}

/// Lapsed, but within the margin in which nobody may take it over, and the grace counts from there.
#[tokio::test]
async fn the_grace_comes_after_the_margin() {
    let (_, clock) = store_of(1);
    let builder = MemoryStore::builder().capacity(1).grace(ms(GRACE_MS)).clock(clock.clone());
    let store = builder.take_over_margin(ms(200)).build();
    assert_eq!(store.capabilities().take_over_margin, ms(200));
    store.claim(&key(0), &claim(1)).await.unwrap();
    clock.advance(ms(LEASE_MS + 200 + GRACE_MS - 1));
    assert_full(store.claim(&key(1), &claim(1)).await);
    clock.advance(ms(1));
    assert_eq!(store.claim(&key(1), &claim(1)).await.unwrap(), fresh());
}

#[tokio::test]
async fn a_store_without_room_refuses_every_claim() {
    let (store, _) = store_of(0);
    assert_full(store.claim(&key(0), &claim(1)).await);
    assert_eq!(store.complete(&key(0), &complete(1, "x")).await.unwrap(), CompleteOutcome::Fenced);
    assert!(store.is_empty());
}

/// A store full of expired records has room for as many claims as it holds, whoever sweeps at the time.
#[test]
fn claims_at_once_all_find_the_room_of_expired_records() {
    const THREADS: u64 = 8;
    const EACH: u64 = 8;
    for round in 0..150 {
        let (store, clock) = store_of((THREADS * EACH) as usize);
        for number in 0..THREADS * EACH {
            store.claim(&key(number), &claim(1)).now_or_never().unwrap().unwrap();
        }
        clock.advance(ms(LEASE_MS + GRACE_MS));
        let barrier = Barrier::new(THREADS as usize + 1);
        thread::scope(|scope| {
            for thread in 1..=THREADS {
                let (store, barrier) = (&store, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for number in 0..EACH {
                        let answer = store.claim(&key(thread * 1_000 + number), &claim(2)).now_or_never().unwrap();
                        assert_eq!(answer.unwrap(), fresh(), "round {round}");
                    }
                });
            }
            scope.spawn(|| {
                barrier.wait();
                if round % 2 == 0 {
                    store.sweep();
                }
            });
        });
        assert_eq!(store.len() as u64, THREADS * EACH);
    }
}

#[tokio::test]
async fn claims_that_are_released_leave_nothing() {
    let (store, _) = store_of(1_000_000);
    for number in 0..100_000 {
        store.claim(&key(number), &claim(1)).await.unwrap();
        store.release(&key(number), &Release::new(token(1))).await.unwrap();
    }
    assert_eq!(store.len(), 0);
    assert!(slots(&store) <= SHARDS, "{} slots", slots(&store));
}

#[tokio::test]
async fn results_that_expire_leave_nothing() {
    let (store, clock) = store_of(1_000_000);
    for number in 0..100_000 {
        store.claim(&key(number), &claim(1)).await.unwrap();
        store.complete(&key(number), &Complete::new(token(1), Outcome::Unavailable, ttl(100))).await.unwrap();
        clock.advance(ms(1));
    }
    // A hundred are unexpired at any time, and a shard is swept when it is written to, each 64th time or so.
    assert!(store.len() < 1_000, "{} records", store.len());
    assert!(slots(&store) < 3_000, "{} slots", slots(&store));
    clock.advance(ms(100));
    store.sweep();
    assert_eq!(store.len(), 0);
}

#[tokio::test]
async fn a_burst_gives_its_memory_back() {
    let (store, clock) = store_of(1_000_000);
    for number in 0..100_000 {
        store.claim(&key(number), &claim(1)).await.unwrap();
    }
    assert_eq!((store.len(), slots(&store)), (100_000, 100_000));
    clock.advance(ms(LEASE_MS + GRACE_MS));
    assert_eq!((store.sweep(), store.len(), slots(&store)), (100_000, 0, 0));
    // A shard that has emptied works as a new one.
    for number in 0..1_000 {
        assert_eq!(store.claim(&key(number), &claim(2)).await.unwrap(), fresh());
    }
    clock.advance(ms(LEASE_MS + GRACE_MS - 1));
    assert_eq!(store.sweep(), 0);
    clock.advance(ms(1));
    assert_eq!(store.sweep(), 1_000);
}

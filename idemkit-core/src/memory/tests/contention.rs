//! Many claims of one key at the same instant: one winner.

use tokio::sync::Barrier;

use super::*;

const CLAIMERS: u64 = 200;
const ROUNDS: u64 = 50;

/// Others in each round: a lapsed holder that claims again with its own token takes nothing over.
fn claimers(round: u64) -> std::ops::Range<u64> {
    round * CLAIMERS..(round + 1) * CLAIMERS
}

/// All of `claimers` claim `of` at once. The winners; everybody else was told that the key is in flight.
async fn claim_at_once(store: &MemoryStore, of: EffectiveKey, claimers: std::ops::Range<u64>) -> Vec<(u64, Acquired)> {
    let barrier = Arc::new(Barrier::new(claimers.clone().count()));
    let tasks: Vec<_> = claimers
        .map(|by| {
            let (store, barrier) = (store.clone(), Arc::clone(&barrier));
            tokio::spawn(async move {
                barrier.wait().await;
                (by, store.claim(&of, &claim(by)).await.unwrap())
            })
        })
        .collect();
    let mut winners = Vec::new();
    for task in tasks {
        match task.await.unwrap() {
            (by, ClaimOutcome::Acquired(acquired)) => winners.push((by, acquired)),
            (_, ClaimOutcome::InFlight(held)) => assert_eq!(held.lease_left, ms(LEASE_MS)),
            (_, other) => panic!("neither acquired nor in flight: {other:?}"),
        }
    }
    winners
}

/// One winner, as `kind` and `attempt` say, and the record is the winner's.
async fn assert_one_winner(
    store: &MemoryStore,
    of: EffectiveKey,
    claimers: std::ops::Range<u64>,
    kind: ClaimKind,
    attempt: u32,
) {
    let winners = claim_at_once(store, of, claimers).await;
    let [(by, acquired)] = winners[..] else { panic!("{} winners", winners.len()) };
    assert_eq!(acquired, Acquired { kind, attempt, lease_left: ms(LEASE_MS) });
    assert!(matches!(store.record(&of), Some(Record::Claimed(held)) if held.token == token(by)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_fresh_key_has_one_winner() {
    let (store, _) = store_of(1_000);
    for round in 0..ROUNDS {
        assert_one_winner(&store, key(round), claimers(round), ClaimKind::Fresh, 1).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_lapsed_key_has_one_winner() {
    let (store, clock) = store_of(1_000);
    store.claim(&key(1), &claim(u64::MAX)).await.unwrap();
    for round in 0..ROUNDS {
        clock.advance(ms(LEASE_MS));
        assert_one_winner(&store, key(1), claimers(round), ClaimKind::Reclaimed, round as u32 + 2).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn an_expired_key_has_one_winner() {
    let (store, clock) = store_of(1_000);
    for round in 0..ROUNDS {
        store.claim(&key(1), &claim(u64::MAX)).await.unwrap();
        assert_eq!(store.complete(&key(1), &complete(u64::MAX, "x")).await.unwrap(), CompleteOutcome::Applied);
        clock.advance(ms(EXPIRY_MS));
        assert_one_winner(&store, key(1), claimers(round), ClaimKind::Fresh, 1).await;
        clock.advance(ms(LEASE_MS + GRACE_MS));
        assert_eq!(store.sweep(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn garbage_has_one_winner() {
    let (store, _) = store_of(1_000);
    for round in 0..ROUNDS {
        store.plant(key(round), Record::Garbage);
        assert_one_winner(&store, key(round), 0..50, ClaimKind::Recovered, 1).await;
    }
    assert_eq!(store.len() as u64, ROUNDS, "a record that is replaced counts once");
}

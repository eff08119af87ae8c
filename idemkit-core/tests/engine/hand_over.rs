//! An operation that hands its claim to a transaction of the store's. Memory has none: the test completes by the token.

use idemkit_core::{
    ClaimOutcome, Complete, CompleteOutcome, Fingerprint, OnUnconfirmed, Outcome, Policy, Provenance, Recording, Store,
    StoredResult, Ttl,
};
use tokio::time::sleep;

use crate::support::{Call, Declined, LEASE, Scripted, engine, engine_with, key, request, result};

#[tokio::test(start_paused = true)]
async fn what_an_operation_hands_over_is_renewed_and_completed_by_nobody_else() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let run = engine.run(key(), request(), async |context| {
        let claim = context.hand_over().unwrap();
        assert_eq!(context.hand_over(), Some(claim), "again, for a transaction whose end is unknown");
        // Longer than the lease: the lock of a transaction takes its place.
        sleep(LEASE * 3).await;
        let commit = Complete::new(claim.token, Outcome::Result(result("by the transaction")), Ttl::MAX);
        assert_eq!(store.memory.complete(&claim.key, &commit).await.unwrap(), CompleteOutcome::Applied);
        Ok::<_, Declined>(result("by the operation"))
    });
    let run = run.await.unwrap();
    assert!(matches!(run.provenance, Provenance::Executed { recording: Recording::HandedOver, .. }), "{run:?}");
    assert_eq!((store.calls(Call::Renew), store.calls(Call::Complete)), (0, 0));
    let replay = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await.unwrap();
    assert_eq!(replay.value, result("by the transaction"));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_fails_after_its_hand_over_releases_and_a_commit_before_that_stands() {
    for commits in [false, true] {
        let store = Scripted::new();
        let (engine, _) = engine(&store);
        let failed = engine.run(key(), request(), async |context| {
            let claim = context.hand_over().unwrap();
            if commits {
                // Its acknowledgement is lost.
                let commit = Complete::new(claim.token, Outcome::Result(result("committed")), Ttl::MAX);
                store.memory.complete(&claim.key, &commit).await.unwrap();
            }
            Err::<StoredResult, _>(Declined(1))
        });
        failed.await.unwrap_err();
        let request = idemkit_core::Claim::new(
            idemkit_core::ClaimToken::random().unwrap(),
            Fingerprint::of_payload("request"),
            Ttl::new(LEASE).unwrap(),
        );
        let next = store.memory.claim(&key(), &request).await.unwrap();
        match next {
            ClaimOutcome::Acquired(acquired) => assert!(!commits && acquired.attempt == 1),
            ClaimOutcome::Completed(_) => assert!(commits),
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn no_operation_is_dropped_for_an_unconfirmed_lease_once_it_has_handed_its_claim_over() {
    let store = Scripted::new();
    let policy = Policy::builder().lease(LEASE).on_unconfirmed(OnUnconfirmed::Drop).build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    let run = engine.run(key(), request(), async |context| {
        context.hand_over().unwrap();
        sleep(LEASE * 2).await;
        Ok::<_, Declined>(result("in time for its transaction"))
    });
    assert!(run.await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_guard_tells_that_its_claim_was_handed_over_and_supervises_its_operation() {
    let store = Scripted::new();
    let policy = Policy::builder().lease(LEASE).max_execution(LEASE * 2).build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    let idemkit_core::Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("a fresh key") };
    let context = guard.context();
    let (guard, ended) = guard.supervise(async { 7 }).await.unwrap();
    assert!(ended == 7 && !guard.is_handed_over());
    let (guard, claim) = guard.supervise(async { context.hand_over() }).await.unwrap();
    assert!(claim.is_some() && guard.is_handed_over());
    let cut_off = guard.supervise(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(cut_off, idemkit_core::CutOff::TimedOut);
}

/// What comes before the operation has no effect that a retry could repeat.
#[tokio::test(start_paused = true)]
async fn a_preparation_that_takes_too_long_releases_and_an_operation_that_does_holds() {
    let policy = Policy::builder().lease(LEASE).max_execution(LEASE / 2).no_wait().build().unwrap();
    let (engine, _) = engine_with(&Scripted::new(), policy);
    let begin = async || match engine.begin(key(), request()).await {
        idemkit_core::Begin::Proceed(guard) => guard,
        other => panic!("{other:?}"),
    };
    let cut_off = begin().await.prepare(std::future::pending::<()>()).await.unwrap_err();
    assert_eq!(cut_off, idemkit_core::CutOff::TimedOut);
    let (guard, ready) = begin().await.prepare(async { 7 }).await.unwrap();
    assert_eq!((ready, guard.context().attempt()), (7, 1));
    guard.supervise(std::future::pending::<()>()).await.unwrap_err();
    assert!(matches!(engine.begin(key(), request()).await, idemkit_core::Begin::InProgress { .. }));
}

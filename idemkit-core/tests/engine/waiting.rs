//! Duplicates of an operation that is under way.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures_util::future::join_all;
use idemkit_core::{
    Begin, Capabilities, Claim, ClaimOutcome, Complete, CompleteOutcome, EffectiveKey, Engine, EventKind, InFlight,
    MemoryStore, Policy, Release, ReleaseOutcome, Renew, RenewOutcome, RunError, Store, StoreError, StoreErrorKind,
    StoredResult, Ttl, WaitOutcome,
};
use tokio::time::{Instant, sleep};

use crate::support::{
    Call, Declined, Fault, LEASE, REFUSED, Scripted, engine, engine_with, key, request, result, take_over,
};

#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_cost_one_execution_and_one_watch() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let executions = AtomicUsize::new(0);
    let runs = (0..1_000).map(|_| {
        engine.run(key(), request(), async |_| {
            executions.fetch_add(1, Ordering::SeqCst);
            sleep(Duration::from_secs(5)).await;
            assert_eq!(store.memory.watched_keys(), 1);
            Ok::<_, Declined>(result("once"))
        })
    });
    for run in join_all(runs).await {
        assert_eq!(run.unwrap().value, result("once"));
    }
    assert_eq!(executions.into_inner(), 1);
    assert_eq!(store.memory.watched_keys(), 0);
    let heard = heard.take();
    let count = |kind| heard.iter().filter(|heard| **heard == kind).count();
    assert_eq!((count(EventKind::New), count(EventKind::InFlightWait), count(EventKind::Replayed)), (1, 999, 999));
}

#[tokio::test]
async fn fifty_at_the_same_instant_on_real_threads_run_once() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let executed = Arc::new(AtomicUsize::new(0));
    let engine = Engine::new(MemoryStore::new());
    for round in 0..50 {
        let key = EffectiveKey::message(format!("msg-{round}"), "orders", "billing");
        let tasks = (0..50).map(|_| {
            let (engine, executed) = (engine.clone(), Arc::clone(&executed));
            runtime.spawn(async move {
                let run = engine.run(key, request(), async |_| {
                    executed.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok::<_, Declined>(result("once"))
                });
                run.await.unwrap().value
            })
        });
        for value in join_all(tasks).await {
            assert_eq!(value.unwrap(), result("once"));
        }
        assert_eq!(executed.load(Ordering::SeqCst), round + 1);
    }
    runtime.shutdown_background();
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_that_finds_the_key_released_runs_it() {
    let (engine, heard) = engine(&Scripted::new());
    let first = engine.run(key(), request(), async |_| {
        sleep(Duration::from_secs(2)).await;
        Err::<StoredResult, _>(Declined(1))
    });
    let second = async {
        sleep(Duration::from_secs(1)).await;
        engine.run(key(), request(), async |_| Ok::<_, Declined>(result("second"))).await
    };
    let (first, second) = tokio::join!(first, second);
    assert!(matches!(first, Err(RunError::Operation { error: Declined(1), .. })));
    assert_eq!(second.unwrap().value, result("second"));
    assert_eq!(heard.take(), [EventKind::New, EventKind::InFlightWait, EventKind::New]);
}

/// Whoever waits for an operation that fails runs it in its turn. All of them claiming at each failure would be half a
/// million claims.
#[tokio::test(start_paused = true)]
async fn a_thousand_duplicates_of_a_failing_operation_do_not_all_claim_at_each_failure() {
    let store = Scripted::new();
    let (engine, _) = engine_with(&store, Policy::builder().wait(Duration::from_secs(3_600)).build().unwrap());
    let runs = (0..1_000).map(|_| {
        engine.run(key(), request(), async |_| {
            sleep(Duration::from_millis(100)).await;
            Err::<StoredResult, _>(Declined(1))
        })
    });
    for run in join_all(runs).await {
        assert!(matches!(run, Err(RunError::Operation { error: Declined(1), .. })), "{run:?}");
    }
    let claims = store.calls(Call::Claim);
    assert!((1_000..5_000).contains(&claims), "{claims} claims for 1,000 executions");
    assert_eq!(store.memory.watched_keys(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_duplicate_takes_over_from_a_holder_that_lapses_within_its_wait() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    take_over(&store).await;
    let began = Instant::now();
    let operation = engine.operation(key(), request()).wait(Duration::from_secs(60));
    let run = operation.run(async |context| {
        assert_eq!((context.attempt(), context.is_retry()), (2, true));
        Ok::<_, Declined>(result("taken over"))
    });
    run.await.unwrap();
    assert!(began.elapsed() >= LEASE && began.elapsed() <= LEASE + Duration::from_millis(50), "{:?}", began.elapsed());
    assert_eq!(heard.take(), [EventKind::InFlightWait, EventKind::LeaseReclaimed]);
}

#[tokio::test(start_paused = true)]
async fn all_claims_and_waits_of_a_duplicate_share_one_budget() {
    let store = Scripted::new();
    let (engine, heard) = engine_with(&store, Policy::builder().wait(Duration::from_secs(10)).build().unwrap());
    // Holders that come and go: the key is vacant for a moment every three seconds, and another is quicker.
    let churn = async {
        let mut token = take_over(&store).await;
        loop {
            sleep(Duration::from_secs(3)).await;
            assert_eq!(store.memory.release(&key(), &Release::new(token)).await.unwrap(), ReleaseOutcome::Applied);
            token = take_over(&store).await;
        }
    };
    let began = Instant::now();
    let run = tokio::select! {
        biased;
        () = churn => unreachable!(),
        run = engine.run(key(), request(), async |_| -> Result<_, Declined> { panic!("never vacant") }) => run,
    };
    assert!(matches!(run, Err(RunError::InProgress { .. })), "{run:?}");
    assert_eq!(began.elapsed(), Duration::from_secs(10));
    assert_eq!(heard.take(), [EventKind::InFlightWait, EventKind::Conflict]);
}

/// A client that is told "retry after 0 s" for as long as the holder renews would come back in a hot loop.
#[tokio::test(start_paused = true)]
async fn how_long_to_wait_before_a_retry_knows_of_renewals() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("vacant") };
    let duplicate = engine.operation(key(), request()).wait(4 * LEASE).begin().await;
    let Begin::InProgress { retry_after } = duplicate else { panic!("{duplicate:?}") };
    assert!(retry_after > LEASE / 2 && retry_after <= LEASE, "{retry_after:?}");
    assert!(guard.release().await);
}

#[tokio::test(start_paused = true)]
async fn a_nested_run_of_the_same_key_is_in_progress_and_not_a_deadlock() {
    let (engine, _) = engine(&Scripted::new());
    let run = engine.run(key(), request(), async |_| {
        let nested = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("nested"))).await;
        assert!(matches!(nested, Err(RunError::InProgress { .. })), "{nested:?}");
        Ok::<_, Declined>(result("outer"))
    });
    assert_eq!(run.await.unwrap().value, result("outer"));
}

#[tokio::test(start_paused = true)]
async fn without_a_wait_a_duplicate_is_refused_at_once() {
    let store = Scripted::new();
    let (engine, heard) = engine_with(&store, Policy::builder().no_wait().build().unwrap());
    take_over(&store).await;
    let began = Instant::now();
    let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await;
    assert!(matches!(run, Err(RunError::InProgress { retry_after }) if retry_after == LEASE), "{run:?}");
    assert_eq!((began.elapsed(), store.calls(Call::Wait)), (Duration::ZERO, 0));
    assert_eq!(heard.take(), [EventKind::Conflict]);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_the_store_cannot_answer_is_refused_and_never_run() {
    let store = Scripted::new();
    let fail_open = Policy::builder().storage(idemkit_core::StoragePolicy::FailOpen).build().unwrap();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    store.always(Call::Wait, REFUSED);
    let refused = engine.run(key(), request(), async |_| -> Result<_, Declined> { panic!("ran") }).await;
    assert!(
        matches!(&refused, Err(RunError::Refused(error)) if error.kind() == StoreErrorKind::Unavailable),
        "{refused:?}"
    );
    // Somebody is known to hold the key: even a policy that fails open must not run it now.
    let open = engine
        .operation(key(), request())
        .policy(fail_open)
        .run(async |_| -> Result<_, Declined> { panic!("ran") })
        .await;
    assert!(matches!(open, Err(RunError::InProgress { .. })), "{open:?}");
}

#[tokio::test(start_paused = true)]
async fn a_store_whose_wait_hangs_cannot_hang_the_caller() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    store.always(Call::Wait, Fault::Hangs);
    let began = Instant::now();
    let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await;
    assert!(matches!(run, Err(RunError::Refused(_))), "{run:?}");
    assert!(began.elapsed() <= Duration::from_secs(20), "{:?}", began.elapsed());
}

/// A store that says vacant to whoever waits, and in flight to whoever claims.
#[derive(Debug, Default)]
struct Contradictory(AtomicUsize);

#[async_trait::async_trait]
impl Store for Contradictory {
    fn capabilities(&self) -> Capabilities {
        MemoryStore::new().capabilities()
    }
    async fn claim(&self, _: &EffectiveKey, _: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(ClaimOutcome::InFlight(InFlight { fingerprint: request(), attempt: 1, lease_left: LEASE }))
    }
    async fn complete(&self, _: &EffectiveKey, _: &Complete) -> Result<CompleteOutcome, StoreError> {
        Ok(CompleteOutcome::Fenced)
    }
    async fn renew(&self, _: &EffectiveKey, _: &Renew) -> Result<RenewOutcome, StoreError> {
        Ok(RenewOutcome::Fenced)
    }
    async fn release(&self, _: &EffectiveKey, _: &Release) -> Result<ReleaseOutcome, StoreError> {
        Ok(ReleaseOutcome::NotHeld)
    }
    async fn wait(&self, _: &EffectiveKey, _: Ttl) -> Result<WaitOutcome, StoreError> {
        Ok(WaitOutcome::Vacant)
    }
}

#[tokio::test(start_paused = true)]
async fn a_store_that_contradicts_itself_is_not_asked_in_a_hot_loop() {
    let store = Arc::new(Contradictory::default());
    let engine = Engine::new(Arc::clone(&store));
    let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await;
    assert!(matches!(run, Err(RunError::InProgress { .. })), "{run:?}");
    assert!(store.0.load(Ordering::SeqCst) < 500, "{} claims in ten seconds", store.0.load(Ordering::SeqCst));
}

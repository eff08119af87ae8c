//! A store that fails: before the operation, while it is completed, and while acknowledgements are lost.

use std::{
    sync::atomic::{AtomicUsize, Ordering},
    time::Duration,
};

use idemkit_core::{
    Begin, Completion, EventKind, MemoryStore, OnUnrecordable, Policy, Provenance, Record, Recording, RunError,
    StoragePolicy, StoreErrorKind, StoredResult,
};
use rstest::rstest;
use tokio::time::Instant;

use crate::support::{Call, Declined, Fault, LEASE, REFUSED, Scripted, engine, engine_with, key, request, result};

fn fail_open() -> Policy {
    Policy::builder().storage(StoragePolicy::FailOpen).build().unwrap()
}

#[tokio::test(start_paused = true)]
async fn failing_closed_runs_nothing() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.outage();
    let run = engine.run(key(), request(), async |_| -> Result<_, Declined> { panic!("ran") }).await;
    assert!(matches!(&run, Err(RunError::Refused(error)) if error.is_retryable()), "{run:?}");
    assert_eq!(heard.take(), [EventKind::StorageError]);
}

#[tokio::test(start_paused = true)]
async fn failing_open_runs_without_protection_and_says_so() {
    let store = Scripted::new();
    let (engine, heard) = engine_with(&store, fail_open());
    store.outage();
    let run = engine.run(key(), request(), async |context| {
        assert_eq!((context.claim_kind(), context.lease_left(), context.is_retry()), (None, None, true));
        Ok::<_, Declined>(result("unprotected"))
    });
    let run = run.await.unwrap();
    assert!(matches!(run.provenance, Provenance::Unprotected(error) if error.is_retryable()));
    assert_eq!(heard.take(), [EventKind::StorageError, EventKind::RanUnprotected]);
    assert_eq!(store.memory.record(&key()), None);
}

#[rstest]
#[case(StoreErrorKind::Misconfigured)]
#[case(StoreErrorKind::InvalidArgument)]
#[case(StoreErrorKind::CorruptRecord)]
#[case(StoreErrorKind::Other)]
#[tokio::test(start_paused = true)]
async fn failing_open_is_for_outages_alone(#[case] kind: StoreErrorKind) {
    let store = Scripted::new();
    let (engine, _) = engine_with(&store, fail_open());
    store.next(Call::Claim, Fault::Fails(kind));
    let run = engine.run(key(), request(), async |_| -> Result<_, Declined> { panic!("ran") }).await;
    assert!(matches!(&run, Err(RunError::Refused(error)) if error.kind() == kind), "{run:?}");
}

#[tokio::test(start_paused = true)]
async fn a_claim_whose_acknowledgement_is_lost_is_recognised_as_our_own() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    for _ in 0..3 {
        store.next(Call::Claim, Fault::LostAck);
    }
    let run = engine.run(key(), request(), async |context| {
        assert_eq!((context.attempt(), context.is_retry()), (1, false));
        Ok::<_, Declined>(result("once"))
    });
    assert_eq!(run.await.unwrap().value, result("once"));
    assert_eq!(heard.take(), [EventKind::New]);
}

#[tokio::test(start_paused = true)]
async fn a_claim_without_any_answer_ends_within_the_deadline() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.always(Call::Claim, Fault::Hangs);
    let began = Instant::now();
    for (lease, deadline) in [(LEASE, 10), (Duration::from_secs(3), 3)] {
        let began = Instant::now();
        let begin = engine.operation(key(), request()).lease(lease).begin().await;
        assert!(matches!(begin, Begin::Refused(error) if error.may_be_applied()));
        assert_eq!(began.elapsed(), Duration::from_secs(deadline));
    }
    assert_eq!(began.elapsed(), Duration::from_secs(13));
}

#[tokio::test(start_paused = true)]
async fn a_completion_is_tried_until_the_store_is_back() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let run = engine.run(key(), request(), async |_| {
        store.always(Call::Complete, REFUSED);
        Ok::<_, Declined>(result("done"))
    });
    let heal = async {
        tokio::time::sleep(Duration::from_secs(20)).await;
        store.heal();
    };
    let (run, ()) = tokio::join!(run, heal);
    assert!(matches!(run.unwrap().provenance, Provenance::Executed { recording: Recording::Recorded, .. }));
    assert!(matches!(store.memory.record(&key()), Some(Record::Completed(_))));
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError]);
    assert!(store.calls(Call::Complete) < 60, "backed off");
}

#[tokio::test(start_paused = true)]
async fn a_completion_that_fails_for_its_whole_budget_is_told_with_the_operations_own_result() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.always(Call::Complete, REFUSED);
    let began = Instant::now();
    let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
    assert_eq!(run.value, result("done"));
    assert!(matches!(run.provenance, Provenance::Executed { recording: Recording::Failed(_), .. }));
    assert!(began.elapsed() <= Duration::from_secs(30), "{:?}", began.elapsed());
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError, EventKind::CompleteFailed]);
    assert!(
        matches!(store.memory.record(&key()), Some(Record::Claimed(_))),
        "held: nobody runs it again before the lease ends"
    );
}

#[tokio::test(start_paused = true)]
async fn a_completion_whose_acknowledgement_is_lost_is_our_own() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.next(Call::Complete, Fault::LostAck);
    store.next(Call::Complete, Fault::LostAck);
    let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
    assert!(matches!(run.provenance, Provenance::Executed { recording: Recording::Recorded, .. }));
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError]);
}

#[tokio::test(start_paused = true)]
async fn a_release_whose_acknowledgement_is_lost_fences_nobody() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.next(Call::Release, Fault::LostAck);
    let run = engine.run(key(), request(), async |_| Err::<StoredResult, _>(Declined(1))).await;
    let Err(RunError::Operation { error: Declined(1), provenance }) = run else { panic!("{run:?}") };
    assert!(matches!(provenance, Provenance::Executed { recording: Recording::Released, .. }));
    assert_eq!(store.memory.record(&key()), None);
}

#[tokio::test(start_paused = true)]
async fn a_release_that_fails_leaves_the_claim_to_lapse_and_keeps_the_operations_error() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.always(Call::Release, REFUSED);
    let run = engine.run(key(), request(), async |_| Err::<StoredResult, _>(Declined(7))).await;
    let Err(RunError::Operation { error: Declined(7), provenance }) = run else { panic!("{run:?}") };
    assert!(matches!(provenance, Provenance::Executed { recording: Recording::Held, .. }));
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError]);
    assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(_))));
}

#[rstest]
#[case(OnUnrecordable::RecordUnavailable)]
#[case(OnUnrecordable::Hold)]
#[case(OnUnrecordable::Release)]
#[tokio::test(start_paused = true)]
async fn a_result_that_is_too_large(#[case] choice: OnUnrecordable) {
    let store = Scripted::on(MemoryStore::builder().result_bytes_max(100));
    let policy = Policy::builder().on_unrecordable(choice).no_wait().build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    let runs = AtomicUsize::new(0);
    let run = async || {
        engine
            .run(key(), request(), async |_| {
                runs.fetch_add(1, Ordering::SeqCst);
                Ok::<_, Declined>(StoredResult::new(200, vec![7; 101]))
            })
            .await
    };
    let first = run().await.unwrap();
    assert_eq!(first.value.body.len(), 101, "the caller gets its own result");
    let Provenance::Executed { recording, .. } = first.provenance else { panic!("not executed") };
    let second = run().await;
    match choice {
        OnUnrecordable::RecordUnavailable => {
            assert!(matches!(recording, Recording::RecordedUnavailable));
            assert!(matches!(second, Err(RunError::ResultUnavailable)), "{second:?}");
        }
        OnUnrecordable::Hold => {
            assert!(matches!(recording, Recording::Held));
            assert!(matches!(second, Err(RunError::InProgress { .. })), "{second:?}");
        }
        OnUnrecordable::Release => {
            assert!(matches!(recording, Recording::Released));
            assert!(second.is_ok());
        }
    }
    assert_eq!(runs.into_inner(), if choice == OnUnrecordable::Release { 2 } else { 1 });
}

#[tokio::test(start_paused = true)]
async fn a_result_at_the_limit_is_recorded() {
    let store = Scripted::on(MemoryStore::builder().result_bytes_max(100));
    let (engine, _) = engine(&store);
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("not vacant") };
    let completion = guard.complete(StoredResult::new(200, vec![7; 96]).with_header("a", "bcd")).await;
    assert!(matches!(completion, Completion::Recorded), "{completion:?}");
}

/// The first try may have taken effect, whatever becomes of the second.
#[tokio::test(start_paused = true)]
async fn an_error_says_whether_any_try_may_have_been_applied() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.next(Call::Claim, Fault::LostAck);
    store.always(Call::Claim, REFUSED);
    let began = Instant::now();
    let Begin::Refused(error) = engine.begin(key(), request()).await else { panic!("not refused") };
    assert!(error.may_be_applied(), "{error}");
    assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(_))));
    assert!(began.elapsed() <= Duration::from_secs(10));

    let (store, request) = (Scripted::new(), request());
    let (engine, _) = engine_with(&store, Policy::default());
    store.next(Call::Complete, Fault::LostAck);
    store.always(Call::Complete, REFUSED);
    let run = engine.run(key(), request, async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
    let Provenance::Executed { recording: Recording::Failed(error), .. } = run.provenance else { panic!("{run:?}") };
    assert!(error.may_be_applied(), "{error}");
}

/// A claim whose answer was lost is asked for again even where the next tries are refused: the key must not stay wedged
/// by its own claim.
#[tokio::test(start_paused = true)]
async fn a_lost_claim_is_asked_for_through_a_short_outage() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.next(Call::Claim, Fault::LostAck);
    for _ in 0..5 {
        store.next(Call::Claim, REFUSED);
    }
    let run = engine.run(key(), request(), async |context| {
        assert_eq!(context.attempt(), 1);
        Ok::<_, Declined>(result("once"))
    });
    assert_eq!(run.await.unwrap().value, result("once"));
}

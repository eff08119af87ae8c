//! What `begin` and `run` find under a key.

use std::time::Duration;

use idemkit_core::{
    Begin, Complete, CompleteOutcome, Completion, Engine, EventKind, Fingerprint, MemoryStore, Outcome, Policy,
    Provenance, Record, Recording, RunError, Store, StoreErrorKind, StoredResult, Ttl,
};
use rstest::rstest;

use crate::support::{Call, Declined, Scripted, engine, key, other_request, request, result, take_over};

#[tokio::test(start_paused = true)]
async fn the_first_runs_and_every_duplicate_gets_its_result() {
    let (engine, heard) = engine(&Scripted::new());
    let first = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("first"))).await.unwrap();
    assert!(matches!(first.provenance, Provenance::Executed { attempt: 1, recording: Recording::Recorded }));
    assert_eq!(first.provenance.attempt(), Some(1));
    assert_eq!(heard.take(), [EventKind::New]);
    for _ in 0..3 {
        let run = engine.run(key(), request(), async |_| -> Result<_, Declined> { panic!("ran again") }).await.unwrap();
        assert_eq!(run.value, result("first"));
        assert!(run.is_replayed());
        assert_eq!(heard.take(), [EventKind::Replayed]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_result_comes_back_byte_for_byte_and_its_body_is_not_copied() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let body: Vec<u8> = (0..64 * 1024).map(|byte| byte as u8).collect();
    let stored =
        StoredResult::new(201, body).with_header("Link", "</a>").with_header("link", "").with_header("x", &b"\xff"[..]);
    let (expected, address) = (stored.clone(), stored.body.as_ptr());
    engine.run(key(), request(), async move |_| Ok::<_, Declined>(stored)).await.unwrap();
    let replayed = engine.run(key(), request(), async |_| Err(Declined(1))).await.unwrap();
    assert_eq!(replayed.value, expected);
    assert_eq!(replayed.value.body.as_ptr(), address, "the body was copied");
}

#[tokio::test(start_paused = true)]
async fn an_expired_result_runs_afresh() {
    let (engine, heard) = engine(&Scripted::new());
    let run = async |body| {
        let operation = engine.operation(key(), request()).expires_after(Duration::from_secs(60));
        operation.run(async move |_| Ok::<_, Declined>(result(body))).await.unwrap().value
    };
    assert_eq!(run("first").await, result("first"));
    tokio::time::advance(Duration::from_millis(59_999)).await;
    assert_eq!(run("second").await, result("first"));
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(run("third").await, result("third"), "replaying must not prolong the expiry");
    assert_eq!(heard.take(), [EventKind::New, EventKind::Replayed, EventKind::New]);
}

/// In which condition the other request finds the key.
#[derive(Clone, Copy, Debug)]
enum Meets {
    Live,
    Lapsed,
    Completed,
}

#[rstest]
#[case(Meets::Live)]
#[case(Meets::Lapsed)]
#[case(Meets::Completed)]
#[tokio::test(start_paused = true)]
async fn another_request_under_the_key_is_refused_at_once_and_gets_nothing(#[case] meets: Meets) {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    match meets {
        Meets::Live => drop(take_over(&store).await),
        Meets::Lapsed => {
            take_over(&store).await;
            tokio::time::advance(Duration::from_secs(30)).await;
        }
        Meets::Completed => {
            drop(engine.run(key(), request(), async |_| Ok::<_, Declined>(result("first"))).await.unwrap())
        }
    }
    heard.take();
    let (before, began) = (store.memory.record(&key()), tokio::time::Instant::now());
    let refused = engine.run(key(), other_request(), async |_| -> Result<_, Declined> { panic!("ran") }).await;
    assert!(matches!(refused, Err(RunError::Mismatch)), "{refused:?}");
    assert_eq!(began.elapsed(), Duration::ZERO, "a mismatch does not wait");
    assert_eq!(store.memory.record(&key()), before);
    assert_eq!(heard.take(), [EventKind::PayloadMismatch]);
}

#[tokio::test(start_paused = true)]
async fn an_unknown_fingerprint_version_never_equals() {
    let (engine, _) = engine(&Scripted::new());
    let unknown = Fingerprint::from_stored(99, *request().hash());
    engine.run(key(), unknown, async |_| Ok::<_, Declined>(result("first"))).await.unwrap();
    for fingerprint in [unknown, request()] {
        let refused = engine.run(key(), fingerprint, async |_| Ok::<_, Declined>(result("second"))).await;
        assert!(matches!(refused, Err(RunError::Mismatch)), "{refused:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_guard_completes_releases_or_holds() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let proceed = async || match engine.begin(key(), request()).await {
        Begin::Proceed(guard) => guard,
        other => panic!("{other:?}"),
    };
    assert!(proceed().await.release().await);
    assert_eq!(store.memory.record(&key()), None);

    proceed().await.hold();
    assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(claimed)) if claimed.attempt == 1));
    tokio::time::advance(Duration::from_secs(30)).await;

    drop(proceed().await);
    assert!(
        matches!(store.memory.record(&key()), Some(Record::Claimed(claimed)) if claimed.attempt == 2),
        "a drop holds"
    );
    tokio::time::advance(Duration::from_secs(30)).await;

    let guard = proceed().await;
    assert_eq!(guard.context().attempt(), 3);
    let minute = Ttl::new(Duration::from_secs(60)).unwrap();
    assert!(matches!(guard.complete_as(Outcome::Error(result("no")), minute).await, Completion::Recorded));
    assert!(
        matches!(engine.begin(key(), request()).await, Begin::Replay(replay) if replay.is_error && replay.result == result("no"))
    );
}

#[tokio::test(start_paused = true)]
async fn a_guard_keeps_its_claim_alive_and_is_ended_by_nobody_else() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("not vacant") };
    tokio::time::sleep(Duration::from_secs(300)).await;
    assert!(matches!(engine.begin(key(), request()).await, Begin::InProgress { .. }));
    assert!(matches!(guard.complete(result("late")).await, Completion::Recorded));
}

#[rstest]
#[case::garbage(Record::Garbage)]
#[case::newer(Record::Newer)]
#[tokio::test(start_paused = true)]
async fn a_record_that_cannot_be_read(#[case] record: Record) {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.memory.plant(key(), record.clone());
    let run = engine
        .run(key(), request(), async |context| {
            assert_eq!(context.attempt(), 1);
            assert!(context.is_retry(), "what happened before is unknown");
            Ok::<_, Declined>(result("recovered"))
        })
        .await;
    if record == Record::Garbage {
        assert_eq!(run.unwrap().value, result("recovered"));
    } else {
        assert!(
            matches!(&run, Err(RunError::Refused(error)) if error.kind() == StoreErrorKind::CorruptRecord),
            "{run:?}"
        );
        assert_eq!(store.memory.record(&key()), Some(Record::Newer));
    }
    assert_eq!(heard.take(), [EventKind::CorruptRecord]);
}

#[tokio::test(start_paused = true)]
async fn a_duration_of_zero_is_refused_before_any_io() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let operation = || engine.operation(key(), request());
    for operation in [
        operation().lease(Duration::ZERO),
        operation().wait(Duration::ZERO),
        operation().expires_after(Duration::ZERO),
        operation().max_execution(Duration::ZERO).lease(Duration::from_secs(1)),
    ] {
        let refused = operation.run(async |_| -> Result<_, Declined> { panic!("ran") }).await;
        assert!(
            matches!(&refused, Err(RunError::Refused(error)) if error.kind() == StoreErrorKind::InvalidArgument),
            "{refused:?}"
        );
    }
    assert_eq!(store.calls(Call::Claim), 0);
    assert_eq!(heard.take(), []);
}

#[tokio::test(start_paused = true)]
async fn huge_durations_are_clamped() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let policy = Policy::builder()
        .lease(Duration::MAX)
        .wait(Duration::MAX)
        .expires_after(Duration::MAX)
        .max_execution(Duration::MAX)
        .store_deadline(Duration::MAX)
        .complete_budget(Duration::MAX)
        .build()
        .unwrap();
    let run = engine.operation(key(), request()).policy(policy).run(async |_| Ok::<_, Declined>(result("done"))).await;
    assert_eq!(run.unwrap().value, result("done"));
    let Some(Record::Completed(completed)) = store.memory.record(&key()) else { panic!("not completed") };
    assert_eq!(completed.expires_at.left_at(completed.completed_at), Ttl::MAX.as_duration());
}

#[test]
fn outside_a_runtime_it_is_refused_without_a_panic() {
    let engine = Engine::new(MemoryStore::new());
    let begin = futures_util::FutureExt::now_or_never(engine.begin(key(), request()));
    assert!(matches!(begin, Some(Begin::Refused(error)) if error.kind() == StoreErrorKind::Misconfigured));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_handed_over_is_completed_by_its_token() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("a fresh key") };
    let claim = guard.hand_over();
    assert_eq!(claim.key, key());
    let complete = Complete::new(claim.token, Outcome::Result(result("in a transaction")), Ttl::MAX);
    assert_eq!(store.complete(&claim.key, &complete).await.unwrap(), CompleteOutcome::Applied);
    let run = engine.run(key(), request(), async |_| Err(Declined(1))).await.unwrap();
    assert_eq!(run.value, result("in a transaction"));
}

#[tokio::test(start_paused = true)]
async fn a_claim_that_is_handed_over_has_no_heartbeat_and_lapses() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("a fresh key") };
    let claim = guard.hand_over();
    tokio::time::advance(Duration::from_secs(31)).await;
    assert_eq!(store.calls(Call::Renew), 0);
    let Begin::Proceed(taker) = engine.begin(key(), request()).await else { panic!("a lapsed claim") };
    assert_eq!(taker.context().attempt(), 2);
    let late = Complete::new(claim.token, Outcome::Result(result("late")), Ttl::MAX);
    assert_eq!(store.complete(&claim.key, &late).await.unwrap(), CompleteOutcome::Fenced);
    assert!(taker.release().await);
}

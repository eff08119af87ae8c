//! Typed results, reconciling, and the downstream key.

use std::{collections::HashMap, time::Duration};

use idemkit_core::{
    Codec, CodecError, EffectiveKey, Provenance, Reconciled, Record, Recording, RunError, StoredResult,
};
use tokio::time::advance;

use crate::support::{Declined, LEASE, Scripted, engine, key, request, result, take_over};

#[derive(Debug, Clone, PartialEq, serde::Serialize, serde::Deserialize)]
struct Receipt {
    charge: String,
    amount_minor: i64,
}

fn receipt(charge: &str) -> Receipt {
    Receipt { charge: charge.to_owned(), amount_minor: 500 }
}

#[tokio::test(start_paused = true)]
async fn any_serde_type_is_recorded_and_replayed() {
    let (engine, _) = engine(&Scripted::new());
    for n in 1..=2 {
        let operation = engine.operation(key(), request()).json();
        let run = operation.run(async |_| Ok::<_, Declined>(receipt(&format!("ch_{n}")))).await.unwrap();
        assert_eq!(run.is_replayed(), n == 2);
        assert_eq!(run.into_value(), receipt("ch_1"));
    }
}

#[tokio::test(start_paused = true)]
async fn a_recorded_result_of_another_type_is_said_to_be_undecodable_and_does_not_run_again() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    engine.run(key(), request(), async |_| Ok::<_, Declined>(result("not json"))).await.unwrap();
    let before = store.memory.record(&key());
    let run =
        engine.operation(key(), request()).json().run(async |_| -> Result<Receipt, Declined> { panic!("ran") }).await;
    assert!(matches!(run, Err(RunError::Undecodable(_))), "{run:?}");
    assert_eq!(store.memory.record(&key()), before);
}

#[tokio::test(start_paused = true)]
async fn a_value_that_json_cannot_hold_is_done_and_unavailable() {
    let (engine, _) = engine(&Scripted::new());
    // JSON has only text as names.
    let value = HashMap::from([((1, 2), 3)]);
    let run = async || engine.operation(key(), request()).json().run(async |_| Ok::<_, Declined>(value.clone())).await;
    let first = run().await.unwrap();
    assert_eq!(first.value, value, "the caller gets its own value");
    assert!(matches!(first.provenance, Provenance::Executed { recording: Recording::RecordedUnavailable, .. }));
    assert!(matches!(run().await, Err(RunError::ResultUnavailable)));
}

struct Numbers;

impl Codec<u32> for Numbers {
    fn encode(&self, value: &u32) -> Result<StoredResult, CodecError> {
        Ok(StoredResult::new(200, value.to_be_bytes().to_vec()))
    }
    fn decode(&self, stored: &StoredResult) -> Result<u32, CodecError> {
        Ok(u32::from_be_bytes(stored.body[..].try_into().map_err(CodecError::new)?))
    }
}

#[tokio::test(start_paused = true)]
async fn a_codec_of_the_users_own() {
    let (engine, _) = engine(&Scripted::new());
    for n in [7, 8] {
        let run = engine.operation(key(), request()).codec(Numbers).run(async move |_| Ok::<_, Declined>(n)).await;
        assert_eq!(run.unwrap().value, 7);
    }
}

#[tokio::test(start_paused = true)]
async fn a_fresh_operation_is_not_reconciled() {
    let (engine, _) = engine(&Scripted::new());
    let operation =
        engine.operation(key(), request()).reconcile(async |_| -> Reconciled<StoredResult> { panic!("asked") });
    assert_eq!(operation.run(async |_| Ok::<_, Declined>(result("fresh"))).await.unwrap().value, result("fresh"));
}

#[tokio::test(start_paused = true)]
async fn a_reclaimed_operation_that_was_already_done_is_recorded_and_does_not_run() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    advance(LEASE).await;
    let operation = engine.operation(key(), request()).json().reconcile(async |context| {
        assert_eq!((context.attempt(), context.is_retry()), (2, true));
        Reconciled::Done(receipt("ch_found"))
    });
    let run = operation.run(async |_| -> Result<_, Declined> { panic!("ran") }).await.unwrap();
    assert_eq!(run.value, receipt("ch_found"));
    assert!(matches!(run.provenance, Provenance::Reconciled { attempt: 2, recording: Recording::Recorded }));
    let duplicate = engine.operation(key(), request()).json().run(async |_| Ok::<_, Declined>(receipt("ch_new"))).await;
    assert_eq!(duplicate.unwrap().value, receipt("ch_found"));
}

#[tokio::test(start_paused = true)]
async fn a_reclaimed_operation_that_was_not_done_runs() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    advance(LEASE).await;
    let operation = engine.operation(key(), request()).reconcile(async |_| Reconciled::NotDone);
    assert_eq!(operation.run(async |_| Ok::<_, Declined>(result("run"))).await.unwrap().value, result("run"));
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_reconciled_is_refused_held_and_asked_again() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    for attempt in 2..=4 {
        advance(LEASE).await;
        let operation = engine.operation(key(), request()).reconcile(async move |context| {
            assert_eq!(
                context.attempt(),
                attempt,
                "a release here would make the next claim a fresh one, which nobody reconciles"
            );
            Reconciled::Unknown
        });
        let run = operation.run(async |_| -> Result<_, Declined> { panic!("ran") }).await;
        assert!(matches!(run, Err(RunError::Unreconciled)), "{run:?}");
        assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(claimed)) if claimed.attempt == attempt));
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_reconcile_hook_is_kept_alive_too() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.memory.plant(key(), Record::Garbage);
    let operation = engine.operation(key(), request()).reconcile(async |_| {
        tokio::time::sleep(10 * LEASE).await;
        Reconciled::Done(result("found"))
    });
    assert_eq!(operation.run(async |_| Ok::<_, Declined>(result("run"))).await.unwrap().value, result("found"));
}

#[tokio::test(start_paused = true)]
async fn the_downstream_key_is_the_same_at_every_attempt_and_of_no_other_operation() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let mut seen = Vec::new();
    for attempt in 1..=3 {
        let operation = engine.operation(key(), request()).max_execution(Duration::from_millis(1));
        let run = operation.run(async |context| {
            assert_eq!(context.attempt(), attempt);
            seen.push((context.downstream_key(), context.downstream_step("refund")));
            std::future::pending::<Result<StoredResult, Declined>>().await
        });
        assert!(matches!(run.await, Err(RunError::TimedOut)));
        advance(LEASE).await;
    }
    assert_eq!(seen, vec![(key().downstream(), key().downstream_step("refund")); 3]);
    assert_ne!(key().downstream(), key().downstream_step("refund"));
    assert_ne!(key().downstream(), EffectiveKey::message("msg-8", "orders", "billing").downstream());
    assert_ne!(key().downstream().to_string(), key().to_string(), "the next system must not learn the stored key");
}

//! What is released, held and recorded; and observers.

use std::time::Duration;

use idemkit_core::{
    Begin, Engine, Event, EventKind, Observer, OnError, Policy, Provenance, Record, Recording, RunError, StoredResult,
    Ttl,
};
use rstest::rstest;
use tokio::time::advance;

use crate::support::{Declined, LEASE, Scripted, engine, key, request, result};

fn rule(error: &Declined) -> OnError {
    match error.0 {
        1 => OnError::Release,
        2 => OnError::Hold,
        3 => OnError::Record { expires_after: None },
        _ => OnError::Record { expires_after: Some(Ttl::new(Duration::from_secs(60)).unwrap()) },
    }
}

#[tokio::test(start_paused = true)]
async fn each_error_is_released_held_or_recorded_as_its_rule_says() {
    for code in 1..=3 {
        let store = Scripted::new();
        let (engine, _) = engine(&store);
        let run = async |code| {
            let operation = engine.operation(key(), request()).no_wait().on_error_json(rule);
            operation.run(async move |_| Err::<StoredResult, _>(Declined(code))).await
        };
        let Err(RunError::Operation { error, provenance }) = run(code).await else { panic!("no error") };
        assert_eq!(error, Declined(code));
        let Provenance::Executed { recording, .. } = provenance else { panic!("{provenance:?}") };
        // The second operation would fail with another error, if it ran.
        let second = run(99).await;
        match code {
            1 => {
                assert!(matches!(recording, Recording::Released));
                assert!(matches!(second, Err(RunError::Operation { error: Declined(99), .. })), "{second:?}");
            }
            2 => {
                assert!(matches!(recording, Recording::Held));
                assert!(matches!(second, Err(RunError::InProgress { .. })), "{second:?}");
            }
            _ => {
                assert!(matches!(recording, Recording::Recorded));
                let Err(RunError::Operation { error, provenance: Provenance::Replayed }) = second else {
                    panic!("{second:?}")
                };
                assert_eq!(error, Declined(3), "the recorded error keeps its type");
                assert_eq!(run(7).await.unwrap_err().operation(), Some(&Declined(3)));
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_final_error_has_its_own_expiry() {
    let (engine, _) = engine(&Scripted::new());
    let run = async |code| {
        let operation = engine.operation(key(), request()).on_error_json(rule);
        match operation.run(async move |_| Err::<StoredResult, _>(Declined(code))).await {
            Err(RunError::Operation { error, .. }) => error.0,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(run(4).await, 4);
    advance(Duration::from_millis(59_999)).await;
    assert_eq!(run(5).await, 4);
    advance(Duration::from_millis(1)).await;
    assert_eq!(run(5).await, 5);
}

#[tokio::test(start_paused = true)]
async fn a_final_error_without_a_codec_is_done_and_unavailable() {
    let (engine, _) = engine(&Scripted::new());
    let run = async || {
        let operation = engine.operation(key(), request()).on_error(rule);
        operation.run(async |_| Err::<StoredResult, _>(Declined(3))).await
    };
    let Err(RunError::Operation { provenance, .. }) = run().await else { panic!("no error") };
    assert!(matches!(provenance, Provenance::Executed { recording: Recording::RecordedUnavailable, .. }));
    assert!(matches!(run().await, Err(RunError::ResultUnavailable)));
}

#[tokio::test(start_paused = true)]
async fn a_value_that_is_not_to_be_recorded_releases() {
    let (engine, _) = engine(&Scripted::new());
    let run = async |status| {
        let operation = engine.operation(key(), request()).record_when(|result: &StoredResult| result.status < 500);
        operation.run(async move |_| Ok::<_, Declined>(StoredResult::new(status, ""))).await.unwrap()
    };
    let first = run(503).await;
    assert!(matches!(first.provenance, Provenance::Executed { recording: Recording::Released, .. }));
    assert_eq!(run(200).await.value.status, 200);
    assert_eq!(run(201).await.value.status, 200);
}

struct Panics;

impl Observer for Panics {
    fn on_event(&self, event: &Event<'_>) {
        panic!("{}", event.kind);
    }
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_harms_nothing() {
    let store = Scripted::new();
    let engine = Engine::builder(store.clone()).observer(Panics).build();
    for _ in 0..2 {
        let run = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
        assert_eq!(run.value, result("done"));
    }
    assert!(matches!(store.memory.record(&key()), Some(Record::Completed(_))));
}

struct Checks(std::sync::mpsc::Sender<String>);

impl Observer for Checks {
    fn on_event(&self, event: &Event<'_>) {
        let _ = self.0.send(format!("{event:?}"));
    }
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn an_event_says_what_happened_to_which_hashed_key() {
    let (sender, heard) = std::sync::mpsc::channel();
    let engine = Engine::builder(Scripted::new()).surface("webhooks").observer(Checks(sender)).build();
    let Begin::Proceed(guard) = engine.begin(key(), request()).await else { panic!("not vacant") };
    advance(LEASE / 4).await;
    guard.hold();
    let event = heard.try_recv().unwrap();
    for part in ["New", "webhooks", "memory", "Some(1)", "lease_left: Some(30s)", &key().to_string()] {
        assert!(event.contains(part), "{part} is not in {event}");
    }
    assert!(!event.contains("msg-7"), "a raw key in an event");
}

#[test]
fn every_event_has_the_name_of_the_contract() {
    let names = [
        (EventKind::New, "new"),
        (EventKind::Replayed, "replayed"),
        (EventKind::InFlightWait, "in_flight_wait"),
        (EventKind::Conflict, "conflict"),
        (EventKind::PayloadMismatch, "payload_mismatch"),
        (EventKind::LeaseReclaimed, "lease_reclaimed"),
        (EventKind::LeaseReclaimedLoss, "lease_reclaimed_loss"),
        (EventKind::LeaseUnconfirmed, "lease_unconfirmed"),
        (EventKind::StorageError, "storage_error"),
        (EventKind::RanUnprotected, "ran_unprotected"),
        (EventKind::LeaseLost, "lease_lost"),
        (EventKind::CompleteFailed, "complete_failed"),
        (EventKind::CorruptRecord, "corrupt_record"),
    ];
    for (kind, name) in names {
        assert_eq!(kind.to_string(), name);
    }
}

#[test]
fn a_policy_with_a_duration_of_zero_is_not_built() {
    let zero = Duration::ZERO;
    for policy in [
        Policy::builder().lease(zero),
        Policy::builder().wait(zero),
        Policy::builder().expires_after(zero),
        Policy::builder().max_execution(zero),
        Policy::builder().store_deadline(zero),
        Policy::builder().complete_budget(zero).lease(LEASE),
    ] {
        assert!(policy.build().is_err());
    }
}

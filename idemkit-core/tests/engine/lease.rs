//! The heartbeat, and what happens when a lease is not confirmed or lost.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use idemkit_core::{
    Complete, CompleteOutcome, EventKind, LeaseLoss, MemoryStore, OnLeaseLost, OnUnconfirmed, Outcome, Policy, Record,
    RunError, Store, StoredResult, Ttl,
};
use rstest::rstest;
use tokio::time::{Instant, advance, sleep};

use crate::support::{
    Call, Declined, Fault, LEASE, REFUSED, Scripted, engine, engine_with, key, request, result, take_over,
};

/// Says when the operation's future is dropped before its end.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_operation_is_kept_alive_by_its_heartbeat() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let slow = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine
                .run(key(), request(), async |context| {
                    for _ in 0..100 {
                        sleep(LEASE / 10).await;
                        let left = context.lease_left().unwrap();
                        assert!(left > LEASE / 2 && left <= LEASE, "{left:?}");
                    }
                    Ok::<_, Declined>(result("slow"))
                })
                .await
        }
    });
    for _ in 0..9 {
        sleep(LEASE).await;
        let duplicate =
            engine.operation(key(), request()).no_wait().run(async |_| Ok::<_, Declined>(result("twice"))).await;
        assert!(
            matches!(duplicate, Err(RunError::InProgress { retry_after }) if retry_after <= LEASE),
            "{duplicate:?}"
        );
    }
    assert_eq!(slow.await.unwrap().unwrap().value, result("slow"));
    // The operation ends at the very moment of the last.
    assert!((29..=30).contains(&store.calls(Call::Renew)), "every third of the lease, over ten leases");
    assert!(!heard.take().contains(&EventKind::LeaseUnconfirmed));
}

#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_for_three_leases_stops_nobody_who_was_not_taken_over() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let run = engine
        .run(key(), request(), async |context| {
            store.outage();
            sleep(3 * LEASE).await;
            assert_eq!(context.lease_left(), Some(Duration::ZERO));
            assert!(!context.is_lease_lost());
            store.heal();
            sleep(LEASE).await;
            assert!(context.lease_left() > Some(LEASE / 2), "confirmed again");
            Ok::<_, Declined>(result("done"))
        })
        .await
        .unwrap();
    assert_eq!(run.value, result("done"));
    assert!(matches!(store.memory.record(&key()), Some(Record::Completed(_))));
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError, EventKind::LeaseUnconfirmed], "each told once");
}

#[rstest]
#[case::no_margin(Duration::ZERO)]
#[case::margin(Duration::from_secs(7))]
#[tokio::test(start_paused = true)]
async fn an_unconfirmed_lease_drops_the_operation_at_the_margins_end_where_chosen(#[case] margin: Duration) {
    let store = Scripted::on(MemoryStore::builder().take_over_margin(margin));
    let policy = Policy::builder().on_unconfirmed(OnUnconfirmed::Drop).build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    store.always(Call::Renew, REFUSED);
    let (began, dropped) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let run = engine
        .run(key(), request(), async |_| {
            let _dropped = Dropped(Arc::clone(&dropped));
            sleep(10 * LEASE).await;
            Ok::<_, Declined>(result("never"))
        })
        .await;
    assert!(matches!(run, Err(RunError::LeaseLost(LeaseLoss::Unconfirmed))), "{run:?}");
    assert_eq!(began.elapsed(), LEASE + margin, "not before another could take over, nor after");
    assert!(dropped.load(Ordering::SeqCst));
    assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(_))), "left to lapse");
}

#[rstest]
#[case::dropped(OnLeaseLost::Drop)]
#[case::let_it_end(OnLeaseLost::LetItEnd)]
#[tokio::test(start_paused = true)]
async fn a_fenced_renewal(#[case] on_lease_lost: OnLeaseLost) {
    let store = Scripted::new();
    let (engine, heard) = engine_with(&store, Policy::builder().on_lease_lost(on_lease_lost).build().unwrap());
    let (began, dropped) = (Instant::now(), Arc::new(AtomicBool::new(true)));
    let run = engine
        .run(key(), request(), async |context| {
            let guard = Dropped(Arc::new(AtomicBool::new(false)));
            dropped.store(true, Ordering::SeqCst);
            store.always(Call::Renew, REFUSED);
            sleep(LEASE).await;
            take_over(&store).await;
            store.heal();
            sleep(10 * LEASE).await;
            assert!(context.is_lease_lost());
            dropped.store(false, Ordering::SeqCst);
            drop(guard);
            Ok::<_, Declined>(result("zombie"))
        })
        .await;
    assert!(matches!(run, Err(RunError::LeaseLost(LeaseLoss::Fenced))), "{run:?}");
    let lets_it_end = on_lease_lost == OnLeaseLost::LetItEnd;
    assert_eq!(dropped.load(Ordering::SeqCst), !lets_it_end);
    assert_eq!(began.elapsed() >= 11 * LEASE, lets_it_end);
    let lost = [EventKind::New, EventKind::StorageError, EventKind::LeaseUnconfirmed, EventKind::LeaseLost];
    let heard = heard.take();
    let told: Vec<_> = heard.iter().filter(|kind| lost.contains(kind)).collect();
    assert_eq!(told.last(), Some(&&EventKind::LeaseLost));
    assert_eq!(heard.contains(&EventKind::LeaseReclaimedLoss), lets_it_end);
    assert!(
        matches!(store.memory.record(&key()), Some(Record::Claimed(claimed)) if claimed.attempt == 2),
        "the other's claim stands"
    );
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_of_a_lapsed_holder_is_fenced_and_the_others_result_stands() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    let run = engine
        .run(key(), request(), async |_| {
            store.always(Call::Renew, REFUSED);
            sleep(LEASE).await;
            let token = take_over(&store).await;
            let complete = Complete::new(token, Outcome::Result(result("theirs")), Ttl::new(LEASE).unwrap());
            assert_eq!(store.memory.complete(&key(), &complete).await.unwrap(), CompleteOutcome::Applied);
            Ok::<_, Declined>(result("mine"))
        })
        .await;
    assert!(matches!(run, Err(RunError::LeaseLost(LeaseLoss::Fenced))), "{run:?}");
    assert_eq!(heard.take().last(), Some(&EventKind::LeaseReclaimedLoss));
    store.heal();
    let duplicate = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("again"))).await.unwrap();
    assert_eq!(duplicate.value, result("theirs"));
}

#[tokio::test(start_paused = true)]
async fn a_late_completion_of_a_lapsed_holder_that_nobody_took_over_is_recorded() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let run = engine.run(key(), request(), async |_| {
        store.always(Call::Renew, REFUSED);
        sleep(LEASE + Duration::from_secs(5)).await;
        Ok::<_, Declined>(result("late"))
    });
    assert_eq!(run.await.unwrap().value, result("late"));
    assert!(matches!(store.memory.record(&key()), Some(Record::Completed(_))));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_that_hangs_does_not_keep_the_next_from_being_tried() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.next(Call::Renew, Fault::Hangs);
    let run = engine.run(key(), request(), async |_| {
        sleep(2 * LEASE).await;
        Ok::<_, Declined>(result("done"))
    });
    run.await.unwrap();
    assert_eq!(heard.take(), [EventKind::New, EventKind::StorageError], "confirmed before the lease ended");
}

/// The process stands still between sending a claim and hearing of it, for longer than the lease.
#[rstest]
#[case::nobody_took_over(false)]
#[case::taken_over(true)]
#[tokio::test(start_paused = true)]
async fn a_claim_whose_answer_took_its_whole_lease_is_renewed_before_the_operation_begins(#[case] taken_over: bool) {
    let store = Scripted::yielding();
    let (engine, heard) = engine(&store);
    let mut run = pin!(engine.operation(key(), request()).no_wait().run(async |context| {
        assert!(context.lease_left() > Some(LEASE / 2), "the operation began on a lease that was over");
        Ok::<_, Declined>(result("done"))
    }));
    while store.memory.record(&key()).is_none() {
        assert!(futures_util::poll!(run.as_mut()).is_pending());
    }
    advance(LEASE + Duration::from_secs(1)).await;
    if taken_over {
        take_over(&store).await;
    }
    let run = run.await;
    assert_eq!(store.calls(Call::Renew), 1);
    if taken_over {
        assert!(matches!(run, Err(RunError::InProgress { .. })), "{run:?}");
        assert_eq!(heard.take(), [EventKind::Conflict]);
    } else {
        assert_eq!(run.unwrap().value, result("done"));
        assert_eq!(heard.take(), [EventKind::New]);
    }
}

#[tokio::test(start_paused = true)]
async fn a_lease_is_counted_from_when_the_claim_was_first_sent() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    store.next(Call::Claim, Fault::AnswersAfter(Duration::from_secs(4)));
    let run = engine.run(key(), request(), async |context| {
        assert_eq!(context.lease_left(), Some(LEASE - Duration::from_secs(4)));
        Ok::<_, Declined>(result("done"))
    });
    run.await.unwrap();
}

/// The limit is the work's. A store that is away when it ends must not make a duplicate run it again.
#[tokio::test(start_paused = true)]
async fn a_limit_of_the_work_does_not_end_the_lease_while_its_outcome_is_recorded() {
    let store = Scripted::new();
    let policy = Policy::builder().lease(LEASE).max_execution(LEASE * 2).complete_budget(LEASE * 5).build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    let slow = tokio::spawn({
        let engine = engine.clone();
        let store = store.clone();
        async move {
            engine
                .run(key(), request(), async |_| {
                    sleep(LEASE * 2 - Duration::from_secs(1)).await;
                    store.always(Call::Complete, REFUSED);
                    Ok::<_, Declined>(result("in time"))
                })
                .await
        }
    });
    sleep(LEASE * 4).await;
    let beside = engine.operation(key(), request()).no_wait().run(async |_| Ok::<_, Declined>(result("twice"))).await;
    assert!(matches!(beside, Err(RunError::InProgress { .. })), "{beside:?}");
    store.heal();
    assert_eq!(slow.await.unwrap().unwrap().value, result("in time"));
    let replay = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await.unwrap();
    assert_eq!(replay.value, result("in time"));
}

#[tokio::test(start_paused = true)]
async fn an_operation_that_takes_too_long_is_dropped_and_its_claim_lapses() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let (began, dropped) = (Instant::now(), Arc::new(AtomicBool::new(false)));
    let limit = Duration::from_secs(100);
    let run = engine.operation(key(), request()).max_execution(limit).run(async |_| {
        let _dropped = Dropped(Arc::clone(&dropped));
        sleep(10 * LEASE).await;
        Ok::<_, Declined>(result("never"))
    });
    let run = run.await;
    assert!(matches!(run, Err(RunError::TimedOut)), "{run:?}");
    assert_eq!(began.elapsed(), limit);
    assert!(dropped.load(Ordering::SeqCst));
    advance(LEASE).await;
    let next = engine.run(key(), request(), async |context| {
        assert_eq!((context.attempt(), context.is_retry()), (2, true));
        Ok::<_, Declined>(result("next"))
    });
    assert_eq!(next.await.unwrap().value, result("next"));
}

#[tokio::test(start_paused = true)]
async fn the_heartbeat_ends_with_its_guard() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    for _ in 0..100 {
        engine.run(key(), request(), async |_| Err::<idemkit_core::StoredResult, _>(Declined(1))).await.unwrap_err();
    }
    sleep(Duration::from_millis(1)).await;
    assert_eq!(tasks(), before);
    let renewals = store.calls(Call::Renew);
    sleep(10 * LEASE).await;
    assert_eq!(store.calls(Call::Renew), renewals);
}

#[tokio::test(start_paused = true)]
async fn waiting_does_not_count_as_execution() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    take_over(&store).await;
    let operation = engine.operation(key(), request()).wait(2 * LEASE).max_execution(LEASE / 3);
    let run = operation.run(async |context| {
        assert_eq!(context.attempt(), 2);
        sleep(LEASE / 3 - Duration::from_millis(1)).await;
        Ok::<_, Declined>(result("done"))
    });
    assert_eq!(run.await.unwrap().value, result("done"));
}

#[tokio::test(start_paused = true)]
async fn a_renewal_beside_a_release_is_not_told_as_a_loss() {
    let store = Scripted::new();
    let (engine, heard) = engine(&store);
    store.next(Call::Release, Fault::AnswersAfter(Duration::from_secs(8)));
    let run = engine.run(key(), request(), async |_| {
        sleep(Duration::from_secs(5)).await;
        Err::<StoredResult, _>(Declined(1))
    });
    assert!(matches!(run.await, Err(RunError::Operation { .. })));
    assert_eq!(heard.take(), [EventKind::New]);
}

/// Whatever a store answers, the engine does not panic.
#[rstest]
#[case(OnUnconfirmed::Continue)]
#[case(OnUnconfirmed::Drop)]
#[tokio::test(start_paused = true)]
async fn absurd_durations_from_a_store_overflow_nothing(#[case] on_unconfirmed: OnUnconfirmed) {
    let store = Scripted::on(MemoryStore::builder().take_over_margin(Duration::MAX).grace(Duration::MAX));
    let policy = Policy::builder().on_unconfirmed(on_unconfirmed).wait(Duration::from_secs(1)).build().unwrap();
    let (engine, _) = engine_with(&store, policy);
    let run = engine.run(key(), request(), async |_| {
        let duplicate = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("twice"))).await;
        assert!(matches!(duplicate, Err(RunError::InProgress { .. })), "{duplicate:?}");
        store.always(Call::Renew, REFUSED);
        sleep(3 * LEASE).await;
        Ok::<_, Declined>(result("done"))
    });
    assert_eq!(run.await.unwrap().value, result("done"));
}

#[tokio::test]
async fn operations_that_never_wait_give_way_to_other_tasks() {
    let (engine, _) = engine(&Scripted::new());
    let ticks = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let other = tokio::spawn({
        let ticks = Arc::clone(&ticks);
        async move {
            loop {
                ticks.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        }
    });
    for n in 0..2_000 {
        let key = idemkit_core::EffectiveKey::message(format!("msg-{n}"), "orders", "billing");
        engine.run(key, request(), async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
        let alive = tokio::runtime::Handle::current().metrics().num_alive_tasks();
        assert!(alive < 500, "{alive} tasks wait for their turn to end");
    }
    assert!(ticks.load(Ordering::SeqCst) > 5);
    other.abort();
}

//! Operations that are cut off: dropped futures, panics, killed tasks.

use std::{
    future::Future,
    pin::pin,
    sync::atomic::{AtomicUsize, Ordering},
    task::{Context as TaskContext, Poll, Waker},
    time::Duration,
};

use futures_util::FutureExt;
use idemkit_core::{Begin, Record, RunError, Store, StoredResult};
use tokio::time::advance;

use crate::support::{Call, Declined, LEASE, Scripted, engine, key, request, result, take_over};

/// Polls `future` at most `polls` times, letting other tasks run in between, and then drops it. Says whether it ended.
async fn drop_after<F: Future>(polls: usize, future: F) -> bool {
    let mut future = pin!(future);
    for _ in 0..polls {
        let poll = future.as_mut().poll(&mut TaskContext::from_waker(Waker::noop()));
        if poll.is_ready() {
            return true;
        }
        tokio::task::yield_now().await;
    }
    false
}

/// Heartbeats and watches end with what they are for. An aborted task is gone once the runtime has looked at it.
async fn no_task_is_left() {
    tokio::task::yield_now().await;
    assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0);
}

/// `run` dropped at each of its awaits: nothing is half done, nothing is left behind, and the key is usable after the
/// lease.
#[tokio::test(start_paused = true)]
async fn a_run_dropped_at_any_await_holds_and_leaves_the_key_usable() {
    let mut polls = 0;
    loop {
        let store = Scripted::yielding();
        let (engine, _) = engine(&store);
        let ran = AtomicUsize::new(0);
        let operation = async |_| {
            ran.fetch_add(1, Ordering::SeqCst);
            tokio::task::yield_now().await;
            Ok::<_, Declined>(result("first"))
        };
        let ended = drop_after(polls, engine.run(key(), request(), operation)).await;
        no_task_is_left().await;

        let completed = matches!(store.memory.record(&key()), Some(Record::Completed(_)));
        let started = ran.load(Ordering::SeqCst);
        // A duplicate right afterwards never runs beside an effect that may be under way.
        let now = engine.operation(key(), request()).no_wait().run(async |_| Ok::<_, Declined>(result("second"))).await;
        match &now {
            Ok(run) if completed => assert_eq!(run.value, result("first")),
            Ok(run) => assert_eq!((started, &run.value), (0, &result("second")), "ran beside one that was cut off"),
            Err(error) => assert!(matches!(error, RunError::InProgress { .. }), "{error:?}"),
        }
        advance(LEASE).await;
        let later = engine.run(key(), request(), async |_| Ok::<_, Declined>(result("third"))).await.unwrap();
        if completed {
            assert_eq!(later.value, result("first"));
        }
        if ended {
            assert!(completed);
            break;
        }
        polls += 1;
    }
    assert!(polls >= 6, "only {polls} awaits were tried: claim and completion give way twice each, the operation once");
}

#[tokio::test(start_paused = true)]
async fn a_waiting_duplicate_dropped_at_any_await_leaves_no_watch_behind() {
    for polls in 0..8 {
        let store = Scripted::yielding();
        let (engine, _) = engine(&store);
        take_over(&store).await;
        let duplicate = engine.run(key(), request(), async |_| -> Result<StoredResult, Declined> { panic!("ran") });
        assert!(!drop_after(polls, duplicate).await);
        no_task_is_left().await;
        assert_eq!(store.memory.watched_keys(), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_panic_holds_and_the_next_attempt_knows() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let run = engine.run(key(), request(), async |_| -> Result<StoredResult, Declined> { panic!("in the operation") });
    std::panic::AssertUnwindSafe(run).catch_unwind().await.expect_err("the panic is the caller's");
    assert!(matches!(store.memory.record(&key()), Some(Record::Claimed(_))));
    let now = engine.operation(key(), request()).no_wait().run(async |_| Ok::<_, Declined>(result("too early"))).await;
    assert!(matches!(now, Err(RunError::InProgress { .. })), "{now:?}");
    tokio::time::sleep(LEASE).await;
    assert_eq!(store.calls(Call::Renew), 0, "the heartbeat ended with the panic");
    let next = engine.run(key(), request(), async |context| {
        assert_eq!((context.attempt(), context.is_retry()), (2, true));
        Ok::<_, Declined>(result("next"))
    });
    assert_eq!(next.await.unwrap().value, result("next"));
}

#[tokio::test(start_paused = true)]
async fn an_aborted_task_holds() {
    let store = Scripted::new();
    let (engine, _) = engine(&store);
    let task = tokio::spawn({
        let engine = engine.clone();
        async move {
            engine.run(key(), request(), async |_| std::future::pending::<Result<StoredResult, Declined>>().await).await
        }
    });
    tokio::time::sleep(LEASE * 3).await;
    task.abort();
    assert!(task.await.unwrap_err().is_cancelled());
    let begin = engine.operation(key(), request()).no_wait().begin().await;
    assert!(matches!(begin, Begin::InProgress { .. }), "{begin:?}");
    tokio::time::sleep(LEASE).await;
    assert!(matches!(engine.begin(key(), request()).await, Begin::Proceed(guard) if guard.context().attempt() == 2));
}

#[tokio::test(start_paused = true)]
async fn a_store_handle_stays_usable_after_a_storm_of_dropped_futures() {
    let store = Scripted::yielding();
    let (engine, _) = engine(&store);
    for n in 0..1_000_usize {
        let key = idemkit_core::EffectiveKey::message(format!("msg-{}", n % 50), "orders", "billing");
        let run = engine.run(key, request(), async |_| Ok::<_, Declined>(result("done")));
        drop_after(n % 9, run).await;
    }
    tokio::time::sleep(Duration::from_secs(31)).await;
    for n in 0..50 {
        let key = idemkit_core::EffectiveKey::message(format!("msg-{n}"), "orders", "billing");
        engine.run(key, request(), async |_| Ok::<_, Declined>(result("done"))).await.unwrap();
    }
    assert_eq!(store.memory.watched_keys(), 0);
    assert!(store.capabilities().notifies);
}

#[test]
fn a_run_can_be_spawned() {
    fn spawnable<F: Future + Send>(_: &F) -> Poll<()> {
        Poll::Ready(())
    }
    let (engine, _) = engine(&Scripted::new());
    assert!(spawnable(&engine.run(key(), request(), async |_| Ok::<_, Declined>(result("sent")))).is_ready());
}

//! Real threads, real time, and everything at once.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use idemkit_core::{EffectiveKey, Engine, MemoryStore, Policy, RunError};
use parking_lot::Mutex;
use tokio::{runtime::Builder, task::JoinSet, time::sleep};

use crate::support::{Declined, request};

/// What an operation under a key may count on: nobody else runs it now.
#[derive(Default)]
struct Alone {
    running: AtomicI64,
}

impl Alone {
    fn enter(self: &Arc<Self>) -> Inside {
        assert_eq!(self.running.fetch_add(1, Ordering::SeqCst), 0, "two at once");
        Inside(Arc::clone(self))
    }
}

/// Leaves when dropped, with the operation's future.
struct Inside(Arc<Alone>);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
    }
}

/// A little randomness that needs no more than a seed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// Many duplicates of many keys: they succeed, fail, are dropped half-way, and wait for each other. No lease lapses
/// here (they are long), so no operation may ever run beside another under its key, and what was recorded once is what
/// everybody gets.
#[test]
fn nothing_runs_beside_itself_and_all_get_what_was_recorded() {
    const TASKS: u64 = 64;
    const KEYS: u64 = 200;
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let store = MemoryStore::new();
    let policy = Policy::builder().lease(Duration::from_secs(600)).wait(Duration::from_millis(20)).build().unwrap();
    let engine = Engine::builder(store.clone()).policy(policy).build();
    let alone: Arc<Vec<Arc<Alone>>> = Arc::new((0..KEYS).map(|_| Arc::default()).collect());
    let recorded: Arc<Mutex<HashMap<u64, String>>> = Arc::default();
    let replays = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (engine, alone, recorded, replays) =
                (engine.clone(), Arc::clone(&alone), Arc::clone(&recorded), Arc::clone(&replays));
            tasks.spawn(async move {
                let mut dice = Dice(task);
                for turn in 0..150 {
                    let of = dice.roll(KEYS);
                    let (pause, fails, drops) = (dice.roll(3), dice.roll(3) == 0, dice.roll(8) == 0);
                    let key = EffectiveKey::message(of.to_string(), "stress", "test");
                    let operation = engine.operation(key, request()).json();
                    let run = operation.run(async |_| {
                        let _inside = alone[of as usize].enter();
                        match pause {
                            0 => {}
                            1 => tokio::task::yield_now().await,
                            _ => sleep(Duration::from_millis(1)).await,
                        }
                        if fails { Err(Declined(1)) } else { Ok(format!("task {task}, turn {turn}")) }
                    });
                    let run = if drops {
                        match tokio::time::timeout(Duration::from_micros(500), run).await {
                            Ok(run) => run,
                            Err(_) => continue,
                        }
                    } else {
                        run.await
                    };
                    match run {
                        Ok(run) => {
                            replays.fetch_add(usize::from(run.is_replayed()), Ordering::Relaxed);
                            let mut recorded = recorded.lock();
                            let first = recorded.entry(of).or_insert_with(|| run.value.clone());
                            assert_eq!(*first, run.value, "two results under one key");
                        }
                        Err(RunError::Operation { .. } | RunError::InProgress { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
        // Aborted tasks are gone once their worker has looked at them.
        for _ in 0..6_000 {
            if tokio::runtime::Handle::current().metrics().num_alive_tasks() == 0 {
                break;
            }
            sleep(Duration::from_millis(10)).await;
        }
        assert_eq!(tokio::runtime::Handle::current().metrics().num_alive_tasks(), 0, "a heartbeat or a watch is left");
    });
    assert_eq!(store.watched_keys(), 0);
    assert!(
        replays.load(Ordering::Relaxed) > 1_000,
        "only {} replays: it tried little",
        replays.load(Ordering::Relaxed)
    );
}

/// Leases that lapse all the time: tiny ones, under operations that block their thread and so stop their own heartbeat.
/// Two may run at once then, as the contract says they may; but of their results one is recorded, and that one is what
/// everybody gets who is told of success.
#[test]
fn of_holders_that_lapse_one_is_recorded() {
    // On a machine that is busy with others no two may meet in one round.
    assert!((0..20).any(|_| lost_by_holders_that_lapse() > 0), "no lease was ever lost: nothing was tried");
}

/// One round. How many of its operations lost their lease.
fn lost_by_holders_that_lapse() -> usize {
    const KEYS: u64 = 40;
    let runtime = Builder::new_multi_thread().worker_threads(4).enable_time().build().unwrap();
    let policy = Policy::builder().lease(Duration::from_millis(3)).wait(Duration::from_millis(200)).build().unwrap();
    let engine = Engine::builder(MemoryStore::new()).policy(policy).build();
    let recorded: Arc<Mutex<HashMap<u64, String>>> = Arc::default();
    let lost = Arc::new(AtomicUsize::new(0));
    runtime.block_on(async {
        let mut tasks = JoinSet::new();
        for task in 0..32_u64 {
            let (engine, recorded, lost) = (engine.clone(), Arc::clone(&recorded), Arc::clone(&lost));
            tasks.spawn(async move {
                let mut dice = Dice(task);
                for turn in 0..20 {
                    let of = dice.roll(KEYS);
                    let blocks = dice.roll(2) == 0;
                    let key = EffectiveKey::message(of.to_string(), "stress", "test");
                    let run = engine.operation(key, request()).json().run(async |context| {
                        if blocks {
                            std::thread::sleep(Duration::from_millis(8));
                        } else {
                            sleep(Duration::from_millis(1)).await;
                        }
                        Ok::<_, Declined>(format!("task {task}, turn {turn}, attempt {}", context.attempt()))
                    });
                    match run.await {
                        Ok(run) => {
                            let mut recorded = recorded.lock();
                            let first = recorded.entry(of).or_insert_with(|| run.value.clone());
                            assert_eq!(*first, run.value, "two results under one key");
                        }
                        Err(RunError::LeaseLost(_)) => drop(lost.fetch_add(1, Ordering::Relaxed)),
                        Err(RunError::InProgress { .. }) => {}
                        Err(error) => panic!("{error:?}"),
                    }
                }
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.unwrap();
        }
    });
    assert_eq!(recorded.lock().len(), KEYS as usize);
    lost.load(Ordering::Relaxed)
}

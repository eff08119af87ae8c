//! All waiters of one key share one watch, and the last of them ends it.

use super::*;

type Waiter = tokio::task::JoinHandle<Result<WaitOutcome, StoreError>>;

fn wait_for(watches: &Watches, key: EffectiveKey, timeout_ms: u64, scripted: &Scripted) -> Waiter {
    let (watches, look) = (watches.clone(), scripted.look());
    tokio::spawn(async move { watches.wait(&key, ttl(timeout_ms), look).await })
}

#[tokio::test(start_paused = true)]
async fn a_thousand_waiters_cost_one_watch() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let waiters: Vec<_> = (0..1_000).map(|_| wait_for(&watches, KEY, 60_000, &scripted)).collect();
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(watches.len(), 1);
    assert!((10..=25).contains(&scripted.looks()), "{} looks in 10 s", scripted.looks());
    scripted.set(Ok(Sight::Completed(record())));
    let before = scripted.looks();
    watches.notify(&KEY);
    for waiter in waiters {
        assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Completed(record()));
    }
    assert_eq!(scripted.looks(), before + 1);
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

#[tokio::test(start_paused = true)]
async fn each_waiter_has_its_own_time_out() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let began = Instant::now();
    let timeouts = [5, 100, 1_000, 9_999];
    let waiters: Vec<_> = timeouts.map(|timeout| (timeout, wait_for(&watches, KEY, timeout, &scripted))).into();
    for (timeout, waiter) in waiters {
        assert!(matches!(waiter.await.unwrap().unwrap(), WaitOutcome::TimedOut { .. }));
        assert!(began.elapsed() >= ms(timeout) && began.elapsed() <= ms(timeout + 1), "{:?}", began.elapsed());
    }
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

#[tokio::test(start_paused = true)]
async fn a_dropped_waiter_does_not_end_the_watch_and_the_last_one_does() {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let [first, second, third] = [0; 3].map(|_| wait_for(&watches, KEY, 60_000, &scripted));
    tokio::time::sleep(ms(3_000)).await;
    // The first one's look is the watch's.
    first.abort();
    tokio::time::sleep(ms(3_000)).await;
    assert_eq!(watches.len(), 1);
    let looks = scripted.looks();
    tokio::time::sleep(ms(3_000)).await;
    assert!(scripted.looks() > looks, "the watch has stopped");
    second.abort();
    third.abort();
    settle().await;
    let looks = scripted.looks();
    assert!(watches.is_empty() && scripted.is_forgotten(), "the task goes with its last waiter");
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(scripted.looks(), looks);
}

#[tokio::test(start_paused = true)]
async fn a_waiter_after_the_decision_has_a_watch_of_its_own() {
    let (watches, scripted) = (Watches::default(), Scripted::new(Ok(Sight::Vacant)));
    for round in 1..=100 {
        assert_eq!(wait_for(&watches, KEY, 1_000, &scripted).await.unwrap().unwrap(), WaitOutcome::Vacant);
        assert_eq!(scripted.looks(), round, "it was told of an older look");
    }
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

#[tokio::test(start_paused = true)]
async fn all_are_woken_after_a_reconnect() {
    let watches = Watches::default();
    let waiters: Vec<_> = (0..50)
        .map(|number| {
            let scripted = Scripted::new(held_for(3_600_000));
            (wait_for(&watches, EffectiveKey::from_bytes([number; 32]), 60_000, &scripted), scripted)
        })
        .collect();
    tokio::time::sleep(ms(10_000)).await;
    assert_eq!(watches.len(), 50);
    for (_, scripted) in &waiters {
        scripted.set(Ok(Sight::Vacant));
    }
    let changed = Instant::now();
    watches.notify_all();
    for (waiter, _) in waiters {
        assert_eq!(waiter.await.unwrap().unwrap(), WaitOutcome::Vacant);
    }
    assert_eq!(changed.elapsed(), Duration::ZERO);
    settle().await;
    assert!(watches.is_empty());
}

#[tokio::test(start_paused = true)]
async fn notices_that_nobody_waits_for_are_nothing() {
    let watches = Watches::default();
    watches.notify(&KEY);
    watches.notify_all();
    let scripted = Scripted::new(held_for(3_600_000));
    assert!(matches!(watches.wait(&KEY, ttl(10), scripted.look()).await.unwrap(), WaitOutcome::TimedOut { .. }));
    watches.notify(&KEY);
    assert_eq!(scripted.looks(), 1);
}

/// Waiters that come, are dropped, time out and are woken on several threads: the count of watches stays right.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn joining_and_leaving_at_once_leaves_nothing() {
    let watches = Watches::default();
    let scripted: Vec<_> = (0..3).map(|_| Scripted::new(held_for(3_600_000))).collect();
    let tasks: Vec<_> = (0..8_u64)
        .map(|task| {
            let (watches, scripted) = (watches.clone(), scripted.clone());
            tokio::spawn(async move {
                for round in 0..300_u64 {
                    let at = ((task + round) % 3) as usize;
                    let key = EffectiveKey::from_bytes([at as u8; 32]);
                    match (task * 7 + round) % 4 {
                        0 => scripted[at].set(Ok(Sight::Vacant)),
                        _ => scripted[at].set(held_for(3_600_000)),
                    }
                    watches.notify(&key);
                    let waiting = watches.wait(&key, ttl(1 + round % 2), scripted[at].look());
                    if (task + round) % 5 == 0 {
                        let _ = timeout(Duration::from_micros(300), waiting).await;
                    } else {
                        let outcome = waiting.await.unwrap();
                        assert!(matches!(outcome, WaitOutcome::Vacant | WaitOutcome::TimedOut { .. }), "{outcome:?}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    // Aborted tasks are dropped by their worker, soon.
    for _ in 0..6_000 {
        if watches.is_empty() && scripted.iter().all(Scripted::is_forgotten) {
            break;
        }
        tokio::time::sleep(ms(10)).await;
    }
    assert!(scripted.iter().all(Scripted::is_forgotten));
    assert_eq!((watches.len(), watches.shared.by_key.lock().len()), (0, 0));
}

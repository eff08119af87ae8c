//! Looks that fail, hang or panic, and runtimes that end.

use std::{future::pending, thread};

use tokio::runtime::Builder;

use super::*;

/// Polled on, and only at the time-out the wait's error.
#[tokio::test(start_paused = true)]
async fn an_error_that_may_pass_is_the_waits_only_at_the_time_out() {
    let scripted = Scripted::new(Err(error_of(StoreErrorKind::Unavailable).with_detail("refused")));
    let watches = Watches::default();
    let began = Instant::now();
    let error = watches.wait(&KEY, ttl(8_000), scripted.look()).await.unwrap_err();
    assert!(began.elapsed() >= ms(8_000) && began.elapsed() <= ms(8_001), "{:?}", began.elapsed());
    assert_eq!(error.to_string(), "scripted: unavailable: refused");
    assert!((8..=25).contains(&scripted.looks()), "{} looks in 8 s", scripted.looks());
    settle().await;
    assert!(watches.is_empty() && scripted.is_forgotten());
}

#[tokio::test(start_paused = true)]
async fn an_error_that_has_passed_is_forgotten() {
    for (last, is_vacant) in [(held_for(3_600_000), false), (Ok(Sight::Vacant), true)] {
        let scripted = Scripted::new(Err(error_of(StoreErrorKind::Unavailable)));
        let look = scripted.look();
        let waiter = tokio::spawn(async move { Watches::default().wait(&KEY, ttl(20_000), look).await });
        tokio::time::sleep(ms(5_000)).await;
        scripted.set(last);
        assert_eq!(waiter.await.unwrap().unwrap() == WaitOutcome::Vacant, is_vacant);
    }
}

/// Also where the key was seen before, and where the error comes late.
#[tokio::test(start_paused = true)]
async fn an_error_that_nothing_mends_ends_the_wait_when_it_is_met() {
    let scripted = Scripted::new(held_for(3_600_000));
    let look = scripted.look();
    let waiter = tokio::spawn(async move { Watches::default().wait(&KEY, ttl(60_000), look).await });
    tokio::time::sleep(ms(5_000)).await;
    scripted.set(Err(error_of(StoreErrorKind::Misconfigured)));
    let changed = Instant::now();
    assert_eq!(waiter.await.unwrap().unwrap_err().kind(), StoreErrorKind::Misconfigured);
    assert!(changed.elapsed() <= ms(1_001), "{:?}", changed.elapsed());
}

#[tokio::test(start_paused = true)]
async fn a_look_that_hangs_is_unavailable_at_the_time_out() {
    let (watches, looks) = (Watches::default(), Arc::new(AtomicUsize::new(0)));
    let counted = Arc::clone(&looks);
    let look = move || {
        counted.fetch_add(1, Ordering::SeqCst);
        pending()
    };
    let began = Instant::now();
    let error = watches.wait(&KEY, ttl(25_000), look).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false));
    assert!(began.elapsed() >= ms(25_000) && began.elapsed() <= ms(25_001), "{:?}", began.elapsed());
    assert_eq!(looks.load(Ordering::SeqCst), 3, "a look is given up after 10 s, and made again");
    settle().await;
    assert!(watches.is_empty() && Arc::strong_count(&looks) == 1);
}

/// A hung look must not hold up the next one for ever.
#[tokio::test(start_paused = true)]
async fn after_a_look_that_hangs_the_next_one_counts() {
    let looks = Arc::new(AtomicUsize::new(0));
    let look = move || {
        let first = looks.fetch_add(1, Ordering::SeqCst) == 0;
        async move { if first { pending().await } else { Ok(Sight::Vacant) } }
    };
    let began = Instant::now();
    assert_eq!(Watches::default().wait(&KEY, ttl(60_000), look).await.unwrap(), WaitOutcome::Vacant);
    assert!(began.elapsed() <= LOOK_DEADLINE + ms(51), "{:?}", began.elapsed());
}

/// In the closure and in its future, at the first look and at a later one.
#[rstest]
#[tokio::test(start_paused = true)]
async fn a_look_that_panics_is_an_error_and_no_loop(#[values(true, false)] in_future: bool, #[values(1, 3)] at: usize) {
    let (watches, looks) = (Watches::default(), Arc::new(AtomicUsize::new(0)));
    let waiters: Vec<_> = (0..20)
        .map(|_| {
            let (watches, counted) = (watches.clone(), Arc::clone(&looks));
            let look = move || {
                let panics = counted.fetch_add(1, Ordering::SeqCst) + 1 >= at;
                assert!(in_future || !panics, "a look that panics");
                async move {
                    assert!(!panics, "a look that panics");
                    held_for(3_600_000)
                }
            };
            tokio::spawn(async move { watches.wait(&KEY, ttl(60_000), look).await })
        })
        .collect();
    let began = Instant::now();
    for waiter in waiters {
        let error = waiter.await.unwrap().unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    }
    assert!(began.elapsed() < ms(1_000), "{:?}", began.elapsed());
    assert!(looks.load(Ordering::SeqCst) <= at + 40, "each waiter makes two watches at most");
    settle().await;
    assert!(watches.is_empty() && Arc::strong_count(&looks) == 1);
}

/// The watch runs on the runtime of the waiter that came first. Where that ends, the others make another.
#[rstest]
#[case::found(true)]
#[case::timed_out(false)]
fn a_watch_whose_runtime_ends_leaves_no_waiter_behind(#[case] found: bool) {
    let (watches, scripted) = (Watches::default(), Scripted::new(held_for(3_600_000)));
    let first = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (waiting, look) = (watches.clone(), scripted.look());
    first.spawn(async move { waiting.wait(&KEY, ttl(60_000), look).await });
    while scripted.looks() == 0 {
        thread::sleep(ms(1));
    }
    let second = Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    let (waiting, look) = (watches.clone(), scripted.look());
    let timeout_ms = if found { 60_000 } else { 400 };
    let waiter = second.spawn(async move { waiting.wait(&KEY, ttl(timeout_ms), look).await });
    thread::sleep(ms(50));
    assert_eq!(watches.len(), 1);
    first.shutdown_timeout(Duration::from_secs(60));
    if found {
        scripted.set(Ok(Sight::Vacant));
        watches.notify(&KEY);
    }
    let outcome = second.block_on(waiter).unwrap().unwrap();
    assert_eq!(outcome == WaitOutcome::Vacant, found, "{outcome:?}");
    drop(second);
    assert!(watches.is_empty() && scripted.is_forgotten());
}

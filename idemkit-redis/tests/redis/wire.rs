//! Acknowledgements that are lost on the wire, and networks that are half dead.

use std::time::Duration;

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreErrorKind,
    WaitOutcome,
};
use idemkit_redis::RedisStore;
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;

use crate::support::{acquired, claim, completion, key, secs, store, url};

/// A store behind a wire that can fail, and which the server knows the scripts of.
async fn wired() -> (RedisStore, Proxy) {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let store = store(proxy.url()).attempt_timeout(Duration::from_millis(500)).notices(false).build().unwrap();
    let (warm, request) = (key("warm"), claim(secs(30)));
    acquired(store.claim(&warm, &request).await.unwrap());
    store.renew(&warm, &Renew::new(request.token, secs(30))).await.unwrap();
    store.complete(&warm, &completion(request.token, "")).await.unwrap();
    store.release(&warm, &Release::new(request.token)).await.unwrap();
    (store, proxy)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_on_redis_is_fenced_by_its_own_lost_acknowledgement(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let (store, proxy) = wired().await;
    let (order, request) = (key("order"), claim(secs(30)));

    proxy.lose_reply_to(b"EVALSHA", how);
    let won = acquired(store.claim(&order, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert!(won.lease_left > Duration::from_secs(20), "{won:?}");

    proxy.lose_reply_to(b"EVALSHA", how);
    let renewed = store.renew(&order, &Renew::new(request.token, secs(60))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(50)));

    proxy.lose_reply_to(b"EVALSHA", how);
    assert_eq!(store.complete(&order, &completion(request.token, "done")).await.unwrap(), CompleteOutcome::Applied);
    let replay = store.claim(&order, &claim(secs(30))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");

    let (other, request) = (key("other"), claim(secs(30)));
    acquired(store.claim(&other, &request).await.unwrap());
    proxy.lose_reply_to(b"EVALSHA", how);
    // By the table: what the second try meets is absent.
    assert_eq!(store.release(&other, &Release::new(request.token)).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(acquired(store.claim(&other, &claim(secs(30))).await.unwrap()).kind, ClaimKind::Fresh);
    assert_eq!(proxy.lost(), 4);
}

/// The first thing that is asked is the server's policy, on the connection that all calls share.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_at_the_very_first_question_is_made_anew(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let store = store(proxy.url()).attempt_timeout(Duration::from_millis(500)).notices(false).build().unwrap();
    proxy.lose_reply_to(b"maxmemory-policy", how);
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    assert_eq!(proxy.lost(), 1);
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_on_redis_whose_acknowledgement_is_lost_counts_once(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let (store, proxy) = wired().await;
    acquired(store.claim(&key("order"), &claim(secs(1))).await.unwrap());
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    proxy.lose_reply_to(b"EVALSHA", how);
    let won = acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Reclaimed, 2));
    assert_eq!(proxy.lost(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_is_unavailable_within_the_deadline_and_is_left_for_a_new_connection() {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let builder = store(proxy.url()).attempt_timeout(Duration::from_millis(300)).deadline(Duration::from_secs(2));
    let store = builder.connect_timeout(Duration::from_millis(500)).build().unwrap();
    acquired(store.claim(&key("first"), &claim(secs(30))).await.unwrap());

    proxy.freeze(true);
    let began = std::time::Instant::now();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    // A lease that is shorter than the deadline ends it earlier.
    let error = store.claim(&key("other"), &claim(secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(began.elapsed() < Duration::from_secs(8), "{:?}", began.elapsed());

    // What the old connections held back never comes; a new one is made at once.
    proxy.cut();
    proxy.freeze(false);
    acquired(store.claim(&key("third"), &claim(secs(30))).await.unwrap());
}

/// The connection that listens is silent, and no error ever comes: the heartbeat finds it, and the poll finds the result
/// all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_dead_listener_costs_a_poll_and_is_made_anew() {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let builder = store(proxy.url()).attempt_timeout(Duration::from_millis(300));
    let (store, order, request) = (builder.build().unwrap(), key("order"), claim(secs(60)));
    acquired(store.claim(&order, &request).await.unwrap());
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.wait(&order, secs(50)).await }
    });
    tokio::time::sleep(Duration::from_secs(1)).await;
    let before = proxy.open();
    assert_eq!(before, 2, "one for calls, one that listens");
    proxy.freeze(true);
    // Two heartbeats: one is sent, and its answer does not come.
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.cut();
    proxy.freeze(false);
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(proxy.open() >= 1);
    store.complete(&order, &completion(request.token, "done")).await.unwrap();
    let waited = waiter.await.unwrap().unwrap();
    assert!(matches!(waited, WaitOutcome::Completed(_)), "{waited:?}");
}

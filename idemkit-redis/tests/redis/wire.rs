//! Acknowledgements that are lost on the wire, and networks that are half dead.

use std::time::Duration;

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreErrorKind,
    WaitOutcome,
};
use idemkit_redis::RedisStore;
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;

use crate::support::{
    acquired, claim, claimed_for_a_second, completion, connect, key, secs, store, unique, until, url,
};

/// What a reply that is lost in silence costs. All tries of a call together outlast what a busy machine holds it up.
const ATTEMPT: Duration = Duration::from_millis(1_500);

/// A store behind a wire that can fail, and which the server knows the scripts of.
async fn wired() -> (RedisStore, Proxy) {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let store = store(proxy.url()).attempt_timeout(ATTEMPT).notices(false).build().unwrap();
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
    let (order, request) = (key("order"), claim(secs(300)));

    proxy.lose_reply_to(b"EVALSHA", how);
    let won = acquired(store.claim(&order, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert!(won.lease_left > Duration::from_secs(200), "{won:?}");

    proxy.lose_reply_to(b"EVALSHA", how);
    let renewed = store.renew(&order, &Renew::new(request.token, secs(600))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(500)));

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
    until("all replies are lost", async || proxy.lost() == 4).await;
}

/// The first thing that is asked is the server's policy, on the connection that all calls share.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_that_breaks_at_the_very_first_question_is_made_anew(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let store = store(proxy.url()).attempt_timeout(ATTEMPT).notices(false).build().unwrap();
    proxy.lose_reply_to(b"maxmemory-policy", how);
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    until("the reply is lost", async || proxy.lost() == 1).await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_on_redis_whose_acknowledgement_is_lost_counts_once(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let (store, proxy) = wired().await;
    let order = claimed_for_a_second(&store).await;
    tokio::time::sleep(Duration::from_millis(1_100)).await;
    proxy.lose_reply_to(b"EVALSHA", how);
    let won = acquired(store.claim(&order, &claim(secs(30))).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Reclaimed, 2));
    until("the reply is lost", async || proxy.lost() == 1).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_redis_is_unavailable_within_the_deadline_and_is_left_for_a_new_connection() {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let builder = store(proxy.url()).attempt_timeout(Duration::from_millis(300)).deadline(DEADLINE);
    let store = builder.connect_timeout(Duration::from_millis(500)).build().unwrap();
    claimed_in_time(&store, "first").await;

    proxy.freeze(true);
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("no answer within 2s"), "{error}");
    // A lease that is shorter than the deadline ends it earlier.
    let error = store.claim(&key("other"), &claim(secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(error.to_string().contains("no answer within 1s"), "{error}");

    // What the old connections held back never comes; a new one is made at once.
    proxy.cut();
    proxy.freeze(false);
    claimed_in_time(&store, "third").await;
}

const DEADLINE: Duration = Duration::from_secs(2);

/// Claims a key. Only where all of the deadline was not enough, which a busy machine may take, is it tried again.
async fn claimed_in_time(store: &RedisStore, name: &str) {
    let request = claim(secs(30));
    for _ in 0..10 {
        let began = std::time::Instant::now();
        match store.claim(&key(name), &request).await {
            Ok(outcome) => {
                acquired(outcome);
                return;
            }
            Err(error) => assert!(began.elapsed() >= DEADLINE, "{error}"),
        }
    }
    panic!("no claim within its deadline")
}

/// The connection that listens is silent, and no error ever comes: the heartbeat finds it, and the poll finds the result
/// all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_half_dead_listener_costs_a_poll_and_is_made_anew() {
    let proxy = Proxy::before(Kind::Redis, &url()).unwrap();
    let namespace = unique();
    let builder = store(proxy.url()).namespace(&namespace).attempt_timeout(ATTEMPT);
    let (store, order, request) = (builder.build().unwrap(), key("order"), claim(secs(600)));
    acquired(store.claim(&order, &request).await.unwrap());
    let waiter = tokio::spawn({
        let store = store.clone();
        async move { store.wait(&order, secs(300)).await }
    });
    let listening = async || {
        let mut ask = redis::cmd("PUBSUB");
        ask.arg("NUMSUB").arg(format!("{namespace}:{order}"));
        ask.query_async::<(String, usize)>(&mut connect(&url()).await).await.unwrap().1 > 0
    };
    until("it listens", listening).await;
    until("one is open for calls, one that listens", async || proxy.open() == 2).await;
    proxy.freeze(true);
    // Two heartbeats: one is sent, and its answer does not come.
    tokio::time::sleep(Duration::from_secs(5)).await;
    proxy.cut();
    proxy.freeze(false);
    until("it listens again", listening).await;
    store.complete(&order, &completion(request.token, "done")).await.unwrap();
    let waited = waiter.await.unwrap().unwrap();
    assert!(matches!(waited, WaitOutcome::Completed(_)), "{waited:?}");
}

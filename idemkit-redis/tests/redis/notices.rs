//! Waiters: woken by a notice, and by the poll where there is none.

use std::time::{Duration, Instant};

use idemkit_core::{Claim, ClaimOutcome, EffectiveKey, Store, WaitOutcome};
use idemkit_redis::RedisStore;
use idemkit_servers::{Kind, Local};
use tokio::task::JoinSet;

use crate::support::{acquired, claim, completion, connect, key, own, secs, store, unique, until};

/// How many waiters there are in a crowd.
const CROWD: usize = 200;

/// A crowd in another process's place: a store of its own on the same server.
fn waiters(store: &RedisStore, order: EffectiveKey) -> JoinSet<(WaitOutcome, Instant)> {
    let mut waiters = JoinSet::new();
    for _ in 0..CROWD {
        let store = store.clone();
        waiters.spawn(async move { (store.wait(&order, secs(120)).await.unwrap(), Instant::now()) });
    }
    waiters
}

async fn subscribers(url: &str, namespace: &str, order: &EffectiveKey) -> usize {
    let mut ask = redis::cmd("PUBSUB");
    ask.arg("NUMSUB").arg(format!("{namespace}:{order}"));
    ask.query_async::<(String, usize)>(&mut connect(url).await).await.unwrap().1
}

async fn until_listening(url: &str, namespace: &str, order: &EffectiveKey) {
    until("somebody listens", async || subscribers(url, namespace, order).await > 0).await;
}

/// Whether a waiter has seen the record, so that its end is published.
async fn is_marked(url: &str, namespace: &str, order: &EffectiveKey) -> bool {
    let mut ask = redis::cmd("HEXISTS");
    ask.arg(format!("{namespace}:{order}")).arg("waiter").query_async(&mut connect(url).await).await.unwrap()
}

fn namespaced(url: &str, namespace: &str) -> RedisStore {
    store(url).namespace(namespace).build().unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_listens_for_all_waiters_and_for_no_key_that_nobody_waits_for() {
    let server = own(&[]);
    let (url, namespace) = (server.url(), unique());
    let (here, there) = (namespaced(&url, &namespace), namespaced(&url, &namespace));
    let orders: Vec<(EffectiveKey, Claim)> = (0..50).map(|n| (key(&format!("order {n}")), claim(secs(600)))).collect();
    let mut crowd = JoinSet::new();
    for (order, request) in &orders {
        acquired(here.claim(order, request).await.unwrap());
        for _ in 0..4 {
            let (there, order) = (there.clone(), *order);
            crowd.spawn(async move { there.wait(&order, secs(120)).await });
        }
    }
    until_listening(&url, &namespace, &orders[49].0).await;
    // None, or two, for a moment where the server was silent for longer than a heartbeat: it is listened to anew then.
    until("one connection listens", async || {
        let clients: String = redis::cmd("CLIENT").arg("LIST").query_async(&mut connect(&url).await).await.unwrap();
        clients.lines().filter(|client| !client.contains(" sub=0 ")).count() == 1
    })
    .await;
    for (order, request) in &orders {
        here.complete(order, &completion(request.token, "")).await.unwrap();
    }
    while let Some(waited) = crowd.join_next().await {
        assert!(matches!(waited.unwrap().unwrap(), WaitOutcome::Completed(_)));
    }
    // Nothing is left behind: no channel, no mark in a record.
    until("nobody listens any more", async || subscribers(&url, &namespace, &orders[0].0).await == 0).await;
    assert!(!is_marked(&url, &namespace, &orders[0].0).await);
}

/// Field report 14: what nobody waits for is not published.
#[tokio::test]
async fn nothing_is_published_where_nobody_waits() {
    let server = own(&[]);
    let (url, namespace) = (server.url(), unique());
    let store = namespaced(&url, &namespace);
    let published = async || {
        let stats: String = redis::cmd("INFO").arg("commandstats").query_async(&mut connect(&url).await).await.unwrap();
        stats.lines().any(|line| line.starts_with("cmdstat_publish:"))
    };
    let request = claim(secs(30));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    store.complete(&key("order"), &completion(request.token, "")).await.unwrap();
    assert!(!published().await);

    let (request, other) = (claim(secs(600)), namespaced(&url, &namespace));
    acquired(store.claim(&key("waited for"), &request).await.unwrap());
    let waiter = tokio::spawn(async move { other.wait(&key("waited for"), secs(120)).await });
    until_listening(&url, &namespace, &key("waited for")).await;
    until("it is marked", async || is_marked(&url, &namespace, &key("waited for")).await).await;
    store.complete(&key("waited for"), &completion(request.token, "")).await.unwrap();
    assert!(matches!(waiter.await.unwrap().unwrap(), WaitOutcome::Completed(_)));
    assert!(published().await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_that_is_killed_is_made_anew_and_its_waiters_look_again() {
    let server = own(&[]);
    let (url, namespace) = (server.url(), unique());
    let (here, there) = (namespaced(&url, &namespace), namespaced(&url, &namespace));
    let (order, request) = (key("order"), claim(secs(600)));
    acquired(here.claim(&order, &request).await.unwrap());
    let mut crowd = waiters(&there, order);
    for _ in 0..3 {
        // It may just be making itself anew, where the server was silent for longer than a heartbeat.
        until("a listener is killed", async || {
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("TYPE").arg("pubsub");
            kill.query_async::<usize>(&mut connect(&url).await).await.unwrap() > 0
        })
        .await;
    }
    until_listening(&url, &namespace, &order).await;
    here.complete(&order, &completion(request.token, "done")).await.unwrap();
    let completed = Instant::now();
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(completed) < Duration::from_secs(60), "it waited on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_restarts_under_two_hundred_waiters_ends_them_all_and_runs_nothing_twice() {
    let mut server = Local::start(Kind::Redis).unwrap();
    let (url, namespace) = (server.url(), unique());
    let (here, there) = (namespaced(&url, &namespace), namespaced(&url, &namespace));
    let (order, request) = (key("order"), claim(secs(600)));
    acquired(here.claim(&order, &request).await.unwrap());
    let mut crowd = waiters(&there, order);
    until_listening(&url, &namespace, &order).await;

    server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.restart().unwrap();

    // Its lease lives, and it was written down: nobody else gets the key.
    let other = there.claim(&order, &claim(secs(30))).await.unwrap();
    assert!(matches!(other, ClaimOutcome::InFlight(_)), "{other:?}");
    here.complete(&order, &completion(request.token, "done")).await.unwrap();
    let completed = Instant::now();
    let mut ended = 0;
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(completed) < Duration::from_secs(60), "it waited on");
        ended += 1;
    }
    assert_eq!(ended, CROWD);
}

/// The server forgets all scripts, again and again, while they are in use.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scripts_that_are_flushed_under_load_are_sent_again() {
    let server = own(&[]);
    let url = server.url();
    let store = store(&url).build().unwrap();
    let mut load = JoinSet::new();
    for task in 0..8 {
        let store = store.clone();
        load.spawn(async move {
            for n in 0..200 {
                let (order, request) = (key(&format!("{task} {n}")), claim(secs(30)));
                acquired(store.claim(&order, &request).await.unwrap());
                store.complete(&order, &completion(request.token, "")).await.unwrap();
            }
        });
    }
    let mut admin = connect(&url).await;
    while !load.is_empty() {
        redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut admin).await.unwrap();
        if let Ok(Some(done)) = tokio::time::timeout(Duration::from_millis(5), load.join_next()).await {
            done.unwrap();
        }
    }
}

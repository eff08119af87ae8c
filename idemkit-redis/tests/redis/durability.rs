//! What a failover can lose, shown, and what WAIT does about it.

use std::time::Duration;

use idemkit_core::{Claim, ClaimOutcome, CompleteOutcome, Store, StoreErrorKind};
use idemkit_redis::{BuildError, RedisStore};
use idemkit_servers::{Kind, Local, Place, Proxy, wait_until_ready};

use crate::support::{acquired, claim, completion, connect, key, own, patient, secs, store, unique, until, url};

/// A primary and its replica, with a wire between them that can freeze.
struct Pair {
    primary: Local,
    replica: Local,
    wire: Proxy,
}

impl Pair {
    async fn start() -> Self {
        let (primary, replica) = (own(&[]), own(&["--repl-diskless-load", "on-empty-db"]));
        let wire = Proxy::before(Kind::Redis, &primary.url()).unwrap();
        let mut admin = connect(&replica.url()).await;
        let (host, port) = (wire.address().ip().to_string(), wire.address().port());
        redis::cmd("REPLICAOF").arg(host).arg(port).exec_async(&mut admin).await.unwrap();
        until("the replica follows", async || {
            let mut info = redis::cmd("INFO");
            let info: String = info.arg("replication").query_async(&mut admin.clone()).await.unwrap();
            info.contains("master_link_status:up")
        })
        .await;
        Self { primary, replica, wire }
    }

    /// The primary is gone, and the replica takes its place with what it has.
    async fn fail_over(&mut self) -> String {
        self.primary.kill().unwrap();
        self.wire.cut();
        let mut admin = connect(&self.replica.url()).await;
        redis::cmd("REPLICAOF").arg("NO").arg("ONE").exec_async(&mut admin).await.unwrap();
        self.replica.url()
    }
}

/// One that waits for its replica for as long as a busy machine may take.
fn replicated(url: &str, namespace: &str) -> RedisStore {
    store(url).namespace(namespace).wait_replicas(1, Duration::from_secs(30)).build().unwrap()
}

/// Redis's replication is asynchronous. Shown as it stands, so that it is known.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_wait_a_failover_hands_a_live_claim_to_a_second() {
    let (mut pair, namespace) = (Pair::start().await, unique());
    pair.wire.freeze(true);
    let before = store(&pair.primary.url()).namespace(&namespace).build().unwrap();
    acquired(before.claim(&key("order"), &claim(secs(60))).await.unwrap());
    let after = store(&pair.fail_over().await).namespace(&namespace).build().unwrap();
    acquired(after.claim(&key("order"), &claim(secs(60))).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn with_wait_a_claim_that_no_replica_has_is_not_acquired() {
    let (mut pair, namespace) = (Pair::start().await, unique());
    let (kept, lost): (Claim, Claim) = (claim(secs(60)), claim(secs(60)));
    acquired(replicated(&pair.primary.url(), &namespace).claim(&key("kept"), &kept).await.unwrap());
    let before = store(&pair.primary.url()).namespace(&namespace).wait_replicas(1, Duration::from_millis(500));
    let before = before.build().unwrap();

    pair.wire.freeze(true);
    let error = before.claim(&key("lost"), &lost).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    assert!(error.to_string().contains("0 of 1 replicas"), "{error}");
    // Sent again it is its own claim, and that still is not on any replica.
    let error = before.claim(&key("lost"), &lost).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");

    // What writes nothing is told all the same.
    let met = before.claim(&key("kept"), &claim(secs(60))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");

    // So nobody runs what the failover forgets, and what it was told of is there.
    let after = store(&pair.fail_over().await).namespace(&namespace).build().unwrap();
    let met = after.claim(&key("kept"), &claim(secs(60))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
    acquired(after.claim(&key("lost"), &claim(secs(60))).await.unwrap());
    assert_eq!(after.complete(&key("kept"), &completion(kept.token, "")).await.unwrap(), CompleteOutcome::Applied);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_holds_up_nobody_else_and_comes_through_a_flush_of_scripts() {
    let (pair, namespace) = (Pair::start().await, unique());
    let store = replicated(&pair.primary.url(), &namespace);
    acquired(store.claim(&key("first"), &claim(secs(60))).await.unwrap());
    redis::cmd("SCRIPT").arg("FLUSH").exec_async(&mut connect(&pair.primary.url()).await).await.unwrap();
    let mut load = tokio::task::JoinSet::new();
    for n in 0..100 {
        let store = store.clone();
        load.spawn(async move {
            let (order, request) = (key(&format!("order {n}")), claim(secs(60)));
            acquired(store.claim(&order, &request).await.unwrap());
            store.complete(&order, &completion(request.token, "")).await.unwrap()
        });
    }
    while let Some(done) = load.join_next().await {
        assert_eq!(done.unwrap(), CompleteOutcome::Applied);
    }
}

/// What a failover does to the connections that wait.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sixteen_dead_connections_cost_the_next_call_one_try() {
    let (pair, namespace) = (Pair::start().await, unique());
    let wire = Proxy::before(Kind::Redis, &pair.primary.url()).unwrap();
    let store = replicated(wire.url(), &namespace);
    acquired(store.claim(&key("the first"), &claim(secs(60))).await.unwrap());
    // Nobody is answered before all of them are open: the one that calls share, and the sixteen.
    wire.freeze(true);
    let mut load = tokio::task::JoinSet::new();
    for n in 0..64 {
        let store = store.clone();
        load.spawn(async move { acquired(store.claim(&key(&format!("order {n}")), &claim(secs(60))).await.unwrap()) });
    }
    until("all connections are open", async || wire.open() == 17).await;
    wire.freeze(false);
    while let Some(done) = load.join_next().await {
        done.unwrap();
    }
    let cut = wire.cut();
    assert!(cut > 8, "{cut} connections were open");
    acquired(store.claim(&key("the next"), &claim(secs(60))).await.unwrap());
}

#[tokio::test]
async fn wait_is_refused_where_it_would_block_a_shared_connection_or_wait_for_ever() {
    let manager = redis::Client::open(url()).unwrap().get_connection_manager().await.unwrap();
    let within = Duration::from_secs(1);
    let refused = RedisStore::builder().connection_manager(manager).wait_replicas(1, within).build();
    assert!(matches!(refused, Err(BuildError::CannotWaitForReplicas)));
    let refused = store(&url()).wait_replicas(1, Duration::ZERO).build();
    assert!(matches!(refused, Err(BuildError::InvalidLimit { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_primary_that_becomes_a_replica_is_unavailable() {
    let (pair, namespace) = (Pair::start().await, unique());
    let store = store(&pair.replica.url()).namespace(&namespace).build().unwrap();
    let error = store.claim(&key("order"), &claim(secs(60))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    assert!(error.to_string().contains("replica"), "{error}");
}

/// Sentinel names another primary, and the store follows.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sentinel_leads_to_the_new_primary() {
    use redis::sentinel::{SentinelClient, SentinelServerType};
    let (mut primary, replica) = (own(&[]), own(&["--repl-diskless-load", "on-empty-db"]));
    let port = |server: &Local| server.port().to_string();
    let mut admin = connect(&replica.url()).await;
    redis::cmd("REPLICAOF").arg("127.0.0.1").arg(port(&primary)).exec_async(&mut admin).await.unwrap();

    // It writes into its configuration, so it wants one.
    let folder = std::env::temp_dir().join(unique());
    std::fs::create_dir(&folder).unwrap();
    let file = folder.join("sentinel.conf");
    let rules = format!(
        "sentinel monitor orders 127.0.0.1 {} 1\nsentinel down-after-milliseconds orders 60000\nsentinel failover-timeout orders 2000\n",
        port(&primary)
    );
    std::fs::write(&file, rules).unwrap();
    let (program, _) = idemkit_servers::find_program(Kind::Redis).unwrap();
    let sentinel_port = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
    let sentinel_url = Kind::Redis.url_at(sentinel_port);
    let mut sentinel = tokio::process::Command::new(program);
    sentinel.arg(&file).args(["--sentinel", "--bind", "127.0.0.1", "--port", &sentinel_port.to_string()]);
    let _sentinel = sentinel.stdout(std::process::Stdio::null()).kill_on_drop(true).spawn().unwrap();
    let place = Place { address: ([127, 0, 0, 1], sentinel_port).into(), own_port: sentinel_port };
    wait_until_ready(Kind::Redis, place, Duration::from_secs(60), || Ok(())).unwrap();

    let client = SentinelClient::build(vec![sentinel_url.clone()], "orders", None, SentinelServerType::Master);
    let builder = patient(RedisStore::builder().sentinel_client(client.unwrap())).namespace(unique());
    let store = builder.build().unwrap();
    let request = claim(secs(120));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    let known = async || {
        let mut ask = redis::cmd("SENTINEL");
        ask.arg("replicas").arg("orders");
        let replicas: Vec<redis::Value> = ask.query_async(&mut connect(&sentinel_url).await).await.unwrap();
        replicas.len()
    };
    while known().await == 0 {
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    // The replica has it, by WAIT.
    let mut wait = connect(&primary.url()).await;
    wait.set_response_timeout(Duration::from_secs(80));
    let have: u32 = redis::cmd("WAIT").arg(1).arg(60_000).query_async(&mut wait).await.unwrap();
    assert_eq!(have, 1);
    // Only now: a primary that stalls must not be taken for a dead one before.
    let mut notice = redis::cmd("SENTINEL");
    notice.arg(&["SET", "orders", "down-after-milliseconds", "500"]);
    notice.exec_async(&mut connect(&sentinel_url).await).await.unwrap();
    primary.kill().unwrap();

    let began = std::time::Instant::now();
    let completed = loop {
        match store.complete(&key("order"), &completion(request.token, "done")).await {
            Ok(completed) => break completed,
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
        }
        assert!(began.elapsed() < Duration::from_secs(100), "no new primary");
        tokio::time::sleep(Duration::from_millis(300)).await;
    };
    assert_eq!(completed, CompleteOutcome::Applied);
    std::fs::remove_dir_all(folder).unwrap();
}

//! Stores, servers and operations for tests.

use std::{
    net::TcpListener,
    time::{Duration, Instant},
};

use idemkit_conformance::BoxError;
use idemkit_core::{
    Acquired, Claim, ClaimOutcome, ClaimToken, Complete, EffectiveKey, Fingerprint, Outcome, Store, StoreErrorKind,
    StoredResult, Ttl, WaitOutcome,
};
use idemkit_redis::{Builder, RedisStore, redis::Client};
use idemkit_servers::{Kind, Local, Options};

/// Where the shared server is.
pub(crate) fn url() -> String {
    idemkit_servers::url(Kind::Redis).unwrap_or_else(|missing| panic!("{missing}"))
}

/// Far more than a request takes: several suites run at once, and one may hold a server up for seconds.
const PATIENCE: Duration = Duration::from_secs(20);

/// A store in a namespace of its own.
pub(crate) fn store(url: &str) -> Builder {
    patient(RedisStore::builder().url(url)).namespace(unique())
}

/// With time-outs that nothing but a fault of the test's own reaches.
pub(crate) fn patient(builder: Builder) -> Builder {
    builder.connect_timeout(PATIENCE).attempt_timeout(PATIENCE).deadline(3 * PATIENCE)
}

/// A namespace that nobody else has.
pub(crate) fn unique() -> String {
    format!("idemkit_test_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

/// For what a test does by itself.
pub(crate) async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let patience = Some(PATIENCE);
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    Client::open(url).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// A server of a test's own, in memory.
pub(crate) fn own(args: &[&str]) -> Local {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Local::start_with(Kind::Redis, Options { args, ..Options::default() }).unwrap()
}

/// A server of a test's own that listens on a second port too, which its arguments name.
pub(crate) fn own_with_port(args: impl Fn(&str) -> Vec<String>) -> (Local, u16) {
    let mut tries = 0;
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        match Local::start_with(Kind::Redis, Options { args: args(&port.to_string()), ..Options::default() }) {
            Ok(server) => return (server, port),
            // Another process may have been faster to take the port.
            Err(error) => assert!(tries < 2, "{error}"),
        }
        tries += 1;
    }
}

/// Until something holds, with far more patience than that needs.
pub(crate) async fn until(what: &str, holds: impl AsyncFn() -> bool) {
    let began = Instant::now();
    while !holds().await {
        assert!(began.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

pub(crate) fn key(name: &str) -> EffectiveKey {
    EffectiveKey::message(name, "orders", "tests")
}

pub(crate) fn secs(secs: u64) -> Ttl {
    Ttl::new(Duration::from_secs(secs)).unwrap()
}

/// A claim of a token of its own, for the one request that tests have.
pub(crate) fn claim(lease: Ttl) -> Claim {
    Claim::new(ClaimToken::random().unwrap(), Fingerprint::of_payload("request"), lease)
}

pub(crate) fn completion(token: ClaimToken, body: impl Into<Vec<u8>>) -> Complete {
    Complete::new(token, Outcome::Result(StoredResult::new(201, body.into())), secs(3_600))
}

#[track_caller]
pub(crate) fn acquired(outcome: ClaimOutcome) -> Acquired {
    match outcome {
        ClaimOutcome::Acquired(acquired) => acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

/// A key that is claimed for a second. Its claim is cut off where the server stalls for as long, and another is made.
pub(crate) async fn claimed_for_a_second(store: &RedisStore) -> EffectiveKey {
    for n in 0..20 {
        let order = key(&format!("order {n}"));
        match store.claim(&order, &claim(secs(1))).await {
            Ok(outcome) => {
                acquired(outcome);
                return order;
            }
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
        }
    }
    panic!("no claim within its second")
}

/// Waits in vain, for long enough to have looked at the record.
pub(crate) async fn waited_in_vain(store: &RedisStore, order: &EffectiveKey) {
    for patience in [1, 5, 20] {
        match store.wait(order, secs(patience)).await.unwrap() {
            WaitOutcome::TimedOut { lease_left: Some(_) } => return,
            WaitOutcome::TimedOut { lease_left: None } => {}
            other => panic!("{other:?}"),
        }
    }
    panic!("nobody looked at the record")
}

/// Removes all that is in a namespace.
pub(crate) async fn clean_up(mut connection: impl redis::aio::ConnectionLike, namespace: &str) -> Result<(), BoxError> {
    let mut cursor = 0_u64;
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(format!("{namespace}:*")).arg("COUNT").arg(1_000);
        let (next, keys): (u64, Vec<String>) = scan.query_async(&mut connection).await?;
        if !keys.is_empty() {
            redis::cmd("DEL").arg(keys).exec_async(&mut connection).await?;
        }
        cursor = next;
        if cursor == 0 {
            return Ok(());
        }
    }
}

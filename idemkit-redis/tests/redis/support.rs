//! Stores, servers and operations for tests.

use std::time::Duration;

use idemkit_conformance::BoxError;
use idemkit_core::{
    Acquired, Claim, ClaimOutcome, ClaimToken, Complete, EffectiveKey, Fingerprint, Outcome, StoredResult, Ttl,
};
use idemkit_redis::{Builder, RedisStore, redis::Client};
use idemkit_servers::{Kind, Local, Options};

/// Where the shared server is.
pub(crate) fn url() -> String {
    idemkit_servers::url(Kind::Redis).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A store in a namespace of its own.
pub(crate) fn store(url: &str) -> Builder {
    RedisStore::builder().url(url).namespace(unique())
}

/// A namespace that nobody else has.
pub(crate) fn unique() -> String {
    format!("idemkit_test_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

/// For what a test does by itself. With more patience than the driver's own: several suites run at once.
pub(crate) async fn connect(url: &str) -> redis::aio::MultiplexedConnection {
    let patience = Some(Duration::from_secs(20));
    let config = redis::AsyncConnectionConfig::new().set_connection_timeout(patience).set_response_timeout(patience);
    Client::open(url).unwrap().get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

/// A server of a test's own, in memory.
pub(crate) fn own(args: &[&str]) -> Local {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Local::start_with(Kind::Redis, Options { args, ..Options::default() }).unwrap()
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

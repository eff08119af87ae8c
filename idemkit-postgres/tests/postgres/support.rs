//! Stores, servers and operations for tests.

use std::time::{Duration, Instant};

use idemkit_core::{
    Acquired, Claim, ClaimOutcome, ClaimToken, Complete, EffectiveKey, Fingerprint, HeldClaim, Outcome, Store as _,
    StoreError, StoreErrorKind, StoredResult, Ttl,
};
use idemkit_postgres::{Builder, PostgresStore};
use idemkit_servers::Kind;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _, PgConnection};

/// For what happens by itself, on a machine that stalls for seconds: suites that run beside a test hold the server up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the shared server is.
pub(crate) fn url() -> String {
    idemkit_servers::url(Kind::Postgres).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A table that nobody else has.
pub(crate) fn unique() -> String {
    format!("t_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

pub(crate) async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url).await.unwrap()
}

/// How long an operation may take is not what most tests are about.
pub(crate) fn builder() -> Builder {
    PostgresStore::builder().deadline(PATIENCE).connect_timeout(PATIENCE).idle_in_transaction(5 * PATIENCE)
}

/// A table of a test's own. It is dropped by [`Table::drop`], and stays where a test fails.
pub(crate) struct Table {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Table {
    pub(crate) async fn make() -> Self {
        Self::make_at(url()).await
    }

    pub(crate) async fn make_at(url: String) -> Self {
        let name = unique();
        let store = builder().url(&url).table(&name).max_connections(1).build().unwrap();
        store.migrate().await.unwrap();
        store.close().await;
        Self { url, name }
    }

    pub(crate) fn store(&self) -> Builder {
        builder().url(&self.url).table(&self.name)
    }

    pub(crate) async fn connect(&self) -> PgConnection {
        connect(&self.url).await
    }

    /// Runs statements with `{t}` for the table.
    pub(crate) async fn execute(&self, sql: &str) {
        self.connect().await.execute(AssertSqlSafe(sql.replace("{t}", &self.name))).await.unwrap();
    }

    /// One number of a query with `{t}` for the table.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let sql = AssertSqlSafe(sql.replace("{t}", &self.name));
        sqlx::query_scalar(sql).fetch_one(&mut self.connect().await).await.unwrap()
    }

    /// The claim's lease has ended, without waiting for it.
    pub(crate) async fn lapse(&self, claim: &HeldClaim) {
        let set = "UPDATE {t} SET lease_until = clock_timestamp() - interval '1 second' WHERE effective_key";
        self.execute(&format!("{set} = '{}'", claim.key)).await;
    }

    /// Until somebody waits.
    pub(crate) async fn until_marked(&self) {
        let is_marked = async || self.number("SELECT count(*) FROM {t} WHERE waiting").await > 0;
        until("somebody has marked a row", is_marked).await;
    }

    pub(crate) async fn drop(self) {
        self.execute("DROP TABLE IF EXISTS {t}, {t}_schema, {t}_ledger").await;
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

/// As soon as it is to be had: a lease must end first, or the server find out that a connection is gone.
pub(crate) async fn until_acquired(store: &PostgresStore, key: &EffectiveKey, request: &Claim) -> Acquired {
    let began = Instant::now();
    loop {
        match store.claim(key, request).await.unwrap() {
            ClaimOutcome::Acquired(acquired) => return acquired,
            other => assert!(began.elapsed() < PATIENCE, "not acquired: {other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Looks until it is so.
pub(crate) async fn until(what: &str, mut is_so: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !is_so().await {
        assert!(began.elapsed() < PATIENCE, "not within {PATIENCE:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The answer of a store whose deadline is short: asked for again where this machine has stalled for longer.
pub(crate) async fn answered<T>(mut operation: impl AsyncFnMut() -> Result<T, StoreError>) -> T {
    let began = Instant::now();
    loop {
        match operation().await {
            Err(error) if error.kind() == StoreErrorKind::Unavailable && began.elapsed() < PATIENCE => {}
            answer => return answer.unwrap(),
        }
    }
}

/// It takes less than `limit`, if not each time: what takes longer by itself does so whenever it is asked.
pub(crate) async fn takes_less_than(limit: Duration, mut what: impl AsyncFnMut()) {
    let mut took = vec![];
    while took.len() < 5 {
        let began = Instant::now();
        what().await;
        let this = began.elapsed();
        if this < limit {
            return;
        }
        took.push(this);
    }
    panic!("never less than {limit:?}: {took:?}");
}

/// A claim that is held.
pub(crate) async fn held(store: &PostgresStore, key: EffectiveKey, lease: Ttl) -> HeldClaim {
    let (request, began) = (claim(lease), Instant::now());
    loop {
        match store.claim(&key, &request).await {
            // Its deadline may be short, and the machine stall for longer.
            Err(error) if error.kind() == StoreErrorKind::Unavailable && began.elapsed() < PATIENCE => {}
            answer => {
                acquired(answer.unwrap());
                return HeldClaim { key, token: request.token };
            }
        }
    }
}

/// To everybody else the claim is in flight.
pub(crate) async fn assert_held(store: &PostgresStore, claimed: &HeldClaim) {
    let met = store.claim(&claimed.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
}

//! Stores, servers and operations for tests.

use std::time::{Duration, Instant};

use idemkit_core::{
    Acquired, Claim, ClaimOutcome, ClaimToken, Complete, EffectiveKey, Fingerprint, HeldClaim, Outcome, Store as _,
    StoreError, StoreErrorKind, StoredResult, Ttl,
};
use idemkit_mongo::{
    Builder, MongoStore,
    mongodb::{
        Client, Collection,
        bson::{Bson, DateTime, Document, doc},
    },
};
use idemkit_servers::{Kind, Local, Options, Program};
use tokio::sync::{Semaphore, SemaphorePermit};

/// For what happens by itself, on a machine that stalls for seconds: suites that run beside a test hold the server up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Where the shared server is.
pub(crate) fn url() -> String {
    idemkit_servers::url(Kind::Mongo).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A database that nobody else has.
pub(crate) fn unique() -> String {
    format!("idemkit_test_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

/// A server of a test's own.
pub(crate) fn own(args: &[&str]) -> Local {
    let args = args.iter().map(|arg| (*arg).to_owned()).collect();
    Local::start_with(Kind::Mongo, Options { args, ..Options::default() }).unwrap()
}

/// A server of a test's own whose commands can be made to fail.
pub(crate) fn failing() -> Local {
    match idemkit_servers::find_program(Kind::Mongo).unwrap().1 {
        Program::Mongod => own(&["--setParameter", "enableTestCommands=1"]),
        _ => own(&["--enable-test-commands"]),
    }
}

/// Tells the server to fail so many commands.
pub(crate) async fn fail(client: &Client, commands: &[&str], times: i32, with: Document) {
    let commands: Vec<Bson> = commands.iter().map(|command| Bson::from(*command)).collect();
    let mut data = doc! { "failCommands": commands };
    data.extend(with);
    let point = doc! { "configureFailPoint": "failCommand", "mode": { "times": times }, "data": data };
    client.database("admin").run_command(point).await.unwrap();
}

/// Who has the machine: a suite, which brings two hundred requests at once and keeps this server from answering others for seconds,
/// has it alone; other tests share it.
static MACHINE: Semaphore = Semaphore::const_new(SHARES as usize);
const SHARES: u32 = 64;

pub(crate) async fn machine_alone() -> SemaphorePermit<'static> {
    MACHINE.acquire_many(SHARES).await.unwrap()
}

/// How long an operation may take is not what most tests are about.
pub(crate) fn builder() -> Builder {
    let builder = MongoStore::builder().deadline(PATIENCE).connect_timeout(PATIENCE).command_timeout(PATIENCE);
    builder.transaction_within(5 * PATIENCE)
}

/// A database of a test's own. It is dropped by [`Database::drop`], and stays where a test fails.
pub(crate) struct Database {
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) client: Client,
    _share: SemaphorePermit<'static>,
}

impl Database {
    pub(crate) async fn make() -> Self {
        Self::at(url()).await
    }

    pub(crate) async fn at(url: String) -> Self {
        let share = MACHINE.acquire().await.unwrap();
        let client = Client::with_uri_str(&url).await.unwrap();
        Self { url, name: unique(), client, _share: share }
    }

    pub(crate) fn store(&self) -> Builder {
        builder().url(&self.url).database(&self.name)
    }

    pub(crate) fn records(&self) -> Collection<Document> {
        self.collection("idemkit_records")
    }

    pub(crate) fn collection(&self, name: &str) -> Collection<Document> {
        self.client.database(&self.name).collection(name)
    }

    /// The claim's lease has ended, without waiting for it.
    pub(crate) async fn lapse(&self, claim: &HeldClaim) {
        let query = doc! { "_id": claim.key.to_string() };
        let set = doc! { "$set": { "lease_until": DateTime::from_millis(1) } };
        assert_eq!(self.records().update_one(query, set).await.unwrap().modified_count, 1);
    }

    pub(crate) async fn drop(self) {
        self.client.database(&self.name).drop().await.unwrap();
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

/// A claim that has lapsed, taken over. It is in flight where the server is slow: a holder's transaction may be why.
pub(crate) async fn taken_over(store: &MongoStore, key: &EffectiveKey, request: &Claim) -> Acquired {
    let began = Instant::now();
    loop {
        match store.claim(key, request).await.unwrap() {
            ClaimOutcome::InFlight(_) if began.elapsed() < PATIENCE => {}
            other => return acquired(other),
        }
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
pub(crate) async fn held(store: &MongoStore, key: EffectiveKey, lease: Ttl) -> HeldClaim {
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
pub(crate) async fn assert_held(store: &MongoStore, claimed: &HeldClaim) {
    let met = store.claim(&claimed.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
}

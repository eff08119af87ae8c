//! A server of a test's own, stores of a test's own, and what a charge is.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use axum::{
    Router,
    extract::State,
    response::{IntoResponse, Response},
    routing::post,
};
use idemkit::{
    Engine, MemoryStore, Policy, Store,
    dynamodb::DynamoDbStore,
    http::{IdempotencyLayer, LayerBuilder, RequestClaim},
    mongo::MongoStore,
    postgres::PostgresStore,
    redis::RedisStore,
};
use idemkit_servers::Kind;
use tokio::{
    net::TcpListener,
    sync::{Notify, Semaphore},
    task::AbortHandle,
};

/// For what happens by itself, on a machine that stalls for seconds: suites that run beside a test hold servers up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// How long a charge takes.
const WORK: Duration = Duration::from_millis(500);

#[derive(Clone, Copy, Debug)]
pub(crate) enum On {
    Memory,
    DynamoDb,
    Redis,
    Postgres,
    Mongo,
}

/// A name that nobody else has.
pub(crate) fn unique() -> String {
    format!("http_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

pub(crate) fn url(kind: Kind) -> String {
    idemkit_servers::url(kind).unwrap_or_else(|missing| panic!("{missing}"))
}

/// An engine that waits as long, for its store and for another's answer. No lease ends while a duplicate waits.
pub(crate) fn patient(store: impl Store) -> Engine {
    let policy = Policy::builder().lease(5 * PATIENCE).wait(2 * PATIENCE).store_deadline(PATIENCE).build().unwrap();
    Engine::builder(store).policy(policy).build()
}

/// An engine on a store with tables of its own. They stay: the servers are of this run.
pub(crate) async fn engine(on: On) -> Engine {
    match on {
        On::Memory => patient(MemoryStore::new()),
        On::DynamoDb => {
            let store = DynamoDbStore::builder().emulator(url(Kind::DynamoDb)).table(unique()).create_table(true);
            patient(store.deadline(PATIENCE).build().await.unwrap())
        }
        On::Redis => {
            let store = RedisStore::builder().url(url(Kind::Redis)).namespace(unique());
            patient(store.deadline(PATIENCE).build().unwrap())
        }
        On::Postgres => patient(postgres().await.0),
        On::Mongo => {
            let store = MongoStore::builder().url(url(Kind::Mongo)).database(unique());
            patient(store.deadline(PATIENCE).command_timeout(PATIENCE).build().await.unwrap())
        }
    }
}

/// A store on a table of its own, and the table's name.
pub(crate) async fn postgres() -> (PostgresStore, String) {
    let table = unique();
    let store = PostgresStore::builder().url(url(Kind::Postgres)).table(&table);
    let store = store.deadline(PATIENCE).idle_in_transaction(5 * PATIENCE).build().unwrap();
    store.migrate().await.unwrap();
    (store, table)
}

/// A server. It ends when this is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) layer: IdempotencyLayer,
    task: AbortHandle,
}

impl Server {
    /// One line on a router, on loopback.
    pub(crate) async fn start(layer: LayerBuilder, router: Router) -> Self {
        let layer = layer.build().unwrap();
        Self::serve(router.layer(layer.clone()), layer).await
    }

    pub(crate) async fn serve(router: Router, layer: IdempotencyLayer) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let task = tokio::spawn(async move { axum::serve(listener, router).await.unwrap() }).abort_handle();
        Self { address, layer, task }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// The effect: how often it happened.
#[derive(Clone, Default)]
pub(crate) struct Charged(Arc<Effect>);

#[derive(Default)]
struct Effect {
    times: AtomicU32,
    begun: Notify,
    held_up: Option<Semaphore>,
}

impl Charged {
    /// Its handlers work until they are told to [go on](Self::go_on).
    pub(crate) fn held_up() -> Self {
        Self(Arc::new(Effect { held_up: Some(Semaphore::new(0)), ..Effect::default() }))
    }

    pub(crate) fn times(&self) -> u32 {
        self.0.times.load(Ordering::SeqCst)
    }

    pub(crate) fn once_more(&self) -> u32 {
        self.0.times.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// Once a handler works.
    pub(crate) async fn begun(&self) {
        self.0.begun.notified().await;
    }

    pub(crate) fn go_on(&self) {
        self.0.held_up.as_ref().unwrap().close();
    }

    async fn works(&self) {
        self.0.begun.notify_one();
        match &self.0.held_up {
            // It is never given a place: it is closed.
            Some(held_up) => drop(held_up.acquire().await),
            None => tokio::time::sleep(WORK).await,
        }
    }
}

pub(crate) async fn charge(State(charged): State<Charged>, claim: RequestClaim, body: String) -> Response {
    charged.works().await;
    let number = charged.once_more();
    assert!(!claim.is_lease_lost());
    (axum::http::StatusCode::CREATED, [("location", format!("/charges/{number}"))], format!("charged: {body}"))
        .into_response()
}

pub(crate) fn charges(charged: &Charged) -> Router {
    Router::new().route("/charges", post(charge)).with_state(charged.clone())
}

pub(crate) fn single(engine: Engine) -> LayerBuilder {
    IdempotencyLayer::builder(engine).single_tenant()
}

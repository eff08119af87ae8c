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
    Engine, MemoryStore,
    dynamodb::DynamoDbStore,
    http::{IdempotencyLayer, LayerBuilder, RequestClaim},
    mongo::MongoStore,
    postgres::PostgresStore,
    redis::RedisStore,
};
use idemkit_servers::Kind;
use tokio::{net::TcpListener, task::AbortHandle};

/// How long a charge takes.
pub(crate) const WORK: Duration = Duration::from_millis(500);

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

/// An engine on a store with tables of its own. They stay: the servers are of this run.
pub(crate) async fn engine(on: On) -> Engine {
    match on {
        On::Memory => Engine::new(MemoryStore::new()),
        On::DynamoDb => {
            let store = DynamoDbStore::builder().emulator(url(Kind::DynamoDb)).table(unique()).create_table(true);
            Engine::new(store.build().await.unwrap())
        }
        On::Redis => Engine::new(RedisStore::builder().url(url(Kind::Redis)).namespace(unique()).build().unwrap()),
        On::Postgres => Engine::new(postgres().await.0),
        On::Mongo => Engine::new(MongoStore::builder().url(url(Kind::Mongo)).database(unique()).build().await.unwrap()),
    }
}

/// A store on a table of its own, and the table's name.
pub(crate) async fn postgres() -> (PostgresStore, String) {
    let table = unique();
    let store = PostgresStore::builder().url(url(Kind::Postgres)).table(&table).build().unwrap();
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
pub(crate) struct Charged(Arc<AtomicU32>);

impl Charged {
    pub(crate) fn times(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn once_more(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

pub(crate) async fn charge(State(charged): State<Charged>, claim: RequestClaim, body: String) -> Response {
    tokio::time::sleep(WORK).await;
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

//! The conformance suite: on Redis, on Valkey, on a cluster, and by a user who may do nothing else.

use std::sync::Arc;

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, Store};
use idemkit_redis::{Builder, RedisStore};
use idemkit_servers::{Kind, Local, Options};

use crate::{
    cluster::Cluster,
    support::{clean_up, connect, own, url},
};

/// A namespace of one server for each vector.
struct Server {
    url: String,
    /// Who looks after it, where the store's own user may not.
    admin_url: String,
    set: fn(Builder) -> Builder,
}

impl Server {
    fn new(url: String, set: fn(Builder) -> Builder) -> Self {
        Self { admin_url: url.clone(), url, set }
    }
}

/// Puts something that cannot be read under a key.
async fn spoil(connection: &mut impl redis::aio::ConnectionLike, key: &str, with: Spoil) -> Result<Spoiled, BoxError> {
    let fields: &[(&str, &str)] = match with {
        Spoil::Garbage => &[("state", "CLAIMED"), ("lease_until", "soon")],
        Spoil::NewerSchema => &[("schema_version", "2"), ("state", "CLAIMED")],
        Spoil::UnknownEncoding => &[
            ("state", "COMPLETED"),
            ("claim_token", "00000000000000000000000000000000"),
            ("fingerprint", "0000000000000000000000000000000000000000000000000000000000000000"),
            ("fingerprint_version", "1"),
            ("lease_until", "99999999999999"),
            ("response_status", "200"),
            ("body_encoding", "brotli-of-tomorrow"),
        ],
        _ => return Ok(Spoiled::Impossible("not known here")),
    };
    redis::cmd("DEL").arg(key).exec_async(connection).await?;
    redis::cmd("HSET").arg(key).arg(fields).exec_async(connection).await?;
    Ok(Spoiled::Done)
}

fn with_grace(builder: Builder, opening: &Opening) -> Builder {
    match opening.grace() {
        Some(grace) => builder.grace(grace),
        None => builder,
    }
}

#[async_trait]
impl Factory for Server {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let builder = RedisStore::builder().url(&self.url).namespace(opening.namespace());
        Ok(Arc::new(with_grace((self.set)(builder), opening).build()?))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        spoil(&mut connect(&self.admin_url).await, &format!("{namespace}:{key}"), with).await
    }

    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError> {
        clean_up(connect(&self.admin_url).await, namespace).await
    }
}

/// Each suite brings two hundred requests at once: two of them are what a machine of two cores has room for.
static AT_ONCE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

async fn conforms(factory: impl Factory) {
    let _permit = AT_ONCE.acquire().await.unwrap();
    let report = idemkit_conformance::run(factory).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_redis() {
    conforms(Server::new(url(), |builder| builder)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_notices_with_a_margin_and_a_small_limit() {
    use std::time::Duration;
    let set = |builder: Builder| {
        builder.notices(false).take_over_margin(Duration::from_millis(500)).result_bytes_max(1_000_000)
    };
    conforms(Server::new(url(), set)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_valkey() {
    let options = Options { program: Some("valkey-server"), ..Options::default() };
    let server = Local::start_with(Kind::Redis, options).unwrap();
    conforms(Server::new(server.url(), |builder| builder.result_bytes_max(1_000_000))).await;
}

/// The ACL of this crate's documentation, and nothing else.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn by_a_user_who_may_do_nothing_else() {
    let server = own(&[]);
    let mut admin = connect(&server.url()).await;
    let rules = include_str!("../../README.md").lines().find_map(|line| line.strip_prefix("ACL SETUSER idemkit "));
    let mut set = redis::cmd("ACL");
    set.arg("SETUSER").arg("idemkit");
    for rule in rules.unwrap().split(' ') {
        // The suite's namespaces, instead of the default one.
        set.arg(rule.replace("idemkit:", "ct_").replace(">PASSWORD", ">secret"));
    }
    set.exec_async(&mut admin).await.unwrap();
    let url = server.url().replace("redis://", "redis://idemkit:secret@");
    conforms(Server { url, admin_url: server.url(), set: |builder| builder.result_bytes_max(1_000_000) }).await;
}

/// A namespace of one cluster for each vector.
struct Nodes {
    urls: Vec<String>,
    client: redis::cluster::ClusterClient,
}

#[async_trait]
impl Factory for Nodes {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let builder = RedisStore::builder().cluster(self.urls.clone()).result_bytes_max(1_000_000);
        Ok(Arc::new(with_grace(builder.namespace(opening.namespace()), opening).build()?))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let mut connection = self.client.get_async_connection().await?;
        spoil(&mut connection, &format!("{namespace}:{key}"), with).await
    }

    async fn clean_up(&self, _: &str) -> Result<(), BoxError> {
        // All of it goes with the cluster.
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_cluster() {
    let cluster = Cluster::start().await;
    let client = redis::cluster::ClusterClient::new(cluster.urls()).unwrap();
    conforms(Nodes { urls: cluster.urls(), client }).await;
}

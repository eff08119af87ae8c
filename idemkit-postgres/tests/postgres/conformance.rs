//! The conformance suite: with prepared statements and without, behind pgbouncer, and at each isolation level.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, Store};
use idemkit_postgres::{Builder, PostgresStore};
use sqlx::{AssertSqlSafe, Executor as _, PgPool, postgres::PgPoolOptions};

use crate::{pgbouncer::PgBouncer, support::url};

/// A table for each vector.
struct Tables {
    url: String,
    set: fn(Builder) -> Builder,
    /// Who spoils and cleans up, past any pooler.
    admin: PgPool,
}

impl Tables {
    fn new(url: String, set: fn(Builder) -> Builder) -> Self {
        let admin = PgPoolOptions::new().max_connections(2).connect_lazy(&url).unwrap();
        Self { url, set, admin }
    }

    fn store(&self, namespace: &str) -> Result<PostgresStore, BoxError> {
        let builder = PostgresStore::builder().url(&self.url).table(namespace).max_connections(8);
        Ok((self.set)(builder).build()?)
    }
}

#[async_trait]
impl Factory for Tables {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let store = self.store(opening.namespace())?;
        store.migrate().await?;
        Ok(Arc::new(store))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let (columns, values) = match with {
            Spoil::Garbage => ("", "'CLAIMED', 'none', 1, 'none', now() - interval '1 day'"),
            Spoil::NewerSchema => (", schema_version", "'CLAIMED', 'none', 1, 'none', now(), 2"),
            Spoil::UnknownEncoding => (
                ", body_encoding, response_status",
                "'COMPLETED', repeat('0', 64), 1, repeat('0', 32), now() + interval '1 day', 'brotli-of-tomorrow', 200",
            ),
            _ => return Ok(Spoiled::Impossible("not known here")),
        };
        let sql = format!(
            "DELETE FROM {namespace} WHERE effective_key = '{key}';
             INSERT INTO {namespace} (effective_key, state, fingerprint, fingerprint_version, claim_token, lease_until{columns})
             VALUES ('{key}', {values})"
        );
        self.admin.execute(AssertSqlSafe(sql)).await?;
        Ok(Spoiled::Done)
    }

    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError> {
        self.admin.execute(AssertSqlSafe(format!("DROP TABLE IF EXISTS {namespace}, {namespace}_schema"))).await?;
        Ok(())
    }
}

/// Each suite brings two hundred requests at once: two of them are what a machine of two cores has room for.
static AT_ONCE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

async fn conforms(factory: Tables) {
    let _permit = AT_ONCE.acquire().await.unwrap();
    let report = idemkit_conformance::run(factory).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_postgres() {
    conforms(Tables::new(url(), |builder| builder)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_prepared_statements_with_a_margin_and_a_small_limit() {
    let set = |builder: Builder| {
        builder.pooler(true).take_over_margin(Duration::from_millis(500)).result_bytes_max(1_000_000)
    };
    conforms(Tables::new(url(), set)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn behind_pgbouncer_in_transaction_mode() {
    let pooler = PgBouncer::before(&url());
    let mut tables = Tables::new(pooler.url(), |builder| builder.pooler(true).result_bytes_max(1_000_000));
    // Tables come and go past the pooler.
    tables.admin = PgPoolOptions::new().max_connections(2).connect_lazy(&url()).unwrap();
    conforms(tables).await;
}

/// A database whose default is another isolation level.
async fn at_isolation(level: &str) {
    let name = crate::support::unique();
    let admin = PgPoolOptions::new().max_connections(1).connect_lazy(&url()).unwrap();
    admin.execute(AssertSqlSafe(format!("CREATE DATABASE {name}"))).await.unwrap();
    let set = format!("ALTER DATABASE {name} SET default_transaction_isolation = '{level}'");
    admin.execute(AssertSqlSafe(set)).await.unwrap();
    let (server, _) = url().rsplit_once('/').map(|(server, rest)| (server.to_owned(), rest.to_owned())).unwrap();
    conforms(Tables::new(format!("{server}/{name}"), |builder| builder.result_bytes_max(1_000_000))).await;
    admin.execute(AssertSqlSafe(format!("DROP DATABASE {name} WITH (FORCE)"))).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_repeatable_read() {
    at_isolation("repeatable read").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_serializable() {
    at_isolation("serializable").await;
}

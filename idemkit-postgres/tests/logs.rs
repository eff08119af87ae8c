//! What the driver logs of the store's statements. A binary of its own: whether an event is of interest is remembered for the
//! whole process, and where other tests run at the same time, one of their threads may be the first that is asked.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    io::{self, Write},
    sync::{Arc, Mutex},
    time::Duration,
};

use idemkit_core::{
    Claim, ClaimOutcome, ClaimToken, Complete, EffectiveKey, Fingerprint, Outcome, Store as _, StoredResult, Ttl,
};
use idemkit_postgres::PostgresStore;
use idemkit_servers::Kind;
use tracing_subscriber::fmt::MakeWriter;

/// Keeps what is logged.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Log {
    type Writer = Self;

    fn make_writer(&'a self) -> Self {
        self.clone()
    }
}

/// The driver logs each statement's text, and without prepared statements the arguments are in it.
#[tokio::test]
async fn no_token_and_no_result_is_logged_where_statements_are_written_out() {
    let url = idemkit_servers::url(Kind::Postgres).unwrap_or_else(|missing| panic!("{missing}"));
    let table = format!("t_{}_{:016x}", std::process::id(), fastrand::u64(..));
    PostgresStore::builder().url(&url).table(&table).build().unwrap().migrate().await.unwrap();
    let hour = Ttl::new(Duration::from_secs(3_600)).unwrap();
    let log = Log::default();
    let subscriber = tracing_subscriber::fmt().with_max_level(tracing::Level::TRACE).with_writer(log.clone()).finish();
    let _logging = tracing::subscriber::set_default(subscriber);
    let pool = sqlx::PgPool::connect_lazy(&url).unwrap();
    // How long it takes is no matter here.
    let patience = Duration::from_secs(60);
    for (number, builder) in
        [PostgresStore::builder().url(&url), PostgresStore::builder().pool(&pool)].into_iter().enumerate()
    {
        let store = builder.table(&table).pooler(true).deadline(patience).notices(false).build().unwrap();
        // From here on the store follows other options.
        pool.set_connect_options((*pool.connect_options()).clone().application_name("later"));
        let key = EffectiveKey::message(format!("order {number}"), "orders", "tests");
        let token = ClaimToken::random().unwrap();
        let claimed = store.claim(&key, &Claim::new(token, Fingerprint::of_payload("request"), hour)).await.unwrap();
        assert!(matches!(claimed, ClaimOutcome::Acquired(_)), "{claimed:?}");
        let outcome = Outcome::Result(StoredResult::new(201, "the result"));
        store.complete(&key, &Complete::new(token, outcome, hour)).await.unwrap();
        let logged = String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
        let body: String = "the result".bytes().map(|byte| format!("{byte:02x}")).collect();
        for secret in [token.to_string(), body] {
            assert!(!logged.contains(&secret), "{logged}");
        }
    }
    // What can be logged is.
    sqlx::query(sqlx::AssertSqlSafe(format!("DROP TABLE {table}, {table}_schema"))).execute(&pool).await.unwrap();
    assert!(String::from_utf8_lossy(&log.0.lock().unwrap()).contains("DROP TABLE"));
}

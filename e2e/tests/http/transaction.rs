//! A handler that completes its claim in its own transaction on PostgreSQL: effect and answer together, or neither.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use idemkit::{
    StoredResult,
    http::RequestClaim,
    postgres::{
        PostgresStore,
        sqlx::{self, AssertSqlSafe, PgPool},
    },
};
use idemkit_servers::Kind;
use tokio::task::JoinSet;

use crate::support::{Charged, PATIENCE, Server, patient, postgres, single, url};

#[derive(Clone)]
struct Bank {
    store: PostgresStore,
    pool: PgPool,
    records: Arc<str>,
    ledger: Arc<str>,
    /// How often a handler ran.
    ran: Charged,
}

/// Fails at its first run where it is told to, after it has written.
async fn book(State(bank): State<Bank>, claim: RequestClaim, body: String) -> Response {
    let ran = bank.ran.once_more();
    let answer = StoredResult::new(201, format!("booked: {body}"));
    let insert = AssertSqlSafe(format!("INSERT INTO {} VALUES ($1)", bank.ledger));
    let done = bank.store.transact(claim.hand_over(), async |mut tx| {
        sqlx::query(insert).bind(&body).execute(&mut *tx).await?;
        if body == "panics" && ran == 1 {
            panic!("a crash between the write and the commit");
        }
        if body == "fails" && ran == 1 {
            return Err(sqlx::Error::RowNotFound);
        }
        Ok(tx.complete(answer.clone()))
    });
    match done.await {
        Ok(done) => claim.answer(&done, &answer).into_response(),
        Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
    }
}

async fn bank() -> (Bank, Server) {
    let (store, table) = postgres().await;
    let pool = PgPool::connect(&url(Kind::Postgres)).await.unwrap();
    let ledger: Arc<str> = format!("{table}_ledger").into();
    sqlx::raw_sql(AssertSqlSafe(format!("CREATE TABLE {ledger} (line text)"))).execute(&pool).await.unwrap();
    let engine = patient(store.clone());
    let bank = Bank { store, pool, records: table.into(), ledger, ran: Charged::default() };
    let server = Server::start(single(engine), Router::new().route("/", post(book)).with_state(bank.clone())).await;
    (bank, server)
}

impl Bank {
    async fn lines(&self) -> i64 {
        let count = AssertSqlSafe(format!("SELECT count(*) FROM {}", self.ledger));
        sqlx::query_scalar(count).fetch_one(&self.pool).await.unwrap()
    }

    /// The lease of a claim that somebody waits for ends.
    async fn lapse(&self) {
        let began = Instant::now();
        let ends = format!("UPDATE {} SET lease_until = clock_timestamp() - interval '1 second'", self.records);
        let ends = || sqlx::raw_sql(AssertSqlSafe(format!("{ends} WHERE waiting"))).execute(&self.pool);
        while ends().await.unwrap().rows_affected() == 0 {
            assert!(began.elapsed() < PATIENCE, "nobody waits");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

async fn ask(server: &Server, body: &'static str) -> Option<(u16, String, bool)> {
    let answer =
        reqwest::Client::new().post(server.url("/")).header("Idempotency-Key", body).body(body).send().await.ok()?;
    let replayed = answer.headers().contains_key("idempotency-replayed");
    Some((answer.status().as_u16(), answer.text().await.unwrap(), replayed))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_at_once_one_books_and_all_get_its_answer() {
    let (bank, server) = bank().await;
    let server = Arc::new(server);
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let server = Arc::clone(&server);
        clients.spawn(async move { ask(&server, "order").await.unwrap() });
    }
    let answers = clients.join_all().await;
    assert!(answers.iter().all(|(status, body, _)| (*status, body.as_str()) == (201, "booked: order")), "{answers:?}");
    assert_eq!(answers.iter().filter(|(.., replayed)| *replayed).count(), 49);
    assert_eq!((bank.lines().await, bank.ran.times()), (1, 1));
}

/// An error of the transaction's: rolled back, and released, so that the retry runs at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_fails_books_nothing_and_its_retry_books_once() {
    let (bank, server) = bank().await;
    assert_eq!(ask(&server, "fails").await.unwrap().0, 500);
    assert_eq!(bank.lines().await, 0);
    assert_eq!(ask(&server, "fails").await.unwrap(), (201, "booked: fails".to_owned(), false));
    assert_eq!((bank.lines().await, bank.ran.times()), (1, 2));
}

/// A handler that crashes between its write and the commit: nothing of it can be seen, and the claim lapses.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_before_the_commit_books_nothing_and_its_retry_books_once() {
    let (bank, server) = bank().await;
    assert_eq!(ask(&server, "panics").await, None, "the connection breaks");
    assert_eq!(bank.lines().await, 0);
    // It waits for the lease to end, and takes over.
    let (again, ()) = tokio::join!(ask(&server, "panics"), bank.lapse());
    assert_eq!(again.unwrap(), (201, "booked: panics".to_owned(), false));
    assert_eq!((bank.lines().await, bank.ran.times()), (1, 2));
}

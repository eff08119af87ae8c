//! Waiters: woken by a notice, and by the poll where there is none.

use std::time::{Duration, Instant};

use idemkit_core::{ClaimOutcome, Store, WaitOutcome};
use idemkit_servers::{Kind, Local};
use sqlx::Executor as _;
use tokio::task::JoinSet;

use crate::support::{PATIENCE, Table, acquired, builder, claim, completion, connect, key, secs, until};

const CROWD: usize = 200;
/// Whose last statement it was to listen, or to say that it lives: on a server of the test's own these are the listeners.
const LISTENERS: &str =
    "FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (query ILIKE 'LISTEN%' OR query = 'SELECT 1')";

/// A crowd in another process's place: a store of its own.
fn waiters(store: &idemkit_postgres::PostgresStore) -> JoinSet<(WaitOutcome, Instant)> {
    let mut waiters = JoinSet::new();
    for _ in 0..CROWD {
        let store = store.clone();
        waiters.spawn(async move { (store.wait(&key("order"), secs(180)).await.unwrap(), Instant::now()) });
    }
    waiters
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_connection_listens_for_two_hundred_waiters_and_the_pool_stays_free() {
    let server = Local::start_with(Kind::Postgres, idemkit_servers::Options::default()).unwrap();
    let table = Table::make_at(server.url()).await;
    let here = table.store().build().unwrap();
    // One connection for work: were it the one that listens, nothing would go on.
    let there = table.store().max_connections(1).build().unwrap();
    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let mut crowd = waiters(&there);
    table.until_marked().await;
    acquired(there.claim(&key("another"), &claim(secs(300))).await.unwrap());
    // Not before it is connected, and again once one that was taken for dead is gone.
    let listening = format!("SELECT count(*) {LISTENERS}");
    until("one connection listens", async || table.number(&listening).await == 1).await;
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    let completed = Instant::now();
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(completed) < PATIENCE, "it waited on");
    }
}

/// Field report 14: NOTIFY takes a lock of the whole database at commit.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_notified_where_nobody_waits() {
    let table = Table::make().await;
    let store = table.store().build().unwrap();
    let mut listener = sqlx::postgres::PgListener::connect(&table.url).await.unwrap();
    listener.listen("idemkit_records").await.unwrap();
    let request = claim(secs(300));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    store.complete(&key("order"), &completion(request.token, "")).await.unwrap();
    let (other, waited_for) = (table.store().build().unwrap(), claim(secs(300)));
    acquired(store.claim(&key("waited for"), &waited_for).await.unwrap());
    let waiter = tokio::spawn(async move { other.wait(&key("waited for"), secs(300)).await });
    table.until_marked().await;
    store.complete(&key("waited for"), &completion(waited_for.token, "")).await.unwrap();
    assert!(matches!(waiter.await.unwrap().unwrap(), WaitOutcome::Completed(_)));
    // Of the keys of this test, the first that is notified is the second.
    let mine = [key("order").to_string(), key("waited for").to_string()];
    let first = loop {
        let notice = listener.recv().await.unwrap();
        if mine.contains(&notice.payload().to_owned()) {
            break notice.payload().to_owned();
        }
    };
    assert_eq!(first, mine[1]);
    table.drop().await;
}

/// As one that rotates its credentials does.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_listener_follows_the_users_pool() {
    let server = Local::start_with(Kind::Postgres, idemkit_servers::Options::default()).unwrap();
    let table = Table::make_at(server.url()).await;
    let pool = sqlx::PgPool::connect_lazy(&table.url).unwrap();
    let store = builder().pool(&pool).table(&table.name).build().unwrap();
    let request = claim(secs(600));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    let waiting = {
        let store = store.clone();
        tokio::spawn(async move { store.wait(&key("order"), secs(600)).await })
    };
    table.until_marked().await;
    pool.set_connect_options((*pool.connect_options()).clone().application_name("later"));
    let began = Instant::now();
    while table.number(&format!("SELECT count(*) {LISTENERS} AND application_name = 'later'")).await == 0 {
        assert!(began.elapsed() < PATIENCE, "nobody listens as the pool says");
        table
            .number(&format!("SELECT count(pg_terminate_backend(pid)) {LISTENERS} AND application_name <> 'later'"))
            .await;
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    store.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    assert!(matches!(waiting.await.unwrap().unwrap(), WaitOutcome::Completed(_)));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_terminated_listener_is_made_anew_and_its_waiters_look_again() {
    let server = Local::start_with(Kind::Postgres, idemkit_servers::Options::default()).unwrap();
    let table = Table::make_at(server.url()).await;
    let (here, there) = (table.store().build().unwrap(), table.store().build().unwrap());
    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let mut crowd = waiters(&there);
    table.until_marked().await;
    for _ in 0..3 {
        let began = Instant::now();
        let kill = format!("SELECT count(pg_terminate_backend(pid)) {LISTENERS}");
        while table.number(&kill).await == 0 {
            assert!(began.elapsed() < PATIENCE, "nobody listens");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    let completed = Instant::now();
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(completed) < PATIENCE, "it waited on");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_immediate_restart_under_two_hundred_waiters_ends_them_all_and_runs_nothing_twice() {
    let mut server = Local::start(Kind::Postgres).unwrap();
    let table = Table::make_at(server.url()).await;
    let (here, there) = (table.store().build().unwrap(), table.store().build().unwrap());
    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let mut crowd = waiters(&there);
    table.until_marked().await;
    connect(&table.url).await.execute("CHECKPOINT").await.unwrap();
    server.kill().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.restart().unwrap();

    // Its lease lives, and it was written down: nobody else gets the key.
    let other = there.claim(&key("order"), &claim(secs(300))).await.unwrap();
    assert!(matches!(other, ClaimOutcome::InFlight(_)), "{other:?}");
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    let completed = Instant::now();
    let mut ended = 0;
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(completed) < PATIENCE, "it waited on");
        ended += 1;
    }
    assert_eq!(ended, CROWD);
}

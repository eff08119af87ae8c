//! The completion in a transaction with the caller's own writes: both or neither, whatever happens.

use std::{
    process::Stdio,
    sync::Arc,
    time::{Duration, Instant},
};

use idemkit_core::{
    ClaimOutcome, CompletedRecord, HeldClaim, InTransaction, Outcome, Release, Store, StoreErrorKind, StoredResult,
    Transacted,
};
use idemkit_postgres::{PostgresStore, TransactError, Transaction};
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};
use tokio::process::Command;

use crate::support::{
    PATIENCE, Table, acquired, answered, assert_held, builder, claim, completion, held, key, secs, until,
    until_acquired,
};

/// A table with a ledger beside it.
async fn with_ledger() -> Table {
    let table = Table::make().await;
    table.execute("CREATE TABLE {t}_ledger (key text, attempt text)").await;
    table
}

async fn written(table: &Table) -> i64 {
    table.number("SELECT count(*) FROM {t}_ledger").await
}

/// The business write: one more line in the ledger.
async fn write(tx: &mut Transaction, table: &str, claim: HeldClaim, what: &str) -> Result<(), sqlx::Error> {
    let sql = format!("INSERT INTO {table}_ledger VALUES ('{}', '{what}')", claim.key);
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(&mut **tx).await.map(drop)
}

async fn transact(
    store: &PostgresStore,
    table: &Table,
    claim: HeldClaim,
) -> Result<Transacted<u32>, TransactError<sqlx::Error>> {
    store
        .transact(claim, async |mut tx| {
            write(&mut tx, &table.name, claim, "written").await?;
            Ok(tx.complete(StoredResult::new(201, "done")).with(7))
        })
        .await
}

fn body(record: &CompletedRecord) -> &[u8] {
    &record.outcome.stored().unwrap().body
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writes_and_completion_commit_together_and_once(#[values(false, true)] pooler: bool) {
    let table = with_ledger().await;
    let store = table.store().pooler(pooler).build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(7));
    assert_eq!(written(&table).await, 1);
    let replay = store.claim(&order.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(&replay, ClaimOutcome::Completed(record) if body(record) == b"done"), "{replay:?}");

    // Run again, by the same holder too, it applies nothing and hands back what is recorded.
    for again in [order, HeldClaim { key: order.key, token: claim(secs(1)).token }] {
        match transact(&store, &table, again).await.unwrap() {
            Transacted::AlreadyCompleted(record) => assert_eq!(body(&record), b"done"),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(written(&table).await, 1);
    table.drop().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_whose_acknowledgement_is_lost_and_which_is_run_again_applies_its_effect_once(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let table = with_ledger().await;
    let proxy = Proxy::before(Kind::Postgres, &table.url).unwrap();
    let builder = builder().url(proxy.url()).table(&table.name).deadline(Duration::from_secs(3));
    let store = builder.notices(false).build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    proxy.lose_reply_to(b"COMMIT", how);
    let began = Instant::now();
    let error = loop {
        match transact(&store, &table, order).await {
            // The machine has stalled before the commit.
            Err(TransactError::Store(error)) if !error.may_be_applied() => {
                assert!(began.elapsed() < PATIENCE, "{error}")
            }
            Err(TransactError::Store(error)) => break error,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    // The store may give up before the server answers.
    until("it is committed, and its answer lost", async || (proxy.lost(), written(&table).await) == (1, 1)).await;

    let again = answered(async || match transact(&store, &table, order).await {
        Err(TransactError::Store(error)) => Err(error),
        other => Ok(other.unwrap()),
    });
    let again = again.await;
    assert!(matches!(&again, Transacted::AlreadyCompleted(record) if body(record) == b"done"), "{again:?}");
    assert_eq!(written(&table).await, 1);
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_zombies_transaction_never_commits() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let zombie = held(&store, key("order"), secs(300)).await;
    table.lapse(&zombie).await;
    let successor = claim(secs(600));
    acquired(store.claim(&zombie.key, &successor).await.unwrap());
    assert_eq!(transact(&store, &table, zombie).await.unwrap(), Transacted::Fenced);
    assert_eq!(written(&table).await, 0, "its operation did not even run");

    let mut connection = table.connect().await;
    let mut own = connection.begin().await.unwrap();
    let insert = format!("INSERT INTO {}_ledger VALUES ('x', 'zombie')", table.name);
    own.execute(AssertSqlSafe(insert.clone())).await.unwrap();
    let outcome = Outcome::Result(StoredResult::new(200, "zombie"));
    let fenced = store.complete_in(&mut own, &zombie, outcome.clone(), secs(600)).await.unwrap();
    assert_eq!(fenced, InTransaction::Fenced);
    // Even where that is overlooked.
    own.commit().await.unwrap();
    assert_eq!(written(&table).await, 0);

    store.complete(&zombie.key, &completion(successor.token, "the successor's")).await.unwrap();
    let mut connection = table.connect().await;
    let mut own = connection.begin().await.unwrap();
    own.execute(AssertSqlSafe(insert)).await.unwrap();
    match store.complete_in(&mut own, &zombie, outcome, secs(600)).await.unwrap() {
        InTransaction::AlreadyCompleted(record) => assert_eq!(body(&record), b"the successor's"),
        other => panic!("{other:?}"),
    }
    own.commit().await.unwrap();
    assert_eq!(written(&table).await, 0);
    let nobody = HeldClaim { key: key("never claimed"), token: zombie.token };
    assert_eq!(transact(&store, &table, nobody).await.unwrap(), Transacted::Fenced);
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_own_transaction_completes_where_the_claim_is_held() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let outcome = Outcome::Result(StoredResult::new(200, "done"));
    let mut connection = table.connect().await;
    let mut own = connection.begin().await.unwrap();
    own.execute(AssertSqlSafe(format!("INSERT INTO {}_ledger VALUES ('x', 'own')", table.name))).await.unwrap();
    let completed = store.complete_in(&mut own, &order, outcome, secs(600)).await.unwrap();
    assert_eq!(completed, InTransaction::Completed);
    // Not before the commit.
    assert_held(&store, &order).await;
    own.commit().await.unwrap();
    assert_eq!(written(&table).await, 1);
    let replay = store.claim(&order.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");
    table.drop().await;
}

#[derive(Debug, thiserror::Error)]
#[error("no money")]
struct NoMoney;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_error_of_the_operation_rolls_everything_back_and_the_claim_is_kept() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let failed: Result<Transacted<()>, _> = store
        .transact(order, async |mut tx| {
            write(&mut tx, &table.name, order, "lost").await.unwrap();
            Err(NoMoney)
        })
        .await;
    assert!(matches!(failed, Err(TransactError::Operation(NoMoney))));
    assert_eq!(written(&table).await, 0);
    assert_held(&store, &order).await;

    // An error that is swallowed leaves an aborted transaction, which must not be told as committed.
    let swallowed = store
        .transact(order, async |mut tx| {
            write(&mut tx, &table.name, order, "lost").await.unwrap();
            tx.execute("SELECT 1/0").await.unwrap_err();
            Ok::<_, NoMoney>(tx.complete(StoredResult::new(200, "no")))
        })
        .await;
    assert!(matches!(swallowed, Err(TransactError::Store(_))), "{swallowed:?}");
    assert_eq!(written(&table).await, 0);

    // A transaction inside is a savepoint: its commit commits nothing of the outer one.
    let nested = store
        .transact(order, async |mut tx| {
            let mut inner = tx.begin().await.unwrap();
            inner
                .execute(AssertSqlSafe(format!("INSERT INTO {}_ledger VALUES ('x', 'inner')", table.name)))
                .await
                .unwrap();
            inner.commit().await.unwrap();
            assert_eq!(written(&table).await, 0);
            Err::<idemkit_postgres::Completed<()>, _>(NoMoney)
        })
        .await;
    assert!(matches!(nested, Err(TransactError::Operation(NoMoney))));
    assert_eq!(written(&table).await, 0);
    store.release(&order.key, &Release::new(order.token)).await.unwrap();
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_that_is_dropped_frees_its_row_and_a_holder_that_stalls_is_ended() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    table.lapse(&order).await;
    let is_written = tokio::sync::Notify::new();
    let dropped = store.transact(order, async |mut tx| {
        write(&mut tx, &table.name, order, "dropped").await.unwrap();
        is_written.notify_one();
        std::future::pending::<()>().await;
        Ok::<_, NoMoney>(tx.complete(StoredResult::new(200, "")))
    });
    tokio::select! {
        ended = dropped => panic!("{ended:?}"),
        () = is_written.notified() => {}
    }
    let second = claim(secs(300));
    assert_eq!(until_acquired(&store, &order.key, &second).await.attempt, 2);

    // It stalls in its transaction for longer than that may be idle: the server ends it, and the key is free.
    let stalled = HeldClaim { key: order.key, token: second.token };
    table.lapse(&stalled).await;
    let impatient = table.store().idle_in_transaction(Duration::from_millis(700)).build().unwrap();
    let (began, mut taken_over) = (Instant::now(), false);
    let late = loop {
        let stalls = impatient.transact(stalled, async |mut tx| {
            write(&mut tx, &table.name, stalled, "stalled").await?;
            assert_eq!(until_acquired(&store, &order.key, &claim(secs(600))).await.attempt, 3);
            taken_over = true;
            Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "late")))
        });
        let late = stalls.await;
        if taken_over {
            break late;
        }
        // The machine has stalled for as long before that.
        assert!(began.elapsed() < PATIENCE, "{late:?}");
    };
    assert!(
        matches!(&late, Err(TransactError::Store(error)) if error.kind() == StoreErrorKind::Unavailable),
        "{late:?}"
    );
    assert_eq!(written(&table).await, 0);
    table.drop().await;
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_operation_that_ends_its_transaction_is_an_error_and_nothing_is_recorded(
    #[values("ROLLBACK", "COMMIT", "ROLLBACK; BEGIN", "COMMIT; BEGIN")] ends: &'static str,
    #[values(false, true)] pooler: bool,
) {
    let table = with_ledger().await;
    let store = table.store().pooler(pooler).max_connections(1).build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let done = store
        .transact(order, async |mut tx| {
            write(&mut tx, &table.name, order, "written").await?;
            sqlx::raw_sql(ends).execute(&mut *tx).await?;
            Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "done")))
        })
        .await;
    let Err(TransactError::Store(error)) = done else { panic!("{done:?}") };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::InvalidArgument, true), "{error}");
    assert!(error.to_string().contains("ended the transaction by itself"), "{error}");
    assert_held(&store, &order).await;
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_inside_that_is_left_open_commits_nothing() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let done = store
        .transact(order, async |mut tx| {
            let mut inner = tx.begin().await?;
            let insert = format!("INSERT INTO {}_ledger VALUES ('x', 'inner')", table.name);
            inner.execute(AssertSqlSafe(insert)).await?;
            std::mem::forget(inner);
            Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "done")))
        })
        .await;
    let Err(TransactError::Store(error)) = done else { panic!("{done:?}") };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::InvalidArgument, false), "{error}");
    assert_eq!(written(&table).await, 0);
    assert_held(&store, &order).await;
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fenced_completion_inside_a_savepoint_stops_the_whole_transaction() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let zombie = HeldClaim { key: order.key, token: claim(secs(1)).token };
    let insert = format!("INSERT INTO {}_ledger VALUES ('x', 'outer')", table.name);
    let outcome = || Outcome::Result(StoredResult::new(200, "done"));

    let mut connection = table.connect().await;
    let mut outer = connection.begin().await.unwrap();
    outer.execute(AssertSqlSafe(insert.clone())).await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    let fenced = store.complete_in(&mut inner, &zombie, outcome(), secs(600)).await.unwrap();
    assert_eq!(fenced, InTransaction::Fenced);
    // Its failure is undone with the savepoint, and yet nothing commits.
    drop(inner);
    outer.commit().await.unwrap_err();
    assert_eq!(written(&table).await, 0);

    // A holder's completion is as good there as elsewhere.
    let mut connection = table.connect().await;
    let mut outer = connection.begin().await.unwrap();
    outer.execute(AssertSqlSafe(insert)).await.unwrap();
    let mut inner = outer.begin().await.unwrap();
    let completed = store.complete_in(&mut inner, &order, outcome(), secs(600)).await.unwrap();
    assert_eq!(completed, InTransaction::Completed);
    inner.commit().await.unwrap();
    outer.commit().await.unwrap();
    assert_eq!(written(&table).await, 1);
    let replay = store.claim(&order.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_transaction_nothing_is_completed_in_it() {
    let table = with_ledger().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let (mut connection, outcome) = (table.connect().await, Outcome::Result(StoredResult::new(200, "done")));
    let error = store.complete_in(&mut connection, &order, outcome.clone(), secs(600)).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::InvalidArgument, false), "{error}");
    assert_held(&store, &order).await;

    // One that was begun by SQL is one.
    connection.execute("BEGIN").await.unwrap();
    let completed = store.complete_in(&mut connection, &order, outcome, secs(600)).await.unwrap();
    assert_eq!(completed, InTransaction::Completed);
    connection.execute("COMMIT").await.unwrap();
    let replay = store.claim(&order.key, &claim(secs(300))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_that_a_deferred_constraint_refuses_is_no_contention() {
    let table = with_ledger().await;
    table.execute("ALTER TABLE {t}_ledger ADD UNIQUE (attempt) DEFERRABLE INITIALLY DEFERRED").await;
    table.execute("INSERT INTO {t}_ledger VALUES ('x', 'written')").await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    let done = transact(&store, &table, order).await;
    let Err(TransactError::Store(error)) = done else { panic!("{done:?}") };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Other, false), "{error}");
    assert!(error.to_string().contains("constraint"), "{error}");
    assert_eq!(written(&table).await, 1);
    assert_held(&store, &order).await;
    table.drop().await;
}

/// What a restart of the server does to a pool.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_dead_connections_cost_the_next_operation_one_try() {
    let table = with_ledger().await;
    let url = format!("{}?application_name={}", table.url, table.name);
    let store = builder().url(url).table(&table.name).max_connections(20).notices(false).build().unwrap();
    for round in 0..2 {
        let order = held(&store, key(&format!("order {round}")), secs(600)).await;
        let (mut at_once, all) = (tokio::task::JoinSet::new(), Arc::new(tokio::sync::Barrier::new(20)));
        for n in 0..20 {
            let (store, all) = (store.clone(), Arc::clone(&all));
            at_once.spawn(async move {
                let order = held(&store, key(&format!("warm {round} {n}")), secs(600)).await;
                let together = async |mut tx: Transaction| {
                    tx.execute("SELECT 1").await?;
                    // Each has a connection of its own by now.
                    all.wait().await;
                    Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "")))
                };
                assert_eq!(store.transact(order, together).await.unwrap(), Transacted::Committed(()));
            });
        }
        while let Some(ended) = at_once.join_next().await {
            ended.unwrap();
        }
        let kill = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{t}'";
        assert_eq!(table.number(kill).await, 20);
        let left = "SELECT count(*) FROM pg_stat_activity WHERE application_name = '{t}'";
        until("all are dead", async || table.number(left).await == 0).await;
        if round == 0 {
            assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(7));
        } else {
            acquired(store.claim(&key("the next"), &claim(secs(300))).await.unwrap());
        }
    }
    table.drop().await;
}

/// What a worker that will be killed is told by the environment.
const TABLE: &str = "IDEMKIT_TRANSACT_TEST_TABLE";
const URL: &str = "IDEMKIT_TRANSACT_TEST_URL";
const ROUND: &str = "IDEMKIT_TRANSACT_TEST_ROUND";

/// Does one order after the other, until it is killed.
#[tokio::test]
#[ignore = "a part of a_kill_at_any_point_between_the_writes_and_the_commit_leaves_both_or_neither, which kills it"]
async fn worker() {
    let variable = |name| std::env::var(name).unwrap();
    let table = Table { url: variable(URL), name: variable(TABLE) };
    let store = table.store().notices(false).build().unwrap();
    for order in 0.. {
        let order = held(&store, key(&format!("order {} {order}", variable(ROUND))), secs(300)).await;
        assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(7));
        println!("\nworker: done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kill_at_any_point_between_the_writes_and_the_commit_leaves_both_or_neither() {
    let table = with_ledger().await;
    for round in 0..20_u64 {
        let mut worker = Command::new(std::env::current_exe().unwrap())
            .args(["transaction::worker", "--exact", "--ignored", "--nocapture"])
            .env(URL, &table.url)
            .env(TABLE, &table.name)
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(worker.stdout.take().unwrap()));
        // However slow the machine is: it has done one order, and is at some point of a later one.
        while lines.next_line().await.unwrap().unwrap() != "worker: done" {}
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..50_000))).await;
        // SIGKILL: no destructor runs.
        worker.kill().await.unwrap();
    }
    // What it had sent last may still be under way in the server.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let of = async |state: &str, lines: &str| {
        let sql = format!(
            "SELECT count(*) FROM {{t}} r WHERE state = '{state}' AND (SELECT count(*) FROM {{t}}_ledger l WHERE l.key = r.effective_key) {lines}"
        );
        table.number(&sql).await
    };
    let (done, cut_off) = (of("COMPLETED", "= 1").await, of("CLAIMED", "= 0").await);
    println!("{done} done, {cut_off} cut off");
    assert_eq!((of("COMPLETED", "<> 1").await, of("CLAIMED", "<> 0").await), (0, 0));
    assert!(done >= 20, "the workers worked: {done} done, {cut_off} cut off");
    table.drop().await;
}

//! What holds under load: a ledger whose sum is exact, and a table that stays small.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use idemkit_core::{ClaimOutcome, HeldClaim, Store, StoreErrorKind, StoredResult, Transacted};
use sqlx::AssertSqlSafe;
use tokio::task::JoinSet;

use crate::support::{Table, acquired, claim, completion, key, secs, until};

const WORKERS: u64 = 32;
const OPERATIONS: u64 = 10_000;

/// Every operation adds its number to one account, in `transact`. A fiftieth of the claims are left to lapse, and every
/// operation is asked for again and again: the sum must be exact, and each line there once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thirty_two_workers_with_forced_lapses_leave_an_exact_ledger() {
    let table = Table::make().await;
    table.execute("CREATE TABLE {t}_ledger (operation bigint)").await;
    let store = table.store().max_connections(16).notices(false).build().unwrap();
    let (next, lapses) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let mut workers = JoinSet::new();
    for _ in 0..WORKERS {
        let (store, next, lapses, name) = (store.clone(), Arc::clone(&next), Arc::clone(&lapses), table.name.clone());
        workers.spawn(async move {
            loop {
                // Each number twice, by two workers at about the same time.
                let number = next.fetch_add(1, Ordering::Relaxed) / 2;
                if number >= OPERATIONS {
                    return;
                }
                let order = key(&number.to_string());
                let short = idemkit_core::Ttl::new(Duration::from_millis(300)).unwrap();
                loop {
                    let stalls = fastrand::u64(..50) == 0;
                    let request = claim(if stalls { short } else { secs(60) });
                    match store.claim(&order, &request).await {
                        Ok(ClaimOutcome::Completed(_)) => break,
                        Ok(ClaimOutcome::Acquired(_)) => {}
                        // No operation takes longer than the lease that it concerns, and this machine may be busy.
                        Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
                        Ok(_) => {
                            tokio::time::sleep(Duration::from_millis(2)).await;
                            continue;
                        }
                    }
                    let held = HeldClaim { key: order, token: request.token };
                    if stalls {
                        // Long enough for another to take it over, and then it comes back as a zombie.
                        lapses.fetch_add(1, Ordering::Relaxed);
                        tokio::time::sleep(Duration::from_millis(fastrand::u64(..700))).await;
                    }
                    let sql = AssertSqlSafe(format!("INSERT INTO {name}_ledger VALUES ({number})"));
                    let done = store.transact(held, async |mut tx| {
                        sqlx::raw_sql(sql).execute(&mut *tx).await?;
                        Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "")))
                    });
                    match done.await.unwrap() {
                        Transacted::Committed(()) | Transacted::AlreadyCompleted(_) => break,
                        Transacted::Fenced => {}
                    }
                }
            }
        });
    }
    while let Some(done) = workers.join_next().await {
        done.unwrap();
    }
    let expected = i64::try_from(OPERATIONS * (OPERATIONS - 1) / 2).unwrap();
    assert_eq!(table.number("SELECT sum(operation)::bigint FROM {t}_ledger").await, expected);
    assert_eq!(table.number("SELECT count(DISTINCT operation) FROM {t}_ledger").await, OPERATIONS as i64);
    assert_eq!(table.number("SELECT count(*) FROM {t}_ledger").await, OPERATIONS as i64);
    let lapses = lapses.load(Ordering::Relaxed);
    let taken_over = table.number("SELECT count(*) FROM {t} WHERE attempt > 1").await;
    println!("{lapses} lapses, {taken_over} taken over");
    assert!(taken_over > 0, "no claim was taken over of {lapses} that lapsed");
    table.drop().await;
}

/// A hundred thousand cycles on a thousand keys: under autovacuum the table does not grow with them. Where the machine
/// is busy they wait for it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_thousand_cycles_on_a_thousand_keys_keep_the_table_small() {
    use idemkit_servers::{Kind, Local, Options};
    let args = ["-c", "autovacuum_naptime=1s"].map(str::to_owned).to_vec();
    let server = Local::start_with(Kind::Postgres, Options { args, ..Options::default() }).unwrap();
    let table = Table::make_at(server.url()).await;
    let store = table.store().max_connections(8).notices(false).build().unwrap();
    let size = async || table.number("SELECT pg_total_relation_size('{t}')").await;
    let cycles = async |cycles: u64| {
        let mut workers = JoinSet::new();
        for worker in 0..8 {
            let store = store.clone();
            workers.spawn(async move {
                for n in 0..cycles / 8 {
                    let (order, request) = (key(&((n * 8 + worker) % 1_000).to_string()), claim(secs(600)));
                    acquired(store.claim(&order, &request).await.unwrap());
                    let mut done = completion(request.token, "a result of some bytes");
                    done.expires_after = idemkit_core::Ttl::MIN;
                    store.complete(&order, &done).await.unwrap();
                    // Its result has expired when the key's turn comes again.
                }
            });
        }
        while let Some(done) = workers.join_next().await {
            done.unwrap();
        }
    };
    // As large as so many cycles make it by themselves.
    table.execute("ALTER TABLE {t} SET (autovacuum_enabled = off)").await;
    cycles(20_000).await;
    let early = size().await;
    table.execute("ALTER TABLE {t} RESET (autovacuum_enabled)").await;
    for _ in 0..4 {
        let dead = "SELECT n_dead_tup FROM pg_stat_user_tables WHERE relname = '{t}'";
        until("autovacuum keeps up", async || table.number(dead).await < 20_000).await;
        cycles(20_000).await;
    }
    let late = size().await;
    println!("{early} bytes after 20,000 cycles, {late} after 100,000");
    // Were nothing reclaimed, it would be five times as large.
    assert!(late < 3 * early.max(1_000_000), "{early} bytes after 20,000 cycles, {late} after 100,000");
    assert_eq!(table.number("SELECT count(*) FROM {t}").await, 1_000);
}

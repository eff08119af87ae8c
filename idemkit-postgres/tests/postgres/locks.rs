//! Rows that somebody has locked: nobody queues behind a holder whose transaction is open.

use std::time::Duration;

use idemkit_core::{ClaimKind, ClaimOutcome, Store, WaitOutcome};
use sqlx::{AssertSqlSafe, Connection as _, Executor as _};

use crate::support::{Table, acquired, claim, completion, held, key, secs, takes_less_than, until};

/// Far below the deadline, far above a statement.
const AT_ONCE: Duration = Duration::from_secs(8);

async fn lock(table: &Table, connection: &mut sqlx::PgConnection) {
    let lock = format!("BEGIN; SELECT 1 FROM {} FOR UPDATE", table.name);
    connection.execute(AssertSqlSafe(lock)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_behind_an_open_transaction_is_in_flight_at_once() {
    let table = Table::make().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(600)).await;
    let mut holder = table.connect().await;
    lock(&table, &mut holder).await;
    takes_less_than(AT_ONCE, async || {
        let met = store.claim(&order.key, &claim(secs(300))).await.unwrap();
        assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
        // A waiter does not wait for the lock either.
        let waited = store.wait(&order.key, secs(1)).await.unwrap();
        assert!(matches!(waited, WaitOutcome::TimedOut { .. }), "{waited:?}");
    })
    .await;
    holder.close().await.unwrap();
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lapsed_row_that_its_holder_has_locked_is_in_flight_until_it_is_free() {
    let table = Table::make().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    table.lapse(&order).await;
    let mut holder = table.connect().await;
    lock(&table, &mut holder).await;
    takes_less_than(AT_ONCE, async || {
        let met = store.claim(&order.key, &claim(secs(300))).await.unwrap();
        assert!(matches!(met, ClaimOutcome::InFlight(held) if held.lease_left > Duration::ZERO), "{met:?}");
        let waited = store.wait(&order.key, secs(1)).await.unwrap();
        assert!(matches!(waited, WaitOutcome::TimedOut { .. }), "{waited:?}");
    })
    .await;

    holder.execute("ROLLBACK").await.unwrap();
    let taken = acquired(store.claim(&order.key, &claim(secs(300))).await.unwrap());
    assert_eq!((taken.kind, taken.attempt), (ClaimKind::Reclaimed, 2));
    table.drop().await;
}

/// Seen in the row itself: no lock, and no new version, whoever asks.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_meets_a_live_or_completed_row_writes_nothing() {
    let table = Table::make().await;
    let store = table.store().build().unwrap();
    let order = held(&store, key("order"), secs(600)).await;
    let versions = "SELECT \
                    sum(xmin::text::bigint * 1000 + xmax::text::bigint)::bigint FROM {t}";
    let live = table.number(versions).await;
    for _ in 0..20 {
        let met = store.claim(&order.key, &claim(secs(300))).await.unwrap();
        assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
    }
    assert_eq!(table.number(versions).await, live, "live");
    store.complete(&order.key, &completion(order.token, "done")).await.unwrap();
    let completed = table.number(versions).await;
    for _ in 0..20 {
        let met = store.claim(&order.key, &claim(secs(300))).await.unwrap();
        assert!(matches!(met, ClaimOutcome::Completed(_)), "{met:?}");
    }
    assert_eq!(table.number(versions).await, completed, "completed");
    table.drop().await;
}

/// A row that is committed after a claim's snapshot and before its insert is neither seen nor inserted. Forced: the claim
/// begins while the row is uncommitted, waits for it, and finds it committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_gap_between_snapshot_and_insert_is_closed_by_asking_again() {
    let table = Table::make().await;
    let store = table.store().build().unwrap();
    let (order, other, mine) = (key("order"), claim(secs(600)), claim(secs(600)));
    let mut faster = table.connect().await;
    let insert = format!(
        "BEGIN; INSERT INTO {} (effective_key, state, fingerprint, fingerprint_version, claim_token, claimed_at, lease_until)
         VALUES ('{order}', 'CLAIMED', '{}', 1, '{}', now(), now() + interval '1 hour')",
        table.name,
        other.fingerprint.to_hex(),
        other.token
    );
    faster.execute(AssertSqlSafe(insert)).await.unwrap();
    let claiming = tokio::spawn({
        let store = store.clone();
        async move { store.claim(&order, &mine).await.unwrap() }
    });
    let pid: i32 = sqlx::query_scalar("SELECT pg_backend_pid()").fetch_one(&mut faster).await.unwrap();
    let waits = format!("SELECT count(*) FROM pg_stat_activity WHERE {pid} = ANY (pg_blocking_pids(pid))");
    until("it waits for the row", async || table.number(&waits).await > 0).await;
    faster.execute("COMMIT").await.unwrap();
    let met = claiming.await.unwrap();
    assert!(matches!(&met, ClaimOutcome::InFlight(held) if held.fingerprint == other.fingerprint), "{met:?}");
    table.drop().await;
}

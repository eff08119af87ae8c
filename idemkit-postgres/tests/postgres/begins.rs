//! Futures that are dropped while a transaction begins, in the store and beside it: whoever gets the connection next must not
//! be left in a transaction that nobody commits.

use std::time::Duration;

use idemkit_core::{ClaimOutcome, Store as _, StoredResult};
use idemkit_postgres::PostgresStore;
use idemkit_servers::{Kind, Proxy};
use rstest::rstest;
use sqlx::{PgPool, postgres::PgPoolOptions};
use tokio::time::timeout;

use crate::support::{PATIENCE, Table, acquired, builder, claim, held, key, secs};

const ROUNDS: u64 = 200;
/// Each way: a begin takes twice that.
const DELAY: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug)]
enum Begins {
    InTheStore,
    /// In the caller's own code, on the pool that the store was built from.
    BesideIt,
}

/// Begins a transaction, and is dropped somewhere on the way.
async fn begin_and_drop(begins: Begins, store: &PostgresStore, pool: &PgPool, round: u64) {
    let patience = Duration::from_micros(fastrand::u64(..6_000));
    match begins {
        Begins::InTheStore => {
            let order = held(store, key(&format!("dropped {round}")), secs(600)).await;
            let begin = store.transact(order, async |tx| Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, ""))));
            _ = timeout(patience, begin).await;
        }
        Begins::BesideIt => _ = timeout(patience, pool.begin()).await,
    }
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_begin_that_is_dropped_under_way_takes_no_later_claim_with_it(
    #[values(Begins::InTheStore, Begins::BesideIt)] begins: Begins,
    #[values(false, true)] pooler: bool,
) {
    let table = Table::make().await;
    let proxy = Proxy::before(Kind::Postgres, &table.url).unwrap();
    let pool = PgPoolOptions::new().max_connections(1).connect(proxy.url()).await.unwrap();
    let builder = builder().pool(&pool).table(&table.name).max_connections(1).pooler(pooler);
    let store = builder.notices(false).build().unwrap();
    held(&store, key("first"), secs(600)).await;
    proxy.delay(DELAY);
    let other = table.store().notices(false).build().unwrap();
    for round in 0..ROUNDS {
        begin_and_drop(begins, &store, &pool, round).await;
        let (order, request) = (key(&format!("order {round}")), claim(secs(600)));
        acquired(store.claim(&order, &request).await.unwrap());
        // Visible to others, and theirs to be refused.
        let met = timeout(PATIENCE, other.claim(&order, &claim(secs(600)))).await;
        assert!(matches!(met, Ok(Ok(ClaimOutcome::InFlight(_)))), "round {round}: {met:?}");
    }
    store.close().await;
    table.drop().await;
}

//! Migrations, the check at the start, and vacuum.

use std::time::Duration;

use idemkit_core::{ClaimKind, Store, StoreErrorKind};
use idemkit_postgres::BuildError;
use rstest::rstest;
use sqlx::{AssertSqlSafe, Executor as _, Row as _};

use crate::support::{Table, acquired, builder, claim, completion, connect, held, key, secs, unique, until, url};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_migrate_at_once_and_again() {
    let name = unique();
    let mut migrating = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let store = builder().url(url()).table(&name).max_connections(1).build().unwrap();
        migrating.spawn(async move { store.migrate().await.unwrap() });
    }
    let mut first = 0;
    while let Some(migrated) = migrating.join_next().await {
        let migrated = migrated.unwrap();
        assert_eq!(migrated.to, 1);
        first += usize::from(migrated.from == 0);
    }
    assert_eq!(first, 1, "one has made it");
    let table = Table { url: url(), name };
    acquired(table.store().build().unwrap().claim(&key("order"), &claim(secs(300))).await.unwrap());
    table.drop().await;
}

#[tokio::test]
async fn the_sql_for_other_tools_makes_the_same_table() {
    let name = unique();
    let store = builder().url(url()).table(&name).build().unwrap();
    connect(&url()).await.execute(AssertSqlSafe(store.schema_sql())).await.unwrap();
    assert_eq!(store.migrate().await.unwrap().from, 1);
    acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    Table { url: url(), name }.drop().await;
}

#[tokio::test]
async fn any_name_is_quoted() {
    let schema = format!("s \"{}", unique());
    let mut admin = connect(&url()).await;
    let quoted = format!("\"{}\"", schema.replace('"', "\"\""));
    admin.execute(AssertSqlSafe(format!("CREATE SCHEMA {quoted}"))).await.unwrap();
    for pooler in [false, true] {
        let builder = builder().url(url()).schema(&schema).table("Tables'; $1 DROP TABLE x; --").pooler(pooler);
        let store = builder.build().unwrap();
        store.migrate().await.unwrap();
        let order = held(&store, key(&format!("order {pooler}")), secs(300)).await;
        store.complete(&order.key, &completion(order.token, "it's \\ done")).await.unwrap();
    }
    admin.execute(AssertSqlSafe(format!("DROP SCHEMA {quoted} CASCADE"))).await.unwrap();
}

#[rstest]
#[case("")]
#[case("with\nbreaks")]
#[case("a_name_that_is_longer_than_what_the_server_would_keep_of_it")]
#[tokio::test]
async fn a_name_that_cannot_be_one_is_refused(#[case] name: &str) {
    let refused = builder().url(url()).table(name).build();
    assert!(matches!(refused, Err(BuildError::InvalidName { what: "table", .. })));
}

#[tokio::test]
async fn a_table_that_is_missing_or_newer_says_what_mends_it() {
    let missing = builder().url(url()).table(unique()).build().unwrap();
    let error = missing.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, false), "{error}");
    assert!(error.to_string().contains("PostgresStore::migrate"), "{error}");

    let table = Table::make().await;
    table.execute("INSERT INTO {t}_schema (version) VALUES (2)").await;
    let newer = table.store().build().unwrap();
    for error in [newer.claim(&key("order"), &claim(secs(300))).await.unwrap_err(), newer.migrate().await.unwrap_err()]
    {
        assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
        assert!(error.to_string().contains("version 2"), "{error}");
    }
    table.execute("DELETE FROM {t}_schema").await;
    let older = table.store().build().unwrap();
    let error = older.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert!(error.to_string().contains("version 0"), "{error}");
    table.drop().await;
}

/// With millions of results that are kept, a scan of all of them each minute would be what the server does.
#[tokio::test]
async fn vacuum_looks_up_in_the_index_what_is_over() {
    let table = Table::make().await;
    let vacuum = include_str!("../../sql/vacuum.sql").replace("{table}", &table.name);
    let vacuum = vacuum.replace("$1", "60000").replace("$2", "100");
    let explained = format!("SET enable_seqscan = off; EXPLAIN {vacuum}");
    let rows = sqlx::raw_sql(AssertSqlSafe(explained)).fetch_all(&mut table.connect().await).await.unwrap();
    let plan: Vec<String> = rows.iter().map(|row| row.get(0)).collect();
    assert!(plan.iter().any(|line| line.contains("Index Cond: (lease_until <")), "{}", plan.join("\n"));
    table.drop().await;
}

/// Field reports 8 and 9: each row by its own time, and none before its grace.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn vacuum_takes_each_row_at_its_own_time_and_leaves_what_is_locked() {
    let table = Table::make().await;
    let store = table.store().grace(Duration::from_secs(3_600)).build().unwrap();
    // Time that passes, without waiting for it.
    let over_since = async |secs: u32, of: &str| {
        let set = format!("UPDATE {{t}} SET lease_until = clock_timestamp() - {secs} * interval '1 second'");
        table.execute(&format!("{set} WHERE {of}")).await;
    };
    for n in 0..25 {
        let order = held(&store, key(&format!("done {n}")), secs(300)).await;
        store.complete(&order.key, &completion(order.token, "x")).await.unwrap();
    }
    over_since(1_800, "state = 'COMPLETED'").await;
    let long = held(&store, key("long"), secs(300)).await;
    store.complete(&long.key, &completion(long.token, "x")).await.unwrap();
    let lapsed = held(&store, key("lapsed"), secs(300)).await;
    let its = format!("effective_key = '{}'", lapsed.key);
    over_since(1, &its).await;
    held(&store, key("live"), secs(600)).await;
    assert_eq!(store.vacuum(100).await.unwrap(), 0, "within its grace");

    over_since(3_601, "state = 'COMPLETED' AND lease_until < clock_timestamp()").await;
    assert_eq!(store.vacuum(10).await.unwrap(), 10);
    assert_eq!(store.vacuum(100).await.unwrap(), 15, "lapsed less than its grace ago");
    let taken = acquired(store.claim(&lapsed.key, &claim(secs(300))).await.unwrap());
    assert_eq!((taken.kind, taken.attempt), (ClaimKind::Reclaimed, 2), "a crash is seen as a take-over");

    over_since(3_601, &its).await;
    let mut locked = table.connect().await;
    let lock = format!("BEGIN; SELECT 1 FROM {} WHERE effective_key = '{}' FOR UPDATE", table.name, lapsed.key);
    locked.execute(AssertSqlSafe(lock)).await.unwrap();
    assert_eq!(store.vacuum(100).await.unwrap(), 0, "locked");
    locked.execute("ROLLBACK").await.unwrap();

    let vacuum = store.spawn_vacuum(Duration::from_millis(100));
    until("the task deletes it", async || table.number("SELECT count(*) FROM {t}").await <= 2).await;
    drop(vacuum);
    assert_eq!(table.number("SELECT count(*) FROM {t}").await, 2, "long and live stay");
    table.drop().await;
}

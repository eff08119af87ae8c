//! What the server refuses, and what is said of it.

use std::time::Duration;

use idemkit_core::{Store, StoreError, StoreErrorKind, StoredResult, Transacted};
use idemkit_postgres::{BuildError, PostgresStore, TransactError};
use idemkit_servers::{Kind, Local, Options};
use rstest::rstest;
use sqlx::{AssertSqlSafe, Executor as _, postgres::PgPoolOptions};

use crate::support::{
    PATIENCE, Table, acquired, answered, builder, claim, connect, held, key, secs, takes_less_than, unique, url,
};

fn all_of(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[tokio::test]
async fn a_role_without_rights_is_told_which_grant_it_needs() {
    let (table, role) = (Table::make().await, unique());
    let mut admin = connect(&url()).await;
    admin.execute(AssertSqlSafe(format!("CREATE ROLE {role} LOGIN PASSWORD 's3cret'"))).await.unwrap();
    let theirs = url().replace("postgres:postgres@", &format!("{role}:s3cret@"));
    let builder = || builder().url(&theirs).table(&table.name);
    let (store, shown) = (builder().build().unwrap(), format!("{:?}", builder()));
    let error = store.claim(&key("a raw key"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, false), "{error}");
    assert!(error.to_string().contains("GRANT SELECT, INSERT, UPDATE, DELETE"), "{error}");
    for text in [shown, format!("{store:?}"), all_of(&error)] {
        assert!(!text.contains("s3cret") && !text.contains("a raw key"), "{text}");
    }
    // What the page says is enough, and no more.
    let (name, grant) = (&table.name, "GRANT SELECT, INSERT, UPDATE, DELETE ON");
    admin
        .execute(AssertSqlSafe(format!("{grant} {name} TO {role}; GRANT SELECT ON {name}_schema TO {role}")))
        .await
        .unwrap();
    let allowed = builder().build().unwrap();
    acquired(allowed.claim(&key("order"), &claim(secs(300))).await.unwrap());
    allowed.vacuum(10).await.unwrap();
    allowed.close().await;
    store.close().await;
    table.drop().await;
    admin.execute(AssertSqlSafe(format!("DROP ROLE {role}"))).await.unwrap();
}

#[tokio::test]
async fn a_database_that_is_not_there_is_misconfigured_and_a_server_that_is_away_is_unavailable() {
    let (server, _) = url().rsplit_once('/').map(|(server, name)| (server.to_owned(), name.to_owned())).unwrap();
    let store = builder().url(format!("{server}/{}", unique())).build().unwrap();
    let error = store.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");

    // Kept, so that nobody else gets it: it is bound, and refuses, since it does not listen.
    let refuses = tokio::net::TcpSocket::new_v4().unwrap();
    refuses.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = refuses.local_addr().unwrap();
    let builder = builder().url(format!("postgres://app:s3cret@{address}/orders"));
    let away = builder.deadline(Duration::from_secs(2)).build().unwrap();
    let error = away.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    assert!(!all_of(&error).contains("s3cret"));
    let refused = PostgresStore::new("postgres://app:s3cret@[").unwrap_err();
    assert!(matches!(refused, BuildError::InvalidUrl) && !format!("{refused} {refused:?}").contains("s3cret"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_free_connection_is_unavailable_within_the_deadline() {
    let table = Table::make().await;
    let store = table.store().max_connections(1).deadline(Duration::from_secs(1)).build().unwrap();
    let holder = held(&store, key("first"), secs(300)).await;
    let mut ran = 0;
    let done = answered(async || {
        let done = store.transact(holder, async |tx| {
            ran += 1;
            // The only one is this transaction's.
            takes_less_than(Duration::from_secs(10), async || {
                let error = store.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
                assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
            })
            .await;
            Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "")))
        });
        done.await.map_err(|error| match error {
            TransactError::Store(error) => error,
            other => panic!("{other:?}"),
        })
    });
    // Where its commit was not answered in time, it was made all the same.
    let done = done.await;
    assert!(matches!(done, Transacted::Committed(()) | Transacted::AlreadyCompleted(_)), "{done:?}");
    assert!(ran > 0);
    held(&store, key("order"), secs(300)).await;
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_pool_of_the_users_is_followed_and_its_connections_are_left_alone() {
    let table = Table::make().await;
    let role = unique();
    table
        .execute(&format!(
            "CREATE ROLE {role} LOGIN PASSWORD 's3cret'; GRANT SELECT, INSERT, UPDATE ON {{t}} TO {role}"
        ))
        .await;
    table.execute(&format!("GRANT SELECT ON {{t}}_schema TO {role}")).await;
    let named = format!("{}?application_name={}", url(), table.name);
    let pool = PgPoolOptions::new().max_connections(1).connect(&named).await.unwrap();
    let store = builder().pool(&pool).table(&table.name).max_connections(1).notices(false);
    let store = store.build().unwrap();
    let theirs = pool.acquire().await.unwrap();
    acquired(store.claim(&key("while theirs is busy"), &claim(secs(300))).await.unwrap());

    // As one that rotates its credentials does.
    pool.set_connect_options((*pool.connect_options()).clone().username(&role).password("s3cret"));
    let as_whom = "SELECT count(*) FROM pg_stat_activity WHERE usename = ";
    assert_eq!(table.number(&format!("{as_whom}'{role}'")).await, 0);
    // The connection that is open stays; the next one is opened as the pool says by then.
    let both = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = '{t}'";
    assert_eq!(table.number(both).await, 2);
    acquired(store.claim(&key("as another"), &claim(secs(300))).await.unwrap());
    assert_eq!(table.number(&format!("{as_whom}'{role}'")).await, 1);
    drop(theirs);
    pool.close().await;
    store.close().await;
    let error = store.claim(&key("closed"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    table.execute(&format!("DROP OWNED BY {role}; DROP ROLE {role}")).await;
    table.drop().await;
}

#[tokio::test]
async fn asynchronous_commits_are_misconfigured_unless_that_is_accepted() {
    let table = Table::make().await;
    let theirs = format!("{}?options=-csynchronous_commit%3Doff", url());
    let builder = || builder().url(&theirs).table(&table.name);
    let error = builder().build().unwrap().claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains("synchronous_commit"), "{error}");
    let accepted = builder().allow_asynchronous_commit(true).build().unwrap();
    acquired(accepted.claim(&key("order"), &claim(secs(300))).await.unwrap());
    table.drop().await;
}

/// What a standby says in a failover, from a server that takes no writes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_takes_no_writes_is_unavailable() {
    let server = Local::start_with(Kind::Postgres, Options::default()).unwrap();
    let table = Table::make_at(server.url()).await;
    let store = table.store().build().unwrap();
    acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    let read_only = "ALTER SYSTEM SET default_transaction_read_only = on";
    let mut admin = connect(&server.url()).await;
    admin.execute(read_only).await.unwrap();
    admin.execute("SELECT pg_reload_conf()").await.unwrap();
    // Each server process reads that in its own time.
    let began = std::time::Instant::now();
    let error = loop {
        match store.claim(&key(&unique()), &claim(secs(300))).await {
            Err(error) => break error,
            Ok(_) => assert!(began.elapsed() < PATIENCE, "it takes writes"),
        }
    };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
}

/// A connection to what has become a standby is not kept, though nothing has cut it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_to_a_standby_is_given_up() {
    let table = Table::make().await;
    let store = table.store().max_connections(1).notices(false).build().unwrap();
    let order = held(&store, key("order"), secs(300)).await;
    // Its one connection takes no writes from here on.
    let done = store.transact(order, async |mut tx| {
        tx.execute("SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY").await?;
        Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "")))
    });
    assert_eq!(done.await.unwrap(), Transacted::Committed(()));
    let error = store.claim(&key("another"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false), "{error}");
    acquired(store.claim(&key("another"), &claim(secs(300))).await.unwrap());
    table.drop().await;
}

#[rstest]
#[case(Duration::ZERO)]
#[case(Duration::from_secs(30 * 24 * 60 * 60))]
#[tokio::test]
async fn a_transaction_that_may_be_idle_for_ever_is_refused(#[case] idle: Duration) {
    let refused = builder().url(url()).idle_in_transaction(idle).build();
    assert!(matches!(refused, Err(BuildError::InvalidIdleTimeout)));
}

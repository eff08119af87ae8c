//! Acknowledgements that are lost on the wire, futures that are dropped, and networks that are half dead.

use std::time::Duration;

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreErrorKind,
};
use idemkit_postgres::PostgresStore;
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;
use tokio::task::JoinSet;

use crate::support::{Table, acquired, builder, claim, completion, held, key, secs, takes_less_than, until_acquired};

/// A store behind a wire that can fail, with one connection, in which everything is prepared.
async fn wired(table: &Table, pooler: bool) -> (PostgresStore, Proxy) {
    let proxy = Proxy::before(Kind::Postgres, &table.url).unwrap();
    let builder = builder().url(proxy.url()).table(&table.name).max_connections(1).pooler(pooler);
    let store = builder.notices(false).build().unwrap();
    let (warm, request) = (key("warm"), claim(secs(300)));
    acquired(store.claim(&warm, &request).await.unwrap());
    store.renew(&warm, &Renew::new(request.token, secs(300))).await.unwrap();
    store.complete(&warm, &completion(request.token, "")).await.unwrap();
    store.release(&warm, &Release::new(request.token)).await.unwrap();
    (store, proxy)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_on_postgres_is_fenced_by_its_own_lost_acknowledgement(#[values(false, true)] pooler: bool) {
    let table = Table::make().await;
    let (store, proxy) = wired(&table, pooler).await;
    let (order, request) = (key("order"), claim(secs(300)));

    // Whatever is sent next is the statement: it takes effect, and its answer is lost with the connection.
    proxy.lose_reply_to(b"", Lost::ByReset);
    let won = acquired(store.claim(&order, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert!(won.lease_left > Duration::from_secs(200), "{won:?}");
    assert_eq!(table.number("SELECT count(*) FROM {t} WHERE state = 'CLAIMED' AND attempt = 1").await, 1);

    store.renew(&order, &Renew::new(request.token, secs(300))).await.unwrap();
    proxy.lose_reply_to(b"", Lost::ByReset);
    let renewed = store.renew(&order, &Renew::new(request.token, secs(600))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(500)));

    proxy.lose_reply_to(b"", Lost::ByReset);
    assert_eq!(store.complete(&order, &completion(request.token, "done")).await.unwrap(), CompleteOutcome::Applied);
    let replay = store.claim(&order, &claim(secs(300))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");

    let (other, request) = (key("other"), claim(secs(300)));
    acquired(store.claim(&other, &request).await.unwrap());
    store.release(&key("nobody's"), &Release::new(request.token)).await.unwrap();
    proxy.lose_reply_to(b"", Lost::ByReset);
    // By the table: what the second try meets is absent. Where the statement was only being prepared, it is applied now.
    let released = store.release(&other, &Release::new(request.token)).await.unwrap();
    assert!(matches!(released, ReleaseOutcome::NotHeld | ReleaseOutcome::Applied));
    assert_eq!(acquired(store.claim(&other, &claim(secs(300))).await.unwrap()).kind, ClaimKind::Fresh);
    assert_eq!(proxy.lost(), 4);
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_postgres_is_unavailable_within_the_deadline_and_its_connections_are_given_up() {
    let table = Table::make().await;
    let proxy = Proxy::before(Kind::Postgres, &table.url).unwrap();
    let builder = builder().url(proxy.url()).table(&table.name).max_connections(2);
    let store = builder.notices(false).deadline(Duration::from_secs(2)).build().unwrap();
    held(&store, key("first"), secs(300)).await;
    proxy.freeze(true);
    takes_less_than(Duration::from_secs(8), async || {
        let error = store.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
        assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
        let error = store.claim(&key("other"), &claim(secs(1))).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    })
    .await;
    proxy.cut();
    proxy.freeze(false);
    // The pool's slots come free as what was dropped is closed.
    held(&store, key("third"), secs(300)).await;
    table.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_thousand_claims_dropped_at_random_every_key_and_connection_is_usable() {
    let table = Table::make().await;
    let store = table.store().max_connections(5).build().unwrap();
    acquired(store.claim(&key("first"), &claim(secs(300))).await.unwrap());
    let mut storm = JoinSet::new();
    for n in 0..1_000_u64 {
        let store = store.clone();
        storm.spawn(async move {
            let (order, request) = (key(&format!("order {}", n % 100)), claim(secs(1)));
            let patience = Duration::from_micros(fastrand::u64(..20_000));
            _ = tokio::time::timeout(patience, store.claim(&order, &request)).await;
        });
    }
    while let Some(done) = storm.join_next().await {
        done.unwrap();
    }
    for n in 0..100 {
        let (order, request) = (key(&format!("order {n}")), claim(secs(300)));
        until_acquired(&store, &order, &request).await;
        store.complete(&order, &completion(request.token, "")).await.unwrap();
    }
    assert_eq!(table.number("SELECT count(*) FROM {t} WHERE state = 'COMPLETED'").await, 100);
    let open = "SELECT count(*) FROM pg_stat_activity WHERE state LIKE 'idle in transaction%' AND query LIKE '%{t}%'";
    assert_eq!(table.number(open).await, 0, "no transaction stays open");
    table.drop().await;
}

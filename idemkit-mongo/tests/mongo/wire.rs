//! Acknowledgements that are lost on the wire, faults that the server makes, and networks that are half dead.

use std::time::Duration;

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreErrorKind,
};
use idemkit_mongo::{
    MongoStore,
    mongodb::bson::{Document, doc},
};
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;

use crate::support::{
    Database, acquired, builder, claim, completion, fail, failing, held, key, secs, taken_over, takes_less_than,
};

const COMMAND: &[u8] = b"findAndModify";

async fn wired(database: &Database) -> (MongoStore, Proxy) {
    let proxy = Proxy::before(Kind::Mongo, &database.url).unwrap();
    let builder = builder().url(proxy.url()).database(&database.name).notices(false);
    let store = builder.build().await.unwrap();
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());
    (store, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_on_mongo_is_fenced_by_its_own_lost_acknowledgement() {
    let database = Database::make().await;
    let (store, proxy) = wired(&database).await;
    let (order, request) = (key("order"), claim(secs(300)));

    proxy.lose_reply_to(COMMAND, Lost::ByReset);
    let won = acquired(store.claim(&order, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert!(won.lease_left > Duration::from_secs(200) && won.lease_left <= Duration::from_secs(300), "{won:?}");

    proxy.lose_reply_to(COMMAND, Lost::ByReset);
    let renewed = store.renew(&order, &Renew::new(request.token, secs(600))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(500)));

    proxy.lose_reply_to(COMMAND, Lost::ByReset);
    assert_eq!(store.complete(&order, &completion(request.token, "done")).await.unwrap(), CompleteOutcome::Applied);
    let replay = store.claim(&order, &claim(secs(300))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");

    let (other, request) = (key("other"), claim(secs(300)));
    acquired(store.claim(&other, &request).await.unwrap());
    proxy.lose_reply_to(COMMAND, Lost::ByReset);
    // By the table: what the second try meets is absent.
    assert_eq!(store.release(&other, &Release::new(request.token)).await.unwrap(), ReleaseOutcome::NotHeld);
    assert_eq!(acquired(store.claim(&other, &claim(secs(300))).await.unwrap()).kind, ClaimKind::Fresh);
    assert_eq!(proxy.lost(), 4);
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_on_mongo_whose_acknowledgement_is_lost_counts_once() {
    let database = Database::make().await;
    let (store, proxy) = wired(&database).await;
    let lapsed = held(&store, key("order"), secs(300)).await;
    database.lapse(&lapsed).await;
    proxy.lose_reply_to(COMMAND, Lost::ByReset);
    let won = taken_over(&store, &lapsed.key, &claim(secs(300))).await;
    assert_eq!((won.kind, won.attempt), (ClaimKind::Reclaimed, 2));
    assert_eq!(proxy.lost(), 1);
    database.drop().await;
}

const FAILS: &[&str] = &["findAndModify"];

#[rstest]
#[case::the_connection_is_closed(doc! { "closeConnection": true })]
#[case::not_primary(doc! { "errorCode": 10107, "errorLabels": ["RetryableWriteError"] })]
#[case::primary_stepped_down(doc! { "errorCode": 189, "errorLabels": ["RetryableWriteError"] })]
#[case::shutdown(doc! { "errorCode": 91, "errorLabels": ["RetryableWriteError"] })]
#[case::interrupted(doc! { "errorCode": 11602, "errorLabels": ["RetryableWriteError"] })]
#[case::write_conflict(doc! { "errorCode": 112 })]
#[case::a_routers_time_limit(doc! { "errorCode": 202 })]
#[case::a_router_without_a_primary(doc! { "errorCode": 133 })]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_passes_is_tried_again_and_what_does_not_is_unavailable(#[case] fault: Document) {
    let server = failing();
    let database = Database::at(server.url()).await;
    // After a change of primaries the driver asks the server what it is, and this one takes ten seconds to say so, where
    // MongoDB answers at once.
    let store = database.store().notices(false).build().await.unwrap();
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());

    fail(&database.client, FAILS, 1, fault.clone()).await;
    let (order, request) = (key("order"), claim(secs(600)));
    let won = acquired(store.claim(&order, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    fail(&database.client, FAILS, 1, fault.clone()).await;
    store.complete(&order, &completion(request.token, "done")).await.unwrap();

    let store = database.store().notices(false).deadline(Duration::from_secs(3)).build().await.unwrap();
    fail(&database.client, FAILS, 100, fault).await;
    let error = store.claim(&key("another"), &claim(secs(300))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
}

#[rstest]
#[case::unauthorized(13, "changeStream")]
#[case::other_index_options(86, "other options")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_must_be_mended_on_mongo_says_how(#[case] code: i32, #[case] mends: &str) {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = database.store().notices(false).build().await.unwrap();
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());
    fail(&database.client, FAILS, 1, doc! { "errorCode": code }).await;
    let error = store.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, false), "{error}");
    assert!(error.to_string().contains(mends), "{error}");
}

/// Through a router it may be applied all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_whose_time_on_the_server_is_up_may_be_applied() {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = database.store().notices(false).build().await.unwrap();
    let request = claim(secs(300));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    fail(&database.client, FAILS, 1, doc! { "errorCode": 50 }).await;
    let error = store.complete(&key("order"), &completion(request.token, "done")).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
}

/// A slow server is no holder: the claim goes on with all of its time, and only then fails.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_time_on_the_server_is_up_is_tried_once_more() {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = database.store().notices(false).build().await.unwrap();
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());
    fail(&database.client, FAILS, 1, doc! { "errorCode": 50 }).await;
    let won = acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    fail(&database.client, FAILS, 2, doc! { "errorCode": 50 }).await;
    let error = store.claim(&key("other"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
}

/// The claim is there, and its own answer is what failed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_whose_look_fails_may_be_applied() {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = database.store().notices(false).build().await.unwrap();
    let lapsed = held(&store, key("order"), secs(300)).await;
    database.lapse(&lapsed).await;
    fail(&database.client, &["aggregate"], 1, doc! { "errorCode": 50 }).await;
    let error = store.claim(&lapsed.key, &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
}

/// Applied on the primary, and perhaps rolled back: nobody may be told that it holds the claim.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_concern_that_is_not_met_is_unknown() {
    let server = failing();
    let database = Database::at(server.url()).await;
    let store = database.store().notices(false).build().await.unwrap();
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());
    let concern = doc! { "code": 64, "codeName": "WriteConcernTimeout", "errmsg": "waiting for replication timed out" };
    fail(&database.client, FAILS, 100, doc! { "writeConcernError": concern }).await;
    let error = store.claim(&key("order"), &claim(secs(300))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_mongo_is_unavailable_within_the_deadline() {
    let database = Database::make().await;
    let proxy = Proxy::before(Kind::Mongo, &database.url).unwrap();
    let builder = builder().url(proxy.url()).database(&database.name).notices(false);
    let builder = builder.deadline(Duration::from_secs(2)).connect_timeout(Duration::from_secs(2));
    let store = builder.build().await.unwrap();
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
    // It comes back.
    held(&store, key("third"), secs(300)).await;
    database.drop().await;
}

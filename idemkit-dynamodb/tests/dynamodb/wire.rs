//! Acknowledgements that are lost on the wire. The SDK tries again by itself, and the second try meets what the first one
//! did: that must never be told as another's.

use std::time::{Duration, Instant};

use idemkit_core::{
    ClaimKind, ClaimOutcome, CompleteOutcome, Release, ReleaseOutcome, Renew, RenewOutcome, Store, StoreErrorKind,
};
use idemkit_dynamodb::{Builder, DynamoDbStore};
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;

use crate::support::{
    PATIENCE, Table, acquired, claim, claimed_for_a_second, claimed_within, completion, config, key, secs, until,
};

const UPDATE: &[u8] = b"DynamoDB_20120810.UpdateItem";
const DELETE: &[u8] = b"DynamoDB_20120810.DeleteItem";

/// How long an attempt may take: what a reply costs that is lost in silence, and so no more than that needs.
pub(crate) fn attempt_timeout(how: Lost) -> Duration {
    match how {
        Lost::ByReset => PATIENCE,
        Lost::InSilence => Duration::from_secs(2),
    }
}

/// A store behind a wire that can fail. Its clock is calibrated: nothing but what a test asks for crosses the wire next.
async fn wired(table: &Table, how: Lost, set: impl FnOnce(Builder) -> Builder) -> (DynamoDbStore, Proxy) {
    let proxy = Proxy::before(Kind::DynamoDb, &table.url).unwrap();
    let timeout = attempt_timeout(how);
    // So many that all of them together outlast what a busy machine holds a request up.
    let builder = table.store().config(config(proxy.url())).attempt_timeout(timeout).attempts(8);
    let store = set(builder).build().await.unwrap();
    claimed_within(&store, timeout, "calibrates").await;
    (store, proxy)
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_operation_is_fenced_by_its_own_lost_acknowledgement(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
    #[values(false, true)] read_first: bool,
) {
    let table = Table::make("lost").await;
    let (store, proxy) = wired(&table, how, |builder| builder.read_first(read_first)).await;
    let (key, request) = (key("order"), claim(secs(300)));

    proxy.lose_reply_to(UPDATE, how);
    let won = acquired(store.claim(&key, &request).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert!(won.lease_left > Duration::from_secs(200), "{won:?}");
    until("the first reply is lost", || proxy.lost() == 1).await;

    proxy.lose_reply_to(UPDATE, how);
    let renewed = store.renew(&key, &Renew::new(request.token, secs(600))).await.unwrap();
    assert!(
        matches!(renewed, RenewOutcome::Renewed { lease_left } if lease_left > Duration::from_secs(500)),
        "{renewed:?}"
    );
    until("the second reply is lost", || proxy.lost() == 2).await;

    proxy.lose_reply_to(UPDATE, how);
    let completed = store.complete(&key, &completion(request.token, "done")).await.unwrap();
    assert_eq!(completed, CompleteOutcome::Applied);
    until("the third reply is lost", || proxy.lost() == 3).await;

    table.delete().await.unwrap();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_take_over_whose_acknowledgement_is_lost_counts_once(#[values(Lost::ByReset, Lost::InSilence)] how: Lost) {
    let table = Table::make("lost").await;
    let (store, proxy) = wired(&table, how, |builder| builder).await;
    let key = claimed_for_a_second(&store).await.key;

    // The clock's width is added to the lease.
    let lapsed = tokio::time::Instant::now() + Duration::from_secs(60);
    let won = loop {
        proxy.lose_reply_to(UPDATE, how);
        match store.claim(&key, &claim(secs(30))).await.unwrap() {
            ClaimOutcome::Acquired(won) => break won,
            other => assert!(tokio::time::Instant::now() < lapsed, "{other:?}"),
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    assert_eq!((won.kind, won.attempt), (ClaimKind::Reclaimed, 2));
    until("a reply is lost", || proxy.lost() >= 1).await;
    table.delete().await.unwrap();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_whose_acknowledgement_is_lost_is_no_failure(#[values(Lost::ByReset, Lost::InSilence)] how: Lost) {
    let table = Table::make("lost").await;
    let (store, proxy) = wired(&table, how, |builder| builder).await;
    let (key, request) = (key("order"), claim(secs(30)));
    acquired(store.claim(&key, &request).await.unwrap());

    proxy.lose_reply_to(DELETE, how);
    let released = store.release(&key, &Release::new(request.token)).await.unwrap();
    // By the table: what the second try meets is absent.
    assert_eq!(released, ReleaseOutcome::NotHeld);
    until("the reply is lost", || proxy.lost() == 1).await;
    let next = acquired(store.claim(&key, &claim(secs(30))).await.unwrap());
    assert_eq!((next.kind, next.attempt), (ClaimKind::Fresh, 1));
    table.delete().await.unwrap();
}

/// Where the SDK makes one try alone, the error says what is not known, and the same request may be sent again.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_sdks_retry_it_is_unknown_and_may_be_sent_again(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
) {
    let table = Table::make("lost").await;
    let (store, proxy) = wired(&table, how, |builder| builder.attempts(1)).await;
    let patient = table.store().build().await.unwrap();
    let (key, request) = (key("order"), claim(secs(30)));

    proxy.lose_reply_to(UPDATE, how);
    let error = store.claim(&key, &request).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true));
    until("the first reply is lost", || proxy.lost() == 1).await;
    let again = acquired(patient.claim(&key, &request).await.unwrap());
    assert_eq!((again.kind, again.attempt), (ClaimKind::Fresh, 1));

    let done = completion(request.token, "done");
    proxy.lose_reply_to(UPDATE, how);
    let error = store.complete(&key, &done).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true));
    until("the second reply is lost", || proxy.lost() == 2).await;
    assert_eq!(patient.complete(&key, &done).await.unwrap(), CompleteOutcome::Applied);
    table.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_network_that_swallows_everything_is_unavailable_within_the_deadline() {
    let table = Table::make("frozen").await;
    let deadline = Duration::from_secs(2);
    let (store, proxy) = wired(&table, Lost::InSilence, |builder| builder.deadline(deadline)).await;
    proxy.freeze(true);
    let began = Instant::now();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true));
    // By the SDK's clock or by the store's, whichever is first.
    assert!(error.to_string().contains("no answer"), "{error}");
    // A lease shorter than the deadline ends it earlier.
    let error = store.claim(&key("other"), &claim(secs(1))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable);
    assert!(error.to_string().contains("no answer"), "{error}");
    assert!(began.elapsed() < PATIENCE, "{:?}", began.elapsed());
    proxy.freeze(false);
    proxy.cut();
    claimed_within(&store, deadline, "third").await;
    table.delete().await.unwrap();
}

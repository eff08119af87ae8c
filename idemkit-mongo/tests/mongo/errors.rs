//! What cannot work, and what is said of it.

use std::time::{Duration, SystemTime};

use idemkit_core::{
    Claim, ClaimKind, ClaimOutcome, CompleteOutcome, Fingerprint, Release, ReleaseOutcome, Renew, RenewOutcome, Store,
    StoreError, StoreErrorKind, StoredResult,
};
use idemkit_mongo::{
    BuildError, MongoStore,
    mongodb::{
        bson::{Bson, DateTime, Document, doc},
        options::{Acknowledgment, WriteConcern},
    },
};
use rstest::rstest;

use crate::support::{Database, acquired, builder, claim, completion, key, secs, taken_over, takes_less_than, url};

fn all_of(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error} {error:?}");
        source = error.source();
    }
    text
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mongo_that_is_away_is_unavailable_soon_and_no_password_is_told() {
    // Kept, so that nobody else gets it: it is bound, and refuses, since it does not listen.
    let refuses = tokio::net::TcpSocket::new_v4().unwrap();
    refuses.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = refuses.local_addr().unwrap();
    let url = format!("mongodb://app:s3cret@{address}/orders?directConnection=true");
    let builder = || builder().url(&url).connect_timeout(Duration::from_millis(500));
    let (store, shown) =
        (builder().deadline(Duration::from_secs(3)).build().await.unwrap(), format!("{:?}", builder()));
    takes_less_than(Duration::from_secs(10), async || {
        let error = store.claim(&key("a raw key"), &claim(secs(300))).await.unwrap_err();
        assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
        for text in [&shown, &format!("{store:?}"), &all_of(&error)] {
            assert!(!text.contains("s3cret") && !text.contains("a raw key"), "{text}");
        }
    })
    .await;
}

#[rstest]
#[case("mongodb://app:s3cret@", "s3cret")]
#[case("http://app:s3cret@host", "s3cret")]
#[tokio::test]
async fn a_mongo_url_that_cannot_be_read_is_not_shown(#[case] url: &str, #[case] secret: &str) {
    let error = MongoStore::new(url).await.unwrap_err();
    assert!(matches!(error, BuildError::InvalidUrl));
    assert!(!format!("{error} {error:?}").contains(secret));
}

#[tokio::test]
async fn a_write_concern_that_nobody_acknowledges_and_names_that_are_none_are_refused() {
    let nobody = WriteConcern::builder().w(Acknowledgment::Nodes(0)).build();
    let refused = builder().url(url()).write_concern(nobody).build().await;
    assert!(matches!(refused, Err(BuildError::Unacknowledged)));
    for (database, collection) in [("", "records"), ("a.b", "records"), ("ok", ""), ("ok", "a$b"), ("ok", "system.x")] {
        let refused = builder().url(url()).database(database).collection(collection).build().await;
        assert!(matches!(refused, Err(BuildError::InvalidName { .. })), "{database} {collection}");
    }
}

/// Field report 33: what looks like an expression is data.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn expressions_in_results_come_back_as_they_were() {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let (order, request) = (key("order"), claim(secs(300)));
    acquired(store.claim(&order, &request).await.unwrap());
    let mut done = completion(request.token, "$$ROOT");
    if let idemkit_core::Outcome::Result(result) = &mut done.outcome {
        for (name, value) in [
            ("x-$root", "$$ROOT"),
            ("a.b", "$claim_token"),
            ("$price", "$5.00"),
            ("plain", "{\"$literal\": 1}"),
            ("a\u{1002e}b", "a stand-in"),
            ("\u{10024}", "and in front"),
        ] {
            result.headers.append(name, value);
        }
    }
    store.complete(&order, &done).await.unwrap();
    match store.claim(&order, &claim(secs(300))).await.unwrap() {
        ClaimOutcome::Completed(record) => assert_eq!(record.outcome, done.outcome),
        other => panic!("{other:?}"),
    }
    database.drop().await;
}

/// A document as services in other languages may write it.
fn foreign(name: &str, state: &str, until: DateTime, request: &Claim) -> Document {
    let mut document = doc! {
        "_id": key(name).to_string(),
        "state": state,
        "claim_token": request.token.to_string(),
        "fingerprint": request.fingerprint.to_hex(),
        "fingerprint_version": 1,
        "lease_until": until,
    };
    if state == "COMPLETED" {
        document.insert("response_status", 201);
    }
    document
}

fn in_an_hour() -> DateTime {
    DateTime::from_system_time(SystemTime::now() + Duration::from_secs(3_600))
}

/// Many languages write null where there is nothing.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn null_is_absent(
    #[values("outcome", "response_headers", "response_body", "schema_version", "attempt", "body_encoding")] field: &str,
) {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let (own, other) = (claim(secs(300)), claim(secs(300)));
    let (past, future) = (DateTime::from_millis(1), in_an_hour());
    for (name, state, until) in [
        ("live", "CLAIMED", future),
        ("lapsed", "CLAIMED", past),
        ("renewed", "CLAIMED", past),
        ("released", "CLAIMED", past),
        ("completed", "COMPLETED", future),
        ("expired", "COMPLETED", past),
    ] {
        let mut document = foreign(name, state, until, &own);
        document.insert(field, Bson::Null);
        database.records().insert_one(document).await.unwrap();
    }

    let met = store.claim(&key("live"), &other).await.unwrap();
    assert!(matches!(&met, ClaimOutcome::InFlight(held) if held.attempt == 1), "{met:?}");
    assert_eq!(store.complete(&key("live"), &completion(own.token, "x")).await.unwrap(), CompleteOutcome::Applied);
    let replay = store.claim(&key("live"), &other).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");

    let taken = taken_over(&store, &key("lapsed"), &other).await;
    assert_eq!((taken.kind, taken.attempt), (ClaimKind::Reclaimed, 2));
    let renewed = store.renew(&key("renewed"), &Renew::new(own.token, secs(300))).await.unwrap();
    assert!(matches!(renewed, RenewOutcome::Renewed { .. }), "{renewed:?}");
    let released = store.release(&key("released"), &Release::new(own.token)).await.unwrap();
    assert_eq!(released, ReleaseOutcome::Applied);

    match store.claim(&key("completed"), &other).await.unwrap() {
        ClaimOutcome::Completed(record) => {
            assert_eq!(record.outcome, idemkit_core::Outcome::Result(StoredResult::new(201, "")));
        }
        other => panic!("{other:?}"),
    }
    let fresh = acquired(store.claim(&key("expired"), &other).await.unwrap());
    assert_eq!((fresh.kind, fresh.attempt), (ClaimKind::Fresh, 1));
    database.drop().await;
}

/// As after a failover to a primary whose clock is behind: its leases end later than they were meant to.
#[rstest]
#[case::live(1_000)]
#[case::renewed_for_longer(6_000)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_own_claim_is_told_to_hold_for_longer_than_it_asked(#[case] ends_in: u64) {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let own = claim(secs(300));
    // The store has seen the server's clock.
    acquired(store.claim(&key("warm"), &claim(secs(300))).await.unwrap());
    let until = DateTime::from_system_time(SystemTime::now() + Duration::from_secs(ends_in));
    database.records().insert_one(foreign("order", "CLAIMED", until, &own)).await.unwrap();
    let again = acquired(store.claim(&key("order"), &own).await.unwrap());
    assert_eq!((again.kind, again.lease_left), (ClaimKind::Fresh, Duration::from_secs(300)));
    let other = store.claim(&key("order"), &claim(secs(300))).await.unwrap();
    assert!(matches!(&other, ClaimOutcome::InFlight(held) if held.lease_left > Duration::from_secs(600)), "{other:?}");
    database.drop().await;
}

/// What the server decides is what the client reads, whatever number an attempt is.
#[rstest]
#[case::a_double(Bson::Double(3.0), Some(4))]
#[case::a_long(Bson::Int64(3), Some(4))]
#[case::beyond_the_largest(Bson::Int64(i64::MAX), Some(i32::MAX as u32))]
#[case::zero(Bson::Int32(0), None)]
#[case::below_zero(Bson::Int32(-1), None)]
#[case::a_part(Bson::Double(1.5), None)]
#[case::no_number(Bson::Double(f64::NAN), None)]
#[case::without_end(Bson::Double(f64::INFINITY), None)]
#[case::text(Bson::String("3".to_owned()), None)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_is_a_whole_number(#[case] attempt: Bson, #[case] next: Option<u32>) {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let (own, other, past) = (claim(secs(300)), claim(secs(300)), DateTime::from_millis(1));
    for (name, state) in [("lapsed", "CLAIMED"), ("held", "CLAIMED"), ("expired", "COMPLETED")] {
        let mut document = foreign(name, state, past, &own);
        document.insert("attempt", attempt.clone());
        database.records().insert_one(document).await.unwrap();
    }
    let kind = if next.is_some() { ClaimKind::Reclaimed } else { ClaimKind::Recovered };
    let taken = taken_over(&store, &key("lapsed"), &other).await;
    assert_eq!((taken.kind, taken.attempt), (kind, next.unwrap_or(1)));
    let query = doc! { "_id": key("lapsed").to_string() };
    let after = database.records().find_one(query).await.unwrap().unwrap();
    assert_eq!(u32::try_from(after.get_i32("attempt").unwrap()).unwrap(), taken.attempt);
    // Nobody holds what does not decode.
    let done = store.complete(&key("held"), &completion(own.token, "x")).await.unwrap();
    assert_eq!(done, if next.is_some() { CompleteOutcome::Applied } else { CompleteOutcome::Fenced });
    // A completed record has no attempt that anybody reads.
    let fresh = acquired(store.claim(&key("expired"), &other).await.unwrap());
    assert_eq!((fresh.kind, fresh.attempt), (ClaimKind::Fresh, 1));
    database.drop().await;
}

/// An expired record is absent where it decodes, and else it is replaced.
#[rstest]
#[case::plain(doc! {}, ClaimKind::Fresh)]
#[case::with_headers(doc! { "response_headers": { "a": "b" } }, ClaimKind::Fresh)]
#[case::unavailable(doc! { "outcome": "unavailable", "response_status": "none" }, ClaimKind::Fresh)]
#[case::an_error(doc! { "outcome": "error", "response_status": 500.0 }, ClaimKind::Fresh)]
#[case::a_double_of_a_version(doc! { "schema_version": 1.0, "fingerprint_version": 7.0 }, ClaimKind::Fresh)]
#[case::another_outcome(doc! { "outcome": "maybe" }, ClaimKind::Recovered)]
#[case::a_status_beyond(doc! { "response_status": 70_000 }, ClaimKind::Recovered)]
#[case::a_status_that_is_none(doc! { "response_status": "200" }, ClaimKind::Recovered)]
#[case::a_body_that_is_text(doc! { "response_body": "x" }, ClaimKind::Recovered)]
#[case::headers_beyond_bytes(doc! { "response_headers": { "a": "\u{100}" } }, ClaimKind::Recovered)]
#[case::a_part_of_a_version(doc! { "fingerprint_version": 1.5 }, ClaimKind::Recovered)]
#[case::a_line_too_many(doc! { "fingerprint": format!("{}\n", "0".repeat(64)) }, ClaimKind::Recovered)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_an_expired_record_is(#[case] fields: Document, #[case] kind: ClaimKind) {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let mut document = foreign("order", "COMPLETED", DateTime::from_millis(1), &claim(secs(300)));
    document.extend(fields);
    database.records().insert_one(document).await.unwrap();
    let won = acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    assert_eq!((won.kind, won.attempt), (kind, 1));
    database.drop().await;
}

/// What other languages write: other types of numbers, no attempt, fields that are not ours.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_another_language_wrote_is_read_and_its_other_fields_survive() {
    let database = Database::make().await;
    let store = database.store().build().await.unwrap();
    let request = claim(secs(300));
    for (name, version) in [("int", Bson::Int32(1)), ("long", Bson::Int64(1)), ("double", Bson::Double(1.0))] {
        let document = doc! {
            "_id": key(name).to_string(),
            "state": "CLAIMED",
            "claim_token": "0".repeat(32),
            "fingerprint": request.fingerprint.to_hex(),
            "fingerprint_version": version,
            "lease_until": DateTime::from_millis(1),
            "extra": { "stays": true },
        };
        database.records().insert_one(document).await.unwrap();
        let taken = taken_over(&store, &key(name), &request).await;
        assert_eq!(taken.attempt, 2, "{name}");
        let after = database.records().find_one(doc! { "_id": key(name).to_string() }).await.unwrap().unwrap();
        assert_eq!(after.get_document("extra").unwrap(), &doc! { "stays": true });
    }
    assert_ne!(request.fingerprint, Fingerprint::of_payload("another"));
    database.drop().await;
}

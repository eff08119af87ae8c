//! What a handler is told of its claim, and its hand-over to a transaction. Memory has none: the handler completes by the token.

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response};
use idemkit_core::{
    Complete, CompletedRecord, Fingerprint, HttpRequest, MemoryStore, Outcome, Store as _, StoredResult, Transacted,
    Ttl,
};
use idemkit_http::{Body, RequestClaim};
use rstest::rstest;

use crate::support::{Ran, ask, before, builder, on, post, read};

fn claim(request: &Request<Body>) -> RequestClaim {
    request.extensions().get::<RequestClaim>().unwrap().clone()
}

#[tokio::test(start_paused = true)]
async fn a_handler_is_told_of_its_claim() {
    let service = before(&builder().build().unwrap(), |request: Request<Body>| async move {
        let claim = claim(&request);
        assert!(claim.lease_left().unwrap() > Duration::from_secs(29));
        let told = format!("{} {} {}", claim.attempt(), claim.is_retry(), claim.downstream_key());
        // The first is cut off, and its claim lapses.
        if claim.attempt() == 1 {
            panic!("a crash");
        }
        Response::new(Body::from(Bytes::from(told)))
    });
    tokio::spawn({
        let service = service.clone();
        async move { ask(&service, post("k", "5")).await }
    })
    .await
    .unwrap_err();
    tokio::time::sleep(Duration::from_secs(30)).await;
    let told = ask(&service, post("k", "5")).await.body;
    let key = idemkit_core::EffectiveKey::http("k", idemkit_core::ANONYMOUS_SCOPE, "POST", "/charges");
    assert_eq!(told, format!("2 true {}", key.downstream()));
}

#[tokio::test(start_paused = true)]
async fn a_request_without_protection_has_no_claim() {
    let service = before(&builder().build().unwrap(), |request: Request<Body>| async move {
        let has = request.extensions().get::<RequestClaim>().is_some();
        Response::new(Body::from(Bytes::from(has.to_string())))
    });
    assert_eq!(&ask(&service, post("k", "5")).await.body[..], b"true");
    let without = Request::post("/charges").body(Body::default()).unwrap();
    assert_eq!(&ask(&service, without).await.body[..], b"false");
}

#[derive(Clone, Copy, Debug)]
enum Transaction {
    Commits,
    /// Its acknowledgement is lost, and the handler answers with an error.
    CommitsAndFails,
    Fails,
}

/// A handler that completes in a transaction of its own: the layer does not complete again, nor release what is committed.
#[rstest]
#[case(Transaction::Commits, 201, 201, 1)]
#[case(Transaction::CommitsAndFails, 500, 201, 1)]
#[case(Transaction::Fails, 500, 201, 2)]
#[tokio::test(start_paused = true)]
async fn what_a_handler_hands_over_its_transaction_completes(
    #[case] transaction: Transaction,
    #[case] first: u16,
    #[case] second: u16,
    #[case] times: u32,
) {
    let (store, ran) = (MemoryStore::new(), Ran::default());
    let (memory, counts) = (store.clone(), ran.clone());
    let service = before(&on(store).build().unwrap(), move |request: Request<Body>| {
        let (memory, counts) = (memory.clone(), counts.clone());
        async move {
            let claim = claim(&request);
            let result = StoredResult::new(201, format!("booked by {}", counts.once_more()));
            let held = claim.hand_over();
            // Longer than its lease: the transaction's lock holds it.
            tokio::time::sleep(Duration::from_secs(60)).await;
            let first = counts.times() == 1;
            if !first || !matches!(transaction, Transaction::Fails) {
                let day = Ttl::new(Duration::from_secs(86_400)).unwrap();
                let commit = Complete::new(held.token, Outcome::Result(result.clone()), day);
                memory.complete(&held.key, &commit).await.unwrap();
            }
            if first && !matches!(transaction, Transaction::Commits) {
                return Response::builder().status(500).body(Body::default()).unwrap();
            }
            claim.answer(&Transacted::Committed(()), &result)
        }
    });
    let one = ask(&service, post("k", "5")).await;
    assert_eq!((one.status, one.is_replay(), one.header("idempotency-replay-unavailable")), (first, false, None));
    let two = ask(&service, post("k", "5")).await;
    assert_eq!((two.status, ran.times()), (second, times));
    let by = if times == 1 { 1 } else { 2 };
    assert_eq!(two.body, format!("booked by {by}"));
}

#[tokio::test(start_paused = true)]
async fn a_transaction_that_did_not_commit_is_answered_with_what_stands() {
    let fingerprint = Fingerprint::http(&HttpRequest::new("POST", "/charges").body(b"5"));
    let record = |fingerprint, outcome| {
        let (age, expires_in) = (Duration::ZERO, Duration::from_secs(60));
        Transacted::<()>::AlreadyCompleted(CompletedRecord { fingerprint, outcome, age, expires_in })
    };
    let cases = [
        (record(fingerprint, Outcome::Result(StoredResult::new(201, "before"))), 201, true),
        (record(Fingerprint::of_payload("another's"), Outcome::Result(StoredResult::new(201, "before"))), 409, false),
        (record(fingerprint, Outcome::Unavailable), 409, false),
        (Transacted::Fenced, 409, false),
        (Transacted::Committed(()), 202, false),
    ];
    for (n, (transacted, status, is_replay)) in cases.into_iter().enumerate() {
        let service = before(&builder().build().unwrap(), move |request: Request<Body>| {
            let claim = claim(&request);
            _ = claim.hand_over();
            let answer = claim.answer(&transacted, &StoredResult::new(202, "now"));
            std::future::ready(answer)
        });
        let response = tower::ServiceExt::oneshot(service, post(&format!("k{n}"), "5")).await.unwrap();
        let answer = read(response).await;
        assert_eq!((answer.status, answer.is_replay()), (status, is_replay));
    }
}

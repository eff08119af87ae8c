//! What draft-ietf-httpapi-idempotency-key-header asks of a server, by its sections, as the working group's repository has them.
//! What it asks of those who publish an interface (2.3 and 2.5: say how keys are used, and when they expire) no layer can do.

use std::time::Duration;

use http::{Method, Request};
use idemkit_core::{Engine, MemoryStore, Policy};
use idemkit_http::{Body, IdempotencyLayer, Scope};
use rstest::rstest;
use tokio::task::JoinSet;

use crate::support::{Answer, Ran, Service, ask, builder, charges, post};

/// 2.1: the value MUST be a String of RFC 8941. Bare text, which deployed clients send, is read too.
#[rstest]
#[case("\"8e03978e-40d5-43dd-bc93-6894a57f9324\"", 201, "")]
#[case("8e03978e-40d5-43dd-bc93-6894a57f9324", 201, "")]
#[case("\"open", 400, "invalid-key")]
#[case("\"\"", 400, "invalid-key")]
#[case("", 400, "invalid-key")]
#[case("\"a\", \"b\"", 400, "invalid-key")]
#[case("a,b", 400, "invalid-key")]
#[tokio::test(start_paused = true)]
async fn section_2_1_the_value_is_a_string(#[case] value: &str, #[case] status: u16, #[case] problem: &str) {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let answer = ask(&service, post(value, "5")).await;
    assert_eq!(answer.status, status);
    if status == 400 {
        assert_eq!((answer.problem().as_str(), ran.times()), (problem, 0));
    }
}

/// 2.1: clients MUST NOT send more than one.
#[tokio::test(start_paused = true)]
async fn section_2_1_more_than_one_header_is_refused() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    for second in ["a", "b"] {
        let mut twice = post("a", "5");
        twice.headers_mut().append("idempotency-key", second.parse().unwrap());
        let answer = ask(&service, twice).await;
        assert_eq!((answer.status, answer.problem().as_str(), ran.times()), (400, "invalid-key", 0));
    }
}

/// 2.2: a key MUST NOT be reused with another payload. 2.7: then the server SHOULD reply with 422, and a link.
#[rstest]
#[case::body(|_: &mut Request<Body>| {}, "6")]
#[case::query(|request: &mut Request<Body>| *request.uri_mut() = "/charges?urgent=1".parse().unwrap(), "5")]
#[tokio::test(start_paused = true)]
async fn section_2_7_another_payload_under_the_key_is_422(
    #[case] change: fn(&mut Request<Body>),
    #[case] body: &'static str,
) {
    let (service, ran) = charges(&builder().documentation("https://example.com/idempotency").build().unwrap(), 201);
    ask(&service, post("k", "5")).await;
    let mut other = post("k", body);
    change(&mut other);
    let answer = ask(&service, other).await;
    assert_eq!((answer.status, answer.problem().as_str(), ran.times()), (422, "payload-mismatch", 1));
    assert_eq!(answer.header("link"), Some("<https://example.com/idempotency>; rel=\"describedby\""));
    assert!(!String::from_utf8_lossy(&answer.body).contains("charged"), "nothing of the first is told");
}

/// 2.3: keys MAY expire. Then the operation runs anew.
#[tokio::test(start_paused = true)]
async fn section_2_3_a_key_expires_when_its_policy_says() {
    let policy = Policy::builder().expires_after(Duration::from_secs(60)).build().unwrap();
    let engine = Engine::builder(MemoryStore::new()).policy(policy).build();
    let (service, ran) = charges(&IdempotencyLayer::builder(engine).single_tenant().build().unwrap(), 201);
    for (after, times) in [(0, 1), (59, 1), (2, 2)] {
        tokio::time::sleep(Duration::from_secs(after)).await;
        ask(&service, post("k", "5")).await;
        assert_eq!(ran.times(), times);
    }
}

/// 2.4: a fingerprint of the payload MAY be used. That it is not of how the payload was written is ours.
#[tokio::test(start_paused = true)]
async fn section_2_4_the_same_payload_written_otherwise_is_the_same() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let json = |body: &'static str| {
        let mut request = post("k", body);
        request.headers_mut().insert("content-type", "application/json".parse().unwrap());
        request
    };
    ask(&service, json(r#"{"amount":5,"currency":"EUR"}"#)).await;
    let again = ask(&service, json(r#"{ "currency": "EUR", "amount": 5 }"#)).await;
    assert!(again.is_replay() && ran.times() == 1, "{again:?}");
}

async fn first(service: &Service) -> Answer {
    let answer = ask(service, post("k", "5")).await;
    assert_eq!((answer.status, &answer.body[..]), (201, &b"charged: 5"[..]));
    answer
}

/// 2.6, first time: the server SHOULD process the request normally.
#[tokio::test(start_paused = true)]
async fn section_2_6_the_first_request_is_handled_as_ever() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let answer = first(&service).await;
    assert!(!answer.is_replay() && answer.header("set-cookie") == Some("session=s3cret") && ran.times() == 1);
}

/// 2.6, retry: the server SHOULD respond with the result of the operation that was completed.
#[tokio::test(start_paused = true)]
async fn section_2_6_a_retry_gets_the_first_ones_result() {
    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let one = first(&service).await;
    let again = ask(&service, post("\"k\"", "5")).await;
    assert_eq!((again.status, &again.body, again.header("location")), (one.status, &one.body, one.header("location")));
    assert!(again.is_replay() && ran.times() == 1);
}

/// 2.6, concurrent: the server MUST respond with a conflict; 2.7: it SHOULD be a 409, and link to documentation. That a duplicate
/// may wait for the first before that is ours.
#[tokio::test(start_paused = true)]
async fn section_2_6_a_request_beside_the_first_conflicts_with_it() {
    let (service, ran) =
        charges(&builder().no_wait().documentation("https://example.com/idempotency").build().unwrap(), 201);
    let statuses = at_once(&service, 10).await;
    assert_eq!(statuses.iter().filter(|answer| answer.status == 201).count(), 1);
    for conflict in statuses.iter().filter(|answer| answer.status != 201) {
        assert_eq!((conflict.status, conflict.problem().as_str()), (409, "in-progress"));
        assert_eq!(conflict.header("link"), Some("<https://example.com/idempotency>; rel=\"describedby\""));
        let retry_after: u64 = conflict.header("retry-after").unwrap().parse().unwrap();
        assert!((1..=30).contains(&retry_after), "the rest of the lease: {retry_after}");
    }
    assert_eq!(ran.times(), 1);

    let (service, ran) = charges(&builder().build().unwrap(), 201);
    let waited = at_once(&service, 50).await;
    assert!(waited.iter().all(|answer| answer.status == 201 && answer.body == waited[0].body));
    assert_eq!((waited.iter().filter(|answer| answer.is_replay()).count(), ran.times()), (49, 1));
}

async fn at_once(service: &Service, clients: u32) -> Vec<Answer> {
    let mut asking = JoinSet::new();
    for _ in 0..clients {
        let service = service.clone();
        asking.spawn(async move { ask(&service, post("k", "5")).await });
    }
    asking.join_all().await
}

/// 2.7: where the header is required and missing, the server SHOULD reply with 400, and a link to its documentation.
#[rstest]
#[case(true, 400)]
#[case(false, 201)]
#[tokio::test(start_paused = true)]
async fn section_2_7_a_missing_header_is_400_where_it_is_required(#[case] required: bool, #[case] status: u16) {
    let layer = builder().require_key(required).documentation("https://example.com/idempotency").build().unwrap();
    let (service, ran) = charges(&layer, 201);
    let without = || Request::post("/charges").body(Body::default()).unwrap();
    for _ in 0..2 {
        let answer = ask(&service, without()).await;
        assert_eq!(answer.status, status);
        if required {
            assert_eq!(answer.problem(), "missing-key");
            assert_eq!(answer.header("link"), Some("<https://example.com/idempotency>; rel=\"describedby\""));
        }
    }
    assert_eq!(ran.times(), if required { 0 } else { 2 });
}

/// 1: POST and PATCH are not idempotent by themselves. Others pass.
#[rstest]
#[case(Method::POST, true)]
#[case(Method::PATCH, true)]
#[case(Method::GET, false)]
#[case(Method::PUT, false)]
#[case(Method::DELETE, false)]
#[tokio::test(start_paused = true)]
async fn section_1_methods(#[case] method: Method, #[case] protected: bool) {
    let (service, ran): (Service, Ran) = charges(&builder().build().unwrap(), 200);
    for _ in 0..2 {
        let mut request = post("k", "5");
        *request.method_mut() = method.clone();
        ask(&service, request).await;
    }
    assert_eq!(ran.times(), if protected { 1 } else { 2 });
}

/// 5 recommends a composite key for the look-up, so that nobody finds another's answers. That it has the caller in it is ours.
#[tokio::test(start_paused = true)]
async fn section_5_keys_are_each_callers_own() {
    let of = |parts: &http::request::Parts| {
        Scope::from(parts.headers.get("x-account").map(|account| account.to_str().unwrap().to_owned()))
    };
    let (service, ran) = charges(&builder().scope(of).build().unwrap(), 201);
    let from = |account: Option<&str>| {
        let mut request = post("k", "5");
        if let Some(account) = account {
            request.headers_mut().insert("x-account", account.parse().unwrap());
        }
        request
    };
    for (account, status, times) in [(Some("a"), 201, 1), (Some("b"), 201, 2), (Some("a"), 201, 2)] {
        assert_eq!((ask(&service, from(account)).await.status, ran.times()), (status, times));
    }
    for nobody in [None, Some("")] {
        let answer = ask(&service, from(nobody)).await;
        assert_eq!((answer.status, answer.problem().as_str(), ran.times()), (500, "identity-unavailable", 2));
    }
}

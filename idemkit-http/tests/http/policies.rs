//! What can be chosen.

use std::time::Duration;

use http::{HeaderName, Method, Request, StatusCode, header};
use idemkit_core::{Engine, Fingerprint, Fingerprinter, MemoryStore, StoredResult};
use idemkit_http::{Body, BuildError, IdempotencyKey, IdempotencyLayer, LayerBuilder, Preset, Scope, Statuses};
use rstest::rstest;
use tokio::task::JoinSet;

use crate::support::{ask, builder, charges, post};

#[test]
fn what_cannot_work_is_not_built() {
    let engine = || Engine::new(MemoryStore::new());
    assert!(matches!(IdempotencyLayer::builder(engine()).build(), Err(BuildError::NoScope)));
    let refused = builder().in_progress_status(StatusCode::OK).build();
    assert!(matches!(refused, Err(BuildError::NoClientError(StatusCode::OK))));
    assert!(matches!(builder().mismatch_status(StatusCode::BAD_GATEWAY).build(), Err(BuildError::NoClientError(_))));
    assert!(matches!(builder().wait(Duration::ZERO).build(), Err(BuildError::InvalidWait(_))));
    let keyed = |builder: LayerBuilder| builder.fingerprinter(Fingerprinter::keyed([7; 32]).unwrap());
    let closure = |builder: LayerBuilder| builder.fingerprint(|_, body| Fingerprint::of_payload(body));
    for both in [closure(keyed(builder())), keyed(closure(builder()))] {
        assert!(matches!(both.build(), Err(BuildError::TwoFingerprints)));
    }
    assert!(builder().request_within(Duration::MAX).response_within(Duration::MAX).wait(Duration::MAX).build().is_ok());
    for link in ["", "https://example.com/a b", "https://example.com/>;", "x\ny"] {
        assert!(matches!(builder().documentation(link).build(), Err(BuildError::InvalidLink)), "{link:?}");
    }
}

/// What the clients of another layer expect, and what is set behind a preset overrides it.
#[rstest]
#[case(Preset::Ietf, 409, 422, "idempotency-replayed", &[200, 201, 204], &[302, 400, 404, 500], true)]
#[case(Preset::Stripe, 409, 400, "idempotent-replayed", &[200, 201, 302, 402, 404, 500, 503], &[], false)]
#[case(Preset::IdemkitPy, 423, 422, "idempotency-replayed", &[200, 201, 202], &[204, 302, 404, 500], true)]
#[tokio::test(start_paused = true)]
async fn presets(
    #[case] preset: Preset,
    #[case] in_progress: u16,
    #[case] mismatch: u16,
    #[case] replayed: &str,
    #[case] recorded: &[u16],
    #[case] others: &[u16],
    #[case] patch: bool,
) {
    // Nothing of another is left.
    let layer = builder().preset(Preset::Stripe).preset(Preset::IdemkitPy).preset(preset).no_wait().build().unwrap();
    for (code, is_recorded) in recorded.iter().map(|code| (*code, true)).chain(others.iter().map(|code| (*code, false)))
    {
        let (service, _) = charges(&layer, code);
        let key = format!("k{code}");
        ask(&service, post(&key, "5")).await;
        let again = ask(&service, post(&key, "5")).await;
        assert_eq!(again.status, code);
        assert_eq!(again.header(replayed).is_some(), is_recorded, "{code}");
    }
    let (service, ran) = charges(&layer, 200);
    let mut at_once = JoinSet::new();
    for _ in 0..2 {
        let service = service.clone();
        at_once.spawn(async move { ask(&service, post("k", "5")).await.status });
    }
    let mut statuses = at_once.join_all().await;
    statuses.sort_unstable();
    assert_eq!(statuses, [200, in_progress]);
    assert_eq!(ask(&service, post("k", "6")).await.status, mismatch);
    assert_eq!(ran.times(), 1);
    for _ in 0..2 {
        let mut request = post("p", "5");
        *request.method_mut() = Method::PATCH;
        ask(&service, request).await;
    }
    assert_eq!(ran.times(), if patch { 2 } else { 3 });
    let overridden = builder().preset(preset).replayed_header(HeaderName::from_static("x-replay")).build().unwrap();
    let (service, _) = charges(&overridden, 200);
    ask(&service, post("k", "5")).await;
    assert_eq!(ask(&service, post("k", "5")).await.header("x-replay"), Some("true"));
}

fn json(key: &str, body: &'static str) -> Request<Body> {
    let mut request = post(key, body);
    request.headers_mut().insert(header::CONTENT_TYPE, "application/json".parse().unwrap());
    request
}

#[rstest]
#[case::whole(|builder: LayerBuilder| builder, 422, 422)]
#[case::members(|builder: LayerBuilder| builder.fingerprint_members(["amount"]), 201, 422)]
#[case::members_keyed(
    |builder: LayerBuilder| builder.fingerprint_members(["amount"]).fingerprinter(Fingerprinter::keyed([7; 32]).unwrap()), 201, 422
)]
#[case::closure(|builder: LayerBuilder| builder.fingerprint(|_, _| Fingerprint::of_payload("any")), 201, 201)]
#[tokio::test(start_paused = true)]
async fn requests_are_compared_by_what_is_chosen(
    #[case] choose: fn(LayerBuilder) -> LayerBuilder,
    #[case] other_time: u16,
    #[case] other_amount: u16,
) {
    let (service, _) = charges(&choose(builder()).build().unwrap(), 201);
    ask(&service, json("k", r#"{"amount":5,"sent":"12:00"}"#)).await;
    assert_eq!(ask(&service, json("k", r#"{"sent":"12:01","amount":5}"#)).await.status, other_time);
    assert_eq!(ask(&service, json("k", r#"{"amount":6,"sent":"12:00"}"#)).await.status, other_amount);
}

#[tokio::test(start_paused = true)]
async fn the_key_may_come_from_elsewhere() {
    let github = builder().key_header(HeaderName::from_static("x-github-delivery")).build().unwrap();
    let (service, ran) = charges(&github, 200);
    for _ in 0..2 {
        let request = Request::post("/hooks").header("x-github-delivery", "d-1").body(Body::default());
        ask(&service, request.unwrap()).await;
    }
    assert_eq!(ran.times(), 1);

    let from_path =
        builder().key_from(|parts| IdempotencyKey::new(parts.uri.path().as_bytes()).map(Some)).build().unwrap();
    let (service, ran) = charges(&from_path, 200);
    for path in ["/orders/1", "/orders/1", "/orders/2"] {
        ask(&service, Request::post(path).body(Body::default()).unwrap()).await;
    }
    assert_eq!(ran.times(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_scope_may_take_a_look_up() {
    let layer = builder()
        .scope_async(|parts| {
            let token = parts.headers.get("authorization").cloned();
            async move {
                tokio::time::sleep(Duration::from_millis(5)).await;
                token.map_or(Scope::Unknown, |token| Scope::Of(token.to_str().unwrap().to_owned()))
            }
        })
        .build()
        .unwrap();
    let (service, ran) = charges(&layer, 200);
    assert_eq!(ask(&service, post("k", "5")).await.status, 500);
    let mut request = post("k", "5");
    request.headers_mut().insert("authorization", "Bearer a".parse().unwrap());
    assert_eq!((ask(&service, request).await.status, ran.times()), (200, 1));
}

#[tokio::test(start_paused = true)]
async fn a_redactor_takes_out_what_is_not_to_be_stored() {
    let layer = builder().redact(|stored: &mut StoredResult| {
        let text = String::from_utf8(stored.body.to_vec())?;
        stored.body = text.replace("4111", "****").into();
        Ok::<_, std::string::FromUtf8Error>(())
    });
    let (service, _) = charges(&layer.build().unwrap(), 201);
    assert_eq!(&ask(&service, post("k", "card 4111")).await.body[..], b"charged: card 4111");
    assert_eq!(&ask(&service, post("k", "card 4111")).await.body[..], b"charged: card ****");
}

/// It fails closed: nothing is stored, nothing runs again, and the first client gets its answer.
#[rstest]
#[case::error(|_: &mut StoredResult| Err("no"))]
#[case::panic(|_: &mut StoredResult| panic!("no"))]
#[tokio::test(start_paused = true)]
async fn a_redactor_that_fails_stores_nothing(#[case] redact: fn(&mut StoredResult) -> Result<(), &'static str>) {
    let (service, ran) = charges(&builder().redact(redact).build().unwrap(), 201);
    let first = ask(&service, post("k", "4111")).await;
    assert_eq!((first.status, &first.body[..]), (201, &b"charged: 4111"[..]));
    assert_eq!(first.header("idempotency-replay-unavailable"), Some("storage-error"));
    let again = ask(&service, post("k", "4111")).await;
    assert_eq!((again.status, again.problem().as_str(), ran.times()), (409, "result-unavailable", 1));
}

#[tokio::test(start_paused = true)]
async fn a_hook_changes_the_head_of_replays_alone() {
    let layer = builder().on_replay(|parts| {
        parts.headers.insert("x-served-by", "the record".parse().unwrap());
    });
    let (service, _) = charges(&layer.build().unwrap(), 201);
    assert_eq!(ask(&service, post("k", "5")).await.header("x-served-by"), None);
    assert_eq!(ask(&service, post("k", "5")).await.header("x-served-by"), Some("the record"));
}

/// Field report 19.
#[tokio::test(start_paused = true)]
async fn another_endpoint_or_method_is_another_operation() {
    let (service, ran) = charges(&builder().record(Statuses::successes()).build().unwrap(), 201);
    let to = |method: Method, path: &str| {
        let mut request = post("k", "5");
        (*request.method_mut(), *request.uri_mut()) = (method, path.parse().unwrap());
        request
    };
    let cases = [(Method::POST, "/a", 1), (Method::POST, "/b", 2), (Method::PATCH, "/a", 3), (Method::POST, "//a/", 3)];
    for (method, path, times) in cases {
        ask(&service, to(method, path)).await;
        assert_eq!(ran.times(), times);
    }
}

#[test]
fn nothing_that_is_shown_holds_a_secret() {
    let builder = builder().fingerprinter(Fingerprinter::keyed(b"s3cret-s3cret-s3cret-s3cret-s3cr").unwrap());
    let mut shown = format!("{builder:?}");
    shown += &format!("{:?}", builder.build().unwrap());
    assert!(!shown.contains("s3cret") && shown.contains("IdempotencyLayer"), "{shown}");
}

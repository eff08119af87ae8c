//! A handler that has ended is not run again, whatever is wrong with its answer; and what is replayed is fit to be.

use std::{sync::Arc, task::Poll, time::Duration};

use bytes::Bytes;
use http::{Method, Request, Response};
use http_body::Frame;
use http_body_util::StreamBody;
use idemkit_core::{
    ANONYMOUS_SCOPE, Claim, ClaimToken, Complete, Context, EffectiveKey, Engine, Fingerprint, HttpRequest, MemoryStore,
    Outcome, Policy, StoragePolicy, Store as _, StoredResult, Ttl,
};
use idemkit_http::{Body, BoxError, IdempotencyLayer, OnHangUp, Preset, Statuses};
use rstest::rstest;
use tokio::time::{Instant, sleep};
use tower::{Layer as _, ServiceExt as _, limit::GlobalConcurrencyLimitLayer};

use crate::support::{Ran, Service, ask, before, builder, charges, on, post, status};

/// Longer than the lease.
const AFTER_THE_LEASE: Duration = Duration::from_secs(60);

fn broken() -> Response<Body> {
    let pieces = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"half"))), Err("broken")]);
    Response::new(Body::new(StreamBody::new(pieces)))
}

fn with_length(length: &'static str) -> Response<Body> {
    Response::builder().header("content-length", length).body(Body::from(Bytes::from_static(b"charged"))).unwrap()
}

#[rstest]
#[case::the_body_breaks_off(Statuses::successes(), broken)]
#[case::the_header_says_another_length(Statuses::successes(), || with_length("2000"))]
#[case::the_closure_panics(Statuses::when(|_| panic!("a fault of the policy's")), || with_length("7"))]
#[tokio::test(start_paused = true)]
async fn a_handler_that_has_ended_is_never_run_again(
    #[case] recorded: Statuses,
    #[case] answer: fn() -> Response<Body>,
    #[values(OnHangUp::RunToTheEnd, OnHangUp::Stop)] on_hang_up: OnHangUp,
) {
    let ran = Ran::default();
    let counts = ran.clone();
    let layer = builder().record(recorded).on_hang_up(on_hang_up).build().unwrap();
    let service = before(&layer, move |_| {
        counts.once_more();
        std::future::ready(answer())
    });
    let first = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!(
        (first.status(), first.headers()["idempotency-replay-unavailable"] == "storage-error"),
        (status(200), true)
    );
    for _ in 0..3 {
        sleep(AFTER_THE_LEASE).await;
        let again = ask(&service, post("k", "5")).await;
        assert_eq!((again.status, again.problem().as_str(), ran.times()), (409, "result-unavailable", 1));
    }
}

/// Whoever catches the panics of handlers catches this one: it is no answer of the store's.
#[rstest]
#[case(OnHangUp::RunToTheEnd)]
#[case(OnHangUp::Stop)]
#[tokio::test(start_paused = true)]
async fn a_panic_of_the_answers_body_is_passed_on(#[case] on_hang_up: OnHangUp) {
    let service = before(&builder().on_hang_up(on_hang_up).build().unwrap(), |_| {
        let panics = futures_util::stream::poll_fn(|_| -> Poll<Option<Result<Frame<Bytes>, BoxError>>> {
            panic!("a fault of the handler's")
        });
        std::future::ready(Response::new(Body::new(StreamBody::new(panics))))
    });
    let asked = tokio::spawn(async move { ask(&service, post("k", "5")).await });
    assert!(asked.await.unwrap_err().is_panic());
}

/// 200, and a status of its own that says that it failed.
#[rstest]
#[case::failed("14", 2)]
#[case::done("0", 1)]
#[tokio::test(start_paused = true)]
async fn a_grpc_call_that_fails_at_once_may_be_tried_again(#[case] grpc_status: &'static str, #[case] times: u32) {
    let ran = Ran::default();
    let counts = ran.clone();
    let service = before(&builder().build().unwrap(), move |_| {
        counts.once_more();
        let response =
            Response::builder().header("content-type", "application/grpc").header("grpc-status", grpc_status);
        std::future::ready(response.body(Body::default()).unwrap())
    });
    for _ in 0..2 {
        ask(&service, post("k", "5")).await;
    }
    assert_eq!(ran.times(), times);
}

/// A layer on a store whose record of the key has this result.
async fn recorded(result: StoredResult) -> Service {
    let store = MemoryStore::new();
    let key = EffectiveKey::http("k", ANONYMOUS_SCOPE, "POST", "/charges");
    let (token, day) = (ClaimToken::random().unwrap(), Ttl::new(Duration::from_secs(86_400)).unwrap());
    let request = Fingerprint::http(&HttpRequest::new("POST", "/charges").body(b"5"));
    store.claim(&key, &Claim::new(token, request, day)).await.unwrap();
    store.complete(&key, &Complete::new(token, Outcome::Result(result), day)).await.unwrap();
    charges(&on(store).build().unwrap(), 201).0
}

/// A transaction, another service or an older policy may have recorded what this layer never would.
#[tokio::test(start_paused = true)]
async fn what_is_never_kept_is_never_replayed() {
    let result = StoredResult::new(201, "done")
        .with_header("x-payment", "7")
        .with_header("set-cookie", "session=1")
        .with_header("connection", "close")
        .with_header("transfer-encoding", "chunked")
        .with_header("content-length", "999");
    let replay = ask(&recorded(result).await, post("k", "5")).await;
    assert!(replay.is_replay());
    let names: Vec<_> = replay.headers.keys().map(http::HeaderName::as_str).collect();
    assert_eq!(names, ["x-payment", "idempotency-replayed"]);
}

#[rstest]
#[tokio::test(start_paused = true)]
async fn a_recorded_status_that_is_none_is_no_success(#[values(0, 99, 101, 1_000)] status: u16) {
    let again = ask(&recorded(StoredResult::new(status, "?")).await, post("k", "5")).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "result-unavailable"));
}

/// A handler may be a gateway before another idempotent service, whose marks say nothing of this one's records.
#[tokio::test(start_paused = true)]
async fn the_layers_own_marks_are_no_handlers() {
    let service = before(&builder().build().unwrap(), |_| {
        let marked = Response::builder().header("idempotency-replayed", "true");
        let marked = marked.header("idempotency-replay-unavailable", "streaming");
        std::future::ready(marked.body(Body::default()).unwrap())
    });
    let first = ask(&service, post("k", "5")).await;
    assert!(!first.is_replay() && first.header("idempotency-replay-unavailable").is_none(), "{first:?}");
    assert!(ask(&service, post("k", "5")).await.is_replay());
}

/// What answers a HEAD request, and a 304, tells the length of what is not sent.
#[rstest]
#[case(Method::HEAD, 200)]
#[case(Method::POST, 304)]
#[tokio::test(start_paused = true)]
async fn a_length_of_what_is_not_sent_is_no_contradiction(#[case] method: Method, #[case] code: u16) {
    let layer = builder().preset(Preset::Stripe).methods([Method::HEAD, Method::POST]).build().unwrap();
    let service = before(&layer, move |_| {
        let head = Response::builder().status(code).header("content-length", "10");
        std::future::ready(head.body(Body::default()).unwrap())
    });
    let request = || Request::builder().method(&method).uri("/charges").header("idempotency-key", "k");
    let first = ask(&service, request().body(Body::default()).unwrap()).await;
    assert!(first.header("idempotency-replay-unavailable").is_none(), "{first:?}");
    let again = ask(&service, request().body(Body::default()).unwrap()).await;
    assert_eq!((again.status, again.header("idempotent-replayed")), (code, Some("true")));
}

/// Ten bytes of ten megabytes: what is kept for a day is ten bytes.
#[tokio::test(start_paused = true)]
async fn a_small_answer_does_not_keep_the_buffer_that_it_is_a_piece_of() {
    struct Buffer {
        bytes: Vec<u8>,
        _alive: Arc<()>,
    }
    impl AsRef<[u8]> for Buffer {
        fn as_ref(&self) -> &[u8] {
            &self.bytes
        }
    }
    let alive = Arc::new(());
    let here = Arc::clone(&alive);
    let service = before(&builder().build().unwrap(), move |_| {
        let buffer = Bytes::from_owner(Buffer { bytes: vec![b'x'; 10_000_000], _alive: Arc::clone(&here) });
        std::future::ready(Response::new(Body::from(buffer.slice(..10))))
    });
    assert_eq!(&ask(&service, post("k", "5")).await.body[..], b"xxxxxxxxxx");
    assert_eq!(&ask(&service, post("k", "5")).await.body[..], b"xxxxxxxxxx");
    assert_eq!(Arc::strong_count(&alive), 2);
}

/// While it waits for a place there is no effect that a retry could repeat.
#[tokio::test(start_paused = true)]
async fn a_request_that_was_never_handled_does_not_hold_its_key() {
    let policy = Policy::builder().max_execution(Duration::from_secs(2)).build().unwrap();
    let engine = Engine::builder(MemoryStore::new()).policy(policy).build();
    let layer = IdempotencyLayer::builder(engine).single_tenant().build().unwrap();
    let inner = before(&builder().methods([]).build().unwrap(), |request: Request<Body>| async move {
        if request.uri().path() == "/slow" {
            sleep(Duration::from_secs(4)).await;
        }
        Response::new(Body::default())
    });
    let service = layer.layer(GlobalConcurrencyLimitLayer::new(1).layer(inner));
    let slow = tokio::spawn(service.clone().oneshot(Request::post("/slow").body(Body::default()).unwrap()));
    sleep(Duration::from_millis(10)).await;
    let queued = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!((queued.status(), queued.headers()["retry-after"] == "1"), (status(503), true));
    slow.await.unwrap().unwrap();
    assert_eq!(service.oneshot(post("k", "5")).await.unwrap().status(), status(200));
}

/// Without a claim, too, it runs on a task of its own, and nobody outside can end it.
#[tokio::test(start_paused = true)]
async fn a_handler_without_protection_has_its_limit_and_its_key_for_the_next_system() {
    let policy = Policy::builder().max_execution(Duration::from_secs(2)).storage(StoragePolicy::FailOpen);
    let engine = Engine::builder(crate::answers::Away::for_claims()).policy(policy.build().unwrap()).build();
    let layer = IdempotencyLayer::builder(engine).single_tenant().build().unwrap();
    let (told, mut tells) = tokio::sync::mpsc::unbounded_channel();
    let service = before(&layer, move |request: Request<Body>| {
        let context = request.extensions().get::<Context>().unwrap();
        told.send((context.downstream_key(), context.is_retry())).unwrap();
        async {
            sleep(Duration::from_secs(3_600)).await;
            Response::new(Body::default())
        }
    });
    let began = Instant::now();
    let answer = ask(&service, post("k", "5")).await;
    assert_eq!((answer.status, began.elapsed()), (503, Duration::from_secs(2)));
    assert_eq!(layer.running(), 0);
    let key = EffectiveKey::http("k", ANONYMOUS_SCOPE, "POST", "/charges");
    assert_eq!(tells.recv().await.unwrap(), (key.downstream(), true));
}

//! Store, then answer; and what is stored of an answer.

use async_trait::async_trait;
use bytes::Bytes;
use futures_util::StreamExt as _;
use http::{HeaderMap, HeaderName, Response};
use http_body::Frame;
use http_body_util::{BodyExt as _, Full, StreamBody};
use idemkit_core::{
    ANONYMOUS_SCOPE, Applied, Capabilities, Claim, ClaimOutcome, Complete, CompleteOutcome, EffectiveKey, Engine,
    MemoryStore, OnUnrecordable, Policy, Record, Release, ReleaseOutcome, Renew, RenewOutcome, StoragePolicy, Store,
    StoreError, StoreErrorKind, Ttl, WaitOutcome,
};
use idemkit_http::{Body, BoxError, IdempotencyLayer, Statuses, Streaming};
use rstest::rstest;
use tower::ServiceExt as _;

use crate::support::{Ran, ask, before, builder, charges, on, post, status};

fn key() -> EffectiveKey {
    EffectiveKey::http("k", ANONYMOUS_SCOPE, "POST", "/charges")
}

/// A store that is away for some of its operations.
#[derive(Clone, Debug)]
pub(crate) struct Away {
    memory: MemoryStore,
    for_claims: bool,
}

impl Away {
    pub(crate) fn for_claims() -> Self {
        Self { memory: MemoryStore::new(), for_claims: true }
    }

    fn error<T>() -> Result<T, StoreError> {
        Err(StoreError::new("away", StoreErrorKind::Unavailable, Applied::No))
    }
}

#[async_trait]
impl Store for Away {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        if self.for_claims { Self::error() } else { self.memory.claim(key, request).await }
    }

    async fn complete(&self, _: &EffectiveKey, _: &Complete) -> Result<CompleteOutcome, StoreError> {
        Self::error()
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.memory.renew(key, request).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        self.memory.release(key, request).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        self.memory.wait(key, timeout).await
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_stored_before_it_goes_out() {
    let store = MemoryStore::new();
    let (service, _) = charges(&on(store.clone()).build().unwrap(), 201);
    let response = service.oneshot(post("k", "5")).await.unwrap();
    // Its head is here, and nothing of its body was read.
    assert!(matches!(store.record(&key()), Some(Record::Completed(_))));
    drop(response);
}

#[tokio::test(start_paused = true)]
async fn where_storing_fails_the_answer_goes_out_and_says_so() {
    let (service, ran) = charges(&on(Away { memory: MemoryStore::new(), for_claims: false }).build().unwrap(), 201);
    let answer = ask(&service, post("k", "5")).await;
    assert_eq!((answer.status, &answer.body[..]), (201, &b"charged: 5"[..]));
    assert_eq!(answer.header("idempotency-replay-unavailable"), Some("storage-error"));
    assert_eq!(ran.times(), 1);
}

#[rstest]
#[case(StoragePolicy::FailClosed, 503, 0)]
#[case(StoragePolicy::FailOpen, 201, 1)]
#[tokio::test(start_paused = true)]
async fn a_store_that_is_away_refuses_unless_that_is_accepted(
    #[case] storage: StoragePolicy,
    #[case] status: u16,
    #[case] times: u32,
) {
    let policy = Policy::builder().storage(storage).build().unwrap();
    let engine = Engine::builder(Away { memory: MemoryStore::new(), for_claims: true }).policy(policy).build();
    let (service, ran) = charges(&IdempotencyLayer::builder(engine).single_tenant().build().unwrap(), 201);
    let answer = ask(&service, post("k", "5")).await;
    assert_eq!((answer.status, ran.times()), (status, times));
    if status == 503 {
        assert_eq!((answer.problem().as_str(), answer.header("retry-after")), ("storage-error", Some("1")));
    }
}

#[rstest]
#[case::not_found(404)]
#[case::redirect(303)]
#[case::failed(500)]
#[case::not_now(503)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_not_recorded_is_handled_again(#[case] status: u16) {
    let (service, ran) = charges(&builder().build().unwrap(), status);
    for times in 1..=2 {
        let answer = ask(&service, post("k", "5")).await;
        assert_eq!((answer.status, ran.times(), answer.is_replay()), (status, times, false));
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_named_is_recorded_and_what_may_be_under_way_is_held() {
    let layer =
        builder().record(Statuses::set([status(500), status(404)])).hold(Statuses::set([status(504)])).no_wait();
    let layer = layer.build().unwrap();
    for code in [404, 500] {
        let (service, ran) = charges(&layer, code);
        ask(&service, post(&format!("k{code}"), "5")).await;
        assert!(ask(&service, post(&format!("k{code}"), "5")).await.is_replay() && ran.times() == 1);
    }
    let (service, ran) = charges(&layer, 504);
    assert_eq!(ask(&service, post("k", "5")).await.status, 504);
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (409, 1));
    tokio::time::sleep(std::time::Duration::from_secs(31)).await;
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (504, 2));
}

/// Field report 21.
#[tokio::test(start_paused = true)]
async fn a_replay_is_the_answer_byte_for_byte_with_repeated_headers_in_their_order() {
    let all: Bytes = (0..=255).collect::<Vec<u8>>().into();
    let body = all.clone();
    let service = before(&builder().build().unwrap(), move |_| {
        let body = body.clone();
        async move {
            let answer = Response::builder().status(206).header("link", "</a>; rel=\"next\"").header("link", "</b>");
            let answer = answer.header("content-type", "image/x").header("etag", "\"\u{e9}\"".as_bytes());
            answer.header("location", "/here").body(Body::from(body)).unwrap()
        }
    });
    let first = ask(&service, post("k", "5")).await;
    let mut replay = ask(&service, post("k", "5")).await;
    assert_eq!(replay.headers.remove("idempotency-replayed").unwrap(), "true");
    assert_eq!((replay.status, &replay.body, &replay.headers), (206, &all, &first.headers));
    assert_eq!(replay.headers.get_all("link").iter().collect::<Vec<_>>(), ["</a>; rel=\"next\"", "</b>"]);
}

#[tokio::test(start_paused = true)]
async fn only_the_headers_on_the_list_are_replayed() {
    let kept = ["content-type", "content-encoding", "content-language", "content-disposition", "location", "etag"];
    let kept = [&kept[..], &["last-modified", "link", "cache-control"]].concat();
    let never =
        ["set-cookie", "authorization", "www-authenticate", "vary", "connection", "transfer-encoding", "upgrade"];
    let others = ["x-request-id", "date", "server"];
    let all = [&kept[..], &never[..], &others[..]].concat();
    let handler = {
        let all = all.clone();
        move |_| {
            let mut response = Response::new(Body::from(Bytes::from_static(b"done")));
            let headers = all.iter().map(|name| (HeaderName::from_static(name), "x".parse().unwrap()));
            response.headers_mut().extend(headers.collect::<HeaderMap>());
            std::future::ready(response)
        }
    };
    let names = |headers: &HeaderMap| headers.keys().map(|name| name.as_str().to_owned()).collect::<Vec<_>>();
    let sorted = |mut names: Vec<String>| {
        names.sort();
        names
    };
    let of = |names: &[&str]| sorted(names.iter().map(|name| (*name).to_owned()).collect());

    let service = before(&builder().build().unwrap(), handler.clone());
    assert_eq!(sorted(names(&ask(&service, post("k", "5")).await.headers)), of(&all), "the first gets them all");
    let replay = ask(&service, post("k", "5")).await;
    assert_eq!(sorted(names(&replay.headers)), of(&[&kept[..], &["idempotency-replayed"]].concat()));

    // Asked for, and never kept all the same; unless that list, too, is another.
    let asked = || ["x-request-id", "set-cookie"].map(HeaderName::from_static);
    let service = before(&builder().stored_headers(asked()).build().unwrap(), handler.clone());
    ask(&service, post("k", "5")).await;
    let replay = ask(&service, post("k", "5")).await;
    assert_eq!(sorted(names(&replay.headers)), of(&["idempotency-replayed", "x-request-id"]));
    let service = before(&builder().stored_headers(asked()).never_stored_headers([]).build().unwrap(), handler);
    ask(&service, post("k", "5")).await;
    let replay = ask(&service, post("k", "5")).await;
    assert_eq!(sorted(names(&replay.headers)), of(&["idempotency-replayed", "set-cookie", "x-request-id"]));
}

/// What ends, and what never does.
fn stream(pieces: usize) -> Body {
    let pieces = futures_util::stream::iter(std::iter::repeat_n((), pieces));
    Body::new(StreamBody::new(pieces.map(|()| Ok::<_, BoxError>(Frame::data(Bytes::from_static(&[7; 1_000]))))))
}

#[rstest]
#[case::too_large(MemoryStore::new(), "size-exceeded")]
#[case::too_large_for_the_store(MemoryStore::builder().result_bytes_max(5_000).build(), "size-exceeded")]
#[tokio::test(start_paused = true)]
async fn an_answer_over_the_limit_goes_out_whole_and_is_not_handled_again(
    #[case] store: MemoryStore,
    #[case] why: &str,
) {
    let ran = Ran::default();
    let counts = ran.clone();
    let service = before(&on(store).response_bytes_max(9_999).build().unwrap(), move |_| {
        counts.once_more();
        std::future::ready(Response::new(stream(10)))
    });
    let first = ask(&service, post("k", "5")).await;
    assert_eq!((first.status, first.body.len()), (200, 10_000));
    assert_eq!(first.header("idempotency-replay-unavailable"), Some(why));
    let again = ask(&service, post("k", "5")).await;
    assert_eq!((again.status, again.problem().as_str(), ran.times()), (409, "result-unavailable", 1));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_cannot_be_kept_may_be_released_instead() {
    let policy = Policy::builder().on_unrecordable(OnUnrecordable::Release).build().unwrap();
    let engine = Engine::builder(MemoryStore::new()).policy(policy).build();
    let layer = IdempotencyLayer::builder(engine).single_tenant().response_bytes_max(5).build().unwrap();
    let (service, ran) = charges(&layer, 200);
    for times in 1..=2 {
        let answer = ask(&service, post("k", "5")).await;
        assert_eq!((answer.status, ran.times()), (200, times));
        assert_eq!(answer.header("idempotency-replay-unavailable"), Some("size-exceeded"));
    }
}

/// Field report 22: whatever a header says of the length.
#[rstest]
#[case::event_stream(Some("text/event-stream; charset=utf-8"))]
#[case::grpc(Some("application/grpc+proto"))]
#[case::without_a_type(None)]
#[tokio::test(start_paused = true)]
async fn an_answer_that_never_ends_is_passed_on_as_it_comes_and_is_recorded_as_done(
    #[case] content_type: Option<&'static str>,
) {
    let service = before(&builder().build().unwrap(), move |_| {
        let slow = futures_util::stream::unfold((), |()| async {
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
            Some((Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"tick"))), ()))
        });
        let mut response = Response::new(Body::new(StreamBody::new(Box::pin(slow))));
        response.headers_mut().insert("content-length", "10".parse().unwrap());
        if let Some(content_type) = content_type {
            response.headers_mut().insert("content-type", content_type.parse().unwrap());
        }
        std::future::ready(response)
    });
    let mut first = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!(first.headers()["idempotency-replay-unavailable"], "streaming");
    let mut read = vec![];
    while read.len() < 400 {
        read.extend_from_slice(&first.body_mut().frame().await.unwrap().unwrap().into_data().unwrap());
    }
    assert_eq!(read, b"tick".repeat(read.len() / 4));
    let again = ask(&service, post("k", "5")).await;
    assert_eq!((again.status, again.problem().as_str()), (409, "result-unavailable"));
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_breaks_off_breaks_off_for_its_client() {
    let service = before(&builder().build().unwrap(), |_| {
        let broken = futures_util::stream::iter([Ok(Frame::data(Bytes::from_static(b"half"))), Err("broken")]);
        std::future::ready(Response::new(Body::new(StreamBody::new(broken))))
    });
    let mut first = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!(first.headers()["idempotency-replay-unavailable"], "storage-error");
    assert_eq!(&first.body_mut().frame().await.unwrap().unwrap().into_data().unwrap()[..], b"half");
    assert!(first.body_mut().frame().await.unwrap().is_err());
}

#[tokio::test(start_paused = true)]
async fn trailers_reach_the_first_client() {
    let service = before(&builder().build().unwrap(), |_| {
        let mut trailers = HeaderMap::new();
        trailers.insert("checksum", "7".parse().unwrap());
        let body = Full::new(Bytes::from_static(b"done")).with_trailers(async { Some(Ok(trailers)) });
        std::future::ready(Response::new(Body::new(body)))
    });
    let first = service.clone().oneshot(post("k", "5")).await.unwrap().into_body().collect().await.unwrap();
    assert_eq!(first.trailers().unwrap()["checksum"], "7");
    assert_eq!(&ask(&service, post("k", "5")).await.body[..], b"done");
}

/// hyper would send the header and then less than it says: the client would take the next answer's begin for the rest.
#[tokio::test(start_paused = true)]
async fn an_answer_that_is_shorter_than_its_header_says_breaks_off() {
    let service = before(&builder().build().unwrap(), |_| {
        let mut response = Response::new(stream(1));
        response.headers_mut().insert("content-length", "2000".parse().unwrap());
        std::future::ready(response)
    });
    let first = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!(first.headers()["idempotency-replay-unavailable"], "storage-error");
    assert!(first.into_body().collect().await.is_err());
}

#[tokio::test(start_paused = true)]
async fn what_a_handler_marks_as_a_stream_is_passed_on_at_once() {
    let service = before(&builder().build().unwrap(), |_| {
        let mut response = Response::new(Body::new(StreamBody::new(futures_util::stream::pending::<
            Result<Frame<Bytes>, BoxError>,
        >())));
        response.extensions_mut().insert(Streaming);
        std::future::ready(response)
    });
    let began = tokio::time::Instant::now();
    let first = service.clone().oneshot(post("k", "5")).await.unwrap();
    assert_eq!(first.headers()["idempotency-replay-unavailable"], "streaming");
    assert!(began.elapsed().is_zero());
}

/// Whoever logs the headers of a request does not log its key.
#[tokio::test(start_paused = true)]
async fn the_debug_of_a_handlers_headers_shows_no_key() {
    let service = before(&builder().build().unwrap(), |request: http::Request<Body>| {
        std::future::ready(Response::new(Body::from(Bytes::from(format!("{:?}", request.headers())))))
    });
    let shown = ask(&service, post("raw-key-4711", "5")).await.body;
    assert!(!String::from_utf8_lossy(&shown).contains("4711"), "{shown:?}");
}

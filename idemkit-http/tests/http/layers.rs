//! Under and over other layers, in either order.

use std::{convert::Infallible, time::Duration};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use idemkit_http::{Body, OnServiceError, Statuses};
use rstest::rstest;
use tokio::task::JoinSet;
use tower::{Layer, ServiceExt as _, limit::GlobalConcurrencyLimitLayer, service_fn, util::BoxCloneSyncService};
use tower_http::{compression::CompressionLayer, timeout::TimeoutLayer};

use crate::support::{Ran, Service, WORK, ask, builder, charge, post, status};

fn handler(ran: &Ran) -> BoxCloneSyncService<Request<Body>, Response<Body>, Infallible> {
    let ran = ran.clone();
    BoxCloneSyncService::new(service_fn(move |request| {
        let answer = charge(request, ran.clone(), 201);
        async move { Ok(answer.await) }
    }))
}

/// Any body of an answer's as one type, so that layers can be put in any order.
fn unified<S, B>(service: S) -> Service
where
    S: tower::Service<Request<Body>, Response = Response<B>, Error = Infallible> + Clone + Send + Sync + 'static,
    S::Future: Send,
    B: http_body::Body<Data = Bytes> + Send + 'static,
    B::Error: Into<idemkit_http::BoxError>,
{
    BoxCloneSyncService::new(service.map_response(|response: Response<B>| response.map(Body::new)))
}

/// Duplicates that wait hold no place of a limit inside; over the layer they do, and nothing locks up either way.
#[rstest]
#[case::inside(true)]
#[case::outside(false)]
#[tokio::test(start_paused = true)]
async fn a_concurrency_limit(#[case] inside: bool) {
    let (layer, ran) = (builder().build().unwrap(), Ran::default());
    let limit = GlobalConcurrencyLimitLayer::new(2);
    let service = if inside {
        unified(layer.layer(limit.layer(handler(&ran))))
    } else {
        unified(limit.layer(layer.layer(handler(&ran))))
    };
    let mut clients = JoinSet::new();
    for n in 0..40 {
        let service = service.clone();
        clients.spawn(async move { ask(&service, post(&format!("k{}", n % 4), "5")).await.status });
    }
    let statuses = tokio::time::timeout(WORK * 60, clients.join_all()).await.unwrap();
    assert!(statuses.iter().all(|status| *status == 201), "{statuses:?}");
    assert_eq!(ran.times(), 4);
}

/// Outside, as is right: the client is told that it took too long, the handler ends, and the retry gets its answer.
#[tokio::test(start_paused = true)]
async fn a_timeout_outside_leaves_the_handler_to_its_end() {
    let (layer, ran) = (builder().build().unwrap(), Ran::default());
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, WORK / 2);
    let service = unified(timeout.layer(layer.layer(handler(&ran))));
    assert_eq!(ask(&service, post("k", "5")).await.status, 504);
    tokio::time::sleep(WORK).await;
    let again = ask(&service, post("k", "5")).await;
    assert!(again.is_replay() && again.status == 201 && ran.times() == 1);
}

/// Inside, it drops the handler, whose effect may have happened: its status must be named as one that holds the claim.
#[tokio::test(start_paused = true)]
async fn a_timeout_inside_holds_the_claim_where_its_status_is_named() {
    let layer = builder().hold(Statuses::set([status(504)])).no_wait().build().unwrap();
    let ran = Ran::default();
    let timeout = TimeoutLayer::with_status_code(StatusCode::GATEWAY_TIMEOUT, WORK / 2);
    let service = unified(layer.layer(timeout.layer(handler(&ran))));
    assert_eq!(ask(&service, post("k", "5")).await.status, 504);
    assert_eq!(ask(&service, post("k", "5")).await.status, 409);
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        (ask(&service, post("k", "5")).await.status, ran.times()),
        (504, 0),
        "it is tried again after the lease"
    );
}

async fn encoded(service: &Service, accepts: Option<&str>) -> (Option<String>, Bytes) {
    // Worth its while: more than the layer's least size.
    let mut request = post("k", "a".repeat(1_000));
    if let Some(accepts) = accepts {
        request.headers_mut().insert("accept-encoding", accepts.parse().unwrap());
    }
    let answer = service.clone().oneshot(request).await.unwrap();
    let encoding = answer.headers().get("content-encoding").map(|of| of.to_str().unwrap().to_owned());
    (encoding, answer.into_body().collect().await.unwrap().to_bytes())
}

#[tokio::test(start_paused = true)]
async fn compression_outside_answers_each_client_as_it_asks() {
    let (layer, ran) = (builder().build().unwrap(), Ran::default());
    let service = unified(CompressionLayer::new().layer(layer.layer(handler(&ran))));
    let (encoding, first) = encoded(&service, Some("gzip")).await;
    assert_eq!(encoding.as_deref(), Some("gzip"));
    assert_eq!(encoded(&service, Some("gzip")).await, (Some("gzip".to_owned()), first));
    let (encoding, plain) = encoded(&service, None).await;
    assert_eq!((encoding, plain.len(), ran.times()), (None, "charged: ".len() + 1_000, 1));
}

/// Inside, the first client's encoding is recorded, and every duplicate gets it, header and all.
#[tokio::test(start_paused = true)]
async fn compression_inside_is_replayed_as_it_was() {
    let (layer, ran) = (builder().build().unwrap(), Ran::default());
    let service = unified(layer.layer(CompressionLayer::new().layer(handler(&ran))));
    let first = encoded(&service, Some("gzip")).await;
    assert_eq!(first.0.as_deref(), Some("gzip"));
    assert_eq!(encoded(&service, Some("gzip")).await, first);
    assert_eq!((encoded(&service, None).await, ran.times()), (first, 1));
}

/// An error of a service's is no answer: `tower`'s own time-out is one, and drops a handler whose effect may be under way.
#[rstest]
#[case::held(OnServiceError::Hold, 409)]
#[case::released(OnServiceError::Release, 0)]
#[tokio::test(start_paused = true)]
async fn an_error_of_the_service_holds_the_claim_unless_that_is_chosen(
    #[case] choice: OnServiceError,
    #[case] second: u16,
) {
    let layer = builder().no_wait().on_service_error(choice).build().unwrap();
    let ran = Ran::default();
    let service = layer.layer(tower::timeout::TimeoutLayer::new(WORK / 2).layer(handler(&ran)));
    service.clone().oneshot(post("k", "5")).await.unwrap_err();
    let again = service.clone().oneshot(post("k", "5")).await.map_or(0, |answer| answer.status().as_u16());
    assert_eq!(again, second);
}

/// What was never asked can have had no effect.
#[tokio::test(start_paused = true)]
async fn a_service_that_is_not_ready_releases_the_claim() {
    #[derive(Clone)]
    struct NeverReady;

    impl tower::Service<Request<Body>> for NeverReady {
        type Response = Response<Body>;
        type Error = &'static str;
        type Future = std::future::Ready<Result<Response<Body>, &'static str>>;

        fn poll_ready(&mut self, _: &mut std::task::Context<'_>) -> std::task::Poll<Result<(), &'static str>> {
            std::task::Poll::Ready(Err("closed"))
        }

        fn call(&mut self, _: Request<Body>) -> Self::Future {
            panic!("it is not ready")
        }
    }

    let store = idemkit_core::MemoryStore::new();
    let service = crate::support::on(store.clone()).build().unwrap().layer(NeverReady);
    assert_eq!(service.oneshot(post("k", "5")).await.unwrap_err(), "closed");
    assert!(store.is_empty());
}

/// Two of one layer, as merged and nested routers come to have them: the inner one must not wait for the outer one's claim.
#[tokio::test(start_paused = true)]
async fn a_layer_inside_of_itself_does_nothing() {
    let (layer, ran) = (builder().build().unwrap(), Ran::default());
    let service = unified(layer.layer(layer.layer(handler(&ran))));
    let began = tokio::time::Instant::now();
    assert_eq!(ask(&service, post("k", "5")).await.status, 201);
    assert!(began.elapsed() < WORK * 2 && ask(&service, post("k", "5")).await.is_replay());
    assert_eq!(ran.times(), 1);
}

/// A limit of another layer's on the body, met while this one reads.
#[tokio::test(start_paused = true)]
async fn a_body_limit_outside_is_told_as_one() {
    let (service, ran) = crate::support::charges(&builder().build().unwrap(), 201);
    let limited = post("k", "5".repeat(100)).map(|body| Body::new(http_body_util::Limited::new(body, 10)));
    assert_eq!((ask(&service, limited).await.status, ran.times()), (413, 0));
}

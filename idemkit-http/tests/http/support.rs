//! A handler that counts, and clients that ask.

use std::{
    convert::Infallible,
    future::Future,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use idemkit_core::{Engine, MemoryStore};
use idemkit_http::{Body, IdempotencyLayer, LayerBuilder};
use tower::{Layer as _, ServiceExt as _, service_fn, util::BoxCloneSyncService};

pub(crate) type Service = BoxCloneSyncService<Request<Body>, Response<Body>, Infallible>;

/// How long a handler takes, unless it is said.
pub(crate) const WORK: Duration = Duration::from_millis(50);

/// How often a handler ran to its end.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ran(Arc<AtomicU32>);

impl Ran {
    pub(crate) fn times(&self) -> u32 {
        self.0.load(Ordering::SeqCst)
    }

    pub(crate) fn once_more(&self) -> u32 {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

pub(crate) fn builder() -> LayerBuilder {
    on(MemoryStore::new())
}

pub(crate) fn on(store: impl idemkit_core::Store) -> LayerBuilder {
    IdempotencyLayer::builder(Engine::new(store)).single_tenant()
}

/// The layer before a handler.
pub(crate) fn before<F>(
    layer: &IdempotencyLayer,
    handler: impl Fn(Request<Body>) -> F + Clone + Send + Sync + 'static,
) -> Service
where
    F: Future<Output = Response<Body>> + Send + 'static,
{
    let handler = service_fn(move |request| {
        let handled = handler(request);
        async move { Ok::<_, Infallible>(handled.await) }
    });
    BoxCloneSyncService::new(layer.layer(handler))
}

/// Before a handler that works for a moment, counts, and answers with the request's body.
pub(crate) fn charges(layer: &IdempotencyLayer, status: u16) -> (Service, Ran) {
    let ran = Ran::default();
    let counts = ran.clone();
    let service = before(layer, move |request| charge(request, counts.clone(), status));
    (service, ran)
}

pub(crate) fn charge(
    request: Request<Body>,
    ran: Ran,
    status: u16,
) -> Pin<Box<dyn Future<Output = Response<Body>> + Send>> {
    Box::pin(async move {
        let body = request.into_body().collect().await.unwrap().to_bytes();
        tokio::time::sleep(WORK).await;
        let number = ran.once_more();
        Response::builder()
            .status(status)
            .header("location", format!("/charges/{number}"))
            .header("set-cookie", "session=s3cret")
            .body(Body::from(Bytes::from([b"charged: ", &body[..]].concat())))
            .unwrap()
    })
}

pub(crate) fn post(key: &str, body: impl Into<Bytes>) -> Request<Body> {
    Request::post("/charges").header("idempotency-key", key).body(Body::from(body.into())).unwrap()
}

/// An answer, read to its end.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(|value| value.to_str().unwrap())
    }

    pub(crate) fn is_replay(&self) -> bool {
        self.header("idempotency-replayed") == Some("true")
    }

    /// The kind of a problem document.
    pub(crate) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let problem: serde_json::Value = serde_json::from_slice(&self.body).unwrap();
        assert_eq!(problem["status"], self.status);
        assert!(problem["title"].is_string());
        problem["type"].as_str().unwrap().replace("urn:idemkit:", "")
    }
}

pub(crate) async fn ask(service: &Service, request: Request<Body>) -> Answer {
    read(service.clone().oneshot(request).await.unwrap()).await
}

pub(crate) async fn read(response: Response<Body>) -> Answer {
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    Answer { status: parts.status.as_u16(), headers: parts.headers, body }
}

pub(crate) fn status(code: u16) -> StatusCode {
    StatusCode::from_u16(code).unwrap()
}

//! One request, asked twice: what holds whatever it is. A property test runs it, and the fuzz target of `fuzz/`.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use bytes::Bytes;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri};
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody};
use idemkit_core::{Engine, MemoryStore};
use idemkit_http::{Body, BoxError, IdempotencyKey, IdempotencyLayer, OversizedRequest};
use tower::{Layer as _, ServiceExt as _, service_fn};

/// The most bytes of a body, here and of an answer.
const BYTES_MAX: usize = 64;

/// A request in its parts, any bytes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Asked {
    /// A method, if it is one.
    pub(crate) method: Vec<u8>,
    /// A path and a query, if they are.
    pub(crate) uri: Vec<u8>,
    /// The values of as many headers.
    pub(crate) keys: Vec<Vec<u8>>,
    /// The value of the header.
    pub(crate) content_type: Option<Vec<u8>>,
    /// The pieces in which the body comes.
    pub(crate) body: Vec<Vec<u8>>,
    /// What the handler answers with.
    pub(crate) status: u16,
}

impl Asked {
    fn request(&self) -> Option<Request<Body>> {
        let pieces = self.body.clone().into_iter().map(|piece| Ok::<_, BoxError>(Frame::data(Bytes::from(piece))));
        let mut request = Request::new(Body::new(StreamBody::new(futures_util::stream::iter(pieces))));
        *request.method_mut() = Method::from_bytes(&self.method).ok()?;
        *request.uri_mut() = Uri::try_from(&self.uri[..]).ok()?;
        for key in &self.keys {
            request.headers_mut().append("idempotency-key", HeaderValue::from_bytes(key).ok()?);
        }
        if let Some(content_type) = &self.content_type {
            request.headers_mut().insert("content-type", HeaderValue::from_bytes(content_type).ok()?);
        }
        Some(request)
    }

    /// Asks twice, and panics where the layer does not do as it must.
    pub(crate) async fn check(&self) {
        let Ok(status) = StatusCode::from_u16(self.status) else { return };
        let (Some(first), Some(second)) = (self.request(), self.request()) else { return };
        let ran = Arc::new(AtomicU32::new(0));
        let layer = IdempotencyLayer::builder(Engine::new(MemoryStore::new())).single_tenant();
        let bytes_max = u64::try_from(BYTES_MAX).unwrap_or(u64::MAX);
        let layer =
            layer.request_bytes_max(bytes_max, OversizedRequest::Refuse).response_bytes_max(bytes_max).no_wait();
        let counts = Arc::clone(&ran);
        let service = layer.build().expect("it has a scope").layer(service_fn(move |request: Request<Body>| {
            let counts = Arc::clone(&counts);
            async move {
                let body = request.into_body().collect().await.expect("it is whole").to_bytes();
                let number = counts.fetch_add(1, Ordering::SeqCst) + 1;
                let answer = Bytes::from([&body[..], &[u8::try_from(number).unwrap_or(u8::MAX)]].concat());
                let mut answer = Response::new(Body::from(answer));
                *answer.status_mut() = status;
                Ok::<_, Infallible>(answer)
            }
        }));
        let ask = async |request: Request<Body>| {
            let (parts, body) =
                service.clone().oneshot(request).await.unwrap_or_else(|never| match never {}).into_parts();
            let body = body.collect().await.expect("it is whole").to_bytes();
            (parts.status, parts.headers.contains_key("idempotency-replayed"), body)
        };
        let is_protected = matches!(&self.method[..], b"POST" | b"PATCH") && !self.keys.is_empty();
        let is_key = self.keys.len() == 1 && IdempotencyKey::parse(first_key(&first)).is_ok();
        let body = self.body.concat();
        let one = ask(first).await;
        let after_one = ran.load(Ordering::SeqCst);
        let two = ask(second).await;
        let after_two = ran.load(Ordering::SeqCst);

        if !is_protected {
            assert_eq!((after_one, after_two, one.0, two.0), (1, 2, status, status), "{self:?}");
        } else if !is_key {
            assert_eq!((after_two, one.0, two.0), (0, StatusCode::BAD_REQUEST, StatusCode::BAD_REQUEST), "{self:?}");
        } else if body.len() > BYTES_MAX {
            let refused = StatusCode::PAYLOAD_TOO_LARGE;
            assert_eq!((after_two, one.0, two.0), (0, refused, refused), "{self:?}");
        } else if !status.is_success() {
            assert_eq!((after_one, after_two, one.0, two.0), (1, 2, status, status), "{self:?}");
        } else if body.len() == BYTES_MAX {
            // The answer has one byte more, and is not kept.
            assert_eq!((after_two, one.0, two.0), (1, status, StatusCode::CONFLICT), "{self:?}");
        } else {
            assert_eq!((after_two, one.0, one.1, two.0, two.1), (1, status, false, status, true), "{self:?}");
            assert_eq!((&one.2, &one.2[..body.len()]), (&two.2, &body[..]), "{self:?}");
        }
    }
}

fn first_key(request: &Request<Body>) -> &[u8] {
    request.headers().get("idempotency-key").map(HeaderValue::as_bytes).unwrap_or_default()
}

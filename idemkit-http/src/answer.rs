//! Answers of the layer's own: replays, and what is kept of a handler's.

use std::panic::{AssertUnwindSafe, catch_unwind};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Response, StatusCode, header, response::Parts};
use idemkit_core::StoredResult;

use crate::{body::Body, policy::Policy, problem::Problem};

const REPLAY_UNAVAILABLE: HeaderName = HeaderName::from_static("idempotency-replay-unavailable");

/// Why an answer that goes out cannot be replayed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    StorageError,
    SizeExceeded,
    Streaming,
}

impl Unavailable {
    pub(crate) fn tell(self, headers: &mut HeaderMap) {
        let why = match self {
            Self::StorageError => "storage-error",
            Self::SizeExceeded => "size-exceeded",
            Self::Streaming => "streaming",
        };
        headers.insert(REPLAY_UNAVAILABLE, HeaderValue::from_static(why));
    }
}

impl Policy {
    /// An answer as it is kept: its status, the headers that may be, its body, and what the redactor leaves of them. Nothing
    /// where that failed: what should have been redacted is never stored.
    pub(crate) fn kept(&self, parts: &Parts, body: Bytes) -> Option<StoredResult> {
        // Copied: what it is a piece of may be far larger, and would be kept for as long as it is.
        let mut stored = StoredResult::new(parts.status.as_u16(), Bytes::copy_from_slice(&body));
        for (name, value) in &parts.headers {
            if self.headers.keeps(name) {
                stored.headers.append(name.as_str(), value.as_bytes().to_vec());
            }
        }
        let Some(redact) = &self.redact else { return Some(stored) };
        match catch_unwind(AssertUnwindSafe(|| redact(&mut stored))) {
            Ok(Ok(())) => Some(stored),
            Ok(Err(error)) => {
                tracing::error!(error = &*error as &dyn std::error::Error, "idemkit: the redactor failed");
                None
            }
            Err(_) => {
                tracing::error!("idemkit: the redactor panicked");
                None
            }
        }
    }

    /// Takes out of a handler's answer what only this layer says.
    pub(crate) fn not_its_own(&self, headers: &mut HeaderMap) {
        headers.remove(&self.replayed);
        headers.remove(REPLAY_UNAVAILABLE);
    }

    /// The answer that a handler's own transaction has recorded.
    pub(crate) fn committed(&self, stored: &StoredResult) -> Response<Body> {
        written(stored).unwrap_or_else(|| self.refuse(Problem::ResultUnavailable))
    }

    /// What a duplicate gets. What is never kept is never replayed: another may have recorded it, or another list.
    pub(crate) fn replayed(&self, stored: &StoredResult) -> Response<Body> {
        let Some(mut response) = written(stored) else { return self.refuse(Problem::ResultUnavailable) };
        for name in &self.headers.never {
            response.headers_mut().remove(name);
        }
        response.headers_mut().insert(&self.replayed, HeaderValue::from_static("true"));
        if let Some(hook) = &self.on_replay {
            let (mut parts, body) = response.into_parts();
            hook(&mut parts);
            response = Response::from_parts(parts, body);
        }
        response
    }
}

/// A stored result as an answer; nothing where it is none, as another surface's may be.
fn written(stored: &StoredResult) -> Option<Response<Body>> {
    let Some(status) = StatusCode::from_u16(stored.status).ok().filter(|status| !status.is_informational()) else {
        tracing::error!(status = stored.status, "idemkit: a recorded result has no status of an HTTP answer");
        return None;
    };
    let mut response = Response::new(Body::from(stored.body.clone()));
    *response.status_mut() = status;
    for (name, values) in stored.headers.iter() {
        for value in values {
            // Another surface may have stored what is no header here. How long the body is, the server says.
            if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::from_bytes(value))
                && name != header::CONTENT_LENGTH
                && name != header::TRANSFER_ENCODING
            {
                response.headers_mut().append(name, value);
            }
        }
    }
    Some(response)
}

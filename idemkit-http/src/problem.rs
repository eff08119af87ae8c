//! Problem documents, as RFC 9457 has them.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderValue, Response, StatusCode, header};

use crate::body::Body;

/// What a client is told instead of a handler's answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Problem {
    MissingKey,
    InvalidKey(crate::InvalidKey),
    PayloadMismatch {
        status: StatusCode,
    },
    InProgress {
        status: StatusCode,
        retry_after: Duration,
    },
    ResultUnavailable,
    StorageError,
    IdentityUnavailable,
    TooLarge {
        /// Where the limit is this layer's, what it is.
        bytes_max: Option<u64>,
    },
    /// The request's body took too long.
    TooSlow,
    /// The request's body broke off.
    BrokenOff,
}

impl Problem {
    fn status(self) -> StatusCode {
        match self {
            Self::MissingKey | Self::InvalidKey(_) => StatusCode::BAD_REQUEST,
            Self::PayloadMismatch { status } | Self::InProgress { status, .. } => status,
            Self::ResultUnavailable => StatusCode::CONFLICT,
            Self::StorageError => StatusCode::SERVICE_UNAVAILABLE,
            Self::IdentityUnavailable => StatusCode::INTERNAL_SERVER_ERROR,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Self::BrokenOff => StatusCode::BAD_REQUEST,
        }
    }

    /// What is no matter of idempotency is told by its status alone, as RFC 9457 has it.
    fn kind(self) -> &'static str {
        match self {
            Self::MissingKey => "urn:idemkit:missing-key",
            Self::InvalidKey(_) => "urn:idemkit:invalid-key",
            Self::PayloadMismatch { .. } => "urn:idemkit:payload-mismatch",
            Self::InProgress { .. } => "urn:idemkit:in-progress",
            Self::ResultUnavailable => "urn:idemkit:result-unavailable",
            Self::StorageError => "urn:idemkit:storage-error",
            Self::IdentityUnavailable => "urn:idemkit:identity-unavailable",
            Self::TooLarge { .. } | Self::TooSlow | Self::BrokenOff => "about:blank",
        }
    }

    fn title(self) -> &'static str {
        match self {
            Self::MissingKey => "This request needs an Idempotency-Key",
            Self::InvalidKey(_) => "The Idempotency-Key cannot be used",
            Self::PayloadMismatch { .. } => "The Idempotency-Key was used with another request",
            Self::InProgress { .. } => "A request with this Idempotency-Key is still being handled",
            Self::ResultUnavailable => "The request was handled, and its answer cannot be replayed",
            Self::StorageError => "The request cannot be handled safely at the moment",
            Self::IdentityUnavailable => "The caller could not be identified",
            Self::TooLarge { .. } => "The request is larger than one with an Idempotency-Key may be",
            Self::TooSlow => "The request took too long to arrive",
            Self::BrokenOff => "The request broke off",
        }
    }

    fn detail(self) -> Option<String> {
        match self {
            Self::InvalidKey(why) => Some(why.to_string()),
            Self::TooLarge { bytes_max: Some(bytes_max) } => Some(format!("at most {bytes_max} bytes")),
            _ => None,
        }
    }

    pub(crate) fn response(self) -> Response<Body> {
        // No text here comes from a request, so that there is nothing to escape.
        let detail = self.detail().map(|detail| format!(",\"detail\":\"{detail}\"")).unwrap_or_default();
        let body = format!(
            "{{\"type\":\"{}\",\"title\":\"{}\",\"status\":{}{detail}}}",
            self.kind(),
            self.title(),
            self.status().as_u16()
        );
        let mut response = Response::new(Body::from(Bytes::from(body)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("application/problem+json"));
        let retry_after = match self {
            Self::InProgress { retry_after, .. } => Some(retry_after),
            Self::StorageError => Some(Duration::from_secs(1)),
            _ => None,
        };
        if let Some(retry_after) = retry_after {
            // Whole seconds, and never zero: that would be now.
            let secs = retry_after.as_millis().div_ceil(1_000).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(u64::try_from(secs).unwrap_or(u64::MAX)));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Problem::MissingKey, 400, "urn:idemkit:missing-key", None)]
    #[case(Problem::InvalidKey(crate::InvalidKey::Empty), 400, "urn:idemkit:invalid-key", None)]
    #[case(Problem::PayloadMismatch { status: StatusCode::UNPROCESSABLE_ENTITY }, 422, "urn:idemkit:payload-mismatch", None)]
    #[case(Problem::InProgress { status: StatusCode::CONFLICT, retry_after: Duration::from_millis(1_001) }, 409, "urn:idemkit:in-progress", Some("2"))]
    #[case(Problem::InProgress { status: StatusCode::LOCKED, retry_after: Duration::ZERO }, 423, "urn:idemkit:in-progress", Some("1"))]
    #[case(Problem::ResultUnavailable, 409, "urn:idemkit:result-unavailable", None)]
    #[case(Problem::StorageError, 503, "urn:idemkit:storage-error", Some("1"))]
    #[case(Problem::IdentityUnavailable, 500, "urn:idemkit:identity-unavailable", None)]
    #[case(Problem::TooLarge { bytes_max: Some(7) }, 413, "about:blank", None)]
    #[case(Problem::TooSlow, 408, "about:blank", None)]
    #[case(Problem::BrokenOff, 400, "about:blank", None)]
    #[tokio::test]
    async fn each_problem_is_told(
        #[case] problem: Problem,
        #[case] status: u16,
        #[case] kind: &str,
        #[case] retry: Option<&str>,
    ) {
        let response = problem.response();
        assert_eq!(response.status().as_u16(), status);
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json");
        assert_eq!(response.headers().get(header::RETRY_AFTER).map(|value| value.to_str().unwrap()), retry);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let body = std::str::from_utf8(&body).unwrap();
        assert!(body.contains(&format!("\"type\":\"{kind}\"")) && body.contains(&format!("\"status\":{status}")));
    }
}

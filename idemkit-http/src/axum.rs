//! The claim as an extractor of axum's.

use axum::{
    extract::{FromRequestParts, OptionalFromRequestParts},
    response::{IntoResponse, Response},
};
use http::{StatusCode, request::Parts};

use crate::{
    claim::{Refusal, RequestClaim, Unclaimed},
    observe::{Decision, Observed},
    problem::Problem,
};

/// A handler asked for its [`RequestClaim`], and there is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoClaim {
    /// The request has no key: 400 `missing-key`.
    #[error("the request has no idempotency key")]
    NoKey,
    /// The request is handled without protection, as a policy says: 503 `storage-error`.
    #[error("the request is handled without protection")]
    Unprotected,
    /// The request did not come through the layer, or its method is not among the layer's: 500.
    #[error("no IdempotencyLayer handles this request: is it on this route, for this method?")]
    NoLayer,
}

impl IntoResponse for NoClaim {
    fn into_response(self) -> Response {
        let mut response = match self {
            Self::NoKey => Problem::MissingKey.response(),
            Self::Unprotected => Problem::StorageError.response(),
            Self::NoLayer => {
                tracing::error!("idemkit: {self}");
                return StatusCode::INTERNAL_SERVER_ERROR.into_response();
            }
        };
        response.extensions_mut().insert(Refusal);
        response.into_response()
    }
}

impl<S: Send + Sync> FromRequestParts<S> for RequestClaim {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, NoClaim> {
        parts.extensions.get().cloned().ok_or_else(|| match parts.extensions.get() {
            Some(Unclaimed::NoKey) => {
                if let Some(observed) = parts.extensions.get::<Observed>() {
                    observed.counted(Decision::MissingKey);
                }
                NoClaim::NoKey
            }
            Some(Unclaimed::Unprotected) => NoClaim::Unprotected,
            Some(Unclaimed::OtherMethod) | None => NoClaim::NoLayer,
        })
    }
}

/// `Option<RequestClaim>`, for handlers that run without one too.
impl<S: Send + Sync> OptionalFromRequestParts<S> for RequestClaim {
    type Rejection = NoClaim;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Option<Self>, NoClaim> {
        match parts.extensions.get().cloned() {
            Some(claim) => Ok(Some(claim)),
            None if parts.extensions.get::<Unclaimed>().is_some() => Ok(None),
            None => Err(NoClaim::NoLayer),
        }
    }
}

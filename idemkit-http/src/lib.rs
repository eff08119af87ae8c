#![doc = include_str!("../README.md")]

mod answer;
#[cfg(feature = "axum")]
mod axum;
mod body;
mod claim;
mod fingerprint;
mod headers;
mod key;
mod layer;
mod observe;
mod policy;
mod problem;
mod statuses;
mod target;

#[cfg(feature = "axum")]
pub use self::axum::NoClaim;
pub use self::{
    body::{Body, BoxError},
    claim::RequestClaim,
    key::{IdempotencyKey, InvalidKey},
    layer::{IdempotencyLayer, IdempotencyService, Streaming},
    policy::{BuildError, LayerBuilder, OnHangUp, OnServiceError, OversizedRequest, Preset, Scope},
    statuses::Statuses,
};

//! The HTTP layer end to end: a real axum server on loopback, real clients, on every store.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod duplicates;
mod grpc;
mod hang_up;
mod routers;
mod slow;
mod support;
mod transaction;

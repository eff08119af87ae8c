//! The layer before handlers in this process, by the clock of tokio's that stands still. On sockets and on every store: the
//! facade's `tests/http`.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod asked;
mod bodies;
mod claims;
mod draft;
mod endings;
mod hang_up;
mod keys;
mod layers;
#[cfg(feature = "metrics")]
mod metrics;
mod policies;
mod requests;
mod support;

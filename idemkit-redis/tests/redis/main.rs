//! The store on servers that speak Redis's protocol: one of `cargo xtask test`'s, and such that a test owns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod cluster;
mod conformance;
mod durability;
mod errors;
mod interleave;
mod notices;
mod support;
#[cfg(feature = "tls")]
mod tls;
mod wire;

//! The store on MongoDB, or what stands in for it: the server of `cargo xtask test`, and such that a test owns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod conformance;
mod errors;
mod notices;
mod support;
mod transaction;
mod wire;

//! The store on PostgreSQL: the server of `cargo xtask test`, and such that a test owns.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod begins;
mod conformance;
mod errors;
mod load;
mod locks;
mod notices;
mod pgbouncer;
mod rows;
mod schema;
mod support;
mod transaction;
mod wire;

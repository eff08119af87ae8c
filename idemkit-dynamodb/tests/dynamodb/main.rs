//! The store on a server that speaks DynamoDB's protocol: `cargo xtask test` starts one, and on AWS the same tests run
//! with the environment set as the README of this crate says.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod clock;
mod conformance;
mod embedded;
mod errors;
mod limits;
mod requests;
mod stub;
mod support;
mod table;
mod transaction;
mod wire;

//! The store on a server that speaks DynamoDB's protocol: `cargo xtask test` starts one, and on AWS the same tests run
//! with the environment set as the README of this crate says.

mod conformance;
mod support;

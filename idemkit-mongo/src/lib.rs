#![doc = include_str!("../README.md")]
mod builder;
mod classify;
mod clock;
mod document;
mod link;
mod pipeline;
mod store;
mod transaction;
mod watch;

pub use mongodb;

pub use self::{
    builder::{BuildError, Builder},
    store::MongoStore,
    transaction::{Completed, TransactError, Transaction},
};

/// The store's name in events and errors.
const NAME: &str = "mongo";

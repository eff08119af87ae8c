#![doc = include_str!("../README.md")]
mod builder;
mod classify;
mod clock;
mod encoding;
mod expression;
mod item;
mod store;
mod table;
mod transaction;

pub use aws_sdk_dynamodb;

pub use self::{
    builder::{BuildError, Builder},
    clock::{ClockMode, ClockReading},
    store::DynamoDbStore,
    transaction::TransactError,
};

/// The store's name in events and errors.
const NAME: &str = "dynamodb";

#![doc = include_str!("../README.md")]
mod builder;
mod classify;
mod link;
mod listener;
mod row;
mod schema;
mod statement;
mod store;
mod transaction;
mod vacuum;

pub use sqlx;

pub use self::{
    builder::{BuildError, Builder},
    schema::Migrated,
    store::PostgresStore,
    transaction::{Completed, TransactError, Transaction},
    vacuum::VacuumTask,
};

/// The store's name in events and errors.
const NAME: &str = "postgres";

#![doc = include_str!("../README.md")]
mod builder;
mod classify;
mod hash;
mod link;
mod listener;
mod policy;
mod reply;
mod scripts;
mod store;

pub use redis;

pub use self::{
    builder::{BuildError, Builder},
    store::RedisStore,
};

/// The store's name in events and errors.
const NAME: &str = "redis";

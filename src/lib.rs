#![doc = include_str!("../README.md")]

pub use idemkit_core::*;
#[cfg(feature = "dynamodb")]
pub use idemkit_dynamodb as dynamodb;
#[cfg(feature = "http")]
pub use idemkit_http as http;
#[cfg(feature = "mongo")]
pub use idemkit_mongo as mongo;
#[cfg(feature = "postgres")]
pub use idemkit_postgres as postgres;
#[cfg(feature = "redis")]
pub use idemkit_redis as redis;

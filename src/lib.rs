#![doc = include_str!("../README.md")]

pub use idemkit_core::*;

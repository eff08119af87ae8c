//! idemkit makes any operation safe to retry.
pub use idemkit_core::*;

//! The core of idemkit.

mod canonical;
mod fingerprint;
mod hash;
mod hex;
mod key;

pub use fingerprint::{Fingerprint, Fingerprinter, HttpRequest, InvalidSecret};
pub use hex::ParseHexError;
pub use key::{ANONYMOUS_SCOPE, DownstreamKey, EffectiveKey};

//! The core of idemkit: everything but the stores that need a driver. Users depend on the facade, `idemkit`; authors of
//! a store depend on this.
//!
//! - [`machine`]: the transition rules, as a pure function
//! - [`Store`]: the contract that a store author works from, with its requests ([`Claim`], [`Complete`], [`Renew`],
//!   [`Release`]) and their answers; [`Watches`] does a store's waiting
//! - [`Engine`]: `begin` and `run`, with [`Policy`], [`Guard`] and events
//! - [`EffectiveKey`] and [`Fingerprint`]: what an operation is known by
//! - [`MemoryStore`]: the embedded default
//!
//! Data flows one way: surface → engine → store trait → store. A store knows nothing of HTTP, the core nothing of a
//! driver.
mod backoff;
mod canonical;
mod clock;
mod engine;
mod error;
mod event;
mod fingerprint;
mod hash;
mod hex;
mod key;
pub mod machine;
mod memory;
mod record;
mod request;
mod store;
mod transaction;
mod ttl;
mod wait;

#[cfg(feature = "json")]
pub use self::engine::Json;
#[cfg(feature = "local-cache")]
pub use self::engine::LocalCache;
pub use self::{
    clock::{Clock, ManualClock, MonotonicClock, Timestamp},
    engine::{
        Begin, Codec, CodecError, Completion, Context, CutOff, Engine, EngineBuilder, ErrorRules, Guard, HandOver,
        HeldClaim, LeaseLoss, NoReconcile, OnError, OnErrors, OnLeaseLost, OnUnconfirmed, OnUnrecordable, OpaqueErrors,
        Operation, Policy, PolicyBuilder, Provenance, Raw, Reconcile, Reconciled, RecordAll, RecordRule, Recording,
        Replay, Run, RunError, StoragePolicy, Unprotected,
    },
    error::{Applied, StoreError, StoreErrorKind},
    event::{Event, EventKind, Observer},
    fingerprint::{Fingerprint, Fingerprinter, HttpRequest, InvalidSecret},
    hex::ParseHexError,
    key::{ANONYMOUS_SCOPE, DownstreamKey, EffectiveKey},
    memory::{MemoryStore, MemoryStoreBuilder},
    record::{ATTEMPT_MAX, ClaimToken, Claimed, Completed, Headers, Outcome, Record, StoredResult},
    request::{
        Acquired, Claim, ClaimKind, ClaimOutcome, Complete, CompleteOutcome, CompletedRecord, InFlight, Look, Release,
        ReleaseOutcome, Renew, RenewOutcome, Sight, WaitOutcome,
    },
    store::{Capabilities, DecidingClock, Store},
    transaction::{InTransaction, Transacted},
    ttl::{InvalidDuration, Ttl},
    wait::Watches,
};

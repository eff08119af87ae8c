//! What an operation is told about its claim.

use std::time::Duration;

use tokio::{sync::watch, time::Instant};

use super::{
    HeldClaim,
    heartbeat::{HandOver, LeaseState},
};
use crate::{ClaimKind, DownstreamKey, EffectiveKey};

/// What an operation learns: its key, whether somebody may have run it before, and how its lease stands.
///
/// ```
/// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore, StoredResult};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// engine
///     .run(key, Fingerprint::of_payload("…"), async |context| {
///         assert_eq!(context.attempt(), 1);
///         if context.is_retry() {
///             // Look whether the effect has already happened.
///         }
///         // The same at every attempt: hand it to the next system as its idempotency key.
///         let body = context.downstream_key().to_string();
///         Ok::<_, std::io::Error>(StoredResult::new(200, body))
///     })
///     .await?;
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Context {
    pub(super) key: EffectiveKey,
    pub(super) attempt: u32,
    /// `None` where the operation runs without protection.
    pub(super) claim: Option<ContextClaim>,
}

#[derive(Clone, Debug)]
pub(super) struct ContextClaim {
    pub(super) kind: ClaimKind,
    pub(super) lease: watch::Receiver<LeaseState>,
    pub(super) hand_over: HandOver,
}

impl Context {
    /// The hashed key.
    #[must_use]
    pub fn key(&self) -> EffectiveKey {
        self.key
    }

    /// 1 for a fresh claim, one more each time a lapsed claim was taken over.
    #[must_use]
    pub fn attempt(&self) -> u32 {
        self.attempt
    }

    /// How the claim came about; `None` where the operation runs without protection.
    #[must_use]
    pub fn claim_kind(&self) -> Option<ClaimKind> {
        self.claim.as_ref().map(|claim| claim.kind)
    }

    /// Whether an earlier attempt may have had its effect: look before doing it again.
    ///
    /// True where the claim was taken over from a holder that lapsed, or replaced a record that did not decode, and
    /// where the operation runs without protection, since nothing is known then.
    #[must_use]
    pub fn is_retry(&self) -> bool {
        self.claim_kind() != Some(ClaimKind::Fresh)
    }

    /// The key to hand to the next system, the same at every attempt.
    #[must_use]
    pub fn downstream_key(&self) -> DownstreamKey {
        self.key.downstream()
    }

    /// As [`Context::downstream_key`], for an operation that calls more than one system, or one system more than once:
    /// a key for each step.
    #[must_use]
    pub fn downstream_step(&self, step: &str) -> DownstreamKey {
        self.key.downstream_step(step)
    }

    /// How long the claim still holds by this process's count: zero where the lease ended unconfirmed or is lost;
    /// `None` where the operation runs without protection.
    #[must_use]
    pub fn lease_left(&self) -> Option<Duration> {
        let state = *self.claim.as_ref()?.lease.borrow();
        Some(match state {
            LeaseState::Held { until } => until.saturating_duration_since(Instant::now()),
            LeaseState::Lost => Duration::ZERO,
        })
    }

    /// Whether another is known to have taken over.
    #[must_use]
    pub fn is_lease_lost(&self) -> bool {
        self.claim.as_ref().is_some_and(|claim| *claim.lease.borrow() == LeaseState::Lost)
    }

    /// Hands the claim over to a transaction of the store's, which completes it together with the operation's own writes.
    ///
    /// The heartbeat ends, and whoever runs the operation records nothing: the transaction does. Where the operation then
    /// fails, the claim is released as ever, which does nothing to a record that the transaction has completed. May be
    /// called again, to run a transaction again whose end is unknown. `None` where the operation runs without protection.
    ///
    /// ```
    /// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore, Recording, StoredResult, Provenance};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let engine = Engine::new(MemoryStore::new());
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// let run = engine
    ///     .run(key, Fingerprint::of_payload("…"), async |context| {
    ///         let _claim = context.hand_over();
    ///         // … store.transact(claim, …), which memory does not have …
    ///         Ok::<_, std::io::Error>(StoredResult::new(200, "booked"))
    ///     })
    ///     .await?;
    /// assert!(matches!(run.provenance, Provenance::Executed { recording: Recording::HandedOver, .. }));
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "nobody else completes the claim from here on"]
    pub fn hand_over(&self) -> Option<HeldClaim> {
        self.claim.as_ref().map(|claim| claim.hand_over.hand_over())
    }
}

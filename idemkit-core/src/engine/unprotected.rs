//! An operation that runs without a claim, since the policy fails open.

use std::future::Future;

use tokio::time::Instant;

use super::{Context, CutOff, guard::until};
use crate::{EffectiveKey, StoreError, Ttl};

/// Leave to run an operation without protection: the store is unavailable, and the policy
/// [fails open](super::StoragePolicy::FailOpen). Nothing is recorded, and a duplicate may run at the same time.
///
/// ```
/// use idemkit_core::{Begin, DownstreamKey, EffectiveKey, Engine, Fingerprint, MemoryStore};
///
/// async fn charge(key: DownstreamKey) {}
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// if let Begin::Unprotected(unprotected) = engine.begin(key, Fingerprint::of_payload("…")).await {
///     // The next system may still tell a repetition by its key.
///     let work = charge(unprotected.context().downstream_key());
///     let _in_time = unprotected.supervise(work).await.is_ok();
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an operation may run only where this says so"]
pub struct Unprotected {
    pub(super) key: EffectiveKey,
    pub(super) max_execution: Option<Ttl>,
    pub(super) error: StoreError,
}

impl Unprotected {
    /// Why there is no claim.
    #[must_use]
    pub fn error(&self) -> &StoreError {
        &self.error
    }

    /// What the operation is to be told: that an earlier attempt may have had its effect, and the key for the next system,
    /// which is the same as with a claim.
    #[must_use]
    pub fn context(&self) -> Context {
        Context { key: self.key, attempt: 1, claim: None }
    }

    /// Drives `work`, the operation, for as long as the policy allows.
    ///
    /// # Errors
    /// [`CutOff::TimedOut`]: `work` was dropped.
    pub async fn supervise<W: Future>(&self, work: W) -> Result<W::Output, CutOff> {
        let ends = self.max_execution.map(|limit| Instant::now() + limit.as_duration());
        until(ends, work).await.ok_or(CutOff::TimedOut)
    }
}

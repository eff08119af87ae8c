//! What a deployment decides: durations, and what to do when things go wrong.

use std::time::Duration;

use crate::{InvalidDuration, Ttl};

/// What to do with a new operation while the store is unavailable.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StoragePolicy {
    /// Refuse it: nothing runs that is not protected. The default.
    #[default]
    FailClosed,
    /// Run it without protection: a duplicate may run too. Only for effects that are harmless to repeat. It applies
    /// only where the store is *unavailable* and nobody is known to hold the key: a record that cannot be read, a
    /// misconfiguration and an invalid argument are refused all the same.
    FailOpen,
}

/// What to do with a running operation whose lease ended while its renewals could not reach the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnconfirmed {
    /// Let it go on: a holder that nobody took over still holds. The default.
    #[default]
    Continue,
    /// Drop its future when another may first take over: at the lease's end by this process's count, plus the store's
    /// take-over margin.
    Drop,
}

/// What to do with a running operation that another has taken over, as a fenced renewal shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLeaseLost {
    /// Drop its future. The default.
    #[default]
    Drop,
    /// Let it end; its outcome is fenced then.
    LetItEnd,
}

/// What to do with a result that cannot be encoded, or is too large for the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnUnrecordable {
    /// Record that the operation is done and its result unavailable: it does not run again, and duplicates are told so.
    /// The default.
    #[default]
    RecordUnavailable,
    /// Leave the claim to lapse.
    Hold,
    /// Release the claim: the operation may run again at once.
    Release,
}

/// How an engine treats its operations. [`Policy::default`] is the contract's: lease 30 s, wait 10 s, expiry 24 h, fail
/// closed.
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::{Policy, StoragePolicy};
///
/// let policy = Policy::builder()
///     .lease(Duration::from_secs(60))
///     .no_wait()
///     .storage(StoragePolicy::FailClosed)
///     .build()?;
/// assert_eq!(policy.lease().as_millis(), 60_000);
/// assert!(Policy::builder().lease(Duration::ZERO).build().is_err(), "zero never means \"not set\"");
/// # Ok::<(), idemkit_core::InvalidDuration>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    pub(super) lease: Ttl,
    pub(super) wait: Option<Ttl>,
    pub(super) expires_after: Ttl,
    pub(super) max_execution: Option<Ttl>,
    pub(super) store_deadline: Ttl,
    pub(super) complete_budget: Ttl,
    pub(super) storage: StoragePolicy,
    pub(super) on_unconfirmed: OnUnconfirmed,
    pub(super) on_lease_lost: OnLeaseLost,
    pub(super) on_unrecordable: OnUnrecordable,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            lease: Ttl::saturating_secs(30),
            wait: Some(Ttl::saturating_secs(10)),
            expires_after: Ttl::saturating_secs(24 * 60 * 60),
            max_execution: None,
            store_deadline: Ttl::saturating_secs(10),
            complete_budget: Ttl::saturating_secs(30),
            storage: StoragePolicy::default(),
            on_unconfirmed: OnUnconfirmed::default(),
            on_lease_lost: OnLeaseLost::default(),
            on_unrecordable: OnUnrecordable::default(),
        }
    }
}

impl Policy {
    /// Builds a policy that differs from the default.
    pub fn builder() -> PolicyBuilder {
        PolicyBuilder { policy: Ok(Self::default()) }
    }

    /// How long a claim holds without renewal.
    #[must_use]
    pub fn lease(&self) -> Ttl {
        self.lease
    }

    /// How long a duplicate waits for the operation that is under way; `None` where it does not.
    #[must_use]
    pub fn wait(&self) -> Option<Ttl> {
        self.wait
    }

    /// How long a result is replayed, counted from its completion.
    #[must_use]
    pub fn expires_after(&self) -> Ttl {
        self.expires_after
    }

    /// How long an operation may run, where that is limited.
    #[must_use]
    pub fn max_execution(&self) -> Option<Ttl> {
        self.max_execution
    }

    /// The deadline of one store call: the engine's own, in case the store has none, and never longer than the lease.
    pub(super) fn call_deadline(&self) -> Duration {
        self.store_deadline.min(self.lease).as_duration()
    }

    /// How long after a renewal the next is due.
    pub(super) fn heartbeat_interval(&self) -> Duration {
        self.lease.as_duration() / 3
    }
}

/// Builds a [`Policy`]. Durations are rounded up to whole milliseconds and clamped to ten years; zero is an error.
#[derive(Clone, Debug)]
#[must_use = "a policy is made by build()"]
pub struct PolicyBuilder {
    // The first invalid duration, until build() reports it.
    policy: Result<Policy, InvalidDuration>,
}

impl PolicyBuilder {
    /// How long a claim holds without renewal (default 30 s). The heartbeat renews it every third of that.
    pub fn lease(self, lease: Duration) -> Self {
        self.with_ttl(lease, |policy, ttl| policy.lease = ttl)
    }

    /// How long a duplicate waits for the operation that is under way, re-claims included (default 10 s).
    pub fn wait(self, wait: Duration) -> Self {
        self.with_ttl(wait, |policy, ttl| policy.wait = Some(ttl))
    }

    /// A duplicate of an operation that is under way does not wait.
    pub fn no_wait(self) -> Self {
        self.with(|policy| policy.wait = None)
    }

    /// How long a result is replayed, counted from its completion (default 24 h).
    pub fn expires_after(self, expires_after: Duration) -> Self {
        self.with_ttl(expires_after, |policy, ttl| policy.expires_after = ttl)
    }

    /// How long an operation may run (default without limit). At its end the heartbeat stops, the operation's future is
    /// dropped, and the claim is left to lapse.
    pub fn max_execution(self, limit: Duration) -> Self {
        self.with_ttl(limit, |policy, ttl| policy.max_execution = Some(ttl))
    }

    /// The engine's own deadline for one store call (default 10 s); the lease, where that is shorter.
    pub fn store_deadline(self, deadline: Duration) -> Self {
        self.with_ttl(deadline, |policy, ttl| policy.store_deadline = ttl)
    }

    /// How long a completion is retried while the store is unavailable (default 30 s).
    pub fn complete_budget(self, budget: Duration) -> Self {
        self.with_ttl(budget, |policy, ttl| policy.complete_budget = ttl)
    }

    /// What to do with a new operation while the store is unavailable.
    pub fn storage(self, storage: StoragePolicy) -> Self {
        self.with(|policy| policy.storage = storage)
    }

    /// What to do with an operation whose lease ended unconfirmed.
    pub fn on_unconfirmed(self, choice: OnUnconfirmed) -> Self {
        self.with(|policy| policy.on_unconfirmed = choice)
    }

    /// What to do with an operation that another has taken over.
    pub fn on_lease_lost(self, choice: OnLeaseLost) -> Self {
        self.with(|policy| policy.on_lease_lost = choice)
    }

    /// What to do with a result that cannot be recorded.
    pub fn on_unrecordable(self, choice: OnUnrecordable) -> Self {
        self.with(|policy| policy.on_unrecordable = choice)
    }

    /// The policy.
    ///
    /// # Errors
    /// [`InvalidDuration`] where one of the durations was zero.
    pub fn build(self) -> Result<Policy, InvalidDuration> {
        self.policy
    }

    fn with(mut self, set: impl FnOnce(&mut Policy)) -> Self {
        if let Ok(policy) = &mut self.policy {
            set(policy);
        }
        self
    }

    fn with_ttl(self, duration: Duration, set: impl FnOnce(&mut Policy, Ttl)) -> Self {
        match Ttl::new(duration) {
            Ok(ttl) => self.with(|policy| set(policy, ttl)),
            Err(invalid) => Self { policy: Err(invalid) },
        }
    }
}

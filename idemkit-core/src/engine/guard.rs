//! The guard that holds a claim.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::time::{Instant, timeout_at};

use super::{
    Context, Inner, LeaseLoss, OnLeaseLost, OnUnrecordable, Policy, Subject,
    call::Tries,
    context::ContextClaim,
    heartbeat::{HandOver, Heartbeat, LeaseState},
};
use crate::{
    ClaimKind, ClaimToken, Complete, CompleteOutcome, EffectiveKey, EventKind, Outcome, Release, ReleaseOutcome,
    StoreError, StoreErrorKind, StoredResult, Ttl,
};

/// A release that fails is tried so often; after that the lease bounds the harm.
const RELEASE_TRIES: u32 = 3;

/// Holds a claim, renews it, and ends it.
///
/// Complete it, [release](Guard::release) it, or [hold](Guard::hold) it. A guard that is dropped without any of these,
/// by a panic or a dropped future, **holds** too: the effect may still be under way, so the claim is left to lapse, and
/// a warning says so.
///
/// ```
/// use idemkit_core::{Begin, Completion, Engine, EffectiveKey, Fingerprint, MemoryStore, StoredResult};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// match engine.begin(key, Fingerprint::of_payload("…")).await {
///     Begin::Proceed(guard) => {
///         // … the work …
///         let completion = guard.complete(StoredResult::new(200, "charged")).await;
///         assert!(matches!(completion, Completion::Recorded));
///     }
///     Begin::Replay(replay) => println!("{:?}", replay.result),
///     other => println!("not now: {other:?}"),
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[must_use = "a guard that is dropped leaves its claim to lapse"]
pub struct Guard {
    held: Held,
    /// Whether the claim was completed, released or held on purpose.
    ended: bool,
}

pub(super) struct Held {
    pub(super) engine: Arc<Inner>,
    pub(super) subject: Subject,
    #[cfg(feature = "local-cache")]
    pub(super) fingerprint: crate::Fingerprint,
    pub(super) policy: Policy,
    pub(super) token: ClaimToken,
    pub(super) attempt: u32,
    pub(super) kind: ClaimKind,
    /// When the claim was asked for.
    pub(super) claimed: Instant,
    pub(super) heartbeat: Heartbeat,
}

/// A claim as a store's own transaction completes it; see [`Guard::hand_over`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeldClaim {
    /// The key that is claimed.
    pub key: EffectiveKey,
    /// The token of the claim.
    pub token: ClaimToken,
}

/// Why [`Guard::supervise`] dropped an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CutOff {
    /// The claim was lost.
    LeaseLost(LeaseLoss),
    /// It ran longer than the policy allows.
    TimedOut,
}

/// How a completion ended.
#[derive(Clone, Debug)]
#[must_use = "an outcome that was not recorded may run again"]
pub enum Completion {
    /// The outcome is recorded: duplicates get it.
    Recorded,
    /// The result could not be recorded (it cannot be encoded, or is too large), and the operation is recorded as done
    /// without it.
    RecordedUnavailable,
    /// The result could not be recorded, and the claim was released, as the policy says.
    Released,
    /// The result could not be recorded, and the claim is left to lapse, as the policy says.
    Held,
    /// Another took over before this completion: the outcome is not recorded, and the other's stands.
    Fenced,
    /// The store could not be reached within the budget, or refused. The claim is left to lapse. The outcome may have
    /// been recorded all the same, if the error says so.
    Failed(StoreError),
}

impl Guard {
    pub(super) fn new(held: Held) -> Self {
        Self { held, ended: false }
    }

    /// What the operation is to be told.
    #[must_use]
    pub fn context(&self) -> Context {
        let Held { subject, attempt, kind, heartbeat, .. } = &self.held;
        let (lease, hand_over) = (heartbeat.state().clone(), heartbeat.hand_over().clone());
        let claim = ContextClaim { kind: *kind, lease, hand_over };
        Context { key: subject.key, attempt: *attempt, claim: Some(claim) }
    }

    /// For the operation itself, to hand its claim over while the guard is held here: what [`Context::hand_over`] does.
    #[must_use]
    pub fn to_hand_over(&self) -> HandOver {
        self.held.heartbeat.hand_over().clone()
    }

    /// Whether the operation has [handed its claim over](Context::hand_over) to a transaction, which completes it: what is
    /// left is to [release](Self::release) the claim where the operation failed, or to [hold](Self::hold) it.
    #[must_use]
    pub fn is_handed_over(&self) -> bool {
        self.held.heartbeat.hand_over().is_done()
    }

    /// Drives `work`, the operation, for as long as the claim allows: until it has ended, another took over, or the policy's
    /// limit is reached.
    ///
    /// # Errors
    /// [`CutOff`]: `work` was dropped, and the claim is left to lapse, since an effect may still be under way.
    pub async fn supervise<W: Future>(self, work: W) -> Result<(Self, W::Output), CutOff> {
        match self.drive(work).await {
            Ok(output) => {
                self.held.heartbeat.work_ended();
                Ok((self, output))
            }
            Err(cut_off) => {
                self.hold();
                Err(cut_off)
            }
        }
    }

    /// As [`supervise`](Self::supervise), for what comes before the operation and has no effect, such as the wait for a free
    /// place.
    ///
    /// ```
    /// use idemkit_core::{Begin, EffectiveKey, Engine, Fingerprint, MemoryStore, StoredResult};
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// # let places = tokio::sync::Semaphore::new(1);
    /// let engine = Engine::new(MemoryStore::new());
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// if let Begin::Proceed(guard) = engine.begin(key, Fingerprint::of_payload("…")).await {
    ///     if let Ok((guard, _place)) = guard.prepare(places.acquire()).await {
    ///         if let Ok((guard, result)) = guard.supervise(async { StoredResult::new(200, "charged") }).await {
    ///             let _completion = guard.complete(result).await;
    ///         }
    ///     }
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// [`CutOff`]: `preparation` was dropped, and the claim is released, since there is no effect that a retry could repeat.
    pub async fn prepare<W: Future>(self, preparation: W) -> Result<(Self, W::Output), CutOff> {
        match self.drive(preparation).await {
            Ok(output) => Ok((self, output)),
            Err(cut_off) => {
                self.release().await;
                Err(cut_off)
            }
        }
    }

    async fn drive<W: Future>(&self, work: W) -> Result<W::Output, CutOff> {
        tokio::select! {
            // What has ended has ended, even if the claim was lost at the same moment: its completion finds out.
            biased;
            ended = until(self.ends(), work) => ended.ok_or(CutOff::TimedOut),
            loss = self.lost() => Err(CutOff::LeaseLost(loss)),
        }
    }

    /// Ends when the operation must not go on, because another took over or the policy says so; never, while it may.
    ///
    /// Select on it beside the work. Under [`OnLeaseLost::LetItEnd`] it never ends.
    pub fn lost(&self) -> impl Future<Output = LeaseLoss> + Send + use<> {
        let Held { engine, policy, heartbeat, .. } = &self.held;
        let loss = heartbeat.loss(policy, engine.capabilities.take_over_margin);
        let lets_it_end = policy.on_lease_lost == OnLeaseLost::LetItEnd;
        async move {
            let loss = loss.await;
            if lets_it_end && loss == LeaseLoss::Fenced {
                std::future::pending::<()>().await;
            }
            loss
        }
    }

    /// Records `result`, to be replayed for as long as the policy says.
    ///
    /// Retried with the same token while the store is unavailable, until it is recorded, fenced, or the policy's budget
    /// is spent; the heartbeat goes on meanwhile.
    pub async fn complete(self, result: StoredResult) -> Completion {
        let expires_after = self.held.policy.expires_after;
        self.complete_as(Outcome::Result(result), expires_after).await
    }

    /// Records `outcome`, to be replayed for `expires_after` from now. As [`Guard::complete`] in all else.
    pub async fn complete_as(mut self, outcome: Outcome, expires_after: Ttl) -> Completion {
        let completion = match self.held.complete(outcome, expires_after).await {
            Err(error) if matches!(error.kind(), StoreErrorKind::ResultTooLarge { .. }) => {
                self.held.emit(EventKind::StorageError, Some(&error));
                self.held.unrecordable(expires_after).await
            }
            completion => self.held.ended(completion, Completion::Recorded),
        };
        self.ended = true;
        completion
    }

    /// The operation is done, and its result cannot be recorded: does what the policy says about that.
    pub async fn complete_unrecordable(mut self) -> Completion {
        let completion = self.held.unrecordable(self.held.policy.expires_after).await;
        self.ended = true;
        completion
    }

    /// Releases the claim: the operation ended without an effect that a retry must not repeat, and may run again at
    /// once.
    ///
    /// Says whether the store confirmed it. Where it did not, the claim is left to lapse.
    pub async fn release(mut self) -> bool {
        let released = self.held.release().await;
        self.ended = true;
        released
    }

    /// Hands the claim over to a transaction of the store's, which completes it together with the caller's own writes.
    ///
    /// The heartbeat ends, so that it cannot meet the transaction. Where the transaction does not commit, the claim is
    /// left to lapse; and whoever takes it over fences the transaction.
    pub fn hand_over(mut self) -> HeldClaim {
        self.ended = true;
        HeldClaim { key: self.held.subject.key, token: self.held.token }
    }

    /// Leaves the claim to lapse: the effect may still be under way, so nobody may run it before that.
    pub fn hold(mut self) {
        self.ended = true;
    }

    pub(super) fn policy(&self) -> &Policy {
        &self.held.policy
    }

    /// When the operation must have ended, where that is limited. Waiting for the claim does not count.
    fn ends(&self) -> Option<Instant> {
        self.held.policy.max_execution.map(|limit| self.held.claimed + limit.as_duration())
    }
}

impl Held {
    fn emit(&self, kind: EventKind, error: Option<&StoreError>) {
        self.engine.emit(kind, &self.subject, None, error);
    }

    /// Completes, and tries again while the store is unavailable.
    async fn complete(&self, outcome: Outcome, expires_after: Ttl) -> Result<CompleteOutcome, StoreError> {
        self.heartbeat.work_ended();
        let request = Complete::new(self.token, outcome, expires_after);
        let sent = Instant::now();
        let tries = Tries {
            store: self.engine.name(),
            end: sent + self.policy.complete_budget.as_duration(),
            each: self.policy.call_deadline(),
            pause_max: Duration::from_secs(1),
        };
        let mut told = false;
        let again = |error: &StoreError| {
            if error.is_retryable() && !std::mem::replace(&mut told, true) {
                self.emit(EventKind::StorageError, Some(error));
            }
            error.is_retryable() && !self.is_lost()
        };
        let completed = tries.send(again, || self.engine.store.complete(&self.subject.key, &request)).await;
        match completed {
            Ok(CompleteOutcome::Applied) => self.remember(request, sent),
            // The heartbeat has found out meanwhile what the completion could not be told.
            Err(_) if self.is_lost() => return Ok(CompleteOutcome::Fenced),
            Ok(CompleteOutcome::Fenced) | Err(_) => {}
        }
        completed
    }

    fn ended(&self, completed: Result<CompleteOutcome, StoreError>, applied: Completion) -> Completion {
        match completed {
            Ok(CompleteOutcome::Applied) => applied,
            Ok(CompleteOutcome::Fenced) => {
                self.emit(EventKind::LeaseReclaimedLoss, None);
                Completion::Fenced
            }
            Err(error) => {
                self.emit(EventKind::CompleteFailed, Some(&error));
                Completion::Failed(error)
            }
        }
    }

    async fn unrecordable(&self, expires_after: Ttl) -> Completion {
        match self.policy.on_unrecordable {
            OnUnrecordable::RecordUnavailable => {
                let completed = self.complete(Outcome::Unavailable, expires_after).await;
                self.ended(completed, Completion::RecordedUnavailable)
            }
            OnUnrecordable::Release if self.release().await => Completion::Released,
            OnUnrecordable::Release | OnUnrecordable::Hold => Completion::Held,
        }
    }

    async fn release(&self) -> bool {
        // A renewal that came behind the release would be fenced, and told as a loss.
        self.heartbeat.stop();
        let each = self.policy.call_deadline();
        let tries = Tries {
            store: self.engine.name(),
            end: Instant::now() + each,
            each,
            pause_max: Duration::from_millis(200),
        };
        let mut left = RELEASE_TRIES;
        let again = |error: &StoreError| {
            left -= 1;
            error.is_retryable() && left > 0
        };
        let request = Release::new(self.token);
        match tries.send(again, || self.engine.store.release(&self.subject.key, &request)).await {
            // Not held is no failure: the key is somebody else's, or vacant.
            Ok(ReleaseOutcome::Applied | ReleaseOutcome::NotHeld) => true,
            Err(error) => {
                self.emit(EventKind::StorageError, Some(&error));
                false
            }
        }
    }

    fn is_lost(&self) -> bool {
        *self.heartbeat.state().borrow() == LeaseState::Lost
    }

    /// Keeps what was completed in the local cache, counted from before the store knew of it.
    #[cfg(feature = "local-cache")]
    fn remember(&self, completed: Complete, sent: Instant) {
        if let Some(cache) = &self.engine.cache {
            let record = crate::CompletedRecord {
                fingerprint: self.fingerprint,
                outcome: completed.outcome,
                age: Duration::ZERO,
                expires_in: completed.expires_after.as_duration(),
            };
            cache.put(self.subject.key, &record, sent);
        }
    }

    #[cfg(not(feature = "local-cache"))]
    fn remember(&self, _: Complete, _: Instant) {}
}

/// `work`'s output, or nothing where it takes until `ends`.
pub(super) async fn until<W: Future>(ends: Option<Instant>, work: W) -> Option<W::Output> {
    match ends {
        Some(ends) => timeout_at(ends, work).await.ok(),
        None => Some(work.await),
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        if !self.ended {
            tracing::warn!(
                key = %self.held.subject.key,
                store = self.held.engine.name(),
                attempt = self.held.attempt,
                "a guard was dropped without completing, releasing or holding its claim, which is left to lapse"
            );
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Held { subject, attempt, kind, .. } = &self.held;
        f.debug_struct("Guard")
            .field("key", &subject.key)
            .field("attempt", attempt)
            .field("kind", kind)
            .finish_non_exhaustive()
    }
}

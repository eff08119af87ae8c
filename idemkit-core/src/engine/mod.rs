//! `begin` and `run`: an operation once per key, and its recorded result for every duplicate.

#[cfg(feature = "local-cache")]
mod cache;
mod call;
mod codec;
mod context;
mod guard;
mod heartbeat;
mod operation;
mod policy;
mod run;
mod unprotected;

use std::{fmt, future::Future, sync::Arc, time::Duration};

use tokio::{
    runtime::Handle,
    task::coop::consume_budget,
    time::{Instant, sleep},
};

#[cfg(feature = "local-cache")]
pub use self::cache::LocalCache;
#[cfg(feature = "json")]
pub use self::codec::Json;
use self::{
    call::{Tries, call},
    guard::Held,
    heartbeat::Heartbeat,
};
pub use self::{
    codec::{Codec, CodecError, Raw},
    context::Context,
    guard::{Completion, CutOff, Guard, HeldClaim},
    heartbeat::{HandOver, LeaseLoss},
    operation::{
        ErrorRules, NoReconcile, OnError, OnErrors, OpaqueErrors, Operation, Reconcile, Reconciled, RecordAll,
        RecordRule,
    },
    policy::{OnLeaseLost, OnUnconfirmed, OnUnrecordable, Policy, PolicyBuilder, StoragePolicy},
    run::{Provenance, Recording, Run, RunError},
    unprotected::Unprotected,
};
use crate::{
    Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, ClaimToken, CompletedRecord, EffectiveKey, Event,
    EventKind, Fingerprint, Observer, Outcome, Renew, RenewOutcome, Store, StoreError, StoreErrorKind, StoredResult,
    Ttl, WaitOutcome, backoff::Backoff, clock::later, event,
};

/// What one operation takes of its task's budget of cooperation. A task has 128 a turn, and a turn of tokio's
/// current-thread runtime ends 61 other tasks at most: fewer operations than that must fit in one.
const BUDGET_PER_OPERATION: usize = 4;

/// Runs operations once per key, on any store.
///
/// An engine is cheap to clone and meant to be shared: clones share the store, the observer and the cache. It needs a
/// tokio runtime with its time driver.
///
/// ```
/// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore, StoredResult};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// let request = Fingerprint::of_payload(r#"{"amount":5}"#);
/// for n in 1..=2 {
///     let run = engine
///         .run(key, request, async |_| Ok::<_, std::io::Error>(StoredResult::new(200, format!("charged by call {n}"))))
///         .await?;
///     assert_eq!(&run.value.body[..], b"charged by call 1");
///     assert_eq!(run.is_replayed(), n == 2);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    capabilities: Capabilities,
    policy: Policy,
    surface: Arc<str>,
    observer: Option<Arc<dyn Observer>>,
    #[cfg(feature = "local-cache")]
    cache: Option<cache::Cache>,
}

/// Builds an [`Engine`] that differs from the default.
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::{Engine, MemoryStore, Policy};
///
/// let engine = Engine::builder(MemoryStore::new())
///     .surface("webhooks")
///     .policy(Policy::builder().lease(Duration::from_secs(60)).build()?)
///     .build();
/// # Ok::<(), idemkit_core::InvalidDuration>(())
/// ```
#[must_use = "an engine is made by build()"]
pub struct EngineBuilder {
    store: Arc<dyn Store>,
    policy: Policy,
    surface: Arc<str>,
    observer: Option<Arc<dyn Observer>>,
    #[cfg(feature = "local-cache")]
    cache: Option<LocalCache>,
}

impl EngineBuilder {
    /// What holds for every operation that does not say otherwise.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// The name of what this engine serves, for events: `http`, `webhooks`, … (default `engine`).
    pub fn surface(mut self, surface: impl Into<Arc<str>>) -> Self {
        self.surface = surface.into();
        self
    }

    /// Who hears of every event, besides `tracing`.
    pub fn observer(mut self, observer: impl Observer) -> Self {
        self.observer = Some(Arc::new(observer));
        self
    }

    /// Keeps completed results in this process too.
    #[cfg(feature = "local-cache")]
    pub fn local_cache(mut self, cache: LocalCache) -> Self {
        self.cache = Some(cache);
        self
    }

    /// The engine.
    #[must_use]
    pub fn build(self) -> Engine {
        let inner = Inner {
            capabilities: self.store.capabilities(),
            store: self.store,
            policy: self.policy,
            surface: self.surface,
            observer: self.observer,
            #[cfg(feature = "local-cache")]
            cache: self.cache.map(cache::Cache::new),
        };
        Engine { inner: Arc::new(inner) }
    }
}

impl fmt::Debug for EngineBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EngineBuilder")
            .field("store", &self.store)
            .field("policy", &self.policy)
            .finish_non_exhaustive()
    }
}

/// What [`Engine::begin`] found.
#[derive(Debug)]
#[must_use = "an operation may run only where this says so"]
pub enum Begin {
    /// Run the operation, then complete or release the guard.
    Proceed(Guard),
    /// The operation is done: answer with its recorded result.
    Replay(Replay),
    /// The operation is done, and there is no result to replay. It must not run again.
    ResultUnavailable,
    /// The key was used with another request. Nothing of that request is told.
    Mismatch,
    /// The operation is under way elsewhere, and still was when the wait budget ended.
    InProgress {
        /// How long the present holder's claim holds, if it is not renewed.
        retry_after: Duration,
    },
    /// The store failed or its record cannot be read, and the operation must not run.
    Refused(StoreError),
    /// The store is unavailable, and the policy says to run the operation without protection.
    Unprotected(Unprotected),
}

/// A recorded result to answer a duplicate with.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Replay {
    /// The result, byte for byte. Cloning it copies no body.
    pub result: StoredResult,
    /// Whether it was recorded as a final error.
    pub is_error: bool,
}

/// The operation that an event or a heartbeat is about.
#[derive(Clone, Copy, Debug)]
struct Subject {
    key: EffectiveKey,
    attempt: Option<u32>,
    began: Instant,
}

impl Engine {
    /// An engine on `store` with the default policy.
    #[must_use]
    pub fn new(store: impl Store) -> Self {
        Self::builder(store).build()
    }

    /// Builds an engine that differs from the default.
    pub fn builder(store: impl Store) -> EngineBuilder {
        EngineBuilder {
            store: Arc::new(store),
            policy: Policy::default(),
            surface: Arc::from("engine"),
            observer: None,
            #[cfg(feature = "local-cache")]
            cache: None,
        }
    }

    /// An operation to be set up and then [run](Operation::run) or [begun](Operation::begin).
    pub fn operation(&self, key: EffectiveKey, fingerprint: Fingerprint) -> Operation<'_> {
        Operation::new(self, key, fingerprint)
    }

    /// Claims `key` for the request with `fingerprint`, or finds out what has become of it.
    ///
    /// A duplicate of an operation that is under way waits for it, and claims again when the key becomes vacant, all
    /// within the policy's wait budget. The fingerprint is compared before anything is replayed or waited for. Never
    /// runs anything by itself: the [guard](Begin::Proceed) does, under a heartbeat, until it is completed, released or
    /// dropped.
    pub async fn begin(&self, key: EffectiveKey, fingerprint: Fingerprint) -> Begin {
        self.operation(key, fingerprint).begin().await
    }

    /// Runs `operation` once for `key`, and replays its recorded result to every duplicate.
    ///
    /// The same as [`Operation::run`] with this engine's policy and raw results; [`Engine::operation`] has typed
    /// results and more.
    ///
    /// # Errors
    /// See [`RunError`].
    pub async fn run<E, F, Fut>(
        &self,
        key: EffectiveKey,
        fingerprint: Fingerprint,
        operation: F,
    ) -> Result<Run<StoredResult>, RunError<E>>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<StoredResult, E>>,
    {
        self.operation(key, fingerprint).run(operation).await
    }

    /// Tells of an operation that a surface runs without protection, by a policy of its own: as
    /// [`EventKind::RanUnprotected`].
    pub fn tell_unprotected(&self, key: EffectiveKey) {
        let subject = Subject { key, attempt: None, began: Instant::now() };
        self.inner.emit(EventKind::RanUnprotected, &subject, None, None);
    }

    /// What the store is and can do.
    #[must_use]
    pub fn capabilities(&self) -> Capabilities {
        self.inner.capabilities
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Engine")
            .field("store", &self.inner.store)
            .field("policy", &self.inner.policy)
            .field("surface", &self.inner.surface)
            .finish_non_exhaustive()
    }
}

impl Inner {
    fn name(&self) -> &'static str {
        self.capabilities.store
    }

    fn emit(&self, kind: EventKind, subject: &Subject, lease_left: Option<Duration>, error: Option<&StoreError>) {
        let event = Event {
            kind,
            key: subject.key,
            store: self.name(),
            surface: &self.surface,
            attempt: subject.attempt,
            elapsed: subject.began.elapsed(),
            lease_left,
            error,
        };
        event::emit(self.observer.as_deref(), &event);
    }

    async fn begin(self: &Arc<Self>, key: EffectiveKey, fingerprint: Fingerprint, policy: Policy) -> Begin {
        let mut attempt = Attempt {
            engine: self,
            subject: Subject { key, attempt: None, began: Instant::now() },
            fingerprint,
            policy,
            in_flight: None,
        };
        attempt.begin().await
    }
}

/// One call of `begin` on its way to a decision.
struct Attempt<'e> {
    engine: &'e Arc<Inner>,
    subject: Subject,
    fingerprint: Fingerprint,
    policy: Policy,
    /// When the present holder's claim ends if it is not renewed, once a holder was seen.
    in_flight: Option<Instant>,
}

impl Attempt<'_> {
    async fn begin(&mut self) -> Begin {
        if let Err(error) = Handle::try_current() {
            let refused = StoreError::new(self.engine.name(), StoreErrorKind::Misconfigured, Applied::No);
            return self.failed(refused.with_detail("idemkit needs a tokio runtime").with_source(error));
        }
        // On a store that never has to wait, operations that never have to either would give way to nobody, and their
        // ended heartbeats pile up.
        for _ in 0..BUDGET_PER_OPERATION {
            consume_budget().await;
        }
        #[cfg(feature = "local-cache")]
        if let Some(cached) = self.engine.cache.as_ref().and_then(|cache| cache.get(&self.subject.key)) {
            return self.completed(cached);
        }
        let wait_ends = self.policy.wait.map(|wait| self.subject.began + wait.as_duration());
        // A key that is reported vacant and then found held, again and again, must not become a hot loop.
        let mut contention = Backoff::new(Duration::from_millis(1), Duration::from_millis(50));
        let mut rounds = 0_u32;
        loop {
            let token = match ClaimToken::random() {
                Ok(token) => token,
                Err(error) => {
                    let error =
                        StoreError::new(self.engine.name(), StoreErrorKind::Other, Applied::No).with_source(error);
                    return self.failed(error.with_detail("no randomness for a claim token"));
                }
            };
            let sent = Instant::now();
            let held = match self.claim(sent, token).await {
                Err(error) => return self.failed(error),
                Ok(ClaimOutcome::Mismatch) => return self.mismatch(),
                Ok(ClaimOutcome::Completed(record)) => return self.decided(record, sent),
                Ok(ClaimOutcome::Acquired(acquired)) => match self.confirm(sent, token, acquired).await {
                    Ok(Some((sent, acquired))) => return self.acquired(token, sent, acquired),
                    // Taken over before it began: a duplicate like any other.
                    Ok(None) => continue,
                    Err(error) => return self.failed(error),
                },
                Ok(ClaimOutcome::InFlight(held)) => held,
            };
            if !held.fingerprint.matches(&self.fingerprint) {
                return self.mismatch();
            }
            let lease_ends = later(Instant::now(), held.lease_left);
            let first = self.in_flight.replace(lease_ends).is_none();
            let now = Instant::now();
            let Some(wait_ends) = wait_ends.filter(|ends| *ends > now) else { return self.in_progress() };
            if first {
                self.engine.emit(EventKind::InFlightWait, &self.subject, Some(held.lease_left), None);
            }
            rounds += 1;
            if rounds > 3 {
                sleep(contention.next_delay().min(wait_ends - now)).await;
            }
            let left = wait_ends.saturating_duration_since(Instant::now());
            let sent = Instant::now();
            match self.wait(left).await {
                Ok(WaitOutcome::Completed(record)) => return self.decided(record, sent),
                Ok(WaitOutcome::Vacant) => {}
                Ok(WaitOutcome::TimedOut { lease_left }) => {
                    // The holder has renewed meanwhile, and whoever retries should not come back before that ends.
                    self.in_flight = lease_left.map(|left| later(Instant::now(), left)).or(self.in_flight);
                    return self.in_progress();
                }
                Err(error) => return self.failed(error),
            }
        }
    }

    /// Claims; where the acknowledgement is lost, again with the same token, so that the key is not wedged by its own
    /// claim.
    async fn claim(&self, sent: Instant, token: ClaimToken) -> Result<ClaimOutcome, StoreError> {
        let claim = Claim::new(token, self.fingerprint, self.policy.lease);
        let each = self.policy.call_deadline();
        let tries = Tries { store: self.engine.name(), end: sent + each, each, pause_max: Duration::from_millis(200) };
        tries
            .send(
                |error| error.is_retryable() && error.may_be_applied(),
                || self.engine.store.claim(&self.subject.key, &claim),
            )
            .await
    }

    /// Renews a claim whose answer took as long as its lease: it may have been taken over on the way. `None` if it was.
    async fn confirm(
        &self,
        sent: Instant,
        token: ClaimToken,
        acquired: Acquired,
    ) -> Result<Option<(Instant, Acquired)>, StoreError> {
        let again = Instant::now();
        if later(sent, acquired.lease_left) > again {
            return Ok(Some((sent, acquired)));
        }
        let renew = Renew::new(token, self.policy.lease);
        let deadline = again + self.policy.call_deadline();
        match call(deadline, self.engine.name(), self.engine.store.renew(&self.subject.key, &renew)).await? {
            RenewOutcome::Renewed { lease_left } => Ok(Some((again, Acquired { lease_left, ..acquired }))),
            RenewOutcome::Fenced | RenewOutcome::Completed => Ok(None),
        }
    }

    /// Waits on the store, which keeps the time; the engine's own deadline is for a store that hangs.
    async fn wait(&self, left: Duration) -> Result<WaitOutcome, StoreError> {
        let deadline = Instant::now() + left + self.policy.call_deadline();
        call(deadline, self.engine.name(), self.engine.store.wait(&self.subject.key, Ttl::round_up(left))).await
    }

    fn acquired(&mut self, token: ClaimToken, sent: Instant, acquired: Acquired) -> Begin {
        self.subject.attempt = Some(acquired.attempt);
        let kind = match acquired.kind {
            ClaimKind::Fresh => EventKind::New,
            ClaimKind::Reclaimed => EventKind::LeaseReclaimed,
            ClaimKind::Recovered => EventKind::CorruptRecord,
        };
        self.engine.emit(kind, &self.subject, Some(acquired.lease_left), None);
        let heartbeat = Heartbeat::start(Arc::clone(self.engine), self.subject, self.policy, token, sent, acquired);
        let held = Held {
            engine: Arc::clone(self.engine),
            subject: self.subject,
            #[cfg(feature = "local-cache")]
            fingerprint: self.fingerprint,
            policy: self.policy,
            token,
            attempt: acquired.attempt,
            kind: acquired.kind,
            claimed: sent,
            heartbeat,
        };
        Begin::Proceed(Guard::new(held))
    }

    /// A record that the store has just shown, asked for at `sent`.
    fn decided(&self, record: CompletedRecord, sent: Instant) -> Begin {
        #[cfg(feature = "local-cache")]
        if let Some(cache) = &self.engine.cache {
            cache.put(self.subject.key, &record, sent);
        }
        #[cfg(not(feature = "local-cache"))]
        let _ = sent;
        self.completed(record)
    }

    fn completed(&self, record: CompletedRecord) -> Begin {
        if !record.fingerprint.matches(&self.fingerprint) {
            return self.mismatch();
        }
        self.engine.emit(EventKind::Replayed, &self.subject, None, None);
        match record.outcome {
            Outcome::Result(result) => Begin::Replay(Replay { result, is_error: false }),
            Outcome::Error(result) => Begin::Replay(Replay { result, is_error: true }),
            Outcome::Unavailable => Begin::ResultUnavailable,
        }
    }

    fn mismatch(&self) -> Begin {
        self.engine.emit(EventKind::PayloadMismatch, &self.subject, None, None);
        Begin::Mismatch
    }

    fn in_progress(&self) -> Begin {
        let now = Instant::now();
        let retry_after = self.in_flight.map_or(Duration::ZERO, |ends| ends.saturating_duration_since(now));
        self.engine.emit(EventKind::Conflict, &self.subject, Some(retry_after), None);
        Begin::InProgress { retry_after }
    }

    fn failed(&self, error: StoreError) -> Begin {
        let corrupt = error.kind() == StoreErrorKind::CorruptRecord;
        let kind = if corrupt { EventKind::CorruptRecord } else { EventKind::StorageError };
        self.engine.emit(kind, &self.subject, None, Some(&error));
        if self.policy.storage == StoragePolicy::FailClosed || error.kind() != StoreErrorKind::Unavailable {
            return Begin::Refused(error);
        }
        // Somebody was seen to hold the key: to run now would be to run twice, knowingly.
        if self.in_flight.is_some() {
            return self.in_progress();
        }
        self.engine.emit(EventKind::RanUnprotected, &self.subject, None, Some(&error));
        let (key, max_execution) = (self.subject.key, self.policy.max_execution);
        Begin::Unprotected(Unprotected { key, max_execution, error })
    }
}

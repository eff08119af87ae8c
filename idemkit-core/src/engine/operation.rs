//! One operation: set up, then begun or run.

use std::{future::Future, time::Duration};

#[cfg(feature = "json")]
use super::Json;
use super::{
    Begin, Codec, CodecError, Context, CutOff, Engine, Guard, LeaseLoss, Policy, Provenance, Raw, Recording, Replay,
    Run, RunError,
};
use crate::{
    Applied, ClaimKind, EffectiveKey, Fingerprint, InvalidDuration, Outcome, StoreError, StoreErrorKind, StoredResult,
    Ttl,
};

/// An operation under a key, to be set up and then [run](Operation::run) or [begun](Operation::begin).
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore, OnError, Raw, StoredResult};
///
/// #[derive(Debug, thiserror::Error)]
/// enum ChargeError {
///     #[error("no connection to the bank")]
///     NotSent,
///     #[error("no answer from the bank")]
///     NoAnswer,
/// }
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::function("charge", "1", "order-7", "tenant-1");
/// let run = engine
///     .operation(key, Fingerprint::of_payload("5 EUR"))
///     .lease(Duration::from_secs(60))
///     .on_error(|error: &ChargeError| match error {
///         ChargeError::NotSent => OnError::Release,
///         ChargeError::NoAnswer => OnError::Hold,
///     })
///     .run(async |_| Ok(StoredResult::new(200, "charged")))
///     .await?;
/// assert_eq!(&run.value.body[..], b"charged");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "an operation does nothing until it is run or begun"]
pub struct Operation<'e, C = Raw, P = RecordAll, R = OpaqueErrors, H = NoReconcile> {
    engine: &'e Engine,
    key: EffectiveKey,
    fingerprint: Fingerprint,
    policy: Policy,
    /// The first duration that was not valid: refused before any I/O.
    invalid: Option<InvalidDuration>,
    codec: C,
    record: P,
    errors: R,
    reconcile: H,
}

/// Which values are recorded.
pub trait RecordRule<T> {
    /// Whether `value` is to be recorded; the claim is released otherwise.
    fn records(&self, value: &T) -> bool;
}

/// Every value is recorded: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct RecordAll;

impl<T> RecordRule<T> for RecordAll {
    fn records(&self, _: &T) -> bool {
        true
    }
}

impl<T, F: Fn(&T) -> bool> RecordRule<T> for F {
    fn records(&self, value: &T) -> bool {
        self(value)
    }
}

/// What to do about an operation's error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// Release the claim: nothing happened that a retry must not repeat, and it may run at once. The default.
    #[default]
    Release,
    /// Leave the claim to lapse: the effect may still be under way.
    Hold,
    /// Record the error as final: duplicates get it, for so long (the policy's expiry, where `None`).
    Record {
        /// How long it is replayed.
        expires_after: Option<Ttl>,
    },
}

/// What to do about each error of an operation; its codec stores the final ones.
pub trait ErrorRules<E>: Codec<E> {
    /// What to do about `error`.
    fn decide(&self, error: &E) -> OnError;
}

/// Errors that have no stored form, and release the claim: the default.
///
/// One that is recorded as final all the same is recorded as the policy says of results that cannot be encoded.
#[derive(Clone, Copy, Debug, Default)]
pub struct OpaqueErrors;

impl<E> Codec<E> for OpaqueErrors {
    fn encode(&self, _: &E) -> Result<StoredResult, CodecError> {
        Err(CodecError::new("no codec for the operation's errors was given"))
    }

    fn decode(&self, _: &StoredResult) -> Result<E, CodecError> {
        Err(CodecError::new("no codec for the operation's errors was given"))
    }
}

impl<E> ErrorRules<E> for OpaqueErrors {
    fn decide(&self, _: &E) -> OnError {
        OnError::Release
    }
}

/// A decision for each error, and a codec for the final ones: see [`Operation::on_error`].
#[derive(Clone, Copy, Debug)]
pub struct OnErrors<F, C> {
    decide: F,
    codec: C,
}

impl<E, F, C: Codec<E>> Codec<E> for OnErrors<F, C> {
    fn encode(&self, error: &E) -> Result<StoredResult, CodecError> {
        self.codec.encode(error)
    }

    fn decode(&self, stored: &StoredResult) -> Result<E, CodecError> {
        self.codec.decode(stored)
    }
}

impl<E, F: Fn(&E) -> OnError, C: Codec<E>> ErrorRules<E> for OnErrors<F, C> {
    fn decide(&self, error: &E) -> OnError {
        (self.decide)(error)
    }
}

/// What the reconcile hook found out about the earlier attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reconciled<T> {
    /// The effect happened, with this result: record it, and do not run.
    Done(T),
    /// It did not happen: run.
    NotDone,
    /// It cannot be told: refuse, and leave the claim to lapse, so that the next attempt asks again.
    Unknown,
}

/// Finds out whether an earlier attempt had its effect.
pub trait Reconcile<T> {
    /// Runs the hook; `None` where there is none.
    fn reconcile(self, context: Context) -> Option<impl Future<Output = Reconciled<T>> + Send>;
}

/// No reconcile hook: the default.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoReconcile;

impl<T: Send> Reconcile<T> for NoReconcile {
    fn reconcile(self, _: Context) -> Option<impl Future<Output = Reconciled<T>> + Send> {
        None::<std::future::Ready<Reconciled<T>>>
    }
}

impl<T, F, Fut> Reconcile<T> for F
where
    F: FnOnce(Context) -> Fut,
    Fut: Future<Output = Reconciled<T>> + Send,
{
    fn reconcile(self, context: Context) -> Option<impl Future<Output = Reconciled<T>> + Send> {
        Some(self(context))
    }
}

impl<'e> Operation<'e> {
    pub(super) fn new(engine: &'e Engine, key: EffectiveKey, fingerprint: Fingerprint) -> Self {
        Self {
            policy: engine.inner.policy,
            engine,
            key,
            fingerprint,
            invalid: None,
            codec: Raw,
            record: RecordAll,
            errors: OpaqueErrors,
            reconcile: NoReconcile,
        }
    }
}

impl<'e, C, P, R, H> Operation<'e, C, P, R, H> {
    /// Another policy than the engine's.
    pub fn policy(mut self, policy: Policy) -> Self {
        self.policy = policy;
        self
    }

    /// How long the claim holds without renewal. Zero is refused before any I/O.
    pub fn lease(self, lease: Duration) -> Self {
        self.with_ttl(lease, |policy, ttl| policy.lease = ttl)
    }

    /// How long a duplicate waits. Zero is refused before any I/O; see [`Operation::no_wait`].
    pub fn wait(self, wait: Duration) -> Self {
        self.with_ttl(wait, |policy, ttl| policy.wait = Some(ttl))
    }

    /// A duplicate does not wait.
    pub fn no_wait(mut self) -> Self {
        self.policy.wait = None;
        self
    }

    /// How long the result is replayed, counted from its completion. Zero is refused before any I/O.
    pub fn expires_after(self, expires_after: Duration) -> Self {
        self.with_ttl(expires_after, |policy, ttl| policy.expires_after = ttl)
    }

    /// How long the operation may run. Zero is refused before any I/O.
    pub fn max_execution(self, limit: Duration) -> Self {
        self.with_ttl(limit, |policy, ttl| policy.max_execution = Some(ttl))
    }

    /// Values as JSON: any serde type.
    ///
    /// ```
    /// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore};
    ///
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Receipt {
    ///     charge: String,
    /// }
    ///
    /// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
    /// let engine = Engine::new(MemoryStore::new());
    /// let key = EffectiveKey::function("charge", "1", "order-7", "tenant-1");
    /// let receipt: Receipt = engine
    ///     .operation(key, Fingerprint::of_payload("5 EUR"))
    ///     .json()
    ///     .run(async |_| Ok::<_, std::io::Error>(Receipt { charge: "ch_1".into() }))
    ///     .await?
    ///     .into_value();
    /// assert_eq!(receipt.charge, "ch_1");
    /// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[cfg(feature = "json")]
    pub fn json(self) -> Operation<'e, Json, P, R, H> {
        self.codec(Json)
    }

    /// Values by a codec of the caller's own.
    pub fn codec<C2>(self, codec: C2) -> Operation<'e, C2, P, R, H> {
        let Self { engine, key, fingerprint, policy, invalid, codec: _, record, errors, reconcile } = self;
        Operation { engine, key, fingerprint, policy, invalid, codec, record, errors, reconcile }
    }

    /// Only values for which `records` says so are recorded; others release the claim, so that a retry may run at once.
    pub fn record_when<T, F: Fn(&T) -> bool>(self, records: F) -> Operation<'e, C, F, R, H> {
        let Self { engine, key, fingerprint, policy, invalid, codec, record: _, errors, reconcile } = self;
        Operation { engine, key, fingerprint, policy, invalid, codec, record: records, errors, reconcile }
    }

    /// Which errors release the claim, which leave it to lapse, and which are final. A final one is recorded as *done,
    /// result unavailable*, since it has no stored form; [`Operation::on_error_as`] gives it one.
    pub fn on_error<E, F: Fn(&E) -> OnError>(self, decide: F) -> Operation<'e, C, P, OnErrors<F, OpaqueErrors>, H> {
        self.on_error_as(OpaqueErrors, decide)
    }

    /// As [`Operation::on_error`]; final errors are stored as JSON, and replayed as that error.
    #[cfg(feature = "json")]
    pub fn on_error_json<E, F>(self, decide: F) -> Operation<'e, C, P, OnErrors<F, Json>, H>
    where
        E: serde::Serialize + serde::de::DeserializeOwned,
        F: Fn(&E) -> OnError,
    {
        self.on_error_as(Json, decide)
    }

    /// As [`Operation::on_error`]; final errors are stored by `codec`, and replayed as that error.
    pub fn on_error_as<E, EC: Codec<E>, F: Fn(&E) -> OnError>(
        self,
        codec: EC,
        decide: F,
    ) -> Operation<'e, C, P, OnErrors<F, EC>, H> {
        let errors = OnErrors { decide, codec };
        let Self { engine, key, fingerprint, policy, invalid, codec, record, errors: _, reconcile } = self;
        Operation { engine, key, fingerprint, policy, invalid, codec, record, errors, reconcile }
    }

    /// A hook that runs before the operation where an earlier attempt may have had its effect (the claim was taken
    /// over, or replaced a record that did not decode), under the same heartbeat. It is not asked where the operation
    /// runs without protection.
    pub fn reconcile<T, F, Fut>(self, hook: F) -> Operation<'e, C, P, R, F>
    where
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Reconciled<T>> + Send,
    {
        let Self { engine, key, fingerprint, policy, invalid, codec, record, errors, reconcile: _ } = self;
        Operation { engine, key, fingerprint, policy, invalid, codec, record, errors, reconcile: hook }
    }

    /// As [`Engine::begin`], with this operation's policy. Codecs, rules and hooks are for [`Operation::run`].
    pub async fn begin(self) -> Begin {
        let Self { engine, key, fingerprint, policy, invalid, .. } = self;
        begin(engine, key, fingerprint, policy, invalid).await
    }

    /// Runs `operation` once for the key, under a heartbeat, and records how it ended; replays what is recorded to
    /// every duplicate.
    ///
    /// What ends in order releases, what is cut off holds: an error (unless the rules say otherwise) or a value that is
    /// not to be recorded releases the claim, so that a retry may run at once; a dropped future, a panic or a time-out
    /// leaves it to lapse.
    ///
    /// # Errors
    /// See [`RunError`]. The operation's own error keeps its type.
    pub async fn run<T, E, F, Fut>(self, operation: F) -> Result<Run<T>, RunError<E>>
    where
        C: Codec<T>,
        P: RecordRule<T>,
        R: ErrorRules<E>,
        H: Reconcile<T>,
        F: FnOnce(Context) -> Fut,
        Fut: Future<Output = Result<T, E>>,
    {
        let Self { engine, key, fingerprint, policy, invalid, codec, record, errors, reconcile } = self;
        let begun = begin(engine, key, fingerprint, policy, invalid).await;
        let guard = match begun {
            Begin::Proceed(guard) => guard,
            Begin::Replay(Replay { result, is_error: false }) => {
                let value = codec.decode(&result).map_err(RunError::Undecodable)?;
                return Ok(Run { value, provenance: Provenance::Replayed });
            }
            Begin::Replay(Replay { result, is_error: true }) => {
                let error = errors.decode(&result).map_err(RunError::Undecodable)?;
                return Err(RunError::Operation { error, provenance: Provenance::Replayed });
            }
            Begin::ResultUnavailable => return Err(RunError::ResultUnavailable),
            Begin::Mismatch => return Err(RunError::Mismatch),
            Begin::InProgress { retry_after } => return Err(RunError::InProgress { retry_after }),
            Begin::Refused(error) => return Err(RunError::Refused(error)),
            Begin::Unprotected(unprotected) => {
                let ended = unprotected.supervise(operation(unprotected.context())).await;
                let provenance = Provenance::Unprotected(unprotected.error);
                return match ended {
                    Ok(Ok(value)) => Ok(Run { value, provenance }),
                    Ok(Err(error)) => Err(RunError::Operation { error, provenance }),
                    Err(_) => Err(RunError::TimedOut),
                };
            }
        };
        let context = guard.context();
        let attempt = context.attempt();
        let mut guard = guard;
        if context.claim_kind() != Some(ClaimKind::Fresh)
            && let Some(hook) = reconcile.reconcile(context.clone())
        {
            let (guarded, found) = supervise(guard, hook).await?;
            match found {
                Reconciled::NotDone => guard = guarded,
                Reconciled::Unknown => {
                    guarded.hold();
                    return Err(RunError::Unreconciled);
                }
                Reconciled::Done(value) => {
                    let ending = Ending::of_value(&codec, &value);
                    let recording = ending.apply(guarded).await.map_err(RunError::LeaseLost)?;
                    return Ok(Run { value, provenance: Provenance::Reconciled { attempt, recording } });
                }
            }
        }
        let (guard, ended) = supervise(guard, operation(context)).await?;
        let ending = match &ended {
            Ok(value) if record.records(value) => Ending::of_value(&codec, value),
            Ok(_) => Ending::Release,
            Err(error) => Ending::of_error(&errors, error),
        };
        let recording = ending.apply(guard).await.map_err(RunError::LeaseLost)?;
        let provenance = Provenance::Executed { attempt, recording };
        match ended {
            Ok(value) => Ok(Run { value, provenance }),
            Err(error) => Err(RunError::Operation { error, provenance }),
        }
    }

    fn with_ttl(mut self, duration: Duration, set: impl FnOnce(&mut Policy, Ttl)) -> Self {
        match Ttl::new(duration) {
            Ok(ttl) => set(&mut self.policy, ttl),
            Err(invalid) => self.invalid = Some(invalid),
        }
        self
    }
}

async fn begin(
    engine: &Engine,
    key: EffectiveKey,
    fingerprint: Fingerprint,
    policy: Policy,
    invalid: Option<InvalidDuration>,
) -> Begin {
    match invalid {
        Some(invalid) => Begin::Refused(
            StoreError::new(engine.inner.name(), StoreErrorKind::InvalidArgument, Applied::No).with_source(invalid),
        ),
        None => engine.inner.begin(key, fingerprint, policy).await,
    }
}

/// What is to become of a claim whose operation has ended, decided before anything is awaited: neither values nor
/// errors need be shared between threads.
enum Ending {
    /// Recorded as this, for so long (the policy's expiry, where `None`).
    Record(Outcome, Option<Ttl>),
    /// Done, and without a stored form.
    Unrecordable,
    Release,
    Hold,
}

impl Ending {
    fn of_value<T>(codec: &impl Codec<T>, value: &T) -> Self {
        Self::encoded(codec.encode(value), Outcome::Result, None)
    }

    fn of_error<E>(errors: &impl ErrorRules<E>, error: &E) -> Self {
        match errors.decide(error) {
            OnError::Release => Self::Release,
            OnError::Hold => Self::Hold,
            OnError::Record { expires_after } => Self::encoded(errors.encode(error), Outcome::Error, expires_after),
        }
    }

    fn encoded(
        encoded: Result<StoredResult, CodecError>,
        outcome: fn(StoredResult) -> Outcome,
        expires_after: Option<Ttl>,
    ) -> Self {
        match encoded {
            Ok(stored) => Self::Record(outcome(stored), expires_after),
            Err(error) => {
                let error = std::error::Error::source(&error).map(tracing::field::display);
                tracing::warn!(error, "the outcome of an idempotent operation cannot be encoded");
                Self::Unrecordable
            }
        }
    }

    async fn apply(self, guard: Guard) -> Result<Recording, LeaseLoss> {
        match self {
            Self::Record(..) | Self::Unrecordable if guard.is_handed_over() => {
                guard.hold();
                Ok(Recording::HandedOver)
            }
            Self::Record(outcome, expires_after) => {
                let expires_after = expires_after.unwrap_or(guard.policy().expires_after);
                Recording::of(guard.complete_as(outcome, expires_after).await)
            }
            Self::Unrecordable => Recording::of(guard.complete_unrecordable().await),
            Self::Release => Ok(if guard.release().await { Recording::Released } else { Recording::Held }),
            Self::Hold => {
                guard.hold();
                Ok(Recording::Held)
            }
        }
    }
}

async fn supervise<W: Future, E>(guard: Guard, work: W) -> Result<(Guard, W::Output), RunError<E>> {
    guard.supervise(work).await.map_err(|cut_off| match cut_off {
        CutOff::LeaseLost(loss) => RunError::LeaseLost(loss),
        CutOff::TimedOut => RunError::TimedOut,
    })
}

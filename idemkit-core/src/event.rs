//! What the engine tells about what it does: `tracing` events, and an observer of the user's own.

use std::{
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use crate::{EffectiveKey, StoreError};

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum EventKind {
    /// A fresh claim: the operation runs for the first time.
    New,
    /// A recorded outcome was replayed.
    Replayed,
    /// The operation is under way elsewhere; this duplicate begins to wait.
    InFlightWait,
    /// The operation was still under way when the wait budget ended.
    Conflict,
    /// The key was used with another request.
    PayloadMismatch,
    /// A lapsed claim was taken over.
    LeaseReclaimed,
    /// A late completion was fenced: another took over, and this execution's outcome is lost.
    LeaseReclaimedLoss,
    /// The lease ended without a confirmed renewal; nobody is known to have taken over.
    LeaseUnconfirmed,
    /// The store failed.
    StorageError,
    /// The store was unavailable and the operation ran without protection, as the policy says.
    RanUnprotected,
    /// A renewal was fenced: another took over while the operation was running.
    LeaseLost,
    /// The outcome could not be recorded within its budget; the claim is left to lapse.
    CompleteFailed,
    /// A record could not be read: replaced where it did not decode, refused where it is from a newer version.
    CorruptRecord,
}

impl EventKind {
    /// The event's name, as in logs and metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::New => "new",
            Self::Replayed => "replayed",
            Self::InFlightWait => "in_flight_wait",
            Self::Conflict => "conflict",
            Self::PayloadMismatch => "payload_mismatch",
            Self::LeaseReclaimed => "lease_reclaimed",
            Self::LeaseReclaimedLoss => "lease_reclaimed_loss",
            Self::LeaseUnconfirmed => "lease_unconfirmed",
            Self::StorageError => "storage_error",
            Self::RanUnprotected => "ran_unprotected",
            Self::LeaseLost => "lease_lost",
            Self::CompleteFailed => "complete_failed",
            Self::CorruptRecord => "corrupt_record",
        }
    }
}

impl fmt::Display for EventKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// One thing that happened to one operation.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Event<'a> {
    /// What happened.
    pub kind: EventKind,
    /// The hashed key. A raw key is never in an event.
    pub key: EffectiveKey,
    /// The store's name.
    pub store: &'static str,
    /// The surface that the operation came through, as the engine was named.
    pub surface: &'a str,
    /// The attempt, where it is known.
    pub attempt: Option<u32>,
    /// How long ago this operation began.
    pub elapsed: Duration,
    /// How long the claim still holds by this caller's count, where that is known.
    pub lease_left: Option<Duration>,
    /// The store's error, where there was one.
    pub error: Option<&'a StoreError>,
}

/// Hears of every event, on the task that runs the operation: return soon.
///
/// An observer that panics harms nothing (where panics unwind): the panic ends at the call.
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use idemkit_core::{Event, EventKind, Observer};
///
/// #[derive(Debug, Default)]
/// struct Replays(AtomicU64);
///
/// impl Observer for Replays {
///     fn on_event(&self, event: &Event<'_>) {
///         if event.kind == EventKind::Replayed {
///             self.0.fetch_add(1, Ordering::Relaxed);
///         }
///     }
/// }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Something happened.
    fn on_event(&self, event: &Event<'_>);
}

impl<O: Observer + ?Sized> Observer for Arc<O> {
    fn on_event(&self, event: &Event<'_>) {
        (**self).on_event(event);
    }
}

/// Tells `tracing` and the observer.
pub(crate) fn emit(observer: Option<&dyn Observer>, event: &Event<'_>) {
    trace(event);
    if let Some(observer) = observer
        && catch_unwind(AssertUnwindSafe(|| observer.on_event(event))).is_err()
    {
        tracing::error!(event = event.kind.name(), "the observer of idemkit's events panicked");
    }
}

fn trace(event: &Event<'_>) {
    // A level is part of a call site, so each level needs its own.
    macro_rules! at {
        ($level:ident) => {
            tracing::$level!(
                event = event.kind.name(),
                key = %event.key,
                store = event.store,
                surface = event.surface,
                attempt = event.attempt,
                elapsed_ms = whole_millis(event.elapsed),
                lease_left_ms = event.lease_left.map(whole_millis),
                error = event.error.map(tracing::field::display),
                "idempotent operation"
            )
        };
    }
    match event.kind {
        EventKind::New | EventKind::Replayed | EventKind::InFlightWait => at!(debug),
        EventKind::Conflict | EventKind::PayloadMismatch | EventKind::LeaseReclaimed => at!(info),
        EventKind::LeaseUnconfirmed
        | EventKind::StorageError
        | EventKind::RanUnprotected
        | EventKind::CorruptRecord => at!(warn),
        EventKind::LeaseLost | EventKind::LeaseReclaimedLoss | EventKind::CompleteFailed => at!(error),
    }
}

fn whole_millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

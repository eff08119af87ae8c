//! What is told of each request: a span, and metrics.

use std::time::Duration;

use idemkit_core::{EffectiveKey, EventKind};
use tracing::{Span, field::Empty};

/// The surface, in spans and metrics.
const SURFACE: &str = "http";

/// What became of a request. What the engine decides has the names of its events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Engine(EventKind),
    ResultUnavailable,
    MissingKey,
    InvalidKey,
    IdentityUnavailable,
    /// Too large, too slow, or broken off.
    Unreadable,
}

impl Decision {
    const fn name(self) -> &'static str {
        match self {
            Self::Engine(kind) => kind.name(),
            Self::ResultUnavailable => "result_unavailable",
            Self::MissingKey => "missing_key",
            Self::InvalidKey => "invalid_key",
            Self::IdentityUnavailable => "identity_unavailable",
            Self::Unreadable => "unreadable_request",
        }
    }
}

pub(crate) fn span(key: EffectiveKey, store: &'static str) -> Span {
    tracing::info_span!("idempotency", %key, store, surface = SURFACE, decision = Empty, attempt = Empty)
}

/// What is told of one request as it goes on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observed {
    pub(crate) store: &'static str,
}

impl Observed {
    /// It is decided, within the request's span.
    pub(crate) fn decided(self, decision: Decision, attempt: Option<u32>) {
        let span = Span::current();
        span.record("decision", decision.name());
        if let Some(attempt) = attempt {
            span.record("attempt", attempt);
        }
        self.counted(decision);
    }

    /// It is decided, and there is no span, since it is not known which operation it is.
    pub(crate) fn counted(self, decision: Decision) {
        #[cfg(feature = "metrics")]
        metrics::counter!(names::OPERATIONS, "decision" => decision.name(), "store" => self.store, "surface" => SURFACE)
            .increment(1);
        #[cfg(not(feature = "metrics"))]
        let _ = (decision, self.store);
    }

    /// How long it took until it was decided: the store's round trip, and a duplicate's wait for the first.
    pub(crate) fn waited(self, took: Duration) {
        #[cfg(feature = "metrics")]
        metrics::histogram!(names::WAIT, "store" => self.store, "surface" => SURFACE).record(took);
        #[cfg(not(feature = "metrics"))]
        let _ = took;
    }

    /// How long the whole of it took, until its answer was recorded and could go out.
    pub(crate) fn ended(self, took: Duration) {
        #[cfg(feature = "metrics")]
        metrics::histogram!(names::DURATION, "store" => self.store, "surface" => SURFACE).record(took);
        #[cfg(not(feature = "metrics"))]
        let _ = took;
    }
}

#[cfg(feature = "metrics")]
mod names {
    pub(super) const OPERATIONS: &str = "idemkit_operations_total";
    pub(super) const WAIT: &str = "idemkit_wait_seconds";
    pub(super) const DURATION: &str = "idemkit_operation_duration_seconds";
}

/// Describes the metrics to a recorder that is installed by now.
pub(crate) fn describe() {
    #[cfg(feature = "metrics")]
    {
        use metrics::Unit;
        metrics::describe_counter!(names::OPERATIONS, "Requests with an idempotency key, by what was decided");
        metrics::describe_histogram!(names::WAIT, Unit::Seconds, "From the claim to the decision");
        metrics::describe_histogram!(names::DURATION, Unit::Seconds, "From the claim to the answer, recorded");
    }
}

//! What a handler is told of its claim, and its hand-over to a transaction.

use std::{fmt, ops::Deref, sync::Arc};

use http::Response;
use idemkit_core::{Context, Fingerprint, HandOver, HeldClaim, Outcome, StoredResult, Transacted};

use crate::{body::Body, policy::Policy, problem::Problem};

/// A handler's claim: an extension of its request, and with the feature `axum` an extractor.
///
/// It derefs to [`Context`]: the attempt, whether an earlier one may have had its effect, what is left of the lease, the key for
/// the next system.
///
/// ```
/// use idemkit_http::{Body, RequestClaim};
///
/// fn handle(request: http::Request<Body>) {
///     if let Some(claim) = request.extensions().get::<RequestClaim>() {
///         if claim.is_retry() {
///             // Look whether the charge has already been made.
///         }
///         let _key_for_the_bank = claim.downstream_key().to_string();
///     }
/// }
/// ```
#[derive(Clone)]
pub struct RequestClaim {
    context: Context,
    hand_over: HandOver,
    fingerprint: Fingerprint,
    policy: Arc<Policy>,
}

/// Why a request that came through the layer has no claim.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Unclaimed {
    OtherMethod,
    NoKey,
    Unprotected,
}

/// An extension of an answer that is a refusal of the layer's kind, made by an extractor: the layer adds what all of its own have.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Refusal;

impl RequestClaim {
    pub(crate) fn new(context: Context, hand_over: HandOver, fingerprint: Fingerprint, policy: Arc<Policy>) -> Self {
        Self { context, hand_over, fingerprint, policy }
    }

    /// Hands the claim over to a transaction of the store's, which completes it together with the handler's own writes: the
    /// layer then records nothing. Where the handler's answer is no 2xx, the layer releases the claim (or
    /// [holds](crate::LayerBuilder::hold) it), which does nothing to a record that the transaction has completed.
    ///
    /// May be called again, to run a transaction again whose end is unknown.
    #[must_use = "nobody else completes the claim from here on"]
    pub fn hand_over(&self) -> HeldClaim {
        self.hand_over.hand_over()
    }

    /// The answer of a handler whose transaction has ended: `result`, which it has committed; or the replay of what had been
    /// recorded before it; or, where another has taken over, 409.
    #[must_use]
    pub fn answer<T>(&self, transacted: &Transacted<T>, result: &StoredResult) -> Response<Body> {
        match transacted {
            Transacted::Committed(_) => self.policy.committed(result),
            // Nobody's answer but that to this very request.
            Transacted::AlreadyCompleted(record) if record.fingerprint.matches(&self.fingerprint) => {
                match &record.outcome {
                    Outcome::Result(stored) | Outcome::Error(stored) => self.policy.replayed(stored),
                    Outcome::Unavailable => self.policy.refuse(Problem::ResultUnavailable),
                }
            }
            Transacted::AlreadyCompleted(_) | Transacted::Fenced => {
                let retry_after = self.context.lease_left().unwrap_or_default();
                self.policy.refuse(self.policy.in_progress(retry_after))
            }
        }
    }
}

impl Deref for RequestClaim {
    type Target = Context;

    fn deref(&self) -> &Context {
        &self.context
    }
}

impl fmt::Debug for RequestClaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RequestClaim").field(&self.context).finish()
    }
}

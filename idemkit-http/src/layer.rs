//! The layer and its service: store, then answer; and a handler that its client's hang-up does not stop.

use std::{
    fmt,
    future::{Future, pending, poll_fn},
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use http::{HeaderMap, Method, Request, Response, StatusCode, header, response::Parts};
use idemkit_core::{Begin, Completion, CutOff, EffectiveKey, Engine, EventKind, Fingerprint, Guard, Unprotected};
use tokio::{
    sync::oneshot,
    task::JoinError,
    time::{Instant, sleep},
};
use tower_layer::Layer;
use tower_service::Service;
use tracing::{Instrument as _, Span};

use crate::{
    answer::Unavailable,
    body::{Body, BoxError, Read},
    claim::{Refusal, RequestClaim, Unclaimed},
    observe::{Decision, Observed, span},
    policy::{LayerBuilder, OnHangUp, OnServiceError, OversizedRequest, Policy, Wait},
    problem::Problem,
    target::Target,
};

/// How long the claim of a client that has hung up may still take. A claim that takes effect and is not waited for would keep
/// the client's retry from the key until its lease ends; a duplicate that waits for another's answer need not wait on.
const CLAIM_AFTER_HANG_UP: Duration = Duration::from_secs(3);

/// Handles each request with an `Idempotency-Key` once, and replays its answer to every duplicate.
///
/// The inner service must not be asked for its answer twice at the price of an effect: that is all it takes. The layer asks it
/// whether it is ready only when a request is to be handled, so that a duplicate that waits holds no place of a
/// `ConcurrencyLimit` inside. See the [crate's page](crate) for the order of layers.
///
/// Cloning it is cheap; clones share their policy and the handlers that run.
#[derive(Clone)]
pub struct IdempotencyLayer {
    policy: Arc<Policy>,
}

impl IdempotencyLayer {
    /// Builds a layer on an engine. Say whose keys they are: [`LayerBuilder::scope`] or [`LayerBuilder::single_tenant`].
    pub fn builder(engine: Engine) -> LayerBuilder {
        LayerBuilder::new(engine)
    }

    pub(crate) fn of(policy: Policy) -> Self {
        Self { policy: Arc::new(policy) }
    }

    /// How many handlers run on tasks of their own, those whose client has hung up among them.
    #[must_use]
    pub fn running(&self) -> usize {
        self.policy.tasks.len()
    }

    /// Waits until no handler runs any more: call it when the server has ended, before the process does. What is dropped
    /// with the runtime is cut off, and its claim left to lapse.
    ///
    /// Put a time-out around it; each handler takes as long as it takes, or as the engine's `max_execution` allows.
    pub async fn drain(&self) {
        self.policy.tasks.close();
        self.policy.tasks.wait().await;
    }
}

impl<S> Layer<S> for IdempotencyLayer {
    type Service = IdempotencyService<S>;

    fn layer(&self, inner: S) -> Self::Service {
        IdempotencyService { inner, policy: Arc::clone(&self.policy) }
    }
}

impl fmt::Debug for IdempotencyLayer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("IdempotencyLayer").field(&self.policy).finish()
    }
}

/// An extension of a response that is a stream: it is passed on as it comes, and recorded as done without its body. Without it,
/// an answer is read to its end, or to a [limit](LayerBuilder::response_within), before it is sent. Event streams and gRPC need
/// none.
///
/// ```
/// use http::Response;
/// use idemkit_http::{Body, Streaming};
///
/// # fn lines() -> Body { Body::default() }
/// let mut response = Response::new(lines());
/// response.extensions_mut().insert(Streaming);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Streaming;

/// The service of an [`IdempotencyLayer`].
#[derive(Clone, Debug)]
pub struct IdempotencyService<S> {
    inner: S,
    policy: Arc<Policy>,
}

impl<S, B, R> Service<Request<B>> for IdempotencyService<S>
where
    S: Service<Request<Body>, Response = Response<R>> + Clone + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    B: http_body::Body + Send + 'static,
    B::Data: Send,
    B::Error: Into<BoxError>,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    type Response = Response<Body>;
    type Error = S::Error;
    type Future = Pin<Box<dyn Future<Output = Result<Response<Body>, S::Error>> + Send>>;

    /// Always: the inner service is asked when a request is to be handled by it.
    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        Box::pin(handle(self.inner.clone(), Arc::clone(&self.policy), request.map(Body::new)))
    }
}

/// The inner service, once it is ready.
async fn ask<S, R>(mut inner: S, request: Request<Body>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    poll_fn(|context| inner.poll_ready(context)).await?;
    inner.call(request).await.map(|response| response.map(Body::new))
}

/// As [`ask`], for a request that has no claim.
async fn pass<S, R>(
    inner: S,
    policy: &Policy,
    mut request: Request<Body>,
    why: Unclaimed,
) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    request.extensions_mut().insert(why);
    let mut response = ask(inner, request).await?;
    if response.extensions_mut().remove::<Refusal>().is_some() {
        policy.document(response.headers_mut());
    }
    Ok(response)
}

/// A request that is to be handled once.
struct Once<S> {
    inner: S,
    policy: Arc<Policy>,
    observed: Observed,
    key: EffectiveKey,
    fingerprint: Fingerprint,
    request: Request<Body>,
}

async fn handle<S, R>(inner: S, policy: Arc<Policy>, request: Request<Body>) -> Result<Response<Body>, S::Error>
where
    S: Service<Request<Body>, Response = Response<R>> + Send + 'static,
    S::Future: Send,
    S::Error: Send + 'static,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    if !policy.methods.contains(request.method()) {
        return pass(inner, &policy, request, Unclaimed::OtherMethod).await;
    }
    let observed = Observed { store: policy.engine.capabilities().store };
    let refused = |decision, problem: Problem| {
        observed.counted(decision);
        Ok(policy.refuse(problem))
    };
    let (mut parts, body) = request.into_parts();
    policy.hide_key(&mut parts.headers);
    let key = match policy.key(&parts) {
        Ok(Some(key)) => key,
        Ok(None) if policy.is_required => return refused(Decision::MissingKey, Problem::MissingKey),
        Ok(None) => {
            // For an extractor that refuses.
            parts.extensions.insert(observed);
            return pass(inner, &policy, Request::from_parts(parts, body), Unclaimed::NoKey).await;
        }
        Err(why) => return refused(Decision::InvalidKey, Problem::InvalidKey(why)),
    };
    let Some(scope) = policy.scope(&parts).await else {
        return refused(Decision::IdentityUnavailable, Problem::IdentityUnavailable);
    };
    let key = EffectiveKey::http(key.as_bytes(), scope, parts.method.as_str(), Target::original(&parts).path);
    if parts.extensions.get::<RequestClaim>().is_some_and(|outer| outer.key() == key) {
        // A layer outside of this one has the claim already: to ask for it again would be to wait for oneself.
        return ask(inner, Request::from_parts(parts, body)).await;
    }
    let (data, trailers) = match body.read(policy.request_bytes_max, policy.request_within).await {
        Read::Whole { data, trailers } => (data, trailers),
        Read::Longer(body) if policy.oversized == OversizedRequest::PassUnprotected => {
            policy.engine.tell_unprotected(key);
            observed.counted(Decision::Engine(EventKind::RanUnprotected));
            return pass(inner, &policy, Request::from_parts(parts, body), Unclaimed::Unprotected).await;
        }
        Read::Longer(_) => {
            let bytes_max = Some(policy.request_bytes_max);
            return refused(Decision::Unreadable, Problem::TooLarge { bytes_max });
        }
        Read::Late(_) => return refused(Decision::Unreadable, Problem::TooSlow),
        Read::Broken { is_limit: true, .. } => {
            return refused(Decision::Unreadable, Problem::TooLarge { bytes_max: None });
        }
        Read::Broken { .. } => return refused(Decision::Unreadable, Problem::BrokenOff),
    };
    let fingerprint = policy.fingerprint.fingerprint(&parts, &Target::original(&parts), &data);
    let request = Request::from_parts(parts, Body::whole(data, trailers));
    let span = span(key, observed.store);
    let once = Once { inner, policy, observed, key, fingerprint, request };
    match once.policy.on_hang_up {
        OnHangUp::Stop => once.run(pending()).instrument(span).await,
        OnHangUp::RunToTheEnd => {
            // On its own task: a client that hangs up and asks again is whom all this is for.
            let (here, gone) = oneshot::channel::<()>();
            let tasks = once.policy.tasks.clone();
            let gone = async move {
                _ = gone.await;
            };
            // Within the caller's span too, where the layer's own is filtered out.
            let ended = tasks.spawn(once.run(gone).instrument(span).instrument(Span::current())).await;
            drop(here);
            ended.unwrap_or_else(|error| Ok(cut_off(error)))
        }
    }
}

/// What is told where a task has not ended in order.
fn cut_off(error: JoinError) -> Response<Body> {
    match error.try_into_panic() {
        // As if it had run here: whoever catches the panics of handlers catches this one.
        Ok(panic) => resume_unwind(panic),
        // The runtime ends.
        Err(_) => Problem::StorageError.response(),
    }
}

impl<S, R> Once<S>
where
    S: Service<Request<Body>, Response = Response<R>>,
    R: http_body::Body + Send + 'static,
    R::Data: Send,
    R::Error: Into<BoxError>,
{
    /// `gone` ends when there is no client any more.
    async fn run(self, gone: impl Future<Output = ()>) -> Result<Response<Body>, S::Error> {
        let (began, observed) = (Instant::now(), self.observed);
        let given_up = async {
            gone.await;
            sleep(CLAIM_AFTER_HANG_UP).await;
        };
        let begun = tokio::select! {
            biased;
            begun = self.policy.begin(self.key, self.fingerprint) => begun,
            // Nobody reads this.
            () = given_up => return Ok(self.policy.refuse(self.policy.in_progress(Duration::ZERO))),
        };
        observed.waited(began.elapsed());
        let answer = self.answer(begun).await;
        observed.ended(began.elapsed());
        answer
    }

    async fn answer(self, begun: Begin) -> Result<Response<Body>, S::Error> {
        let (policy, observed) = (Arc::clone(&self.policy), self.observed);
        let decided = |decision| observed.decided(decision, None);
        let problem = match begun {
            Begin::Proceed(guard) => return self.execute(guard).await,
            Begin::Replay(replay) => {
                decided(Decision::Engine(EventKind::Replayed));
                return Ok(policy.replayed(&replay.result));
            }
            Begin::Unprotected(unprotected) => {
                decided(Decision::Engine(EventKind::RanUnprotected));
                return self.execute_unprotected(unprotected).await;
            }
            Begin::ResultUnavailable => {
                decided(Decision::ResultUnavailable);
                Problem::ResultUnavailable
            }
            Begin::Mismatch => {
                decided(Decision::Engine(EventKind::PayloadMismatch));
                policy.mismatch()
            }
            Begin::InProgress { retry_after } => {
                decided(Decision::Engine(EventKind::Conflict));
                policy.in_progress(retry_after)
            }
            // The engine has told of the error.
            Begin::Refused(_) => {
                decided(Decision::Engine(EventKind::StorageError));
                Problem::StorageError
            }
        };
        Ok(policy.refuse(problem))
    }

    async fn execute_unprotected(self, unprotected: Unprotected) -> Result<Response<Body>, S::Error> {
        let Self { inner, policy, mut request, .. } = self;
        request.extensions_mut().insert(unprotected.context());
        let handled = unprotected.supervise(pass(inner, &policy, request, Unclaimed::Unprotected)).await;
        handled.unwrap_or_else(|_| Ok(policy.refuse(Problem::StorageError)))
    }

    async fn execute(self, guard: Guard) -> Result<Response<Body>, S::Error> {
        let Self { mut inner, policy, observed, fingerprint, mut request, .. } = self;
        let context = guard.context();
        let kind = if context.is_retry() { EventKind::LeaseReclaimed } else { EventKind::New };
        observed.decided(Decision::Engine(kind), Some(context.attempt()));
        let claim = RequestClaim::new(context.clone(), guard.to_hand_over(), fingerprint, Arc::clone(&policy));
        request.extensions_mut().insert(claim);
        request.extensions_mut().insert(context.clone());
        let in_progress = || Ok(policy.refuse(policy.in_progress(context.lease_left().unwrap_or_default())));
        // Before it has the request, the inner service can have had no effect.
        let guard = match guard.prepare(poll_fn(|context| inner.poll_ready(context))).await {
            Ok((guard, Ok(()))) => guard,
            Ok((guard, Err(error))) => {
                guard.release().await;
                return Err(error);
            }
            Err(CutOff::LeaseLost(_)) => return in_progress(),
            Err(CutOff::TimedOut) => return Ok(policy.refuse(Problem::StorageError)),
        };
        let is_head = request.method() == Method::HEAD;
        let Ok((guard, handled)) = guard.supervise(inner.call(request)).await else {
            // Another is at it, or the effect may be under way still.
            return in_progress();
        };
        match handled.map(|response| response.map(Body::new)) {
            Ok(response) if policy.on_hang_up == OnHangUp::RunToTheEnd => {
                Ok(policy.record(guard, response, is_head).await)
            }
            // On a task of its own from here on: what has ended is recorded, whoever is there to hear of it.
            Ok(response) => {
                let tasks = policy.tasks.clone();
                let recorded = async move { policy.record(guard, response, is_head).await };
                Ok(tasks.spawn(recorded.in_current_span()).await.unwrap_or_else(cut_off))
            }
            Err(error) => {
                match policy.on_service_error {
                    OnServiceError::Hold => guard.hold(),
                    OnServiceError::Release => _ = guard.release().await,
                }
                Err(error)
            }
        }
    }
}

impl Policy {
    async fn begin(&self, key: EffectiveKey, fingerprint: Fingerprint) -> Begin {
        let operation = self.engine.operation(key, fingerprint);
        match self.wait {
            Wait::AsEngine => operation,
            Wait::Never => operation.no_wait(),
            Wait::For(wait) => operation.wait(wait),
        }
        .begin()
        .await
    }

    /// Records the handler's answer, and only then gives it out.
    async fn record(&self, guard: Guard, mut response: Response<Body>, is_head: bool) -> Response<Body> {
        let ending = self.ending(&response);
        if guard.is_handed_over() {
            // Recorded by the handler's own transaction, or not at all.
            if ending == Ending::Hold || response.status().is_success() {
                guard.hold();
            } else {
                guard.release().await;
            }
            return response;
        }
        self.not_its_own(response.headers_mut());
        match ending {
            Ending::Hold => {
                guard.hold();
                return response;
            }
            Ending::Release => {
                guard.release().await;
                return response;
            }
            Ending::Record | Ending::Unknown => {}
        }
        let (mut parts, body) = response.into_parts();
        let bytes_max = self.engine.capabilities().result_bytes_max.unwrap_or(u64::MAX).min(self.response_bytes_max);
        let (body, unavailable) = if ending == Ending::Unknown {
            unrecordable(guard, body, Unavailable::StorageError).await
        } else if is_stream(&parts) {
            unrecordable(guard, body, Unavailable::Streaming).await
        } else {
            match body.read(bytes_max, self.response_within).await {
                Read::Whole { data, .. } if !is_head && contradicts(&parts, data.len()) => {
                    let error = "the body is not as long as its Content-Length says";
                    unrecordable(guard, Body::broken(data, error.into()), Unavailable::StorageError).await
                }
                Read::Whole { data, trailers } => {
                    let unavailable = match self.kept(&parts, data.clone()) {
                        Some(stored) => why_unavailable(&guard.complete(stored).await),
                        None => {
                            why_unavailable(&guard.complete_unrecordable().await).map(|_| Unavailable::StorageError)
                        }
                    };
                    (Body::whole(data, trailers), unavailable)
                }
                Read::Longer(body) => unrecordable(guard, body, Unavailable::SizeExceeded).await,
                Read::Late(body) => unrecordable(guard, body, Unavailable::Streaming).await,
                // The handler has ended, and its answer broke off: nobody may run it again.
                Read::Broken { body, .. } => unrecordable(guard, body, Unavailable::StorageError).await,
            }
        };
        if let Some(unavailable) = unavailable {
            unavailable.tell(&mut parts.headers);
        }
        Response::from_parts(parts, body)
    }
}

/// What becomes of a claim whose handler has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    Record,
    Release,
    Hold,
    /// The policy's closure panicked: it fails closed, and the answer is recorded as done without its body.
    Unknown,
}

impl Policy {
    fn ending(&self, response: &Response<Body>) -> Ending {
        let status = response.status();
        let by_status = || {
            if self.held.contains(status) {
                Ending::Hold
            } else if self.recorded.contains(status) && !is_failed_call(response.headers()) {
                Ending::Record
            } else {
                Ending::Release
            }
        };
        catch_unwind(AssertUnwindSafe(by_status)).unwrap_or_else(|_| {
            tracing::error!("idemkit: the closure that says which answers are recorded or held panicked");
            Ending::Unknown
        })
    }
}

/// An answer that is passed on whole, and recorded as done without its body.
async fn unrecordable(guard: Guard, body: Body, why: Unavailable) -> (Body, Option<Unavailable>) {
    // Where that fails, too, the engine has told of it, and the client is told that there will be no replay.
    _ = guard.complete_unrecordable().await;
    (body, Some(why))
}

fn why_unavailable(completion: &Completion) -> Option<Unavailable> {
    match completion {
        Completion::Recorded => None,
        // The store's limit counts more than the body.
        Completion::RecordedUnavailable | Completion::Released | Completion::Held => Some(Unavailable::SizeExceeded),
        Completion::Fenced | Completion::Failed(_) => Some(Unavailable::StorageError),
    }
}

/// An event stream, which may never end; a call of gRPC's, whose status is in its trailers, which no replay has; or what the
/// handler says is one.
fn is_stream(parts: &Parts) -> bool {
    parts.extensions.get::<Streaming>().is_some()
        || is_of_type(&parts.headers, "text/event-stream")
        || is_of_type(&parts.headers, GRPC)
}

const GRPC: &str = "application/grpc";

fn is_of_type(headers: &HeaderMap, begin: &str) -> bool {
    let of = headers.get(header::CONTENT_TYPE).map(|of| of.as_bytes().to_ascii_lowercase());
    of.is_some_and(|of| of.starts_with(begin.as_bytes()))
}

/// A call of gRPC's that failed before it had anything to say: 200, and its status is among the headers.
fn is_failed_call(headers: &HeaderMap) -> bool {
    is_of_type(headers, GRPC) && headers.get("grpc-status").is_some_and(|status| status != "0")
}

/// Whether a body has another length than its header says. hyper would believe the body, and the client the header. (That of
/// 304 tells the length of what is not sent.)
fn contradicts(parts: &Parts, length: usize) -> bool {
    let said = parts.headers.get(header::CONTENT_LENGTH).and_then(|said| said.to_str().ok()?.parse::<usize>().ok());
    parts.status != StatusCode::NOT_MODIFIED && said.is_some_and(|said| said != length)
}

//! What the layer does with which requests.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header, request, response};
use idemkit_core::{ANONYMOUS_SCOPE, Engine, Fingerprint, Fingerprinter, InvalidDuration, StoredResult, Ttl};
use tokio_util::task::TaskTracker;

use crate::{
    IdempotencyKey, InvalidKey,
    body::{Body, BoxError},
    fingerprint::By,
    headers::HeaderLists,
    layer::IdempotencyLayer,
    observe,
    problem::Problem,
    statuses::Statuses,
};

/// What a request with a key may have, and what of an answer is kept, unless something else is said.
const BYTES_MAX: u64 = 1024 * 1024;
/// How long a request's body may take to arrive, and how long is waited for the end of an answer that is to be kept.
const BODY_WITHIN: Duration = Duration::from_secs(30);

const METHODS: [Method; 2] = [Method::POST, Method::PATCH];
const IN_PROGRESS: StatusCode = StatusCode::CONFLICT;
const MISMATCH: StatusCode = StatusCode::UNPROCESSABLE_ENTITY;
const REPLAYED: HeaderName = HeaderName::from_static("idempotency-replayed");

/// Whose key it is: two callers may choose the same.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scope {
    /// This caller: an account, a tenant, a user. Empty is none.
    Of(String),
    /// Nobody could be found out: the request fails, and its handler does not run.
    Unknown,
}

impl From<Option<String>> for Scope {
    fn from(scope: Option<String>) -> Self {
        scope.map_or(Self::Unknown, Self::Of)
    }
}

/// What becomes of a request with a key whose body is larger than may be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OversizedRequest {
    /// 413.
    #[default]
    Refuse,
    /// It is handled **without protection**, which is an event ([`RanUnprotected`](idemkit_core::EventKind::RanUnprotected)).
    PassUnprotected,
}

/// What becomes of a handler whose client hangs up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnHangUp {
    /// It runs to its end on a task of its own, and its answer is recorded: the client's retry gets it.
    #[default]
    RunToTheEnd,
    /// It is dropped, as it is without this layer. Its effect may have happened: the claim is left to lapse, and the client's
    /// retry waits for that.
    Stop,
}

/// What becomes of the claim where the inner service ends with an error, and no answer. (A handler of axum's cannot.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum OnServiceError {
    /// It is left to lapse: a time-out of `tower`'s inside is such an error, and the handler's effect may be under way.
    #[default]
    Hold,
    /// It is released, and a retry is handled at once: where no error of the service's can come after an effect.
    Release,
}

/// What clients of another idempotency layer expect.
///
/// A preset sets methods, waiting, the statuses of refusals, which answers are recorded, and the header of replays. What is set behind
/// it overrides it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Preset {
    /// As [draft-ietf-httpapi-idempotency-key-header] has it: 422 for another request under the key, 409 while the first is
    /// being handled, `Idempotency-Replayed: true` on replays. The default.
    ///
    /// [draft-ietf-httpapi-idempotency-key-header]: https://datatracker.ietf.org/doc/draft-ietf-httpapi-idempotency-key-header/
    #[default]
    Ietf,
    /// As Stripe's API: POST alone; 400 for another request under the key; 409, at once, while the first is being handled;
    /// every answer is recorded and replayed, a 500 too; `Idempotent-Replayed: true`. Errors are problem documents
    /// nevertheless.
    Stripe,
    /// As the Python package idemkit's default: 423 while the first is being handled, 422 for another request;
    /// 200, 201 and 202 are recorded; `Idempotency-Replayed: true`.
    IdemkitPy,
}

/// The builder was given something that cannot work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// Neither a scope was given, nor said that there is one tenant: then every caller would share every key.
    #[error("say whose keys they are: LayerBuilder::scope, or LayerBuilder::single_tenant")]
    NoScope,
    /// An address that is none.
    #[error("the documentation's address is no URL that a header can hold")]
    InvalidLink,
    /// A fingerprinter with a secret beside a closure that makes its own fingerprints: the secret would count for nothing. Let the
    /// closure use it.
    #[error(
        "LayerBuilder::fingerprint makes fingerprints of its own, and LayerBuilder::fingerprinter would count for nothing"
    )]
    TwoFingerprints,
    /// A wait of zero: say [`LayerBuilder::no_wait`].
    #[error("how long a duplicate waits cannot be that")]
    InvalidWait(#[source] InvalidDuration),
    /// A status that says that all is well, for a request that is refused.
    #[error("{0} is no status of an error of the client's")]
    NoClientError(StatusCode),
}

type ScopeFuture = Pin<Box<dyn Future<Output = Scope> + Send>>;
type ScopeOf = Arc<dyn Fn(&request::Parts) -> ScopeFuture + Send + Sync>;
type Redact = Arc<dyn Fn(&mut StoredResult) -> Result<(), BoxError> + Send + Sync>;
type OnReplay = Arc<dyn Fn(&mut response::Parts) + Send + Sync>;
type KeyFrom = Arc<dyn Fn(&request::Parts) -> Result<Option<IdempotencyKey>, InvalidKey> + Send + Sync>;

#[derive(Clone)]
enum KeySource {
    Header(HeaderName),
    Closure(KeyFrom),
}

/// How long a duplicate waits for the first.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wait {
    /// As the engine's policy says.
    AsEngine,
    Never,
    For(Duration),
}

#[derive(Clone)]
pub(crate) struct Policy {
    pub(crate) engine: Engine,
    key: KeySource,
    pub(crate) methods: Arc<[Method]>,
    pub(crate) is_required: bool,
    pub(crate) scope: Option<ScopeOf>,
    pub(crate) fingerprint: By,
    pub(crate) request_bytes_max: u64,
    pub(crate) request_within: Duration,
    pub(crate) oversized: OversizedRequest,
    pub(crate) response_bytes_max: u64,
    pub(crate) response_within: Duration,
    pub(crate) wait: Wait,
    in_progress: StatusCode,
    mismatch: StatusCode,
    /// The documentation's, or what cannot be one.
    link: Option<Result<HeaderValue, ()>>,
    pub(crate) recorded: Statuses,
    pub(crate) held: Statuses,
    pub(crate) headers: HeaderLists,
    pub(crate) replayed: HeaderName,
    pub(crate) redact: Option<Redact>,
    pub(crate) on_replay: Option<OnReplay>,
    pub(crate) on_hang_up: OnHangUp,
    pub(crate) on_service_error: OnServiceError,
    /// The handlers that run on their own.
    pub(crate) tasks: TaskTracker,
}

/// Builds an [`IdempotencyLayer`].
///
/// ```
/// use std::time::Duration;
/// use http::StatusCode;
/// use idemkit_core::{Engine, MemoryStore};
/// use idemkit_http::{IdempotencyLayer, Scope, Statuses};
///
/// let layer = IdempotencyLayer::builder(Engine::builder(MemoryStore::new()).surface("http").build())
///     .scope(|request| Scope::from(request.extensions.get::<String>().cloned()))
///     .require_key(true)
///     .record(Statuses::successes().and([StatusCode::UNPROCESSABLE_ENTITY]))
///     .wait(Duration::from_secs(3))
///     .build()?;
/// # Ok::<(), idemkit_http::BuildError>(())
/// ```
#[must_use = "a layer is made by build()"]
pub struct LayerBuilder {
    policy: Policy,
    fingerprinter: Option<Fingerprinter>,
}

impl LayerBuilder {
    pub(crate) fn new(engine: Engine) -> Self {
        let policy = Policy {
            engine,
            key: KeySource::Header(HeaderName::from_static("idempotency-key")),
            methods: Arc::new(METHODS),
            is_required: false,
            scope: None,
            fingerprint: By::Whole(Fingerprinter::default()),
            request_bytes_max: BYTES_MAX,
            request_within: BODY_WITHIN,
            oversized: OversizedRequest::default(),
            response_bytes_max: BYTES_MAX,
            response_within: BODY_WITHIN,
            wait: Wait::AsEngine,
            in_progress: IN_PROGRESS,
            mismatch: MISMATCH,
            link: None,
            recorded: Statuses::successes(),
            held: Statuses::set([]),
            headers: HeaderLists::default(),
            replayed: REPLAYED,
            redact: None,
            on_replay: None,
            on_hang_up: OnHangUp::default(),
            on_service_error: OnServiceError::default(),
            tasks: TaskTracker::new(),
        };
        Self { policy, fingerprinter: None }
    }

    /// What clients of another layer expect. **Say it first**: it overrides what was set before it.
    pub fn preset(mut self, preset: Preset) -> Self {
        let policy = &mut self.policy;
        policy.methods = Arc::new(METHODS);
        (policy.in_progress, policy.mismatch) = (IN_PROGRESS, MISMATCH);
        policy.wait = Wait::AsEngine;
        policy.recorded = Statuses::successes();
        policy.replayed = REPLAYED;
        match preset {
            Preset::Ietf => {}
            Preset::Stripe => {
                policy.methods = Arc::new([Method::POST]);
                policy.mismatch = StatusCode::BAD_REQUEST;
                policy.wait = Wait::Never;
                let server_errors = (500..600).filter_map(|code| StatusCode::from_u16(code).ok());
                policy.recorded = Statuses::when(|status| !status.is_informational()).and(server_errors);
                policy.replayed = HeaderName::from_static("idempotent-replayed");
            }
            Preset::IdemkitPy => {
                policy.in_progress = StatusCode::LOCKED;
                policy.recorded = Statuses::set([StatusCode::OK, StatusCode::CREATED, StatusCode::ACCEPTED]);
            }
        }
        self
    }

    /// Whose key a request's is: an authenticated caller, never a name that the client may choose.
    pub fn scope(self, of: impl Fn(&request::Parts) -> Scope + Send + Sync + 'static) -> Self {
        self.scope_async(move |parts| {
            let scope = of(parts);
            async move { scope }
        })
    }

    /// As [`scope`](Self::scope), where it takes a look-up. The future gets what the closure has taken from the request.
    pub fn scope_async<F>(mut self, of: impl Fn(&request::Parts) -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Scope> + Send + 'static,
    {
        self.policy.scope = Some(Arc::new(move |parts| Box::pin(of(parts))));
        self
    }

    /// There is one tenant: keys of all callers are one space.
    pub fn single_tenant(self) -> Self {
        self.scope(|_| Scope::Of(ANONYMOUS_SCOPE.to_owned()))
    }

    /// The methods that are looked at (default POST and PATCH).
    pub fn methods(mut self, methods: impl IntoIterator<Item = Method>) -> Self {
        self.policy.methods = methods.into_iter().collect();
        self
    }

    /// The header that holds the key (default `Idempotency-Key`).
    pub fn key_header(mut self, name: HeaderName) -> Self {
        self.policy.key = KeySource::Header(name);
        self
    }

    /// Where else the key comes from, such as a webhook's own header or the request's path.
    pub fn key_from(
        mut self,
        of: impl Fn(&request::Parts) -> Result<Option<IdempotencyKey>, InvalidKey> + Send + Sync + 'static,
    ) -> Self {
        self.policy.key = KeySource::Closure(Arc::new(of));
        self
    }

    /// Whether a request without a key is refused (default no: it is handled without protection).
    pub fn require_key(mut self, required: bool) -> Self {
        self.policy.is_required = required;
        self
    }

    /// Keys the fingerprints of requests by a secret (default: plain hashes). See [`Fingerprinter::keyed`].
    pub fn fingerprinter(mut self, fingerprinter: Fingerprinter) -> Self {
        self.fingerprinter = Some(fingerprinter);
        self
    }

    /// Compares of a JSON body these members of its object alone, so that a time stamp or a nonce of the client's does not make
    /// another request of a retry. Method, path and query count as ever, and so does, whole, a body that is no JSON object or has none of
    /// these members.
    pub fn fingerprint_members(mut self, names: impl IntoIterator<Item = impl Into<String>>) -> Self {
        self.policy.fingerprint = By::Members(Fingerprinter::default(), names.into_iter().map(Into::into).collect());
        self
    }

    /// Compares requests as a closure says. What it leaves out, a client may change under the same key, and gets the first
    /// answer.
    pub fn fingerprint(mut self, of: impl Fn(&request::Parts, &Bytes) -> Fingerprint + Send + Sync + 'static) -> Self {
        self.policy.fingerprint = By::Closure(Arc::new(of));
        self
    }

    /// The largest body of a request with a key (default 1 MiB), and what becomes of a larger one.
    pub fn request_bytes_max(mut self, bytes: u64, oversized: OversizedRequest) -> Self {
        (self.policy.request_bytes_max, self.policy.oversized) = (bytes, oversized);
        self
    }

    /// How long the body of a request with a key may take to arrive (default 30 s); after that, 408.
    pub fn request_within(mut self, within: Duration) -> Self {
        self.policy.request_within = within;
        self
    }

    /// The largest body of an answer that is kept (default 1 MiB, and no more than the store holds). A larger one is passed on
    /// whole, and recorded as done without it.
    pub fn response_bytes_max(mut self, bytes: u64) -> Self {
        self.policy.response_bytes_max = bytes;
        self
    }

    /// How long is waited for the end of an answer's body that is to be kept (default 30 s). One that takes longer is a stream,
    /// passed on whole, and recorded as done without it.
    pub fn response_within(mut self, within: Duration) -> Self {
        self.policy.response_within = within;
        self
    }

    /// A duplicate of a request that is being handled is refused at once (default: it waits as long as the engine's policy says).
    pub fn no_wait(mut self) -> Self {
        self.policy.wait = Wait::Never;
        self
    }

    /// How long a duplicate waits for the answer of a request that is being handled.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.policy.wait = Wait::For(wait);
        self
    }

    /// The status for a duplicate of a request that is still being handled (default 409; 423 is another custom).
    pub fn in_progress_status(mut self, status: StatusCode) -> Self {
        self.policy.in_progress = status;
        self
    }

    /// The status for another request under the same key (default 422).
    pub fn mismatch_status(mut self, status: StatusCode) -> Self {
        self.policy.mismatch = status;
        self
    }

    /// Where a client's developer reads how keys are used here: told with each refusal, as `Link` with `rel="describedby"`.
    pub fn documentation(mut self, url: &str) -> Self {
        let is_url =
            !url.is_empty() && !url.contains(|c: char| c.is_whitespace() || c.is_control() || "<>\"".contains(c));
        let link = HeaderValue::from_str(&format!("<{url}>; rel=\"describedby\""));
        self.policy.link = Some(link.ok().filter(|_| is_url).ok_or(()));
        self
    }

    /// Which answers are recorded (default 2xx). Others release the key, so that a retry is handled again.
    pub fn record(mut self, statuses: Statuses) -> Self {
        self.policy.recorded = statuses;
        self
    }

    /// Which answers leave the claim to lapse (default none): those that say that the effect may still be under way, such as a
    /// gateway's 504. They are neither recorded nor released.
    pub fn hold(mut self, statuses: Statuses) -> Self {
        self.policy.held = statuses;
        self
    }

    /// The headers of an answer that are kept, instead of the default's. Those that [are never kept](Self::never_stored_headers)
    /// are not, though they be named here.
    pub fn stored_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.policy.headers.kept = names.into_iter().collect();
        self
    }

    /// The headers that are never kept, instead of the default's: `Set-Cookie`, `Authorization`, `WWW-Authenticate`, `Vary` and
    /// those of one connection. A cookie that is replayed is one client's session in another's hands.
    pub fn never_stored_headers(mut self, names: impl IntoIterator<Item = HeaderName>) -> Self {
        self.policy.headers.never = names.into_iter().collect();
        self
    }

    /// The header that marks a replay (default `Idempotency-Replayed`; `Idempotent-Replayed` is another custom). Its value is
    /// `true`.
    pub fn replayed_header(mut self, name: HeaderName) -> Self {
        self.policy.replayed = name;
        self
    }

    /// Takes out of an answer what must not be stored, before it is. The first client gets it whole; a duplicate does not.
    ///
    /// It fails closed: where it returns an error or panics, the answer is not stored at all, and duplicates are told that there is
    /// none.
    pub fn redact<E: Into<BoxError>>(
        mut self,
        redact: impl Fn(&mut StoredResult) -> Result<(), E> + Send + Sync + 'static,
    ) -> Self {
        self.policy.redact = Some(Arc::new(move |stored| redact(stored).map_err(Into::into)));
        self
    }

    /// Changes the head of every replay: a header of today's, say.
    pub fn on_replay(mut self, hook: impl Fn(&mut response::Parts) + Send + Sync + 'static) -> Self {
        self.policy.on_replay = Some(Arc::new(hook));
        self
    }

    /// What becomes of a handler whose client hangs up (default: it runs to its end, and its answer is recorded).
    pub fn on_hang_up(mut self, choice: OnHangUp) -> Self {
        self.policy.on_hang_up = choice;
        self
    }

    /// What becomes of the claim where the inner service ends with an error (default: it is left to lapse).
    pub fn on_service_error(mut self, choice: OnServiceError) -> Self {
        self.policy.on_service_error = choice;
        self
    }

    /// The layer.
    ///
    /// # Errors
    /// [`BuildError`]: nothing was said of whose keys they are, a refusal has a status that is none, a link is no URL, a wait is zero, or
    /// a fingerprinter would count for nothing.
    pub fn build(mut self) -> Result<IdempotencyLayer, BuildError> {
        if let Some(chosen) = self.fingerprinter {
            match &mut self.policy.fingerprint {
                By::Whole(fingerprinter) | By::Members(fingerprinter, _) => *fingerprinter = chosen,
                By::Closure(_) => return Err(BuildError::TwoFingerprints),
            }
        }
        if self.policy.scope.is_none() {
            return Err(BuildError::NoScope);
        }
        if self.policy.link == Some(Err(())) {
            return Err(BuildError::InvalidLink);
        }
        if let Wait::For(wait) = self.policy.wait {
            Ttl::new(wait).map_err(BuildError::InvalidWait)?;
        }
        for status in [self.policy.in_progress, self.policy.mismatch] {
            if !status.is_client_error() {
                return Err(BuildError::NoClientError(status));
            }
        }
        observe::describe();
        Ok(IdempotencyLayer::of(self.policy))
    }
}

impl Policy {
    /// So that nobody's `Debug` of the headers shows the raw key.
    pub(crate) fn hide_key(&self, headers: &mut HeaderMap) {
        if let KeySource::Header(name) = &self.key
            && let header::Entry::Occupied(mut keys) = headers.entry(name)
        {
            keys.iter_mut().for_each(|key| key.set_sensitive(true));
        }
    }

    pub(crate) fn key(&self, parts: &request::Parts) -> Result<Option<IdempotencyKey>, InvalidKey> {
        match &self.key {
            KeySource::Header(name) => IdempotencyKey::of(&parts.headers, name),
            KeySource::Closure(of) => of(parts),
        }
    }

    pub(crate) async fn scope(&self, parts: &request::Parts) -> Option<String> {
        match self.scope.as_ref()?(parts).await {
            Scope::Of(scope) => Some(scope).filter(|scope| !scope.is_empty()),
            Scope::Unknown => None,
        }
    }

    /// What a client is told instead of its handler's answer.
    pub(crate) fn refuse(&self, problem: Problem) -> Response<Body> {
        let mut response = problem.response();
        self.document(response.headers_mut());
        response
    }

    /// Says where a refused client's developer reads how keys are used.
    pub(crate) fn document(&self, headers: &mut HeaderMap) {
        if let Some(Ok(link)) = &self.link {
            headers.insert(header::LINK, link.clone());
        }
    }

    pub(crate) fn in_progress(&self, retry_after: Duration) -> Problem {
        Problem::InProgress { status: self.in_progress, retry_after }
    }

    pub(crate) fn mismatch(&self) -> Problem {
        Problem::PayloadMismatch { status: self.mismatch }
    }
}

impl fmt::Debug for LayerBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.policy.fmt(f)
    }
}

impl fmt::Debug for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Policy")
            .field("engine", &self.engine)
            .field("methods", &self.methods)
            .field("is_required", &self.is_required)
            .field("fingerprint", &self.fingerprint)
            .field("request_bytes_max", &self.request_bytes_max)
            .field("response_bytes_max", &self.response_bytes_max)
            .field("recorded", &self.recorded)
            .finish_non_exhaustive()
    }
}

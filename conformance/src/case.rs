//! What a vector works with: its own namespace, two handles, requests, and a note of every step.

use std::{
    collections::{BTreeMap, VecDeque},
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use idemkit_core::{
    Capabilities, Claim, ClaimToken, Complete, DecidingClock, EffectiveKey, Fingerprint, Outcome, Release, Renew,
    Store, StoreError, StoreErrorKind, StoredResult, Ttl, WaitOutcome,
};
use tokio::time::{Instant, sleep};

use crate::{
    factory::{BoxError, Factory, Opening, Spoil, Spoiled},
    model::{Op, Reply},
};

/// A lease or an expiry that outlives the run. Shorter than [`HOUR`], so that a store which judges by a skewed handle's
/// clock takes it for over.
pub(crate) const LONG: Duration = Duration::from_secs(30 * 60);
/// A lease that is let lapse. Not shorter: no call to a store may last longer than the lease that it concerns.
pub(crate) const SHORT: Duration = Duration::from_secs(1);
/// An expiry that is over at once.
pub(crate) const INSTANT: Duration = Duration::from_millis(1);
/// How wrong the clock of a host may be where another clock decides.
pub(crate) const HOUR: Duration = Duration::from_secs(60 * 60);
/// How much a duration may be off because clocks count in whole milliseconds.
pub(crate) const GRAIN: Duration = Duration::from_millis(3);

/// How long a request takes at most that is not held up: half of [`SHORT`], which is over when it takes twice as long.
const HELD_UP: Duration = Duration::from_millis(500);

/// How many steps are kept for a failure.
const STEPS_MAX: usize = 40;

/// Why a vector ended before its end.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The store broke the contract: what was expected and seen.
    Failed(String),
    /// There is nothing to check, for a declared reason.
    NotApplicable(String),
}

pub(crate) type Checked<T = ()> = Result<T, Stop>;

/// The vector fails unless `holds`, with what was expected and seen.
pub(crate) fn check(holds: bool, explanation: impl FnOnce() -> String) -> Checked {
    if holds { Ok(()) } else { Err(Stop::Failed(explanation())) }
}

/// The vector fails unless the two are equal.
pub(crate) fn expect<T: fmt::Debug + PartialEq>(what: &str, expected: &T, seen: &T) -> Checked {
    check(expected == seen, || format!("{what}: expected {expected:?}, saw {seen:?}"))
}

pub(crate) fn not_applicable<T>(reason: impl Into<String>) -> Checked<T> {
    Err(Stop::NotApplicable(reason.into()))
}

pub(crate) fn ttl(duration: Duration) -> Ttl {
    Ttl::new(duration).unwrap_or(Ttl::MIN)
}

/// How the server answers, over all vectors of a run: one that stalls does so for all that ask it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Answering(Arc<Mutex<Asked>>);

#[derive(Debug, Default)]
struct Asked {
    next: u64,
    /// When those were sent that have no answer yet.
    open: BTreeMap<u64, Instant>,
    /// The last request that was held up, and until when.
    held_up: Option<(Instant, String)>,
}

/// A request on its way. One that is dropped tells nothing.
struct OnItsWay<'a> {
    answering: &'a Answering,
    number: u64,
}

impl Answering {
    fn asks(&self) -> OnItsWay<'_> {
        let mut asked = lock(&self.0);
        let number = asked.next;
        asked.next += 1;
        asked.open.insert(number, Instant::now());
        OnItsWay { answering: self, number }
    }

    /// A request that was held up at some moment since `began`, or is.
    pub(crate) fn stalled_since(&self, began: Instant) -> Option<String> {
        let asked = lock(&self.0);
        let ended = asked.held_up.as_ref().filter(|(until, _)| *until >= began).map(|(_, request)| request.clone());
        // The first is the oldest.
        let waits = || asked.open.values().next().map(Instant::elapsed).filter(|waited| *waited >= HELD_UP);
        ended.or_else(|| waits().map(|waited| format!("a request that has had no answer for {waited:?}")))
    }
}

impl Drop for OnItsWay<'_> {
    fn drop(&mut self) {
        lock(&self.answering.0).open.remove(&self.number);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The steps so far, shared by all handles of a vector.
#[derive(Clone, Debug)]
pub(crate) struct Steps {
    noted: Arc<Mutex<Noted>>,
    answering: Answering,
}

#[derive(Debug, Default)]
struct Noted {
    last: VecDeque<Step>,
    slowest: Duration,
}

/// Written out only where a vector fails: races have many thousands of steps.
#[derive(Clone, Debug)]
enum Step {
    Asked { handle: &'static str, op: Box<Op>, reply: Result<Reply, StoreError>, took: Duration },
    Told(String),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Asked { handle, op, reply: Ok(reply), took } => write!(f, "{handle} {op:?} → {reply:?}, in {took:?}"),
            Self::Asked { handle, op, reply: Err(error), took } => {
                write!(f, "{handle} {op:?} → error: {}, in {took:?}", chain(error))
            }
            Self::Told(text) => f.write_str(text),
        }
    }
}

impl Steps {
    pub(crate) fn new(answering: Answering) -> Self {
        Self { noted: Arc::default(), answering }
    }

    fn tell(&self, text: String) {
        self.note(Step::Told(text));
    }

    fn note(&self, step: Step) {
        let mut noted = self.noted();
        if let Step::Asked { took, .. } = step {
            noted.slowest = noted.slowest.max(took);
        }
        if noted.last.len() == STEPS_MAX {
            noted.last.pop_front();
        }
        noted.last.push_back(step);
    }

    pub(crate) fn take(&self) -> Vec<String> {
        self.noted().last.drain(..).map(|step| step.to_string()).collect()
    }

    /// How long the slowest request took.
    fn slowest(&self) -> Duration {
        self.noted().slowest
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        lock(&self.noted)
    }
}

/// A handle on the store, as one process has it.
#[derive(Clone, Debug)]
pub(crate) struct Handle {
    pub(crate) store: Arc<dyn Store>,
    name: &'static str,
    steps: Steps,
}

impl Handle {
    /// Sends a request, whatever becomes of it; of an error its kind is told.
    pub(crate) async fn send(&self, key: &EffectiveKey, op: &Op) -> Reply {
        self.ask(key, op).await.unwrap_or_else(|error| Reply::Error(error.kind()))
    }

    /// Sends a request, whatever becomes of it.
    pub(crate) async fn ask(&self, key: &EffectiveKey, op: &Op) -> Result<Reply, StoreError> {
        let sent = Instant::now();
        let on_its_way = self.steps.answering.asks();
        let reply = op.send(&self.store, key).await;
        drop(on_its_way);
        let took = sent.elapsed();
        let step = Step::Asked { handle: self.name, op: Box::new(op.clone()), reply: reply.clone(), took };
        let is_unavailable = reply.as_ref().is_err_and(|error| error.kind() == StoreErrorKind::Unavailable);
        if took >= HELD_UP || is_unavailable && took + GRAIN >= op.may_take() {
            lock(&self.steps.answering.0).held_up = Some((Instant::now(), step.to_string()));
        }
        self.steps.note(step);
        reply
    }

    /// Sends a request that must be answered with `expected`, times aside.
    pub(crate) async fn must(&self, key: &EffectiveKey, op: &Op, expected: &Reply) -> Checked<Reply> {
        let seen = self.send(key, op).await;
        let told = seen.clone().without_times();
        check(told == *expected, || format!("{} {op:?}: expected {expected:?}, saw {told:?}", self.name))?;
        Ok(seen)
    }

    /// Waits for `key`; an error fails the vector.
    pub(crate) async fn wait(&self, key: &EffectiveKey, timeout: Duration) -> Checked<WaitOutcome> {
        let waited = self.store.wait(key, ttl(timeout)).await;
        self.steps.tell(format!("{} wait, at most {timeout:?} → {waited:?}", self.name));
        waited.map_err(|error| Stop::Failed(format!("a wait failed: {}", chain(&error))))
    }
}

/// What one vector works with.
pub(crate) struct Case {
    factory: Arc<dyn Factory>,
    pub(crate) namespace: String,
    pub(crate) steps: Steps,
    tokens: AtomicU64,
    pub(crate) capabilities: Capabilities,
    /// A handle of a host whose clock is right.
    pub(crate) a: Handle,
    /// Another on the same records, of a host whose clock is as wrong as the declared clock allows: an hour ahead where
    /// another's decides, the skew bound ahead where the host's own does. Most vectors use both, so that a false
    /// declaration fails in many places.
    pub(crate) b: Handle,
}

impl Case {
    pub(crate) async fn open(factory: Arc<dyn Factory>, namespace: String, steps: Steps) -> Checked<Self> {
        let opening = Opening::new(namespace.clone());
        let store = factory.open(&opening).await.map_err(factory_failed)?;
        let capabilities = store.capabilities();
        let a = Handle { store, name: "a", steps: steps.clone() };
        let skew = match capabilities.clock {
            DecidingClock::Client { skew_bound } => skew_bound,
            _ => HOUR,
        };
        let store = factory.open(&opening.ahead_by(skew)).await.map_err(factory_failed)?;
        expect("the capabilities of a second handle", &capabilities, &store.capabilities())?;
        let b = Handle { store, name: "b (clock ahead)", steps: steps.clone() };
        Ok(Self { factory, namespace, steps, tokens: AtomicU64::new(0), capabilities, a, b })
    }

    /// One more handle on the same records, of a host whose clock is so far ahead.
    pub(crate) async fn open_ahead(&self, name: &'static str, skew: Duration) -> Checked<Handle> {
        self.open_as(name, &Opening::new(self.namespace.clone()).ahead_by(skew)).await
    }

    /// One more handle on the same records, of a host whose clock is so far behind.
    pub(crate) async fn open_behind(&self, name: &'static str, skew: Duration) -> Checked<Handle> {
        self.open_as(name, &Opening::new(self.namespace.clone()).behind_by(skew)).await
    }

    /// One more handle on the same records, which keeps them for so much longer than their leases.
    pub(crate) async fn open_with_grace(&self, name: &'static str, grace: Duration) -> Checked<Handle> {
        self.open_as(name, &Opening::new(self.namespace.clone()).with_grace(grace)).await
    }

    /// A handle on another namespace.
    pub(crate) async fn open_elsewhere(&self, name: &'static str) -> Checked<(Handle, String)> {
        let namespace = format!("{}x", self.namespace);
        Ok((self.open_as(name, &Opening::new(namespace.clone())).await?, namespace))
    }

    async fn open_as(&self, name: &'static str, opening: &Opening) -> Checked<Handle> {
        let store = self.factory.open(opening).await.map_err(factory_failed)?;
        Ok(Handle { store, name, steps: self.steps.clone() })
    }

    /// Spoils `key`, or ends the vector as not applicable.
    pub(crate) async fn spoil(&self, key: &EffectiveKey, with: Spoil) -> Checked {
        let spoiled = self.factory.spoil(&self.namespace, key, with).await.map_err(factory_failed)?;
        self.steps.tell(format!("factory: spoil with {with:?} → {spoiled:?}"));
        match spoiled {
            Spoiled::Done => Ok(()),
            Spoiled::Impossible(reason) => not_applicable(reason),
        }
    }

    pub(crate) async fn clean_up(&self, namespace: &str) -> Checked {
        self.factory.clean_up(namespace).await.map_err(factory_failed)
    }

    /// A key of this vector alone.
    pub(crate) fn key(&self, name: impl fmt::Display) -> EffectiveKey {
        EffectiveKey::from_parts(["conformance", self.namespace.as_str(), &name.to_string()])
    }

    /// A token that this vector has not used yet. Told apart by its first bytes, which are those that `Debug` shows.
    pub(crate) fn token(&self) -> ClaimToken {
        let mut bytes = [0xA5; 16];
        let number = self.tokens.fetch_add(1, Ordering::Relaxed);
        bytes[..2].copy_from_slice(&(number as u16).to_be_bytes());
        bytes[8..].copy_from_slice(&number.to_be_bytes());
        ClaimToken::from_bytes(bytes)
    }

    /// Lets a lease or an expiry of `length` pass, by whatever clock decides.
    pub(crate) async fn pass(&self, length: Duration) {
        self.steps.tell(format!("{length:?} pass, and {:?} of slack", self.slack()));
        sleep(length + self.slack()).await;
    }

    /// How much later than its end a lease is surely seen to be over: the take-over margin, and what the deciding clock
    /// may be off.
    pub(crate) fn slack(&self) -> Duration {
        self.capabilities.take_over_margin + self.uncertainty() + Duration::from_millis(50)
    }

    /// By how much two handles may differ about the present.
    pub(crate) fn uncertainty(&self) -> Duration {
        match self.capabilities.clock {
            // Written by one that is ahead, judged by one that is behind and waits for the bound.
            DecidingClock::Client { skew_bound } => skew_bound * 2,
            // Dates of whole seconds, widened at both edges.
            DecidingClock::Calibrated => Duration::from_secs(3),
            _ => Duration::ZERO,
        }
    }

    /// How much less than what is left may be told, and how much more than an age: a store may estimate what its server's clock
    /// reads, by what that read in an earlier answer.
    pub(crate) fn estimated(&self) -> Duration {
        self.steps.slowest()
    }

    /// How much too early an expiry may be seen to be over: take-overs wait for the skew bound of a client's clock,
    /// expiries do not.
    pub(crate) fn early(&self) -> Duration {
        match self.capabilities.clock {
            DecidingClock::Client { skew_bound } => skew_bound,
            _ => Duration::ZERO,
        }
    }

    /// Both handles.
    pub(crate) fn handles(&self) -> [&Handle; 2] {
        [&self.a, &self.b]
    }
}

fn factory_failed(error: BoxError) -> Stop {
    Stop::Failed(format!("the factory failed: {}", chain(&*error)))
}

/// An error with its sources.
pub(crate) fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(&format!(": {cause}"));
        source = cause.source();
    }
    text
}

/// The request that most vectors are about.
pub(crate) fn request() -> Fingerprint {
    Fingerprint::of_payload("the request")
}

/// Another request under the same key.
pub(crate) fn other_request() -> Fingerprint {
    Fingerprint::of_payload("another request")
}

pub(crate) fn claim(token: ClaimToken, lease: Duration) -> Op {
    Op::Claim(Claim::new(token, request(), ttl(lease)))
}

pub(crate) fn claim_for(token: ClaimToken, fingerprint: Fingerprint, lease: Duration) -> Op {
    Op::Claim(Claim::new(token, fingerprint, ttl(lease)))
}

pub(crate) fn renew(token: ClaimToken, lease: Duration) -> Op {
    Op::Renew(Renew::new(token, ttl(lease)))
}

pub(crate) fn release(token: ClaimToken) -> Op {
    Op::Release(Release::new(token))
}

pub(crate) fn complete(token: ClaimToken, outcome: Outcome, expires_after: Duration) -> Op {
    Op::Complete(Complete::new(token, outcome, ttl(expires_after)))
}

/// A result that is told from others by its body.
pub(crate) fn result(body: impl Into<Bytes>) -> Outcome {
    Outcome::Result(StoredResult::new(200, body).with_header("content-type", "text/plain"))
}

//! A store with scripted faults, an observer that remembers, and shorthands.

use std::{
    collections::{HashMap, VecDeque},
    future::{Future, pending},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use idemkit_core::{
    Applied, Capabilities, Claim, ClaimOutcome, ClaimToken, Complete, CompleteOutcome, EffectiveKey, Engine, Event,
    EventKind, Fingerprint, MemoryStore, MemoryStoreBuilder, Observer, Policy, Release, ReleaseOutcome, Renew,
    RenewOutcome, Store, StoreError, StoreErrorKind, StoredResult, Ttl, WaitOutcome,
};
use parking_lot::Mutex;

pub(crate) const LEASE: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Call {
    Claim,
    Complete,
    Renew,
    Release,
    Wait,
}

#[derive(Clone, Debug)]
pub(crate) enum Fault {
    /// Never reaches the store.
    Fails(StoreErrorKind),
    /// Takes effect, and the acknowledgement is lost.
    LostAck,
    /// Never reaches the store, and never answers.
    Hangs,
    /// Takes effect, and answers only after so long.
    AnswersAfter(Duration),
}

pub(crate) const REFUSED: Fault = Fault::Fails(StoreErrorKind::Unavailable);

/// A memory store whose calls fail as the script says.
#[derive(Clone, Debug)]
pub(crate) struct Scripted {
    pub(crate) memory: MemoryStore,
    script: Arc<Mutex<Script>>,
}

#[derive(Debug, Default)]
struct Script {
    once: HashMap<Call, VecDeque<Fault>>,
    always: HashMap<Call, Fault>,
    calls: HashMap<Call, usize>,
    /// Each call gives way once before it takes effect and once after, so that a future can be dropped on both sides.
    yields: bool,
}

impl Scripted {
    pub(crate) fn new() -> Self {
        Self::on(MemoryStore::builder())
    }

    pub(crate) fn on(memory: MemoryStoreBuilder) -> Self {
        Self { memory: memory.build(), script: Arc::default() }
    }

    pub(crate) fn yielding() -> Self {
        let store = Self::new();
        store.script.lock().yields = true;
        store
    }

    /// The next call of this sort meets `fault`; further ones queue up.
    pub(crate) fn next(&self, call: Call, fault: Fault) {
        self.script.lock().once.entry(call).or_default().push_back(fault);
    }

    pub(crate) fn always(&self, call: Call, fault: Fault) {
        self.script.lock().always.insert(call, fault);
    }

    pub(crate) fn outage(&self) {
        for call in [Call::Claim, Call::Complete, Call::Renew, Call::Release, Call::Wait] {
            self.always(call, REFUSED);
        }
    }

    pub(crate) fn heal(&self) {
        self.script.lock().always.clear();
    }

    pub(crate) fn calls(&self, call: Call) -> usize {
        self.script.lock().calls.get(&call).copied().unwrap_or(0)
    }

    async fn meet<T>(&self, call: Call, effect: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
        let (fault, yields) = {
            let mut script = self.script.lock();
            *script.calls.entry(call).or_default() += 1;
            let fault =
                script.once.get_mut(&call).and_then(VecDeque::pop_front).or_else(|| script.always.get(&call).cloned());
            (fault, script.yields)
        };
        if yields {
            tokio::task::yield_now().await;
        }
        let answer = match fault {
            None => effect.await,
            Some(Fault::Fails(kind)) => Err(StoreError::new("scripted", kind, Applied::No)),
            Some(Fault::LostAck) => {
                effect.await?;
                Err(StoreError::new("scripted", StoreErrorKind::Unavailable, Applied::Unknown))
            }
            Some(Fault::Hangs) => pending().await,
            Some(Fault::AnswersAfter(delay)) => {
                let answer = effect.await;
                tokio::time::sleep(delay).await;
                answer
            }
        };
        if yields {
            tokio::task::yield_now().await;
        }
        answer
    }
}

#[async_trait]
impl Store for Scripted {
    fn capabilities(&self) -> Capabilities {
        self.memory.capabilities()
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.meet(Call::Claim, self.memory.claim(key, request)).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        self.meet(Call::Complete, self.memory.complete(key, request)).await
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.meet(Call::Renew, self.memory.renew(key, request)).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        self.meet(Call::Release, self.memory.release(key, request)).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        self.meet(Call::Wait, self.memory.wait(key, timeout)).await
    }
}

/// Remembers the kinds of the events that it hears.
#[derive(Clone, Debug, Default)]
pub(crate) struct Heard(Arc<Mutex<Vec<EventKind>>>);

impl Heard {
    /// What was heard since the last time.
    pub(crate) fn take(&self) -> Vec<EventKind> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Observer for Heard {
    fn on_event(&self, event: &Event<'_>) {
        self.0.lock().push(event.kind);
    }
}

pub(crate) fn engine(store: &Scripted) -> (Engine, Heard) {
    engine_with(store, Policy::default())
}

pub(crate) fn engine_with(store: &Scripted, policy: Policy) -> (Engine, Heard) {
    let heard = Heard::default();
    let engine = Engine::builder(store.clone()).surface("test").policy(policy).observer(heard.clone()).build();
    (engine, heard)
}

pub(crate) fn key() -> EffectiveKey {
    EffectiveKey::message("msg-7", "orders", "billing")
}

pub(crate) fn request() -> Fingerprint {
    Fingerprint::of_payload("5 EUR")
}

pub(crate) fn other_request() -> Fingerprint {
    Fingerprint::of_payload("6 EUR")
}

pub(crate) fn result(body: &'static str) -> StoredResult {
    StoredResult::new(200, body)
}

/// The error of operations under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error, serde::Serialize, serde::Deserialize)]
#[error("declined: {0}")]
pub(crate) struct Declined(pub(crate) u32);

/// Claims the key as another process would, past the script; it must be vacant or lapsed.
pub(crate) async fn take_over(store: &Scripted) -> ClaimToken {
    let token = ClaimToken::random().unwrap();
    let claim = Claim::new(token, request(), Ttl::new(LEASE).unwrap());
    let outcome = store.memory.claim(&key(), &claim).await.unwrap();
    assert!(matches!(outcome, ClaimOutcome::Acquired(_)), "{outcome:?}");
    token
}

//! The embedded default: the state machine behind sharded locks.

mod shard;
#[cfg(test)]
mod tests;
mod wheel;

use std::{
    collections::hash_map::RandomState,
    fmt,
    future::ready,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use parking_lot::Mutex;

use self::shard::{Hashed, Shard, dead_at};
use crate::{
    Applied, Capabilities, Claim, ClaimOutcome, Clock, Complete, CompleteOutcome, DecidingClock, EffectiveKey, Look,
    MonotonicClock, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Store, StoreError, StoreErrorKind,
    Timestamp, Ttl, WaitOutcome, Watches,
    machine::{Request, Rules, Write, step},
};

const NAME: &str = "memory";
/// Locks are held for some hundred nanoseconds; so many make it unlikely that two of a process's threads meet.
const SHARDS: usize = 64;
const DEFAULT_CAPACITY: usize = 1_000_000;
const DEFAULT_RESULT_BYTES_MAX: u64 = 16 * 1024 * 1024;
const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// A store in this process's memory: for tests, for tools, and for services of one process. Records do not outlive the
/// process.
///
/// - **O(1)** a request at any size: sharded maps, and a timer wheel from which each write sweeps a few records that
///   are due.
/// - **Bounded**: beyond its [capacity](MemoryStoreBuilder::capacity) a claim of a new key is an error (unavailable).
///   What still counts, a claim or an unexpired result, is never evicted to make room. Expired records make room at
///   once.
/// - **Clock**: a [`MonotonicClock`], or the one that is [injected](MemoryStoreBuilder::clock).
/// - **Notices**: waiters wake at once.
///
/// Clones share the same records.
///
/// ```
/// use idemkit_core::{Engine, EffectiveKey, Fingerprint, MemoryStore, StoredResult};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let engine = Engine::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// let run = engine
///     .run(key, Fingerprint::of_payload("…"), async |_| Ok::<_, std::io::Error>(StoredResult::new(200, "charged")))
///     .await?;
/// assert_eq!(&run.value.body[..], b"charged");
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct MemoryStore {
    inner: Arc<Inner>,
}

struct Inner {
    shards: Box<[Mutex<Shard>]>,
    hasher: RandomState,
    /// Records in all shards together, so that the capacity holds exactly. A record is taken off the count under the
    /// lock of its shard: whoever then finds nothing due in any shard also finds the room that others have made.
    len: AtomicUsize,
    capacity: usize,
    result_bytes_max: u64,
    grace: Duration,
    rules: Rules,
    clock: Arc<dyn Clock>,
    watches: Watches,
}

/// Builds a [`MemoryStore`] that differs from the default.
///
/// ```
/// use idemkit_core::{ManualClock, MemoryStore};
///
/// let clock = ManualClock::default();
/// let store = MemoryStore::builder().capacity(10_000).clock(clock.clone()).build();
/// assert!(store.is_empty());
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStoreBuilder {
    capacity: usize,
    result_bytes_max: u64,
    grace: Duration,
    rules: Rules,
    clock: Arc<dyn Clock>,
}

impl MemoryStoreBuilder {
    /// How many records the store holds at most (default 1,000,000; never more than `u32::MAX - 1`).
    #[must_use]
    pub fn capacity(mut self, records: usize) -> Self {
        self.capacity = records.min(u32::MAX as usize - 1);
        self
    }

    /// The largest result: bytes of its body, header names and header values together (default 16 MiB).
    #[must_use]
    pub fn result_bytes_max(mut self, bytes: u64) -> Self {
        self.result_bytes_max = bytes;
        self
    }

    /// How long a lapsed claim is kept, so that a crash is seen as a take-over (default 60 s).
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.grace = grace;
        self
    }

    /// How much later than its lease's end a claim is taken over (default 0).
    #[must_use]
    pub fn take_over_margin(mut self, margin: Duration) -> Self {
        self.rules.take_over_margin = margin;
        self
    }

    /// The clock that decides leases and expiries.
    #[must_use]
    pub fn clock(mut self, clock: impl Clock) -> Self {
        self.clock = Arc::new(clock);
        self
    }

    /// The store, empty.
    #[must_use]
    pub fn build(self) -> MemoryStore {
        let Self { capacity, result_bytes_max, grace, rules, clock } = self;
        // A claim within its margin must not be swept before it can be taken over.
        let grace = grace.saturating_add(rules.take_over_margin);
        let inner = Inner {
            shards: (0..SHARDS).map(|_| Mutex::new(Shard::new())).collect(),
            hasher: RandomState::new(),
            len: AtomicUsize::new(0),
            capacity,
            result_bytes_max,
            grace,
            rules,
            clock,
            watches: Watches::default(),
        };
        MemoryStore { inner: Arc::new(inner) }
    }
}

impl Default for MemoryStore {
    fn default() -> Self {
        Self::builder().build()
    }
}

impl MemoryStore {
    /// An empty store with the default limits and clock.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Builds a store that differs from the default.
    #[must_use]
    pub fn builder() -> MemoryStoreBuilder {
        MemoryStoreBuilder {
            capacity: DEFAULT_CAPACITY,
            result_bytes_max: DEFAULT_RESULT_BYTES_MAX,
            grace: DEFAULT_GRACE,
            rules: Rules::default(),
            clock: Arc::new(MonotonicClock::default()),
        }
    }

    /// How many records it holds, those included that have expired and are not swept yet.
    #[must_use]
    pub fn len(&self) -> usize {
        self.inner.len.load(Ordering::Relaxed)
    }

    /// Whether it holds no record.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// How many keys are being waited for.
    #[must_use]
    pub fn watched_keys(&self) -> usize {
        self.inner.watches.len()
    }

    /// Removes every record that is due now. Claims sweep in passing; this is for a store that nobody claims from any
    /// more.
    ///
    /// Takes the locks of the shards one after the other. Returns how many records went.
    pub fn sweep(&self) -> usize {
        let now = self.inner.clock.now();
        let removed = self.inner.shards.iter().map(|shard| {
            let mut shard = shard.lock();
            let removed = std::iter::from_fn(|| shard.sweep_first(now).then_some(())).count();
            self.inner.len.fetch_sub(removed, Ordering::Relaxed);
            removed
        });
        removed.sum()
    }

    /// Puts `record` under `key`, whatever was there: for tests of what a store of bytes can hold, such as
    /// [`Record::Garbage`] and [`Record::Newer`]. The capacity does not count here.
    pub fn plant(&self, key: EffectiveKey, record: Record) {
        let dead_at = dead_at(&record, self.inner.grace);
        let (shard, hashed) = self.inner.shard(&key);
        let mut shard = shard.lock();
        if shard.get(hashed).is_none() {
            self.inner.len.fetch_add(1, Ordering::Relaxed);
        }
        shard.put(hashed, record, dead_at);
        drop(shard);
        self.inner.watches.notify(&key);
    }

    /// The record under `key` as it stands, for tests and tools; expired ones too, until they are swept.
    #[must_use]
    pub fn record(&self, key: &EffectiveKey) -> Option<Record> {
        let (shard, hashed) = self.inner.shard(key);
        shard.lock().get(hashed).cloned()
    }
}

impl Inner {
    /// The shard of `key`, and the key as the shard wants it. The hash is keyed: whoever chooses keys must not be able
    /// to choose where they go.
    fn shard<'k>(&self, key: &'k EffectiveKey) -> (&Mutex<Shard>, Hashed<'k>) {
        let hash = self.hasher.hash_one(key);
        // A table looks at the lowest and the highest bits.
        (&self.shards[(hash >> 32) as usize % SHARDS], Hashed { key, hash })
    }

    /// One atomic step: the rules, under the lock of the key's shard.
    fn step<R: Request>(&self, key: &EffectiveKey, request: &R) -> Result<R::Answer, StoreError> {
        let (lock, hashed) = self.shard(key);
        loop {
            let mut shard = lock.lock();
            let now = self.clock.now();
            let present = shard.get(hashed);
            let is_new = present.is_none();
            let step = step(present, request, now, self.rules);
            let notice = match step.write {
                Write::Nothing => false,
                Write::Put(record) => {
                    if is_new && !self.reserve() {
                        drop(shard);
                        // The lock was let go: all that was read must be read again.
                        self.make_room(now)?;
                        continue;
                    }
                    let done = matches!(record, Record::Completed(_));
                    let dead_at = dead_at(&record, self.grace);
                    shard.put(hashed, record, dead_at);
                    let swept = shard.sweep_some(now);
                    self.len.fetch_sub(swept, Ordering::Relaxed);
                    done
                }
                Write::Delete => {
                    if shard.remove(hashed) {
                        self.len.fetch_sub(1, Ordering::Relaxed);
                    }
                    true
                }
            };
            drop(shard);
            if notice {
                self.watches.notify(key);
            }
            return step.answer.map_err(|unreadable| {
                StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No).with_source(unreadable)
            });
        }
    }

    /// Counts one more record, if the capacity allows it.
    fn reserve(&self) -> bool {
        self.len
            .try_update(Ordering::Relaxed, Ordering::Relaxed, |len| (len < self.capacity).then_some(len + 1))
            .is_ok()
    }

    /// Removes one record that is due, wherever it is, unless another has made room meanwhile.
    fn make_room(&self, now: Timestamp) -> Result<(), StoreError> {
        let swept = self.shards.iter().any(|shard| {
            let mut shard = shard.lock();
            let swept = shard.sweep_first(now);
            self.len.fetch_sub(usize::from(swept), Ordering::Relaxed);
            swept
        });
        if swept || self.len.load(Ordering::Relaxed) < self.capacity {
            return Ok(());
        }
        Err(StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::No)
            .with_detail(format!("full: {} records, none of them expired", self.capacity)))
    }

    fn check_size(&self, request: &Complete) -> Result<(), StoreError> {
        let size = request.outcome.stored().map_or(0, crate::StoredResult::size);
        if size <= self.result_bytes_max {
            return Ok(());
        }
        let kind = StoreErrorKind::ResultTooLarge { size, max: self.result_bytes_max };
        Err(StoreError::new(NAME, kind, Applied::No))
    }
}

#[async_trait]
impl Store for MemoryStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(NAME, DecidingClock::Process)
            .result_bytes_max(self.inner.result_bytes_max)
            .notifies(true)
            .take_over_margin(self.inner.rules.take_over_margin)
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.inner.step(key, request)
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        self.inner.check_size(request)?;
        self.inner.step(key, request)
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.inner.step(key, request)
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        self.inner.step(key, request)
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        let (inner, watched) = (Arc::clone(&self.inner), *key);
        let look = move || ready::<Result<Sight, StoreError>>(inner.step(&watched, &Look));
        self.inner.watches.wait(key, timeout, look).await
    }
}

impl fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemoryStore")
            .field("records", &self.len())
            .field("capacity", &self.inner.capacity)
            .field("clock", &self.inner.clock)
            .finish_non_exhaustive()
    }
}

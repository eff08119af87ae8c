//! Completed results kept in this process.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use quick_cache::{Weighter, sync};
use tokio::time::Instant;

use crate::{CompletedRecord, EffectiveKey, StoredResult};

/// What an entry costs beside its result, roughly: key, times, and the cache's own links.
const ENTRY_BYTES: u64 = 256;

/// An optional cache of completed results in this process, so that a busy duplicate costs no round trip.
///
/// Bounded in bytes. An entry never outlives its record's expiry, on the monotonic clock and on the wall clock (which
/// goes on while a machine is suspended), nor the cache's own `max_age`: so long may a record that was deleted in the
/// store by hand still be replayed.
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::{Engine, LocalCache, MemoryStore};
///
/// let cache = LocalCache::new(16 * 1024 * 1024).max_age(Duration::from_secs(30));
/// let engine = Engine::builder(MemoryStore::new()).local_cache(cache).build();
/// ```
#[derive(Clone, Copy, Debug)]
pub struct LocalCache {
    bytes_max: u64,
    max_age: Duration,
}

impl LocalCache {
    /// A cache of at most about `bytes_max` bytes, whose entries are used for at most 60 s.
    #[must_use]
    pub fn new(bytes_max: u64) -> Self {
        Self { bytes_max, max_age: Duration::from_secs(60) }
    }

    /// How long an entry is used at most.
    #[must_use]
    pub fn max_age(mut self, max_age: Duration) -> Self {
        self.max_age = max_age;
        self
    }
}

pub(super) struct Cache {
    entries: sync::Cache<EffectiveKey, Cached, Size>,
    max_age: Duration,
}

#[derive(Clone)]
struct Cached {
    record: CompletedRecord,
    since: Instant,
    since_wall: SystemTime,
    good_for: Duration,
}

#[derive(Clone)]
struct Size;

impl Weighter<EffectiveKey, Cached> for Size {
    fn weight(&self, _: &EffectiveKey, cached: &Cached) -> u64 {
        ENTRY_BYTES + cached.record.outcome.stored().map_or(0, StoredResult::size)
    }
}

impl Cache {
    pub(super) fn new(config: LocalCache) -> Self {
        let items = usize::try_from(config.bytes_max / (4 * ENTRY_BYTES)).unwrap_or(usize::MAX).clamp(16, 1 << 20);
        Self { entries: sync::Cache::with_weighter(items, config.bytes_max, Size), max_age: config.max_age }
    }

    /// The record of `key`, if it is still good.
    pub(super) fn get(&self, key: &EffectiveKey) -> Option<CompletedRecord> {
        let cached = self.entries.get(key)?;
        // A wall clock that was set back counts as no time, and the monotonic one decides.
        let wall = SystemTime::now().duration_since(cached.since_wall).unwrap_or_default();
        if cached.since.elapsed().max(wall) < cached.good_for {
            return Some(cached.record);
        }
        self.entries.remove(key);
        None
    }

    /// Keeps `record`, whose remaining time was told in answer to a request sent at `sent`.
    pub(super) fn put(&self, key: EffectiveKey, record: &CompletedRecord, sent: Instant) {
        // One part in a thousand less, for two clocks that do not run at the same pace.
        let good_for = (record.expires_in - record.expires_in / 1_000).min(self.max_age);
        let since_wall = SystemTime::now().checked_sub(sent.elapsed()).unwrap_or(SystemTime::UNIX_EPOCH);
        self.entries.insert(key, Cached { record: record.clone(), since: sent, since_wall, good_for });
    }
}

impl fmt::Debug for Cache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cache").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}

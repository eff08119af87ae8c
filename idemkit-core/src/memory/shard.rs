//! One shard of the memory store: records by key, and when each may be swept.

use std::{collections::HashMap, time::Duration};

use super::wheel::Wheel;
use crate::{EffectiveKey, Record, Timestamp};

/// How many scheduled records one request looks at in passing. Each record that is added is looked at a bounded number of times before it
/// goes, so more than that keeps up with any load.
const SWEEP_PER_WRITE: usize = 16;
/// A shard that has emptied gives its memory back where it had grown beyond this.
const KEPT_SLOTS: usize = 1_024;

/// Records by key. The map holds slot numbers, so that the wheel can name records by 32 bits.
#[derive(Debug)]
pub(super) struct Shard {
    by_key: HashMap<EffectiveKey, u32>,
    slots: Vec<Option<(EffectiveKey, Record)>>,
    free: Vec<u32>,
    wheel: Wheel,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self { by_key: HashMap::new(), slots: Vec::new(), free: Vec::new(), wheel: Wheel::new() }
    }

    pub(super) fn get(&self, key: &EffectiveKey) -> Option<&Record> {
        let slot = *self.by_key.get(key)?;
        self.slots[slot as usize].as_ref().map(|(_, record)| record)
    }

    pub(super) fn contains(&self, key: &EffectiveKey) -> bool {
        self.by_key.contains_key(key)
    }

    /// Writes `record`, which may be swept from `dead_at` on (never, where there is none).
    pub(super) fn put(&mut self, key: EffectiveKey, record: Record, dead_at: Option<Timestamp>) {
        let slot = match self.by_key.get(&key) {
            Some(&slot) => slot,
            None => {
                let slot = self.free.pop().unwrap_or_else(|| {
                    self.slots.push(None);
                    (self.slots.len() - 1) as u32
                });
                self.by_key.insert(key, slot);
                slot
            }
        };
        self.slots[slot as usize] = Some((key, record));
        match dead_at {
            Some(dead_at) => self.wheel.schedule(slot, dead_at.as_millis()),
            None => self.wheel.cancel(slot),
        }
    }

    /// Removes the record of `key`. Says whether there was one.
    pub(super) fn remove(&mut self, key: &EffectiveKey) -> bool {
        let Some(slot) = self.by_key.remove(key) else { return false };
        self.wheel.cancel(slot);
        self.vacate(slot);
        true
    }

    /// Removes a few of the records that are due. Returns how many.
    pub(super) fn sweep_some(&mut self, now: Timestamp) -> usize {
        let mut budget = SWEEP_PER_WRITE;
        let mut removed = 0;
        while self.sweep_one(now, &mut budget) {
            removed += 1;
        }
        removed
    }

    /// Removes one record that is due, however many must be looked at to find it. Says whether there was one.
    pub(super) fn sweep_first(&mut self, now: Timestamp) -> bool {
        let mut budget = usize::MAX;
        self.sweep_one(now, &mut budget)
    }

    fn sweep_one(&mut self, now: Timestamp, budget: &mut usize) -> bool {
        let Some(slot) = self.wheel.pop_due(now.as_millis(), budget) else { return false };
        if let Some((key, _)) = &self.slots[slot as usize] {
            self.by_key.remove(key);
        }
        self.vacate(slot);
        true
    }

    fn vacate(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.free.push(slot);
        if self.by_key.is_empty() && self.slots.len() > KEPT_SLOTS {
            *self = Self::new();
        }
    }
}

/// When a record may be swept: a completed one at its expiry, a lapsed claim only after `grace`, so that a crash stays visible as a
/// take-over; one that cannot be read never, since somebody may still be able to.
pub(super) fn dead_at(record: &Record, grace: Duration) -> Option<Timestamp> {
    match record {
        Record::Claimed(claimed) => Some(claimed.lease_until.saturating_add(grace)),
        Record::Completed(completed) => Some(completed.expires_at),
        Record::Garbage | Record::Newer => None,
    }
}

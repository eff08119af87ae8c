//! One shard of the memory store: records by key, and when each may be swept.

use std::time::Duration;

use hashbrown::{HashTable, hash_table::Entry};

use super::wheel::Wheel;
use crate::{EffectiveKey, Record, Timestamp};

/// How many scheduled records one request looks at in passing. Each record that is added is looked at a bounded number
/// of times before it goes, so more than that keeps up with any load.
const SWEEP_PER_WRITE: usize = 16;
/// A shard that has emptied gives its memory back where it had grown beyond this.
const KEPT_SLOTS: usize = 1_024;

/// Records by key.
///
/// The table holds slot numbers alone, so that it stays in the processor's cache at sizes where the records do not: a
/// request then waits for memory once, and not once for the key and once for the record.
#[derive(Debug)]
pub(super) struct Shard {
    by_key: HashTable<u32>,
    slots: Vec<Option<Slot>>,
    free: Vec<u32>,
    wheel: Wheel,
}

#[derive(Debug)]
struct Slot {
    key: EffectiveKey,
    /// The key's hash, which the table asks for when it grows, and the sweep when it removes.
    hash: u64,
    record: Record,
}

/// A key with its hash, by the store's own keyed hasher.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hashed<'k> {
    pub(super) key: &'k EffectiveKey,
    pub(super) hash: u64,
}

impl Shard {
    pub(super) fn new() -> Self {
        Self { by_key: HashTable::new(), slots: Vec::new(), free: Vec::new(), wheel: Wheel::new() }
    }

    pub(super) fn get(&self, key: Hashed<'_>) -> Option<&Record> {
        let slot = *self.by_key.find(key.hash, |slot| holds(&self.slots, *slot, key.key))?;
        self.slots[slot as usize].as_ref().map(|slot| &slot.record)
    }

    /// Writes `record`, which may be swept from `dead_at` on (never, where there is none).
    pub(super) fn put(&mut self, key: Hashed<'_>, record: Record, dead_at: Option<Timestamp>) {
        let Self { by_key, slots, free, wheel } = self;
        let entry = by_key.entry(
            key.hash,
            |slot| holds(slots, *slot, key.key),
            |slot| slots[*slot as usize].as_ref().map_or(0, |slot| slot.hash),
        );
        let slot = match entry {
            Entry::Occupied(entry) => *entry.get(),
            Entry::Vacant(entry) => {
                let slot = free.pop().unwrap_or(slots.len() as u32);
                entry.insert(slot);
                slot
            }
        };
        if slot as usize == slots.len() {
            slots.push(None);
        }
        slots[slot as usize] = Some(Slot { key: *key.key, hash: key.hash, record });
        match dead_at {
            Some(dead_at) => wheel.schedule(slot, dead_at.as_millis()),
            None => wheel.cancel(slot),
        }
    }

    /// Removes the record of `key`. Says whether there was one.
    pub(super) fn remove(&mut self, key: Hashed<'_>) -> bool {
        let Ok(entry) = self.by_key.find_entry(key.hash, |slot| holds(&self.slots, *slot, key.key)) else {
            return false;
        };
        let (slot, _) = entry.remove();
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
        if let Some(Slot { hash, .. }) = self.slots[slot as usize]
            && let Ok(entry) = self.by_key.find_entry(hash, |listed| *listed == slot)
        {
            entry.remove();
        }
        self.vacate(slot);
        true
    }

    /// How many slots it has memory for.
    #[cfg(test)]
    pub(super) fn slot_count(&self) -> usize {
        self.slots.len()
    }

    fn vacate(&mut self, slot: u32) {
        self.slots[slot as usize] = None;
        self.free.push(slot);
        if self.by_key.is_empty() && self.slots.len() > KEPT_SLOTS {
            *self = Self::new();
        }
    }
}

fn holds(slots: &[Option<Slot>], slot: u32, key: &EffectiveKey) -> bool {
    slots[slot as usize].as_ref().is_some_and(|slot| slot.key == *key)
}

/// When a record may be swept: a completed one at its expiry, a lapsed claim only after `grace`, so that a crash stays
/// visible as a take-over; one that cannot be read never, since somebody may still be able to.
pub(super) fn dead_at(record: &Record, grace: Duration) -> Option<Timestamp> {
    match record {
        Record::Claimed(claimed) => Some(claimed.lease_until.saturating_add(grace)),
        Record::Completed(completed) => Some(completed.expires_at),
        Record::Garbage | Record::Newer => None,
    }
}

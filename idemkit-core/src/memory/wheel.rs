//! A timer wheel: which record is due to be swept, in constant time however many there are.

#[cfg(test)]
mod tests;

/// Bits of the deadline that one level looks at.
const LEVEL_BITS: u32 = 6;
const BUCKETS_PER_LEVEL: usize = 1 << LEVEL_BITS;
/// Eleven levels of 64 buckets at 1 ms span all of a `u64` of milliseconds.
const LEVELS: usize = 11;
/// The list of those that were taken from a bucket and not yet looked at.
const DUE: usize = LEVELS * BUCKETS_PER_LEVEL;
const NONE: u32 = u32::MAX;

/// A hierarchical timer wheel over slots that the caller numbers, with intrusive lists: adding and removing touch a
/// fixed number of slots, and a slot is moved to a lower level at most once a level in its life.
///
/// Why not a heap or an ordered map: both cost more with each record, and every claim, completion and release moves a
/// deadline.
#[derive(Debug)]
pub(super) struct Wheel {
    heads: Box<[u32; DUE + 1]>,
    /// Which buckets of a level hold something, a bit each.
    occupied: [u64; LEVELS],
    /// Everything due before this has been moved to `DUE`.
    current_ms: u64,
    links: Vec<Link>,
}

#[derive(Clone, Copy, Debug)]
struct Link {
    deadline_ms: u64,
    prev: u32,
    next: u32,
    /// Where the slot is listed; `u32::MAX` for nowhere.
    bucket: u32,
}

impl Wheel {
    pub(super) fn new() -> Self {
        Self { heads: Box::new([NONE; DUE + 1]), occupied: [0; LEVELS], current_ms: 0, links: Vec::new() }
    }

    /// Makes `slot` due at `deadline_ms`, wherever it was listed before.
    pub(super) fn schedule(&mut self, slot: u32, deadline_ms: u64) {
        self.cancel(slot);
        let index = slot as usize;
        if index >= self.links.len() {
            self.links.resize(index + 1, Link { deadline_ms: 0, prev: NONE, next: NONE, bucket: NONE });
        }
        self.links[index].deadline_ms = deadline_ms;
        let bucket = self.bucket_of(deadline_ms);
        self.push(slot, bucket);
    }

    /// Takes `slot` off, if it is listed.
    pub(super) fn cancel(&mut self, slot: u32) {
        let Some(&link) = self.links.get(slot as usize) else { return };
        if link.bucket == NONE {
            return;
        }
        let bucket = link.bucket as usize;
        match link.prev {
            NONE => self.heads[bucket] = link.next,
            prev => self.links[prev as usize].next = link.next,
        }
        if link.next != NONE {
            self.links[link.next as usize].prev = link.prev;
        }
        self.links[slot as usize].bucket = NONE;
        if self.heads[bucket] == NONE && bucket != DUE {
            self.occupied[bucket / BUCKETS_PER_LEVEL] &= !(1 << (bucket % BUCKETS_PER_LEVEL));
        }
    }

    /// Takes off and returns a slot whose deadline is at or before `now_ms`. `budget` counts down with each slot looked
    /// at; at zero it returns nothing, and a later call goes on from there.
    pub(super) fn pop_due(&mut self, now_ms: u64, budget: &mut usize) -> Option<u32> {
        loop {
            while *budget > 0 {
                let slot = self.heads[DUE];
                if slot == NONE {
                    break;
                }
                *budget -= 1;
                let deadline_ms = self.links[slot as usize].deadline_ms;
                if deadline_ms <= now_ms {
                    self.cancel(slot);
                    return Some(slot);
                }
                // It is due later: down to a finer level.
                self.schedule(slot, deadline_ms);
            }
            if *budget == 0 || !self.open_next_bucket(now_ms) {
                return None;
            }
        }
    }

    /// Moves the earliest bucket that begins at or before `now_ms` to `DUE`, which must be empty.
    fn open_next_bucket(&mut self, now_ms: u64) -> bool {
        for level in 0..LEVELS {
            if self.occupied[level] == 0 {
                continue;
            }
            // No bucket of a level lies behind the current one, and all of a lower level come before those of a higher
            // one.
            let index = self.occupied[level].trailing_zeros() as usize;
            let shift = level as u32 * LEVEL_BITS;
            let above = shift + LEVEL_BITS;
            let base = if above >= u64::BITS { 0 } else { self.current_ms >> above << above };
            let begins_ms = base | (index as u64) << shift;
            if begins_ms > now_ms {
                return false;
            }
            self.current_ms = self.current_ms.max(begins_ms);
            let bucket = level * BUCKETS_PER_LEVEL + index;
            let mut slot = std::mem::replace(&mut self.heads[bucket], NONE);
            self.heads[DUE] = slot;
            self.occupied[level] &= !(1 << index);
            while slot != NONE {
                self.links[slot as usize].bucket = DUE as u32;
                slot = self.links[slot as usize].next;
            }
            return true;
        }
        false
    }

    fn bucket_of(&self, deadline_ms: u64) -> usize {
        // What is overdue goes to the bucket that is open now.
        let deadline_ms = deadline_ms.max(self.current_ms);
        let differing = (deadline_ms ^ self.current_ms) | (BUCKETS_PER_LEVEL as u64 - 1);
        let level = (u64::BITS - 1 - differing.leading_zeros()) / LEVEL_BITS;
        let index = (deadline_ms >> (level * LEVEL_BITS)) as usize % BUCKETS_PER_LEVEL;
        level as usize * BUCKETS_PER_LEVEL + index
    }

    fn push(&mut self, slot: u32, bucket: usize) {
        let next = self.heads[bucket];
        if next != NONE {
            self.links[next as usize].prev = slot;
        }
        let link = &mut self.links[slot as usize];
        (link.prev, link.next, link.bucket) = (NONE, next, bucket as u32);
        self.heads[bucket] = slot;
        self.occupied[bucket / BUCKETS_PER_LEVEL] |= 1 << (bucket % BUCKETS_PER_LEVEL);
    }
}

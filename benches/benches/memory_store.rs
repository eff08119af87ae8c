//! MemoryStore at 1 thousand, 100 thousand and 1 million live records, on one and two threads.
//!
//! Goal: an operation at 1 million costs at most twice what it costs at 1 thousand.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use idemkit_bench::{Candidate, compare, key};
use idemkit_core::{
    Claim, ClaimToken, Complete, EffectiveKey, Fingerprint, ManualClock, MemoryStore, Outcome, Store, StoredResult, Ttl,
};

const SIZES: [u64; 3] = [1_000, 100_000, 1_000_000];
const DAY: Duration = Duration::from_secs(24 * 60 * 60);

struct Filled {
    store: MemoryStore,
    clock: ManualClock,
    live: u64,
    next: AtomicU64,
}

impl Filled {
    /// A store with so many completed records that live for long.
    fn new(live: u64) -> Self {
        let clock = ManualClock::default();
        let store = MemoryStore::builder().capacity(4_000_000).clock(clock.clone()).build();
        let filled = Self { store, clock, live, next: AtomicU64::new(1 << 40) };
        for n in 0..live {
            filled.claim_and_complete(&key(n), DAY * 365);
        }
        filled
    }

    fn claim_and_complete(&self, key: &EffectiveKey, expires_after: Duration) {
        let (token, lease, expires_after) = (token(), ttl(Duration::from_secs(30)), ttl(expires_after));
        let claim = Claim::new(token, fingerprint(), lease);
        let _ = self.store.claim(key, &claim).now_or_never();
        let complete = Complete::new(token, Outcome::Result(StoredResult::new(200, "receipt")), expires_after);
        let _ = self.store.complete(key, &complete).now_or_never();
    }

    /// One operation under a fresh key. Its record expires soon after: the number of records stays, and sweeping is
    /// paid for.
    fn claim_and_complete_next(&self) {
        let n = self.next.fetch_add(1, Ordering::Relaxed);
        // Not at each: the hand of this clock is one more thing that two threads would fight for, and real clocks are
        // not.
        if n.is_multiple_of(64) {
            self.clock.advance(Duration::from_millis(1));
        }
        self.claim_and_complete(&key(n), Duration::from_millis(1));
    }

    /// One duplicate of one of the last thousand records: a retry.
    fn replay_recent(&self) {
        self.replay(self.live - 1_000, self.live);
    }

    /// One duplicate of any live record: nothing of it is in a cache of the processor.
    fn replay_any(&self) {
        self.replay(0, self.live);
    }

    fn replay(&self, from: u64, to: u64) {
        let n = from + self.next.fetch_add(1, Ordering::Relaxed).wrapping_mul(0x9E37_79B9_7F4A_7C15) % (to - from);
        let claim = Claim::new(token(), fingerprint(), ttl(DAY));
        let _ = std::hint::black_box(self.store.claim(&key(n), &claim).now_or_never());
    }
}

/// A constant is enough: no two claims of one key meet here, and drawing a token is the caller's cost.
fn token() -> ClaimToken {
    ClaimToken::from_bytes([7; 16])
}

fn fingerprint() -> Fingerprint {
    Fingerprint::from_stored(Fingerprint::VERSION_PLAIN, [7; 32])
}

fn ttl(duration: Duration) -> Ttl {
    Ttl::new(duration).unwrap_or(Ttl::MIN)
}

/// `n` operations on each of so many threads; the time of one operation is what the whole took, by all operations
/// together.
fn on_threads(threads: u64, n: u64, operation: impl Fn() + Sync) -> Duration {
    let began = Instant::now();
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| (0..n / threads).for_each(|_| operation()));
        }
    });
    began.elapsed()
}

fn main() {
    println!("filling stores of {SIZES:?} records");
    let filled = SIZES.map(Filled::new);
    for threads in [1, 2] {
        for (title, operation) in [
            ("claim + complete", Filled::claim_and_complete_next as fn(&Filled)),
            ("replay of one of the last 1,000 completed keys", Filled::replay_recent),
            ("replay of any completed key", Filled::replay_any),
        ] {
            let candidates = filled.iter().map(|filled| {
                Candidate::timed(format!("{} live records", filled.live), move |n| {
                    on_threads(threads, n, || operation(filled))
                })
            });
            compare(&format!("{title}, {threads} thread(s)"), candidates.collect());
        }
    }
    for filled in &filled {
        println!("\n{} records are held where {} are live", filled.store.len(), filled.live);
    }
}

//! Clocks that decide leases in process, and the points in time that the state machine compares.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use tokio::time::Instant;

use crate::Ttl;

/// A point in time on the clock that decides: milliseconds since that clock's epoch.
///
/// Only the state machine and the stores see one. What crosses the [`Store`](crate::Store) trait are durations, since a
/// caller must never compare its own clock with a stored time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

impl Timestamp {
    /// The point `millis` milliseconds after the clock's epoch.
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    /// Milliseconds since the clock's epoch.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    /// `ttl` later; the end of time where that would overflow.
    #[must_use]
    pub const fn after(self, ttl: Ttl) -> Self {
        Self(self.0.saturating_add(ttl.as_millis()))
    }

    /// `duration` later, rounded up to a millisecond; the end of time where that would overflow.
    #[must_use]
    pub const fn saturating_add(self, duration: Duration) -> Self {
        if duration.is_zero() { self } else { self.after(Ttl::round_up(duration)) }
    }

    /// How long from `now` until this point; zero where it has passed.
    #[must_use]
    pub const fn left_at(self, now: Self) -> Duration {
        Duration::from_millis(self.0.saturating_sub(now.0))
    }
}

/// `duration` after `from` on the caller's monotonic clock; as far away as it takes, where that would overflow.
pub(crate) fn later(from: Instant, duration: Duration) -> Instant {
    from.checked_add(duration.min(Ttl::MAX.as_duration())).unwrap_or(from)
}

/// A clock that decides leases and expiries in this process, for [`MemoryStore`](crate::MemoryStore).
///
/// It should not go backwards; where it does, leases and expiries last longer, and records are kept longer before they
/// make room.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// The present.
    fn now(&self) -> Timestamp;
}

impl<C: Clock + ?Sized> Clock for Arc<C> {
    fn now(&self) -> Timestamp {
        (**self).now()
    }
}

/// The default clock: monotonic time since the clock was made, never stepped by NTP or by hand.
///
/// It is tokio's clock, so a test under `tokio::time::pause` moves leases along with all other time.
///
/// ```
/// use idemkit_core::{Clock, MonotonicClock};
///
/// let clock = MonotonicClock::default();
/// assert!(clock.now() <= clock.now());
/// ```
#[derive(Clone, Debug)]
pub struct MonotonicClock {
    epoch: Instant,
}

impl Default for MonotonicClock {
    fn default() -> Self {
        Self { epoch: Instant::now() }
    }
}

impl Clock for MonotonicClock {
    fn now(&self) -> Timestamp {
        Timestamp(u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX))
    }
}

/// A clock that moves only when told to, for tests: clones share one time.
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::{Clock, ManualClock};
///
/// let clock = ManualClock::default();
/// let before = clock.now();
/// clock.advance(Duration::from_secs(31));
/// assert_eq!(clock.now().left_at(before), Duration::from_secs(31));
/// ```
#[derive(Clone, Debug, Default)]
pub struct ManualClock {
    now_ms: Arc<AtomicU64>,
}

impl ManualClock {
    /// Moves the clock forward by `duration`, rounded up to whole milliseconds; at the end of time it stays there.
    pub fn advance(&self, duration: Duration) {
        // Two threads that advance at once must both count.
        let mut now = self.now_ms.load(Ordering::SeqCst);
        loop {
            let later = Timestamp(now).saturating_add(duration).0;
            match self.now_ms.compare_exchange(now, later, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => return,
                Err(seen) => now = seen,
            }
        }
    }

    /// Sets the clock, backwards too: for tests of a clock that is stepped.
    pub fn set(&self, now: Timestamp) {
        self.now_ms.store(now.0, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp(self.now_ms.load(Ordering::SeqCst))
    }
}

//! Whose time decides: a condition expression has no server time, so the client supplies one.

mod calibration;
mod date;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use aws_sdk_dynamodb::config::SharedInterceptor;
use idemkit_core::{Clock, DecidingClock, Timestamp};

use self::calibration::Calibration;
pub(crate) use self::calibration::Observation;

/// How far apart the dates of two of the service's front ends may be.
const DEFAULT_ALLOWANCE: Duration = Duration::from_millis(100);

/// Which time decides leases and expiries. One table, one way: clients that differ in it undo each other's safety.
///
/// | | a lease is taken over | what it takes |
/// |---|---|---|
/// | [`Calibrated`](Self::Calibrated), the default | never early | clients that reach the same service; a second or two later than the lease's end |
/// | [`Local`](Self::Local) with a bound | never early, while clocks differ by no more than the bound | synchronised hosts; later by the bound |
/// | [`Local`](Self::Local) without | early, by a host whose clock runs ahead by more than the lease; or reaped, if its own host is behind by more than lease and grace | nothing |
///
/// On AWS the signatures of requests bound the skew too, but only to minutes: the service refuses a request that is
/// signed with a time that far off, and the SDK then corrects the signature, not the clock.
///
/// Fencing holds whatever the clocks do: whoever was overtaken cannot complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ClockMode {
    /// The server's clock, as far as the `Date` of its responses tells. A lease is written from the upper edge of what
    /// it can be and judged from the lower edge, so that neither side's error shortens it.
    Calibrated {
        /// How far apart the dates of two front ends may be: kept at each edge.
        allowance: Duration,
    },
    /// The host's own clock.
    Local {
        /// The largest difference between the clocks of any two clients. A claim is taken over only so much later than
        /// its lease's end. Zero is allowed, and has the caveat that is written above.
        skew_bound: Duration,
    },
}

impl Default for ClockMode {
    fn default() -> Self {
        Self::Calibrated { allowance: DEFAULT_ALLOWANCE }
    }
}

/// What a calibrated store knows of the server's clock.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub struct ClockReading {
    /// How far the server's clock is ahead of this host's, in seconds; negative where it is behind. The middle of what
    /// is possible.
    pub offset_secs: f64,
    /// The distance between the earliest and the latest that the server's clock can read now.
    pub width: Duration,
    /// How often a response contradicted all that was known before, so that the calibration began anew. Until a second one
    /// agrees with it, the width has room for both.
    pub restarts: u64,
}

/// The time that one request is made with.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Now {
    /// Judges whether a lease is over.
    pub(crate) judged: Timestamp,
    /// From where a lease is written.
    pub(crate) written: Timestamp,
    /// Which calibration it is from.
    restarts: u64,
}

impl Now {
    /// How much later a lease is written than judged.
    pub(crate) fn width(&self) -> Duration {
        self.written.left_at(self.judged)
    }
}

/// The clock of one store.
#[derive(Clone)]
pub(crate) struct StoreClock {
    inner: Arc<Inner>,
}

struct Inner {
    mode: ClockMode,
    /// The host's wall clock.
    host: Arc<dyn Clock>,
    /// From where monotonic time counts.
    epoch: Instant,
    calibration: Mutex<Calibration>,
}

impl StoreClock {
    pub(crate) fn new(mode: ClockMode, host: Arc<dyn Clock>) -> Self {
        let allowance = match mode {
            ClockMode::Calibrated { allowance } => allowance,
            ClockMode::Local { .. } => Duration::ZERO,
        };
        let calibration = Mutex::new(Calibration::new(allowance));
        Self { inner: Arc::new(Inner { mode, host, epoch: Instant::now(), calibration }) }
    }

    /// As capabilities declare it.
    pub(crate) fn deciding(&self) -> DecidingClock {
        match self.inner.mode {
            ClockMode::Calibrated { .. } => DecidingClock::Calibrated,
            ClockMode::Local { skew_bound } => DecidingClock::Client { skew_bound },
        }
    }

    /// How much later than its end a lease is taken over, for the clock's sake.
    pub(crate) fn skew_bound(&self) -> Duration {
        match self.inner.mode {
            ClockMode::Calibrated { .. } => Duration::ZERO,
            ClockMode::Local { skew_bound } => skew_bound,
        }
    }

    /// The time for a request; nothing where a response must be seen first.
    pub(crate) fn now(&self) -> Option<Now> {
        match self.inner.mode {
            ClockMode::Local { .. } => {
                let now = self.inner.host.now();
                Some(Now { judged: now, written: now, restarts: 0 })
            }
            ClockMode::Calibrated { .. } => {
                let calibration = self.calibration();
                let edges = calibration.edges(self.inner.epoch.elapsed())?;
                Some(Now {
                    judged: Timestamp::from_millis(millis(edges.lower)),
                    // Up: a lease may be longer than asked for, and never shorter.
                    written: Timestamp::from_millis(millis(edges.upper).saturating_add(1)),
                    restarts: calibration.restarts(),
                })
            }
        }
    }

    /// Whether a response should be seen before the next request: what is known is right, but wide.
    pub(crate) fn is_stale(&self) -> bool {
        // The host's own clock is never observed, and so never stale.
        self.calibration().is_stale(self.inner.epoch.elapsed())
    }

    /// Whether what was known when `now` was read has been contradicted since.
    pub(crate) fn contradicts(&self, now: &Now) -> bool {
        self.calibration().restarts() != now.restarts
    }

    /// What is known of the server's clock, where that is what decides.
    pub(crate) fn reading(&self) -> Option<ClockReading> {
        let (host, calibration) = (self.inner.host.now(), self.calibration());
        let edges = calibration.edges(self.inner.epoch.elapsed())?;
        let width = edges.upper.saturating_sub(edges.lower);
        let middle = edges.lower + width / 2;
        let offset_secs = middle.as_secs_f64() - Duration::from_millis(host.as_millis()).as_secs_f64();
        Some(ClockReading { offset_secs, width, restarts: calibration.restarts() })
    }

    /// What sees the dates of responses, where they count.
    pub(crate) fn interceptor(&self) -> Option<SharedInterceptor> {
        match self.inner.mode {
            ClockMode::Calibrated { .. } => Some(SharedInterceptor::new(date::Dates::new(self.clone()))),
            ClockMode::Local { .. } => None,
        }
    }

    fn observe(&self, sent: Instant, received: Instant, date: Duration) {
        let since = |instant: Instant| instant.saturating_duration_since(self.inner.epoch);
        self.calibration().observe(Observation { sent: since(sent), received: since(received), date });
    }

    fn calibration(&self) -> std::sync::MutexGuard<'_, Calibration> {
        // Nothing panics while it is held; and an interval is never half-written.
        self.inner.calibration.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for StoreClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StoreClock").field("mode", &self.inner.mode).field("reading", &self.reading()).finish()
    }
}

/// The host's wall clock.
#[derive(Debug)]
pub(crate) struct HostClock;

impl Clock for HostClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(millis(SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()))
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

//! What responses tell of the server's clock: pure arithmetic, without a clock of its own.
//!
//! A response that was sent for at t0 and received at t1 (monotonic) with the date D bounds the server's clock: at some
//! moment within `[t0, t1]` it read something within `[D, D + 1 s)`, since a date has no fraction. So the offset of the
//! server's clock from the monotonic one lies within `[D − t1, D + 1 s − t0]`. Such intervals are intersected; drift
//! widens what is known as it ages; and each edge keeps an allowance for front ends that differ.

use std::time::Duration;

/// How much two clocks may drift apart: twice what a free-running crystal does, in millionths.
const DRIFT_PPM: u128 = 200;

/// The moments and the date of one response. Times count from any moment that is the same for all of them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Observation {
    /// When the request was sent, by the monotonic clock.
    pub(crate) sent: Duration,
    /// When the response was there, by the monotonic clock.
    pub(crate) received: Duration,
    /// The response's date, since the Unix epoch. Whole seconds.
    pub(crate) date: Duration,
}

/// Where the server's clock can be at one moment, since the Unix epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edges {
    pub(crate) lower: Duration,
    pub(crate) upper: Duration,
}

/// The offset of the server's clock from the monotonic one, as an interval that observations narrow.
#[derive(Clone, Debug)]
pub(crate) struct Calibration {
    allowance: i128,
    interval: Option<Interval>,
    /// How often an observation contradicted all that was known.
    restarts: u64,
}

/// Nanoseconds, so that nothing is rounded and nothing overflows.
#[derive(Clone, Copy, Debug)]
struct Interval {
    low: i128,
    high: i128,
    /// When it was last narrowed, by the monotonic clock.
    at: i128,
}

impl Calibration {
    /// Nothing is known yet; each edge will keep `allowance`.
    pub(crate) fn new(allowance: Duration) -> Self {
        Self { allowance: nanos(allowance), interval: None, restarts: 0 }
    }

    /// Takes a response in. A date that contradicts what is known, by more than two front ends may differ, starts anew:
    /// some clock was stepped, or this machine was paused.
    pub(crate) fn observe(&mut self, seen: Observation) {
        let (sent, received, date) = (nanos(seen.sent), nanos(seen.received), nanos(seen.date));
        // A response from before the last one may come later; its interval is as good.
        let fresh = Interval { low: date - received, high: date + SECOND - sent, at: received };
        self.interval = Some(match self.interval.map(|known| known.aged(received)) {
            None => fresh,
            Some(known) => {
                let (low, high) = (known.low.max(fresh.low), known.high.min(fresh.high));
                let at = known.at.max(received);
                if low <= high {
                    Interval { low, high, at }
                } else if low - high <= 2 * self.allowance {
                    // Two front ends that differ: the truth is between what each of them allows.
                    Interval { low: high, high: low, at }
                } else {
                    self.restarts += 1;
                    fresh
                }
            }
        });
    }

    /// Where the server's clock can be when the monotonic one reads `now`; nothing before the first response.
    pub(crate) fn edges(&self, now: Duration) -> Option<Edges> {
        let now = nanos(now);
        self.interval.map(|known| {
            let known = known.aged(now);
            let since_epoch = |nanos: i128| Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
            Edges {
                lower: since_epoch(now + known.low - self.allowance),
                upper: since_epoch(now + known.high + self.allowance),
            }
        })
    }

    /// Changes whenever an observation contradicted what was known before.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }
}

impl Interval {
    /// What it has widened to since it was last narrowed.
    fn aged(self, now: i128) -> Self {
        let drift = (now - self.at).unsigned_abs().saturating_mul(DRIFT_PPM) / 1_000_000;
        let drift = i128::try_from(drift).unwrap_or(i128::MAX / 4);
        Self { low: self.low - drift, high: self.high + drift, at: self.at.max(now) }
    }
}

const SECOND: i128 = 1_000_000_000;

fn nanos(duration: Duration) -> i128 {
    i128::try_from(duration.as_nanos()).unwrap_or(i128::MAX / 4)
}

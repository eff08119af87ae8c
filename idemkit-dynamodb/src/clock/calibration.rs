//! What responses tell of the server's clock: pure arithmetic, without a clock of its own.
//!
//! A response that was sent for at t0 and received at t1 (monotonic) with the date D bounds the server's clock: at some
//! moment within `[t0, t1]` it read something within `[D, D + 1 s)`, since a date has no fraction. So the offset of the
//! server's clock from the monotonic one lies within `[D − t1, D + 1 s − t0]`. Such intervals are intersected; drift
//! widens what is known as it ages; and each edge keeps an allowance for front ends that differ.

use std::time::Duration;

/// How much two clocks may drift apart: twice what a free-running crystal does, in millionths. While a time daemon works an
/// offset off it may slew a clock by far more; responses that come meanwhile contradict what is known, and say so.
const DRIFT_PPM: u128 = 200;
/// How old the last response may be. By then drift has added 1.2 s to the second of a date and the allowances, so that the
/// edges are some 2.5 s apart, as a take-over is documented to be late. By age, not by width: where each response takes
/// long, another one would not narrow anything.
const STALE_AFTER: i128 = 3_000 * SECOND;

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
    /// What was known before a response contradicted it, until a second one agrees with that: a single one may be the one
    /// that is wrong.
    doubted: Option<Interval>,
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
        Self { allowance: nanos(allowance), interval: None, doubted: None, restarts: 0 }
    }

    /// Takes a response in. A date that contradicts what is known, by more than two front ends may differ, starts anew:
    /// some clock was stepped, or this machine was paused. What was known before stays possible until a second response
    /// agrees with the first.
    pub(crate) fn observe(&mut self, seen: Observation) {
        let (sent, received, date) = (nanos(seen.sent), nanos(seen.received), nanos(seen.date));
        // A response from before the last one may come later; its interval is as good.
        let fresh = Interval { low: date - received, high: date + SECOND - sent, at: received };
        let Some(known) = self.interval.map(|known| known.aged(received)) else {
            self.interval = Some(fresh);
            return;
        };
        if let Some(narrowed) = known.narrowed(fresh, self.allowance) {
            self.interval = Some(narrowed);
            self.doubted = None;
            return;
        }
        let possible = self.doubted.map_or(known, |doubted| known.hull(doubted.aged(received)));
        // What lies within all that was possible contradicts nothing that was written or judged by it.
        if possible.narrowed(fresh, self.allowance).is_none() {
            self.restarts += 1;
        }
        self.interval = Some(fresh);
        self.doubted = Some(possible);
    }

    /// Where the server's clock can be when the monotonic one reads `now`; nothing before the first response.
    pub(crate) fn edges(&self, now: Duration) -> Option<Edges> {
        let now = nanos(now);
        self.interval.map(|known| {
            let known = known.aged(now);
            let known = self.doubted.map_or(known, |doubted| known.hull(doubted.aged(now)));
            let since_epoch = |nanos: i128| Duration::from_nanos(u64::try_from(nanos.max(0)).unwrap_or(u64::MAX));
            Edges {
                lower: since_epoch(now + known.low - self.allowance),
                upper: since_epoch(now + known.high + self.allowance),
            }
        })
    }

    /// Whether another response would tell much: the last one was long ago, or contradicted what was known before.
    pub(crate) fn is_stale(&self, now: Duration) -> bool {
        self.doubted.is_some() || self.interval.is_some_and(|known| nanos(now) - known.at > STALE_AFTER)
    }

    /// Changes whenever an observation contradicted what was known before.
    pub(crate) fn restarts(&self) -> u64 {
        self.restarts
    }
}

impl Interval {
    /// What both allow, where they differ by no more than two front ends may. The later one's moment.
    fn narrowed(self, other: Self, allowance: i128) -> Option<Self> {
        let (low, high) = (self.low.max(other.low), self.high.min(other.high));
        let at = self.at.max(other.at);
        if low <= high {
            Some(Self { low, high, at })
        } else if low - high <= 2 * allowance {
            // Two front ends that differ: the truth is between what each of them allows.
            Some(Self { low: high, high: low, at })
        } else {
            None
        }
    }

    /// What either allows.
    fn hull(self, other: Self) -> Self {
        Self { low: self.low.min(other.low), high: self.high.max(other.high), at: self.at.max(other.at) }
    }

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

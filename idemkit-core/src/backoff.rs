//! Delays that double up to a limit, with jitter.

use std::time::Duration;

/// Successive delays: each up to twice the one before, between half and the whole of its step, so that many who began
/// together do not come back together.
#[derive(Debug)]
pub(crate) struct Backoff {
    step: Duration,
    max: Duration,
}

impl Backoff {
    pub(crate) const fn new(min: Duration, max: Duration) -> Self {
        Self { step: min, max }
    }

    pub(crate) fn next_delay(&mut self) -> Duration {
        let step = self.step;
        self.step = step.saturating_mul(2).min(self.max);
        // Without randomness there is no jitter, and nothing worse.
        let half = step / 2;
        half + half.mul_f64(f64::from(getrandom::u32().unwrap_or(u32::MAX)) / f64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubles_within_its_limits() {
        let mut backoff = Backoff::new(Duration::from_millis(50), Duration::from_secs(1));
        for step_ms in [50, 100, 200, 400, 800, 1000, 1000, 1000] {
            let delay = backoff.next_delay();
            assert!(
                delay >= Duration::from_millis(step_ms / 2) && delay <= Duration::from_millis(step_ms),
                "{delay:?}"
            );
        }
    }
}

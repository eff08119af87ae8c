//! What the server's clock reads at most: for the times that are handed out with an answer that brings no time along.
//!
//! Nothing is decided by it. A decision is the server's own, or that of a command that returns the server's time.

use std::time::{Duration, Instant};

use idemkit_core::Timestamp;
use parking_lot::Mutex;

/// How long an observation is good for: clocks drift, and primaries change.
const GOOD_FOR: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
pub(crate) struct ServerClock {
    best: Mutex<Option<Reading>>,
}

/// The server's clock read `server` at some moment after `sent`: so it reads at most that and what has gone since.
#[derive(Clone, Copy, Debug)]
struct Reading {
    sent: Instant,
    server: Timestamp,
}

impl Reading {
    fn at_most(self, now: Instant) -> Timestamp {
        self.server.saturating_add(now.saturating_duration_since(self.sent))
    }
}

impl ServerClock {
    /// A command that was sent at `sent`, and is answered now, was carried out when the server's clock read `server`.
    pub(crate) fn observe(&self, sent: Instant, server: Timestamp) {
        let (now, seen) = (Instant::now(), Reading { sent, server });
        let mut best = self.best.lock();
        let keeps = best.is_some_and(|known| {
            let is_fresh = now.saturating_duration_since(known.sent) < GOOD_FOR;
            // A clock that is beyond what it could be was stepped, or is another primary's.
            let explains = server <= known.at_most(now);
            is_fresh && explains && known.at_most(now) <= seen.at_most(now)
        });
        if !keeps {
            *best = Some(seen);
        }
    }

    /// Nothing where it was not seen lately.
    pub(crate) fn at_most(&self) -> Option<Timestamp> {
        let now = Instant::now();
        let known = (*self.best.lock())?;
        (now.saturating_duration_since(known.sent) < GOOD_FOR).then(|| known.at_most(now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quickest_answer_is_kept_and_a_step_starts_anew() {
        let (clock, now) = (ServerClock::default(), Instant::now());
        assert_eq!(clock.at_most(), None);
        let near = |millis: u64| {
            let seen = clock.at_most().unwrap().as_millis();
            // However long the test has taken so far, in whole milliseconds.
            let since = u64::try_from(now.elapsed().as_millis()).unwrap() + 1;
            assert!((millis..=millis + since).contains(&seen), "{seen} is not {millis} and at most {since} more");
        };
        clock.observe(now - Duration::from_secs(5), Timestamp::from_millis(100_000));
        near(105_000);
        // It took a second: its reading may be of the end of that.
        clock.observe(now - Duration::from_secs(1), Timestamp::from_millis(100_500));
        near(101_500);
        clock.observe(now - Duration::from_secs(4), Timestamp::from_millis(100_400));
        near(101_500);
        // Beyond what it could be.
        clock.observe(now, Timestamp::from_millis(900_000));
        near(900_000);
        // A minute old.
        let old = ServerClock::default();
        if let Some(then) = now.checked_sub(GOOD_FOR) {
            old.observe(then, Timestamp::from_millis(1));
            assert_eq!(old.at_most(), None);
        }
    }
}

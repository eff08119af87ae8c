//! Checked durations: the one place where a `Duration` becomes something that a store may be asked for.

use std::{fmt, num::NonZeroU64, time::Duration};

/// How long a lease holds, a result is replayed, or a waiter waits: whole milliseconds, from 1 ms to ten years.
///
/// The rule of the contract for durations lives here alone. A `Ttl` **rounds up** to whole milliseconds, so that no
/// lease is ever shorter than what was asked for; **zero is an error** and never means "not set" (a deadline that has
/// already passed reads as zero, and taking that for "no lease" wedges a key for ever); what is longer than
/// [`Ttl::MAX`] is **clamped** to it, so that no store's time arithmetic can overflow.
///
/// ```
/// use std::time::Duration;
/// use idemkit_core::Ttl;
///
/// assert_eq!(Ttl::new(Duration::from_micros(1_500))?.as_millis(), 2);
/// assert_eq!(Ttl::new(Duration::MAX)?, Ttl::MAX);
/// assert!(Ttl::new(Duration::ZERO).is_err());
/// # Ok::<(), idemkit_core::InvalidDuration>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(NonZeroU64);

/// A duration of zero where the contract demands a positive one. Nothing was sent to any store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a duration of zero: leases, waits and expiries must be longer than nothing (zero never means \"not set\")")]
pub struct InvalidDuration;

impl Ttl {
    /// The longest duration: 3,650 days. Longer ones are clamped to it.
    pub const MAX: Self = Self::saturating_millis(3_650 * 24 * 60 * 60 * 1_000);
    /// The shortest duration: one millisecond.
    pub const MIN: Self = Self::saturating_millis(1);

    /// Rounds `duration` up to whole milliseconds and clamps it to [`Ttl::MAX`].
    ///
    /// # Errors
    /// [`InvalidDuration`] where `duration` is zero.
    pub const fn new(duration: Duration) -> Result<Self, InvalidDuration> {
        if duration.is_zero() {
            return Err(InvalidDuration);
        }
        Ok(Self::round_up(duration))
    }

    /// Whole milliseconds, never 0.
    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0.get()
    }

    /// The same length as a [`Duration`].
    #[must_use]
    pub const fn as_duration(self) -> Duration {
        Duration::from_millis(self.0.get())
    }

    /// As [`Ttl::new`], but nothing becomes one millisecond: for what is left of a duration that was valid.
    pub(crate) const fn round_up(duration: Duration) -> Self {
        Self::saturating_millis(duration.as_nanos().div_ceil(1_000_000))
    }

    /// From whole seconds, for constants.
    pub(crate) const fn saturating_secs(secs: u64) -> Self {
        Self::saturating_millis(secs as u128 * 1_000)
    }

    const fn saturating_millis(millis: u128) -> Self {
        const MAX_MS: u128 = 3_650 * 24 * 60 * 60 * 1_000;
        let millis = if millis > MAX_MS { MAX_MS } else { millis };
        match NonZeroU64::new(millis as u64) {
            Some(millis) => Self(millis),
            None => Self(NonZeroU64::MIN),
        }
    }
}

impl TryFrom<Duration> for Ttl {
    type Error = InvalidDuration;

    fn try_from(duration: Duration) -> Result<Self, InvalidDuration> {
        Self::new(duration)
    }
}

impl From<Ttl> for Duration {
    fn from(ttl: Ttl) -> Self {
        ttl.as_duration()
    }
}

impl fmt::Debug for Ttl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_duration(), f)
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::one_nanosecond(Duration::from_nanos(1), 1)]
    #[case::exact(Duration::from_millis(1), 1)]
    #[case::a_nanosecond_over(Duration::new(0, 1_000_001), 2)]
    #[case::seconds(Duration::from_secs(30), 30_000)]
    #[case::just_below_the_longest(Ttl::MAX.as_duration() - Duration::from_nanos(1), Ttl::MAX.as_millis())]
    #[case::longest(Ttl::MAX.as_duration(), Ttl::MAX.as_millis())]
    #[case::over_the_longest(Ttl::MAX.as_duration() + Duration::from_nanos(1), Ttl::MAX.as_millis())]
    #[case::huge(Duration::MAX, Ttl::MAX.as_millis())]
    fn rounds_up_and_clamps(#[case] duration: Duration, #[case] millis: u64) {
        assert_eq!(Ttl::new(duration).unwrap().as_millis(), millis);
    }

    #[test]
    fn zero_is_an_error_and_never_unset() {
        assert_eq!(Ttl::new(Duration::ZERO), Err(InvalidDuration));
        assert_eq!(Ttl::round_up(Duration::ZERO), Ttl::MIN, "what is left of a valid duration is never zero");
    }
}

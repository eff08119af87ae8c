//! Which answers are recorded.

use std::{collections::HashSet, fmt, ops::RangeInclusive, sync::Arc};

use http::StatusCode;

/// A set of statuses.
///
/// A range or a closure never holds a 5xx, whatever it says: such an answer is recorded only where it is named one by one,
/// with [`Statuses::set`] or [`Statuses::and`], since a retry would get it for as long as it is kept.
///
/// ```
/// use http::StatusCode;
/// use idemkit_http::Statuses;
///
/// let statuses = Statuses::range(200..=599).and([StatusCode::NOT_IMPLEMENTED]);
/// assert!(statuses.contains(StatusCode::CONFLICT) && statuses.contains(StatusCode::NOT_IMPLEMENTED));
/// assert!(!statuses.contains(StatusCode::INTERNAL_SERVER_ERROR));
/// ```
#[derive(Clone)]
pub struct Statuses {
    named: HashSet<StatusCode>,
    when: Option<Arc<dyn Fn(StatusCode) -> bool + Send + Sync>>,
}

impl Statuses {
    /// 2xx, the default.
    #[must_use]
    pub fn successes() -> Self {
        Self::when(|status| status.is_success())
    }

    /// These, 5xx too.
    pub fn set(statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        Self { named: statuses.into_iter().collect(), when: None }
    }

    /// Those of a range, but for 5xx.
    #[must_use]
    pub fn range(range: RangeInclusive<u16>) -> Self {
        Self::when(move |status| range.contains(&status.as_u16()))
    }

    /// Those that a closure says, but for 5xx, of which it is not asked.
    pub fn when(holds: impl Fn(StatusCode) -> bool + Send + Sync + 'static) -> Self {
        Self { named: HashSet::new(), when: Some(Arc::new(holds)) }
    }

    /// These too, 5xx too.
    #[must_use]
    pub fn and(mut self, statuses: impl IntoIterator<Item = StatusCode>) -> Self {
        self.named.extend(statuses);
        self
    }

    /// Whether it is one of them.
    #[must_use]
    pub fn contains(&self, status: StatusCode) -> bool {
        self.named.contains(&status)
            || !status.is_server_error() && self.when.as_ref().is_some_and(|holds| holds(status))
    }
}

impl fmt::Debug for Statuses {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let recorded =
            (100..600).filter_map(|code| StatusCode::from_u16(code).ok()).filter(|code| self.contains(*code));
        f.debug_set().entries(recorded.map(|status| status.as_u16())).finish()
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Statuses::successes(), &[200, 201, 204, 299], &[199, 302, 404, 500])]
    #[case(Statuses::set([StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR]), &[200, 500], &[201, 404, 503])]
    #[case(Statuses::range(200..=999), &[200, 302, 404, 422], &[500, 503, 599])]
    #[case(Statuses::when(|_| true), &[200, 404], &[500, 599])]
    #[case(Statuses::successes().and([StatusCode::NOT_FOUND]), &[200, 404], &[400, 500])]
    fn a_status_is_recorded_or_not(#[case] statuses: Statuses, #[case] recorded: &[u16], #[case] others: &[u16]) {
        let contains = |code: &u16| statuses.contains(StatusCode::from_u16(*code).unwrap());
        assert!(recorded.iter().all(contains), "{statuses:?}");
        assert!(!others.iter().any(contains), "{statuses:?}");
    }
}

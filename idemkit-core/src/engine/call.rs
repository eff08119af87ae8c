//! Calls to a store: under the engine's own deadline, and sent again with the same token where that may help.

use std::{future::Future, time::Duration};

use tokio::time::{Instant, sleep, timeout_at};

use crate::{Applied, StoreError, StoreErrorKind, backoff::Backoff};

/// The first pause between two tries.
const PAUSE_MIN: Duration = Duration::from_millis(20);

/// One call: no store may hang an operation, ours or another's.
pub(super) async fn call<T>(
    deadline: Instant,
    store: &'static str,
    call: impl Future<Output = Result<T, StoreError>>,
) -> Result<T, StoreError> {
    match timeout_at(deadline, call).await {
        Ok(answer) => answer,
        Err(elapsed) => Err(StoreError::new(store, StoreErrorKind::Unavailable, Applied::Unknown)
            .with_detail("no answer within the deadline")
            .with_source(elapsed)),
    }
}

/// How a request is sent again.
pub(super) struct Tries {
    pub(super) store: &'static str,
    /// When there is no further try.
    pub(super) end: Instant,
    /// How long one try may take.
    pub(super) each: Duration,
    /// The longest pause between two.
    pub(super) pause_max: Duration,
}

impl Tries {
    /// Sends until there is an answer, an error for which `again` says no, or no time left.
    ///
    /// The error that remains says whether *any* of the tries may have been applied.
    pub(super) async fn send<T, F>(
        self,
        mut again: impl FnMut(&StoreError) -> bool,
        mut send: impl FnMut() -> F,
    ) -> Result<T, StoreError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut backoff = Backoff::new(PAUSE_MIN, self.pause_max);
        let mut applied = Applied::No;
        loop {
            let deadline = self.end.min(Instant::now() + self.each);
            let error = match call(deadline, self.store, send()).await {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            if error.may_be_applied() {
                applied = Applied::Unknown;
            }
            let error = error.with_applied(applied);
            let pause = backoff.next_delay();
            if !again(&error) || Instant::now() + pause >= self.end {
                return Err(error);
            }
            sleep(pause).await;
        }
    }
}

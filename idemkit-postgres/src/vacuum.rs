//! Reaping: rows that nobody needs any more, each by its own time.

use std::time::Duration;

use idemkit_core::{Applied, StoreError};
use tokio::{task::AbortHandle, time::sleep};

use crate::{classify::classify, link::Lease, statement::Arg, store::PostgresStore};

/// How many rows the task deletes at a time: a transaction of some milliseconds.
const BATCH: u32 = 1_000;

impl PostgresStore {
    /// Deletes at most `batch` rows whose lease or expiry ended more than the grace ago, the oldest first, and says how many it
    /// was. Rows that somebody has locked are left. Any number of processes may call it at once.
    ///
    /// Each row goes by its own time; no default of anybody's is applied to another's rows.
    ///
    /// # Errors
    /// As every operation of the store.
    pub async fn vacuum(&self, batch: u32) -> Result<u64, StoreError> {
        let (link, statements, keep) = self.for_vacuum();
        let args = [Arg::Long(keep), Arg::Long(batch.into())];
        self.within(Applied::Unknown, async {
            let mut connection = Lease::take(&link.pool).await.map_err(|error| classify(error, Applied::No))?;
            let deleted = statements.vacuum.execute(&mut connection, link.protocol, &args).await;
            connection.give_back_after(deleted).map_err(|error| classify(error, Applied::Unknown))
        })
        .await
    }

    /// Deletes such rows now and every `interval` from then on, until what is returned is dropped. Must be called in a tokio
    /// runtime.
    ///
    /// A failure is a `tracing` warning, and the next time may be better. Several processes may each have one.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use idemkit_postgres::PostgresStore;
    ///
    /// # fn example(store: PostgresStore) {
    /// let _vacuum = store.spawn_vacuum(Duration::from_secs(60));
    /// // … as long as the service lives …
    /// # }
    /// ```
    pub fn spawn_vacuum(&self, interval: Duration) -> VacuumTask {
        let store = self.clone();
        let task = tokio::spawn(async move {
            loop {
                match store.vacuum(BATCH).await {
                    // There is more: without a pause, but each in a transaction of its own.
                    Ok(deleted) if deleted >= u64::from(BATCH) => continue,
                    Ok(_) => {}
                    Err(error) => tracing::warn!(%error, "idemkit: rows that have expired could not be deleted"),
                }
                // So that processes that were started together do not stay so.
                sleep(interval.mul_f64(0.5 + fastrand::f64())).await;
            }
        });
        VacuumTask { task: task.abort_handle() }
    }
}

/// The task of [`PostgresStore::spawn_vacuum`]: it ends when this is dropped.
#[derive(Debug)]
#[must_use = "the task ends when this is dropped"]
pub struct VacuumTask {
    task: AbortHandle,
}

impl Drop for VacuumTask {
    fn drop(&mut self) {
        self.task.abort();
    }
}

//! Completing in the caller's own transaction: effect and record commit together, or not at all.

use std::{
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    time::Duration,
};

use idemkit_core::{
    Applied, Complete, HeldClaim, InTransaction, Outcome, Renew, RenewOutcome, StoreError, StoreErrorKind,
    StoredResult, Transacted, Ttl, machine::Condition,
};
use mongodb::{
    ClientSession,
    bson::{DateTime, Document},
    error::{Error, ErrorKind},
    options::{ReadConcern, ReadPreference, SelectionCriteria},
};
use tokio::time::{Instant, sleep};

use crate::{
    NAME,
    classify::{Meaning, classify, meaning},
    document::{LEASE_UNTIL, encode_outcome},
    link::Sent,
    pipeline,
    store::{MongoStore, newer},
};

const DEFAULT_EXPIRES_AFTER: Duration = Duration::from_secs(24 * 60 * 60);
/// Between two runs of a transaction that met another one.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// How often a transaction is run in all, where each time the server has ended it between its lock and its completion. A change
/// of primaries does that once; a closure that hides an error does it each time.
const RUNS_WITHOUT_COMPLETION: u32 = 3;
/// The server's code for a transaction that it has ended, or does not know.
const NO_SUCH_TRANSACTION: i32 = 251;
const ENDED: &str = "the transaction was ended before its completion: only the store may commit or abort it";

/// Why a transaction was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// The closure's own error. Everything was rolled back, and the claim is still held: release it, or run again.
    #[error("the transaction's operation failed")]
    Operation(#[source] Error),
    /// The store failed. Whether the transaction may have been applied is in the error; it may be run again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A transaction that holds the record of a claim. It derefs to a [`ClientSession`]: hand `&mut *tx` to your operations.
///
/// Where it is dropped, nothing of it is applied.
pub struct Transaction {
    session: ClientSession,
}

/// A transaction that is ready to commit, and what its operation ended with.
#[must_use = "return it from the closure of MongoStore::transact"]
pub struct Completed<T> {
    transaction: Transaction,
    outcome: Outcome,
    expires_after: Option<Ttl>,
    value: T,
}

impl Transaction {
    /// Ready to commit, with this result, which is replayed for a day.
    pub fn complete(self, result: StoredResult) -> Completed<()> {
        self.complete_as(Outcome::Result(result))
    }

    /// Ready to commit, with this outcome.
    pub fn complete_as(self, outcome: Outcome) -> Completed<()> {
        Completed { transaction: self, outcome, expires_after: None, value: () }
    }
}

impl<T> Completed<T> {
    /// With a value for the caller of [`MongoStore::transact`], where it commits.
    pub fn with<U>(self, value: U) -> Completed<U> {
        let Self { transaction, outcome, expires_after, .. } = self;
        Completed { transaction, outcome, expires_after, value }
    }

    /// Replayed for so long, instead of a day.
    pub fn expires_after(self, expires_after: Ttl) -> Self {
        Self { expires_after: Some(expires_after), ..self }
    }
}

impl Deref for Transaction {
    type Target = ClientSession;

    fn deref(&self) -> &ClientSession {
        &self.session
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut ClientSession {
        &mut self.session
    }
}

/// Why one run of a transaction did not commit.
enum Stopped<T> {
    Ended(Transacted<T>),
    /// It met another one: it may be run again.
    Transient(Error),
    /// The server had ended it before its completion, and the closure has not said so.
    Lost(Error),
    Failed(TransactError),
}

impl MongoStore {
    /// Runs `operation` in a transaction that also completes `claim`: all of it is committed, or nothing.
    ///
    /// What the operation writes to this deployment, with the session, happens **exactly once**, under crashes and zombies
    /// alike. The record is locked by the transaction's first write; a claim that was taken over before, or is completed
    /// already, by this very transaction too, runs nothing. So where the commit's acknowledgement was lost it may be run
    /// again, until it is answered.
    ///
    /// The closure is run again where MongoDB says that the transaction met another one (`TransientTransactionError`): do
    /// nothing in it that is not in the transaction, and return the driver's errors as they are, each of them. An error ends the
    /// transaction on the server, and a closure that goes on after one is run three times, and then that is an error. It must
    /// not commit or abort the transaction itself: nothing is recorded then, and that is an error too.
    ///
    /// The claim's heartbeat has ended ([`Guard::hand_over`](idemkit_core::Guard::hand_over)); the claim is renewed for as long
    /// as a transaction may take.
    ///
    /// # Errors
    /// [`TransactError::Operation`] with the closure's error: rolled back, and the claim is still held.
    /// [`TransactError::Store`] as every operation of the store.
    ///
    /// ```no_run
    /// use idemkit_core::{Begin, EffectiveKey, Engine, Fingerprint, StoredResult, Transacted};
    /// use idemkit_mongo::{MongoStore, mongodb::bson::{Document, doc}};
    ///
    /// # async fn example(engine: Engine, store: MongoStore) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// let orders = store.client().database("shop").collection::<Document>("orders");
    /// if let Begin::Proceed(guard) = engine.begin(key, Fingerprint::of_payload("two coffees")).await {
    ///     let done = store
    ///         .transact(guard.hand_over(), |mut tx| {
    ///             let orders = orders.clone();
    ///             async move {
    ///                 orders.insert_one(doc! { "what": "two coffees" }).session(&mut *tx).await?;
    ///                 Ok(tx.complete(StoredResult::new(201, "ordered")))
    ///             }
    ///         })
    ///         .await?;
    ///     assert_eq!(done, Transacted::Committed(()));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn transact<T, F>(
        &self,
        claim: HeldClaim,
        mut operation: impl FnMut(Transaction) -> F,
    ) -> Result<Transacted<T>, TransactError>
    where
        F: Future<Output = mongodb::error::Result<Completed<T>>>,
    {
        let until = Instant::now() + self.inner.settings.transaction_within;
        let mut pause = PAUSE;
        let mut lost = 0;
        loop {
            let error = match self.run_once(&claim, &mut operation).await {
                Ok(committed) => return Ok(Transacted::Committed(committed)),
                Err(Stopped::Ended(ended)) => return Ok(ended),
                Err(Stopped::Failed(error)) => return Err(error),
                Err(Stopped::Transient(error)) => {
                    lost = 0;
                    error
                }
                Err(Stopped::Lost(error)) => {
                    lost += 1;
                    if lost >= RUNS_WITHOUT_COMPLETION {
                        return Err(hidden().with_source(error).into());
                    }
                    error
                }
            };
            if Instant::now() >= until {
                return Err(classify(error, Applied::No).into());
            }
            sleep(pause.mul_f64(0.5 + fastrand::f64())).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    async fn run_once<T, F>(
        &self,
        claim: &HeldClaim,
        operation: &mut impl FnMut(Transaction) -> F,
    ) -> Result<T, Stopped<T>>
    where
        F: Future<Output = mongodb::error::Result<Completed<T>>>,
    {
        let inner = &self.inner;
        // Before it begins, the claim is made to hold for as long as it may take: claims that are live are in flight at once,
        // where one that has lapsed would keep others waiting for the lock.
        let lease = Ttl::new(inner.settings.transaction_within).unwrap_or(Ttl::MAX);
        let renewed = inner.within(None, Applied::No, inner.renew(&claim.key, &Renew::new(claim.token, lease))).await;
        match renewed.map_err(|error| Stopped::Failed(error.into()))? {
            RenewOutcome::Renewed { .. } => {}
            RenewOutcome::Fenced | RenewOutcome::Completed => return Err(Stopped::Ended(self.told(claim).await?)),
        }
        let mut session = self.begin().await?;
        let Some(locked) = self.within_deadline(self.lock(&mut session, claim)).await? else {
            return Err(Stopped::Ended(self.told(claim).await?));
        };
        let Completed { mut transaction, outcome, expires_after, value } =
            match operation(Transaction { session }).await {
                Ok(ready) => ready,
                Err(error) if error.contains_label(mongodb::error::TRANSIENT_TRANSACTION_ERROR) => {
                    return Err(Stopped::Transient(error));
                }
                Err(error) => return Err(Stopped::Failed(TransactError::Operation(error))),
            };
        inner.check_size(&outcome).map_err(|error| Stopped::Failed(error.into()))?;
        let expires_after = expires_after.or_else(|| Ttl::new(DEFAULT_EXPIRES_AFTER).ok()).unwrap_or(Ttl::MAX);
        let request = Complete::new(claim.token, outcome, expires_after);
        if !self.within_deadline(is_open(&mut transaction.session)).await? {
            return Err(Stopped::Failed(ended().into()));
        }
        let completing = self.complete_locked(&mut transaction.session, claim, &request, Some(locked));
        let completed = self.within_deadline(completing).await.map_err(|stopped| match stopped {
            Stopped::Transient(error) if is_gone(&error) => Stopped::Lost(error),
            other => other,
        });
        if !completed? {
            // Locked since its beginning: the closure has changed the record, or put another transaction in this one's place.
            return Err(Stopped::Ended(Transacted::Fenced));
        }
        self.commit(&mut transaction.session).await?;
        inner.watches.notify(&claim.key);
        Ok(value)
    }

    async fn begin<T>(&self) -> Result<ClientSession, Stopped<T>> {
        let link = &self.inner.link;
        self.within_deadline(async {
            let mut session = self.client().start_session().await?;
            let start = session.start_transaction().write_concern(link.write_concern.clone());
            // A client's own read preference would be inherited, and every command of the transaction be refused.
            let start = start.selection_criteria(SelectionCriteria::ReadPreference(ReadPreference::Primary));
            start.read_concern(ReadConcern::snapshot()).await?;
            Ok(session)
        })
        .await
    }

    /// The lease's end as the lock has left it; nothing where the claim is not held.
    async fn lock(&self, session: &mut ClientSession, claim: &HeldClaim) -> Result<Option<DateTime>, Error> {
        let query = pipeline::held_by(&claim.key.to_string(), claim.token);
        let locked = self.inner.link.modify_once(&query, &pipeline::lock(), false, Sent::In(session)).await?;
        Ok(locked.after.and_then(|record| record.get_datetime(LEASE_UNTIL).ok().copied()))
    }

    /// Where it was locked before, only what that lock has left is completed: outside of its transaction that is not there.
    async fn complete_locked(
        &self,
        session: &mut ClientSession,
        claim: &HeldClaim,
        request: &Complete,
        locked: Option<DateTime>,
    ) -> Result<bool, Error> {
        let mut query = pipeline::held_by(&claim.key.to_string(), request.token);
        if let Some(lease_until) = locked {
            query.insert(LEASE_UNTIL, lease_until);
        }
        let outcome: Document = encode_outcome(&request.outcome);
        let update = pipeline::complete(&outcome, request.expires_after.as_duration(), self.inner.settings.grace);
        Ok(self.inner.link.modify_once(&query, &update, false, Sent::In(session)).await?.after.is_some())
    }

    /// Commits, and again while the answer is that it is not known: committing twice is committing once.
    async fn commit<T>(&self, session: &mut ClientSession) -> Result<(), Stopped<T>> {
        let committed = async {
            let mut before = Applied::No;
            loop {
                match session.commit_transaction().await {
                    Ok(()) => return Ok(()),
                    Err(error) if error.contains_label(mongodb::error::TRANSIENT_TRANSACTION_ERROR) => {
                        return Err(Stopped::Transient(error));
                    }
                    Err(error) if error.contains_label(mongodb::error::UNKNOWN_TRANSACTION_COMMIT_RESULT) => {
                        before = Applied::Unknown;
                        sleep(PAUSE).await;
                    }
                    Err(error) => return Err(Stopped::Failed(not_committed(error, before).into())),
                }
            }
        };
        let limit = self.inner.settings.deadline;
        match tokio::time::timeout(limit, committed).await {
            Ok(done) => done,
            Err(elapsed) => {
                let late = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown);
                let late = late.with_detail(format!("no answer to the commit within {limit:?}")).with_source(elapsed);
                Err(Stopped::Failed(late.into()))
            }
        }
    }

    /// A step before the commit: where it fails nothing is applied.
    async fn within_deadline<T, U>(&self, step: impl Future<Output = Result<U, Error>>) -> Result<U, Stopped<T>> {
        let limit = self.inner.settings.deadline;
        match tokio::time::timeout(limit, step).await {
            Ok(Ok(done)) => Ok(done),
            Ok(Err(error)) if error.contains_label(mongodb::error::TRANSIENT_TRANSACTION_ERROR) => {
                Err(Stopped::Transient(error))
            }
            Ok(Err(error)) => Err(Stopped::Failed(classify(error, Applied::No).into())),
            Err(elapsed) => {
                let late = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::No);
                let late = late.with_detail(format!("no answer within {limit:?}")).with_source(elapsed);
                Err(Stopped::Failed(late.into()))
            }
        }
    }

    /// Why the claim is not held any more. Its own completion is none here: the transaction that made it was committed, and
    /// this one must not apply its effect again.
    async fn told<T>(&self, claim: &HeldClaim) -> Result<Transacted<T>, Stopped<T>> {
        let looked = self.inner.within(None, Applied::No, self.inner.link.look(&claim.key)).await;
        let seen = looked.map_err(|error| Stopped::Failed(error.into()))?;
        match Condition::of(seen.record().as_ref(), seen.now) {
            Condition::Completed(completed) => Ok(Transacted::AlreadyCompleted(completed.seen_at(seen.now))),
            Condition::Newer => Err(Stopped::Failed(newer().into())),
            _ => Ok(Transacted::Fenced),
        }
    }

    /// Completes `claim` in a transaction of the caller's own, which commits it.
    ///
    /// [`transact`](Self::transact) is safer: it locks the record before anything else, and runs the transaction again where it
    /// met another one. End the claim's heartbeat first ([`Guard::hand_over`](idemkit_core::Guard::hand_over)).
    ///
    /// Where it is not [`InTransaction::Completed`], the transaction **was aborted**, after an error too: a commit of it is the
    /// driver's error.
    ///
    /// # Errors
    /// The driver's own, with its labels: a transaction that met another one is run again by whoever runs it.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use idemkit_core::{HeldClaim, InTransaction, Outcome, StoredResult, Ttl};
    /// use idemkit_mongo::MongoStore;
    ///
    /// # async fn example(store: MongoStore, claim: HeldClaim) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut session = store.client().start_session().await?;
    /// session.start_transaction().await?;
    /// // … your writes, with the session …
    /// let (outcome, day) = (Outcome::Result(StoredResult::new(200, "paid")), Ttl::new(Duration::from_secs(86_400))?);
    /// if store.complete_in(&mut session, &claim, outcome, day).await? == InTransaction::Completed {
    ///     session.commit_transaction().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn complete_in(
        &self,
        session: &mut ClientSession,
        claim: &HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
    ) -> mongodb::error::Result<InTransaction> {
        if !is_open(session).await? {
            return Err(Error::custom(ended()));
        }
        let completed = self.complete_or_tell(session, claim, outcome, expires_after).await;
        if !matches!(completed, Ok(InTransaction::Completed)) {
            // Whatever the server makes of it, the driver commits it no more.
            _ = tokio::time::timeout(self.inner.settings.deadline, session.abort_transaction()).await;
        }
        completed
    }

    async fn complete_or_tell(
        &self,
        session: &mut ClientSession,
        claim: &HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
    ) -> mongodb::error::Result<InTransaction> {
        self.inner.check_size(&outcome).map_err(Error::custom)?;
        let request = Complete::new(claim.token, outcome, expires_after);
        let completed = async {
            if self.complete_locked(session, claim, &request, None).await? {
                return Ok(InTransaction::Completed);
            }
            let seen = self.inner.link.look_once(&claim.key, Some(session)).await?;
            Ok(match Condition::of(seen.record().as_ref(), seen.now) {
                Condition::Completed(completed) => InTransaction::AlreadyCompleted(completed.seen_at(seen.now)),
                _ => InTransaction::Fenced,
            })
        };
        let late = |_| Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
        tokio::time::timeout(self.inner.settings.deadline, completed).await.map_err(late)?
    }
}

/// Whether the session is in a transaction. The driver does not say, but it begins none while another is open; what it began
/// here is known to the session alone, and ended at once.
async fn is_open(session: &mut ClientSession) -> Result<bool, Error> {
    match session.start_transaction().await {
        Ok(()) => session.abort_transaction().await.map(|()| false),
        Err(error) if matches!(error.kind.as_ref(), ErrorKind::Transaction { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// What was in it may have been committed.
fn ended() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::InvalidArgument, Applied::Unknown).with_detail(ENDED)
}

/// Whether the server has ended the transaction earlier. Locked as the record is, its completion meets nobody.
fn is_gone(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(command) if command.code == NO_SUCH_TRANSACTION)
}

fn hidden() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Other, Applied::No).with_detail(format!(
        "the server has ended the transaction before its completion, {RUNS_WITHOUT_COMPLETION} times in a row: the operation must return each of the driver's errors"
    ))
}

/// A commit's failure: nothing is applied only where the server itself has refused, and no earlier try was left unknown.
fn not_committed(error: Error, before: Applied) -> StoreError {
    if matches!(error.kind.as_ref(), ErrorKind::Transaction { .. }) {
        return ended().with_source(error);
    }
    let is_refused = matches!(error.kind.as_ref(), ErrorKind::Command(_))
        && matches!(meaning(&error), Meaning::Contended | Meaning::Refused(..));
    classify(error, if is_refused { before } else { Applied::Unknown })
}

impl<T> From<StoreError> for Stopped<T> {
    fn from(error: StoreError) -> Self {
        Self::Failed(error.into())
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction").finish_non_exhaustive()
    }
}

impl<T: fmt::Debug> fmt::Debug for Completed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completed").field("outcome", &self.outcome).field("value", &self.value).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_commit_that_the_driver_does_not_make_may_be_applied() {
        let client = mongodb::Client::with_uri_str("mongodb://127.0.0.1:9").await.unwrap();
        let mut session = client.start_session().await.unwrap();
        let error = not_committed(session.commit_transaction().await.unwrap_err(), Applied::No);
        assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::InvalidArgument, true), "{error}");
        for (code, before, may_be_applied) in
            [(50, Applied::No, true), (91, Applied::No, true), (13, Applied::No, false), (13, Applied::Unknown, true)]
        {
            let error = not_committed(crate::classify::tests::said(code), before);
            assert_eq!(error.may_be_applied(), may_be_applied, "{code}");
        }
    }
}

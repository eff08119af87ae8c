//! Completing in the caller's own transaction: effect and record commit together, or not at all.

use std::{
    fmt,
    future::Future,
    ops::{Deref, DerefMut},
    time::Duration,
};

use idemkit_core::{
    Applied, Complete, CompletedRecord, HeldClaim, InTransaction, Outcome, StoreError, StoreErrorKind, StoredResult,
    Transacted, Ttl, machine::Condition,
};
use sqlx::{AssertSqlSafe, Executor as _, PgConnection, SqlSafeStr as _, postgres::PgTransactionManager as Manager};
use sqlx_core::transaction::TransactionManager as _;

use crate::{
    NAME,
    classify::{Meaning, classify, meaning},
    link::Lease,
    row::Told,
    statement::Arg,
    store::{PostgresStore, complete_args, millis, newer},
};

/// How often a transaction that met another one before it began is begun.
const TRIES: u32 = 5;
const DEFAULT_EXPIRES_AFTER: Duration = Duration::from_secs(24 * 60 * 60);

/// Why a transaction was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError<E> {
    /// The closure's own error. Everything was rolled back, and the claim is still held: release it, or run again.
    #[error("the transaction's operation failed")]
    Operation(#[source] E),
    /// The store failed. Whether the transaction may have been applied is in the error; it may be run again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// A transaction that holds the record of a claim. It derefs to a [`PgConnection`]: run your statements on `&mut *tx`.
///
/// Where it is dropped, nothing of it is applied.
///
/// It is the store's to end: an operation that ends it by SQL of its own is an error, since nothing would be recorded with what
/// it has written. Savepoints and transactions begun inside are yours.
pub struct Transaction {
    /// What the server calls it.
    id: String,
    // Begun by the driver's manager, which counts: one that is begun inside is a savepoint. Its `Transaction` would take the
    // connection along, and give it back with a transaction open where it is dropped while it begins (sqlx's issue 4393).
    connection: Lease,
}

/// A transaction that is ready to commit, and what its operation ended with.
#[must_use = "return it from the closure of PostgresStore::transact"]
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
    /// With a value for the caller of [`PostgresStore::transact`], where it commits.
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
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Transaction {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

impl Drop for Transaction {
    /// Queues the rollback, if it is not committed: it is sent before anybody else gets the connection.
    fn drop(&mut self) {
        while Manager::get_transaction_depth(&self.connection) > 0 {
            Manager::start_rollback(&mut self.connection);
        }
        self.connection.give_back_when_dropped();
    }
}

impl PostgresStore {
    /// Runs `operation` in a transaction that also completes `claim`: all of it is committed, or nothing.
    ///
    /// What the operation writes to this database happens **exactly once**, under crashes and zombies alike. The record is
    /// locked first, so that nobody takes the claim over while the transaction is open; a claim that was taken over before,
    /// or is completed already, by this very transaction too, runs nothing. So where the commit's acknowledgement was lost it
    /// may be run again, until it is answered.
    ///
    /// The claim's heartbeat has ended ([`Guard::hand_over`](idemkit_core::Guard::hand_over)); the lock takes its place, for as
    /// long as the transaction is not idle for longer than [`idle_in_transaction`](crate::Builder::idle_in_transaction).
    /// Whoever waits is notified when it commits.
    ///
    /// # Errors
    /// [`TransactError::Operation`] with the closure's error: rolled back, and the claim is still held.
    /// [`TransactError::Store`] as every operation of the store; a serialization failure at the commit is *unavailable*, and
    /// nothing was applied. Where the closure has ended the transaction by itself it is an *invalid argument*: what it committed
    /// stays, and nothing is recorded.
    ///
    /// ```no_run
    /// use idemkit_core::{Begin, EffectiveKey, Engine, Fingerprint, StoredResult, Transacted};
    /// use idemkit_postgres::{PostgresStore, sqlx};
    ///
    /// # async fn example(engine: Engine, store: PostgresStore) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// if let Begin::Proceed(guard) = engine.begin(key, Fingerprint::of_payload("5 EUR")).await {
    ///     let done = store
    ///         .transact(guard.hand_over(), async |mut tx| {
    ///             sqlx::query("UPDATE accounts SET cents = cents - 500 WHERE id = 1").execute(&mut *tx).await?;
    ///             Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(200, "paid")))
    ///         })
    ///         .await?;
    ///     assert_eq!(done, Transacted::Committed(()));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn transact<T, E, F>(
        &self,
        claim: HeldClaim,
        operation: impl FnOnce(Transaction) -> F,
    ) -> Result<Transacted<T>, TransactError<E>>
    where
        F: Future<Output = Result<Completed<T>, E>>,
    {
        let transaction = match self.within(Applied::No, self.begin(&claim)).await? {
            Begun::Holds(transaction) => transaction,
            Begun::AlreadyCompleted(record) => return Ok(Transacted::AlreadyCompleted(record)),
            Begun::Fenced => return Ok(Transacted::Fenced),
        };
        let ready = operation(transaction).await.map_err(TransactError::Operation)?;
        let Completed { mut transaction, outcome, expires_after, value } = ready;
        if Manager::get_transaction_depth(&transaction.connection) != 1 {
            return Err(not_its_own("a transaction that was begun inside is still open").into());
        }
        self.inner.check_size(&outcome)?;
        let expires_after = expires_after.or_else(|| Ttl::new(DEFAULT_EXPIRES_AFTER).ok()).unwrap_or(Ttl::MAX);
        let request = Complete::new(claim.token, outcome, expires_after);
        let Transaction { id, connection } = &mut transaction;
        let completed = self.within(Applied::No, self.complete_locked(connection, id, &claim, &request)).await?;
        if !completed {
            // Nobody else can have changed the record, which is locked.
            let error = not_its_own("the operation has ended the transaction by itself, or changed the claim's record");
            return Err(error.with_applied(Applied::Unknown).into());
        }
        self.within(Applied::Unknown, commit(transaction)).await?;
        self.inner.watches.notify(&claim.key);
        Ok(Transacted::Committed(value))
    }

    /// Completes `claim` in a transaction of the caller's own, which commits it.
    ///
    /// [`transact`](Self::transact) is safer: it locks the record before anything else. Here it is locked now, so call it
    /// before your own writes where they conflict, and end the claim's heartbeat first
    /// ([`Guard::hand_over`](idemkit_core::Guard::hand_over)).
    ///
    /// Where it is not [`InTransaction::Completed`], the transaction **cannot commit**: a `COMMIT` rolls it back. Inside a transaction
    /// that is begun in another, the connection is ended instead, since the failure of a savepoint can be undone. (A
    /// `SAVEPOINT` by SQL of your own is not seen: never roll back to one that you set before this call.) After an error, too,
    /// it must not be committed.
    ///
    /// # Errors
    /// As every operation of the store. Nothing is tried again, since the transaction is aborted by then. On a connection that has
    /// no transaction it is an *invalid argument*, and nothing is written.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use idemkit_core::{HeldClaim, InTransaction, Outcome, StoredResult, Ttl};
    /// use idemkit_postgres::PostgresStore;
    ///
    /// # async fn example(
    /// #     store: PostgresStore,
    /// #     pool: idemkit_postgres::sqlx::PgPool,
    /// #     claim: HeldClaim,
    /// # ) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut tx = pool.begin().await?;
    /// // … your writes …
    /// let (outcome, day) = (Outcome::Result(StoredResult::new(200, "paid")), Ttl::new(Duration::from_secs(86_400))?);
    /// if store.complete_in(&mut tx, &claim, outcome, day).await? == InTransaction::Completed {
    ///     tx.commit().await?;
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn complete_in(
        &self,
        transaction: &mut PgConnection,
        claim: &HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
    ) -> Result<InTransaction, StoreError> {
        self.inner.check_size(&outcome)?;
        let request = Complete::new(claim.token, outcome, expires_after);
        self.within(Applied::No, async {
            let ended = self.complete_begun(transaction, claim, &request).await;
            if !matches!(ended, Ok(InTransaction::Completed)) {
                poison(transaction).await;
            }
            ended
        })
        .await
    }

    async fn complete_begun(
        &self,
        transaction: &mut PgConnection,
        claim: &HeldClaim,
        request: &Complete,
    ) -> Result<InTransaction, StoreError> {
        let locked = self.lock(transaction, claim).await;
        let (id, told) = locked.map_err(|error| classify(error, Applied::No))?;
        match self.holds(told, claim)? {
            Held::Holds if self.complete_locked(transaction, &id, claim, request).await? => {
                Ok(InTransaction::Completed)
            }
            // Nobody else can have changed the record, if it is still locked.
            Held::Holds => Err(not_its_own("there is no transaction on this connection")),
            Held::Fenced => Ok(InTransaction::Fenced),
            Held::AlreadyCompleted(record) => Ok(InTransaction::AlreadyCompleted(record)),
        }
    }

    /// Begins a transaction and locks the record in it.
    async fn begin(&self, claim: &HeldClaim) -> Result<Begun, StoreError> {
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.begin_once(claim).await {
                Ok((transaction, told)) => {
                    return Ok(match self.holds(told, claim)? {
                        Held::Holds => Begun::Holds(transaction),
                        // The transaction is dropped, and rolled back.
                        Held::AlreadyCompleted(record) => Begun::AlreadyCompleted(record),
                        Held::Fenced => Begun::Fenced,
                    });
                }
                Err(error) => error,
            };
            if meaning(&error) == Meaning::Lost {
                self.inner.link.pool.distrust_idle();
            }
            if tries >= TRIES || matches!(meaning(&error), Meaning::Refused(..)) {
                // Nothing was written yet, whatever became of it.
                return Err(classify(error, Applied::No));
            }
            tokio::time::sleep(Duration::from_millis(10) * tries).await;
        }
    }

    async fn begin_once(&self, claim: &HeldClaim) -> Result<(Transaction, Option<Told>), sqlx::Error> {
        // For this transaction alone: nothing stays behind in a connection that a pooler gives to others.
        let idle = millis(self.inner.settings.idle_in_transaction);
        let begin = format!("BEGIN; SET LOCAL idle_in_transaction_session_timeout = {idle}");
        // Until it is locked, whoever drops this closes the connection: the driver rolls back only what it knows to have begun.
        let mut connection = Lease::take(&self.inner.link.pool).await?;
        Manager::begin(&mut connection, Some(AssertSqlSafe(begin).into_sql_str())).await?;
        let locked = self.lock(&mut connection, claim).await;
        let id = locked.as_ref().map(|(id, _)| id.clone()).unwrap_or_default();
        let transaction = Transaction { id, connection };
        Ok((transaction, locked?.1))
    }

    /// Locks the record, and says in which transaction.
    async fn lock(
        &self,
        connection: &mut PgConnection,
        claim: &HeldClaim,
    ) -> Result<(String, Option<Told>), sqlx::Error> {
        let args = [Arg::Text(claim.key.to_string().into())];
        let row = self.inner.statements.lock.fetch(connection, self.inner.link.protocol, &args).await?;
        let mut told = row.as_ref().map(Told::of).transpose()?;
        Ok((told.as_mut().and_then(|told| told.how.take()).unwrap_or_default(), told))
    }

    /// What the locked record says of the claim. Its own completion is none here: the transaction that made it was
    /// committed, and this one must not apply its effect again.
    fn holds(&self, told: Option<Told>, claim: &HeldClaim) -> Result<Held, StoreError> {
        let now = told.as_ref().map(|told| told.now).unwrap_or_default();
        let record = told.and_then(|told| told.seen).map(|seen| seen.record);
        Ok(match Condition::of(record.as_ref(), now) {
            Condition::Live(held) | Condition::Lapsed(held) if held.token == claim.token => Held::Holds,
            Condition::Completed(completed) => Held::AlreadyCompleted(completed.seen_at(now)),
            Condition::Newer => return Err(newer()),
            Condition::Absent | Condition::Live(_) | Condition::Lapsed(_) | Condition::Garbage => Held::Fenced,
        })
    }

    /// Completes the record that is locked by this very transaction. One that was aborted, though the closure swallowed the error,
    /// fails here: its COMMIT would be a ROLLBACK without a word.
    async fn complete_locked(
        &self,
        connection: &mut PgConnection,
        transaction: &str,
        claim: &HeldClaim,
        request: &Complete,
    ) -> Result<bool, StoreError> {
        let args = complete_args(&claim.key, request, Some(transaction));
        let row = self.inner.statements.complete.fetch(connection, self.inner.link.protocol, &args).await;
        let told = row.and_then(|row| row.as_ref().map(Told::of).transpose());
        let told = told.map_err(|error| classify(error, Applied::No))?;
        Ok(told.is_some_and(|told| told.how.is_some()))
    }
}

enum Begun {
    Holds(Transaction),
    AlreadyCompleted(CompletedRecord),
    Fenced,
}

enum Held {
    Holds,
    AlreadyCompleted(CompletedRecord),
    Fenced,
}

async fn commit(mut transaction: Transaction) -> Result<(), StoreError> {
    Manager::commit(&mut transaction.connection).await.map_err(|error| {
        let code = error.as_database_error().and_then(|error| error.code()).unwrap_or_default().into_owned();
        // A constraint that was deferred, a serialization failure, an aborted transaction, a cancelled statement. What else stands
        // between may answer for a server that it has lost.
        let is_refused = ["23", "25", "40"].iter().any(|class| code.starts_with(class)) || code == "57014";
        let failed = classify(error, if is_refused { Applied::No } else { Applied::Unknown });
        if code.starts_with("23") {
            // The caller's own: the same again is refused again.
            return StoreError::new(NAME, StoreErrorKind::Other, Applied::No)
                .with_detail("a deferred constraint refuses the commit")
                .with_source(failed);
        }
        failed
    })
}

/// The transaction is not what it must be.
fn not_its_own(what: &'static str) -> StoreError {
    StoreError::new(NAME, StoreErrorKind::InvalidArgument, Applied::No).with_detail(what)
}

/// Aborts the transaction for good: whatever its owner does next, it does not commit.
async fn poison(transaction: &mut PgConnection) {
    // It is meant to fail. Where it cannot even be sent, nothing commits either.
    let sql = if Manager::get_transaction_depth(transaction) > 1 {
        "SELECT pg_terminate_backend(pg_backend_pid())"
    } else {
        "SELECT 'idemkit: the claim is not held, so this transaction must not commit'::integer"
    };
    _ = transaction.execute(sql).await;
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

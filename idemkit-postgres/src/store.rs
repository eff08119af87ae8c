//! The store: each operation one statement.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use idemkit_core::{
    ATTEMPT_MAX, Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, Complete, CompleteOutcome,
    DecidingClock, EffectiveKey, InFlight, Look, Outcome, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight,
    Store, StoreError, StoreErrorKind, Ttl, WaitOutcome, Watches,
    machine::{Request, Rules, Step, Write, step},
};
use tokio::{
    sync::OnceCell,
    time::{sleep, timeout},
};

use crate::{
    NAME,
    classify::classify,
    link::Link,
    listener::{Address, Listener},
    row::{OutcomeColumns, Seen, Told, encode_outcome, fingerprint_version},
    schema,
    statement::{Arg, Names, Statement, Statements},
};

/// How often an operation that met a row which changed under it is tried anew before it is given up as contended.
const TRIES: u32 = 16;
/// How often a claim that could be taken is asked for, where another has its row locked, after pauses that grow to 0.3 s in
/// all: a claim that is faster is over by then, on a server that is busy too, and what is still there is a holder's
/// transaction.
const LOCKED_TRIES: u32 = 12;
const LOCKED_PAUSE: Duration = Duration::from_millis(5);
/// What is told of a lapsed claim whose row is locked: it may be free at any moment, and is looked at again so soon.
const LOCKED_LEFT: Duration = Duration::from_millis(100);
/// How long a wait's first look is put off for the listener to listen.
const LISTENS_WITHIN: Duration = Duration::from_millis(500);

/// idemkit's store on PostgreSQL: one row a key, and one statement an operation.
///
/// Clones share one pool, one listener and one watch a key. See the crate's documentation for the schema, for poolers, and
/// for completing in your own transaction, which is [`transact`](Self::transact).
///
/// ```no_run
/// use idemkit_core::Engine;
/// use idemkit_postgres::PostgresStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = PostgresStore::new("postgres://localhost/orders")?;
/// store.migrate().await?; // Once, in a deployment.
/// let engine = Engine::new(store);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct PostgresStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) link: Link,
    names: Names,
    pub(crate) statements: Statements,
    listener: Option<Listener>,
    pub(crate) watches: Watches,
    checked: OnceCell<()>,
}

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) deadline: Duration,
    pub(crate) grace: Duration,
    pub(crate) take_over_margin: Duration,
    pub(crate) idle_in_transaction: Duration,
    pub(crate) result_bytes_max: u64,
    pub(crate) allow_asynchronous_commit: bool,
}

impl PostgresStore {
    pub(crate) fn assemble(settings: Settings, link: Link, names: Names, listens_at: Option<Address>) -> Self {
        let watches = Watches::default();
        let inner = Inner {
            settings,
            link,
            statements: Statements::new(&names),
            names,
            listener: listens_at.map(|address| Listener::new(address, watches.clone())),
            watches,
            checked: OnceCell::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Closes the store's connections, when what runs on them has ended. Later operations are *unavailable*.
    pub async fn close(&self) {
        self.inner.link.pool.close().await;
    }

    pub(crate) fn link_and_names(&self) -> (&Link, &Names) {
        (&self.inner.link, &self.inner.names)
    }

    /// Also how long after its end a row is kept, in milliseconds.
    pub(crate) fn for_vacuum(&self) -> (&Link, &Statements, i64) {
        let Settings { grace, take_over_margin, .. } = self.inner.settings;
        // A claim within its margin must not be reaped before it can be taken over.
        (&self.inner.link, &self.inner.statements, millis(grace.saturating_add(take_over_margin)))
    }

    pub(crate) async fn within<T>(
        &self,
        late: Applied,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        self.inner.within(None, late, operation).await
    }
}

/// Whole milliseconds, rounded up, as far as the server counts.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).min(MILLIS_MAX)
}

/// Ten years: what durations are clamped to everywhere.
const MILLIS_MAX: i64 = 3_650 * 24 * 60 * 60 * 1_000;

fn ttl_millis(ttl: Ttl) -> i64 {
    millis(ttl.as_duration())
}

/// What became of one statement.
enum Tried<R: Request> {
    /// It did what it is for.
    Did(Told),
    /// It did nothing, and this is what the rules say to that.
    Answer(R::Answer),
    /// The rules would write this over what was seen, and the statement did not: it changed in between, is locked, or no
    /// statement can decide about it.
    Writes { write: Write, answer: R::Answer, seen: Option<Seen>, told_now: idemkit_core::Timestamp },
}

impl Inner {
    fn rules(&self) -> Rules {
        Rules { take_over_margin: self.settings.take_over_margin }
    }

    /// Runs an operation under its deadline, after what is looked at once. `late` says what became of one that is cut off.
    pub(crate) async fn within<T>(
        &self,
        lease: Option<Ttl>,
        late: Applied,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = lease.map_or(self.settings.deadline, |lease| self.settings.deadline.min(lease.as_duration()));
        let checked = async {
            let check = || schema::check(&self.link, &self.statements.check, self.settings.allow_asynchronous_commit);
            self.checked.get_or_try_init(check).await?;
            operation.await
        };
        timeout(limit, checked).await.unwrap_or_else(|elapsed| {
            let error = StoreError::new(NAME, StoreErrorKind::Unavailable, late);
            Err(error.with_detail(format!("no answer within {limit:?}")).with_source(elapsed))
        })
    }

    async fn told(&self, statement: &Statement, args: &[Arg<'_>], lost: Applied) -> Result<Told, StoreError> {
        let row = self.link.fetch(statement, args, lost).await?;
        let row =
            row.ok_or_else(|| StoreError::new(NAME, StoreErrorKind::Other, lost).with_detail("no row was returned"))?;
        Told::of(&row).map_err(|error| classify(error, lost))
    }

    async fn try_once<R: Request>(
        &self,
        statement: &Statement,
        args: &[Arg<'_>],
        request: &R,
    ) -> Result<Tried<R>, StoreError> {
        let told = self.told(statement, args, Applied::Unknown).await?;
        if told.how.is_some() {
            return Ok(Tried::Did(told));
        }
        let Step { write, answer } = step(told.seen.as_ref().map(|seen| &seen.record), request, told.now, self.rules());
        let answer = answer.map_err(|unreadable| newer().with_source(unreadable))?;
        Ok(match write {
            Write::Nothing => Tried::Answer(answer),
            write => Tried::Writes { write, answer, seen: told.seen, told_now: told.now },
        })
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        // A version that this release does not know equals nothing, not even itself.
        let comparable = request.fingerprint.matches(&request.fingerprint);
        let args = [
            Arg::Text(key.to_string().into()),
            Arg::Text(request.token.to_string().into()),
            Arg::Text(request.fingerprint.to_hex().into()),
            Arg::Int(fingerprint_version(&request.fingerprint)),
            Arg::Long(ttl_millis(request.lease)),
            Arg::Long(millis(self.settings.take_over_margin)),
            Arg::Bool(comparable),
        ];
        let mut met_locked = 0;
        for _ in 0..TRIES {
            match self.try_once(&self.statements.claim, &args, request).await? {
                Tried::Did(told) => {
                    let kind = match told.how.as_deref() {
                        Some("reclaimed") => ClaimKind::Reclaimed,
                        Some("again") if told.attempt > 1 => ClaimKind::Reclaimed,
                        _ => ClaimKind::Fresh,
                    };
                    let lease_left = request.lease.as_duration();
                    return Ok(ClaimOutcome::Acquired(Acquired { kind, attempt: told.attempt, lease_left }));
                }
                Tried::Answer(answer) => return Ok(answer),
                // Nothing was there, and the row of another was not visible yet: now it is.
                Tried::Writes { seen: None, .. } => {}
                Tried::Writes { write, answer, seen: Some(seen), told_now } => match &seen.record {
                    Record::Garbage => {
                        if self.replace(key, &seen, &write, told_now).await? {
                            return Ok(answer);
                        }
                    }
                    Record::Claimed(held) if held.token != request.token => {
                        met_locked += 1;
                        if met_locked >= LOCKED_TRIES {
                            let (fingerprint, attempt) = (held.fingerprint, held.attempt);
                            let in_flight = InFlight { fingerprint, attempt, lease_left: LOCKED_LEFT };
                            return Ok(ClaimOutcome::InFlight(in_flight));
                        }
                        sleep(LOCKED_PAUSE * met_locked).await;
                    }
                    // Locked for the moment of another's claim, or changed.
                    _ => sleep(LOCKED_PAUSE).await,
                },
            }
        }
        Err(contended())
    }

    /// Writes what the rules say over a row that does not decode, if it is still the version that was seen.
    async fn replace(
        &self,
        key: &EffectiveKey,
        seen: &Seen,
        write: &Write,
        now: idemkit_core::Timestamp,
    ) -> Result<bool, StoreError> {
        // The rules write nothing else there.
        let Write::Put(Record::Claimed(claimed)) = write else { return Ok(false) };
        let args = [
            Arg::Text(key.to_string().into()),
            Arg::Text(seen.xmin.as_str().into()),
            Arg::Text(seen.ctid.as_str().into()),
            Arg::Text(claimed.token.to_string().into()),
            Arg::Text(claimed.fingerprint.to_hex().into()),
            Arg::Int(fingerprint_version(&claimed.fingerprint)),
            Arg::Int(i32::try_from(claimed.attempt.min(ATTEMPT_MAX)).unwrap_or(i32::MAX)),
            Arg::Long(millis(claimed.lease_until.left_at(now))),
            Arg::Long(i64::try_from(now.as_millis()).unwrap_or(i64::MAX)),
        ];
        Ok(self.link.fetch(&self.statements.replace, &args, Applied::Unknown).await?.is_some())
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        let args = complete_args(key, request, None);
        for _ in 0..TRIES {
            match self.try_once(&self.statements.complete, &args, request).await? {
                Tried::Did(_) => return Ok(CompleteOutcome::Applied),
                Tried::Answer(answer) => return Ok(answer),
                Tried::Writes { .. } => sleep(LOCKED_PAUSE).await,
            }
        }
        Err(contended())
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        let args = [
            Arg::Text(key.to_string().into()),
            Arg::Text(request.token.to_string().into()),
            Arg::Long(ttl_millis(request.lease)),
        ];
        for _ in 0..TRIES {
            match self.try_once(&self.statements.renew, &args, request).await? {
                Tried::Did(told) => return Ok(RenewOutcome::Renewed { lease_left: told.until.left_at(told.now) }),
                Tried::Answer(answer) => return Ok(answer),
                Tried::Writes { .. } => sleep(LOCKED_PAUSE).await,
            }
        }
        Err(contended())
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        let args = [Arg::Text(key.to_string().into()), Arg::Text(request.token.to_string().into())];
        for _ in 0..TRIES {
            match self.try_once(&self.statements.release, &args, request).await? {
                Tried::Did(_) => return Ok(ReleaseOutcome::Applied),
                Tried::Answer(answer) => return Ok(answer),
                Tried::Writes { .. } => sleep(LOCKED_PAUSE).await,
            }
        }
        Err(contended())
    }

    async fn look(&self, key: &EffectiveKey) -> Result<Sight, StoreError> {
        let args = [Arg::Text(key.to_string().into()), Arg::Bool(self.listener.is_some())];
        let told = self.told(&self.statements.look, &args, Applied::No).await?;
        let record = told.seen.as_ref().map(|seen| &seen.record);
        let sight = step(record, &Look, told.now, self.rules()).answer;
        Ok(match sight.map_err(|unreadable| newer().with_source(unreadable))? {
            // It has lapsed, and a transaction has it: its holder's, most likely.
            Sight::Vacant if told.locked => Sight::Held { lease_left: LOCKED_LEFT },
            sight => sight,
        })
    }

    /// Body and headers: what this store counts. An error where that is too much.
    pub(crate) fn check_size(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let (size, max) =
            (outcome.stored().map_or(0, idemkit_core::StoredResult::size), self.settings.result_bytes_max);
        if size <= max {
            return Ok(());
        }
        Err(StoreError::new(NAME, StoreErrorKind::ResultTooLarge { size, max }, Applied::No))
    }
}

/// The arguments of a completion: in that transaction alone, and with a notice at any rate, since a waiter could not mark a
/// record that it has locked; or in none.
pub(crate) fn complete_args<'a>(
    key: &EffectiveKey,
    request: &'a Complete,
    transaction: Option<&'a str>,
) -> [Arg<'a>; 9] {
    let OutcomeColumns { status, headers, body, outcome } = encode_outcome(&request.outcome);
    [
        Arg::Text(key.to_string().into()),
        Arg::Text(request.token.to_string().into()),
        Arg::Long(ttl_millis(request.expires_after)),
        Arg::AnyInt(status),
        Arg::AnyText(headers.map(Into::into)),
        Arg::AnyBytes(body),
        Arg::AnyText(outcome.map(Into::into)),
        Arg::Bool(transaction.is_some()),
        Arg::AnyText(transaction.map(Into::into)),
    ]
}

pub(crate) fn newer() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No)
}

fn contended() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown)
        .with_detail(format!("the row changed under {TRIES} tries in a row"))
}

#[async_trait]
impl Store for PostgresStore {
    fn capabilities(&self) -> Capabilities {
        let Settings { take_over_margin, result_bytes_max, .. } = self.inner.settings;
        Capabilities::new(NAME, DecidingClock::Server)
            .result_bytes_max(result_bytes_max)
            .notifies(self.inner.listener.is_some())
            .completes_in_transaction(true)
            .take_over_margin(take_over_margin)
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.inner.within(Some(request.lease), Applied::Unknown, self.inner.claim(key, request)).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        self.inner.check_size(&request.outcome)?;
        let completed = self.inner.within(None, Applied::Unknown, self.inner.complete(key, request)).await;
        self.inner.watches.notify(key);
        completed
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.inner.within(Some(request.lease), Applied::Unknown, self.inner.renew(key, request)).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        let released = self.inner.within(None, Applied::Unknown, self.inner.release(key, request)).await;
        self.inner.watches.notify(key);
        released
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        let (inner, watched) = (Arc::clone(&self.inner), *key);
        let first = Arc::new(OnceCell::new());
        let look = move || {
            let (inner, first) = (Arc::clone(&inner), Arc::clone(&first));
            async move {
                if let Some(listener) = &inner.listener {
                    // It listens before it reads; once is enough, since the poll goes on.
                    first.get_or_init(|| listener.listens(LISTENS_WITHIN)).await;
                }
                inner.within(None, Applied::No, inner.look(&watched)).await
            }
        };
        self.inner.watches.wait(key, timeout, look).await
    }
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore")
            .field("table", &self.inner.names.table)
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

//! The store: each operation one command.

use std::{
    fmt,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use async_trait::async_trait;
use idemkit_core::{
    Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, Claimed, Complete, CompleteOutcome, DecidingClock,
    EffectiveKey, InFlight, Look, Outcome, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Store,
    StoreError, StoreErrorKind, Timestamp, Ttl, WaitOutcome, Watches,
    machine::{Request, Rules, Step, Write, step},
};
use mongodb::{Client, Collection, bson::Document};
use tokio::{
    sync::OnceCell,
    time::{sleep, timeout},
};

use crate::{
    NAME,
    clock::ServerClock,
    document::{self, encode_claimed, encode_outcome},
    link::{Link, Modified, Seen, Updated},
    pipeline,
    watch::{self, Listener},
};

/// How often an operation that met a document which changed under it is tried anew before it is given up as contended.
const TRIES: u32 = 16;
const PAUSE: Duration = Duration::from_millis(5);
/// What the server first gets for a claim's update: one that takes longer waits for a transaction, most likely.
const HELD_UP_AFTER: Duration = Duration::from_secs(2);
/// What is told of a lapsed claim that its holder's open transaction has locked: nobody knows when that ends, and a waiter
/// looks again as often.
const LOCKED_FOR: Duration = Duration::from_secs(1);
/// How long a wait's first look is put off for the change stream to begin.
const LISTENS_WITHIN: Duration = Duration::from_millis(500);

/// idemkit's store on MongoDB: one document a key, and one command an operation.
///
/// Clones share one client, one change stream and one watch a key. See the crate's documentation for what it needs of a
/// deployment, and for completing in your own transaction, which is [`transact`](Self::transact).
///
/// ```no_run
/// use idemkit_core::Engine;
/// use idemkit_mongo::MongoStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::new(MongoStore::new("mongodb://localhost/?replicaSet=rs0").await?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct MongoStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) settings: Settings,
    pub(crate) link: Link,
    pub(crate) watches: Watches,
    listener: Option<Listener>,
    clock: ServerClock,
    prepared: OnceCell<()>,
}

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) deadline: Duration,
    pub(crate) grace: Duration,
    pub(crate) take_over_margin: Duration,
    pub(crate) transaction_within: Duration,
    pub(crate) create_index: bool,
}

impl MongoStore {
    pub(crate) fn assemble(settings: Settings, link: Link, notices: bool) -> Self {
        let watches = Watches::default();
        let listener = notices.then(|| Listener::new(link.collection.clone(), watches.clone()));
        let inner =
            Inner { settings, link, watches, listener, clock: ServerClock::default(), prepared: OnceCell::new() };
        Self { inner: Arc::new(inner) }
    }

    /// The store's client: for collections of your own that share its transactions, say.
    #[must_use]
    pub fn client(&self) -> &Client {
        self.inner.link.collection.client()
    }

    /// The collection of the records.
    #[must_use]
    pub fn collection(&self) -> &Collection<Document> {
        &self.inner.link.collection
    }
}

impl Inner {
    fn rules(&self) -> Rules {
        Rules { take_over_margin: self.settings.take_over_margin }
    }

    /// How much longer than its lease a claim's document is kept.
    fn keep(&self) -> Duration {
        self.settings.take_over_margin.saturating_add(self.settings.grace)
    }

    fn limit(&self, lease: Option<Ttl>) -> Duration {
        lease.map_or(self.settings.deadline, |lease| self.settings.deadline.min(lease.as_duration()))
    }

    /// Runs an operation under its deadline, after what is done once. `late` says what became of one that is cut off.
    pub(crate) async fn within<T>(
        &self,
        lease: Option<Ttl>,
        late: Applied,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = self.limit(lease);
        let prepared = async {
            if self.settings.create_index {
                self.prepared.get_or_try_init(|| watch::ensure_index(&self.link.collection)).await?;
            }
            operation.await
        };
        timeout(limit, prepared).await.unwrap_or_else(|elapsed| {
            let error = StoreError::new(NAME, StoreErrorKind::Unavailable, late);
            Err(error.with_detail(format!("no answer within {limit:?}")).with_source(elapsed))
        })
    }

    async fn seen(&self, key: &EffectiveKey) -> Result<Seen, StoreError> {
        let sent = Instant::now();
        let seen = self.link.look(key).await?;
        if seen.document.is_some() {
            self.clock.observe(sent, seen.now);
        }
        Ok(seen)
    }

    /// What is there after a write that found nothing, or was not told: that may have been applied all the same.
    async fn seen_after_write(&self, key: &EffectiveKey) -> Result<Seen, StoreError> {
        self.seen(key).await.map_err(|error| error.with_applied(Applied::Unknown))
    }

    /// What the rules say of what was seen.
    fn judge<R: Request>(
        &self,
        record: Option<&Record>,
        request: &R,
        now: Timestamp,
    ) -> Result<Step<R::Answer>, StoreError> {
        let judged = step(record, request, now, self.rules());
        match judged.answer {
            Ok(_) => Ok(judged),
            Err(unreadable) => Err(newer().with_source(unreadable)),
        }
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        let query = mongodb::bson::doc! { "_id": key.to_string() };
        let update = pipeline::claim(request, self.settings.take_over_margin, self.settings.grace);
        let whole = self.link.command_within;
        let mut within = whole.min(HELD_UP_AFTER).min(self.limit(Some(request.lease)) / 2);
        let mut before = Applied::No;
        for _ in 0..TRIES {
            let sent = Instant::now();
            let updated = self.link.modify_within(&query, &update, true, within).await;
            let updated = updated.map_err(|error| error.with_applied(before))?;
            before = Applied::Unknown;
            let held_up = match updated {
                Updated::HeldUp(error) => Some(error),
                // Concurrent upserts of a new document sometimes answer nothing, though they were applied.
                Updated::Done(Modified { after: None, .. }) => continue,
                Updated::Done(Modified { after: Some(after), is_new }) => {
                    let record = document::decode(&after);
                    if is_new && let Record::Claimed(own) = &record {
                        self.clock.observe(sent, own.claimed_at);
                        let lease_left = request.lease.as_duration();
                        let won = Acquired { kind: ClaimKind::Fresh, attempt: 1, lease_left };
                        return Ok(ClaimOutcome::Acquired(won));
                    }
                    if let Record::Claimed(own) = &record
                        && own.token == request.token
                    {
                        return self.acquired_again(key, own, request).await;
                    }
                    if let Some(answer) = self.told_without_looking(&record) {
                        return Ok(answer);
                    }
                    None
                }
            };
            let seen = self.seen_after_write(key).await?;
            let record = seen.record();
            let Step { write, answer } = self.judge(record.as_ref(), request, seen.now)?;
            let Ok(answer) = answer else { return Err(newer()) };
            let answer = within_lease(answer, request.lease);
            match (write, record, held_up) {
                (Write::Nothing, ..) => return Ok(answer),
                // Lapsed, and locked: its holder's transaction may yet complete it.
                (_, Some(Record::Claimed(held)), Some(_)) if held.token != request.token => {
                    let (fingerprint, attempt) = (held.fingerprint, held.attempt);
                    return Ok(ClaimOutcome::InFlight(InFlight { fingerprint, attempt, lease_left: LOCKED_FOR }));
                }
                (_, _, Some(error)) if within == whole => return Err(error),
                // Not by a holder: the server is slow.
                (_, _, Some(_)) => within = whole,
                // What the update has left alone, or what has ended since: one compare-and-set on what was seen.
                (Write::Put(Record::Claimed(claimed)), Some(_), None) if self.replace(key, &seen, &claimed).await? => {
                    return Ok(answer);
                }
                _ => {}
            }
            // It changed between the two.
            sleep(PAUSE).await;
        }
        Err(contended())
    }

    /// What the update has left is the claim of this token: taken over, or held before. A second command reads how much of it is left,
    /// since what a holder relies on is not estimated: another primary, or another router, has another clock. It decides
    /// nothing: where the record is another's by then, this claim was held all the same, and nothing of it is left.
    async fn acquired_again(
        &self,
        key: &EffectiveKey,
        own: &Claimed,
        request: &Claim,
    ) -> Result<ClaimOutcome, StoreError> {
        let seen = self.seen_after_write(key).await?;
        let left = match seen.record() {
            Some(Record::Claimed(held)) if held.token == request.token => held.lease_until.left_at(seen.now),
            _ => Duration::ZERO,
        };
        Ok(ClaimOutcome::Acquired(Acquired {
            kind: if own.attempt == 1 { ClaimKind::Fresh } else { ClaimKind::Reclaimed },
            attempt: own.attempt,
            lease_left: left.min(request.lease.as_duration()),
        }))
    }

    /// Writes a claim over what was seen, where that is still there.
    async fn replace(&self, key: &EffectiveKey, seen: &Seen, claimed: &Claimed) -> Result<bool, StoreError> {
        let Some(document) = &seen.document else { return Ok(false) };
        let as_seen = pipeline::as_seen(&key.to_string(), document);
        let update = pipeline::replace(&encode_claimed(claimed, self.keep()));
        let replaced = self.link.modify(&as_seen, &update, false).await;
        Ok(replaced.map_err(|error| error.with_applied(Applied::Unknown))?.after.is_some())
    }

    /// The answer that an update's result is by itself. The update was the decision; what it brings no time for is counted by
    /// what the server's clock reads at most, so that no time that is handed out is longer than what is left.
    fn told_without_looking(&self, after: &Record) -> Option<ClaimOutcome> {
        let now = self.clock.at_most()?;
        match after {
            Record::Completed(completed) if now < completed.expires_at => {
                Some(ClaimOutcome::Completed(completed.seen_at(now)))
            }
            Record::Claimed(held) => {
                // Near its end, whether it is over decides what is told.
                let left = held.lease_until.left_at(now);
                (left > Duration::ZERO).then(|| {
                    let lease_left = left.saturating_add(self.settings.take_over_margin);
                    ClaimOutcome::InFlight(InFlight {
                        fingerprint: held.fingerprint,
                        attempt: held.attempt,
                        lease_left,
                    })
                })
            }
            Record::Completed(_) | Record::Garbage | Record::Newer => None,
        }
    }

    async fn complete(
        &self,
        key: &EffectiveKey,
        request: &Complete,
        outcome: &Document,
    ) -> Result<CompleteOutcome, StoreError> {
        let query = pipeline::held_by(&key.to_string(), request.token);
        let update = pipeline::complete(outcome, request.expires_after.as_duration(), self.settings.grace);
        for _ in 0..TRIES {
            if self.link.modify(&query, &update, false).await?.after.is_some() {
                return Ok(CompleteOutcome::Applied);
            }
            let seen = self.seen_after_write(key).await?;
            if let Step { write: Write::Nothing, answer: Ok(answer) } =
                self.judge(seen.record().as_ref(), request, seen.now)?
            {
                return Ok(answer);
            }
            sleep(PAUSE).await;
        }
        Err(contended())
    }

    pub(crate) async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        let lease = request.lease.as_duration();
        // It never lowers a lease: where that is longer, nothing is found.
        let query = pipeline::held_for_less(&key.to_string(), request.token, lease);
        let update = pipeline::renew(lease, self.keep());
        for _ in 0..TRIES {
            if self.link.modify(&query, &update, false).await?.after.is_some() {
                return Ok(RenewOutcome::Renewed { lease_left: lease });
            }
            let seen = self.seen_after_write(key).await?;
            let record = seen.record();
            match self.judge(record.as_ref(), request, seen.now)? {
                Step { write: Write::Nothing, answer: Ok(answer) } => return Ok(answer),
                Step { write: Write::Put(Record::Claimed(renewed)), answer: Ok(answer) } => {
                    let is_longer =
                        matches!(&record, Some(Record::Claimed(held)) if held.lease_until == renewed.lease_until);
                    if is_longer {
                        return Ok(answer);
                    }
                }
                _ => {}
            }
            sleep(PAUSE).await;
        }
        Err(contended())
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        let query = pipeline::held_by(&key.to_string(), request.token);
        for _ in 0..TRIES {
            if self.link.remove(&query).await? {
                return Ok(ReleaseOutcome::Applied);
            }
            let seen = self.seen_after_write(key).await?;
            if let Step { write: Write::Nothing, answer: Ok(answer) } =
                self.judge(seen.record().as_ref(), request, seen.now)?
            {
                return Ok(answer);
            }
            sleep(PAUSE).await;
        }
        Err(contended())
    }

    async fn look(&self, key: &EffectiveKey) -> Result<Sight, StoreError> {
        let seen = self.seen(key).await?;
        self.judge(seen.record().as_ref(), &Look, seen.now)?
            .answer
            .map_err(|unreadable| newer().with_source(unreadable))
    }

    /// An error where the result is more than the server takes.
    pub(crate) fn check_size(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let (size, max) = (document::size(outcome), document::RESULT_BYTES_MAX);
        if size <= max {
            return Ok(());
        }
        Err(StoreError::new(NAME, StoreErrorKind::ResultTooLarge { size, max }, Applied::No))
    }
}

/// Less than what is left is safe, and clocks that differ could make it more.
fn within_lease(answer: ClaimOutcome, lease: Ttl) -> ClaimOutcome {
    match answer {
        ClaimOutcome::Acquired(won) => {
            let lease_left = won.lease_left.min(lease.as_duration());
            ClaimOutcome::Acquired(Acquired { lease_left, ..won })
        }
        other => other,
    }
}

pub(crate) fn newer() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No)
}

fn contended() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown)
        .with_detail(format!("the document changed under {TRIES} tries in a row"))
}

#[async_trait]
impl Store for MongoStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(NAME, DecidingClock::Server)
            .result_bytes_max(document::RESULT_BYTES_MAX)
            .notifies(self.inner.listener.is_some())
            .completes_in_transaction(true)
            .take_over_margin(self.inner.settings.take_over_margin)
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.inner.within(Some(request.lease), Applied::Unknown, self.inner.claim(key, request)).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        self.inner.check_size(&request.outcome)?;
        let outcome = encode_outcome(&request.outcome);
        let completed = self.inner.within(None, Applied::Unknown, self.inner.complete(key, request, &outcome)).await;
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

impl fmt::Debug for MongoStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MongoStore")
            .field("collection", &self.inner.link.collection.namespace().to_string())
            .field("settings", &self.inner.settings)
            .finish_non_exhaustive()
    }
}

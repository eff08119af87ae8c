//! The contract that a store author works from.

use std::{fmt, sync::Arc, time::Duration};

use async_trait::async_trait;

use crate::{
    Claim, ClaimOutcome, Complete, CompleteOutcome, EffectiveKey, Release, ReleaseOutcome, Renew, RenewOutcome,
    StoreError, Ttl, WaitOutcome,
};

/// Where records live: five operations on one record a key.
///
/// This page is the whole contract. Its rules are numbered, and the conformance suite cites them. The transition table is here
/// for people; as a pure function it stands in [`machine`](crate::machine): a store does what
/// [`machine::step`](crate::machine::step) does, by the clock that its [`Capabilities`] name, in **one atomic step**.
///
/// # The table
///
/// *Own* is a request with the token that is in the record, whatever fingerprint it brings: the record keeps its own. Where nothing
/// is said of a write, nothing is written.
///
/// | the record is | claim | complete | renew | release | wait |
/// |---|---|---|---|---|---|
/// | absent, or completed and **expired** (for its own token too) | written: fresh, attempt 1 | fenced | fenced | not held | vacant |
/// | claimed and **live**, own | acquired again, with what is left | written: applied | written: renewed | deleted: applied | waits |
/// | live, another's | in flight, whatever the fingerprint | fenced | fenced | not held | waits |
/// | claimed and **lapsed**, own | written: acquired again, with a new lease and the same attempt | written: applied | written: renewed | deleted: applied | vacant |
/// | lapsed, another's, same fingerprint | written: reclaimed, attempt + 1 | fenced | fenced | not held | vacant |
/// | lapsed, another's, another fingerprint | mismatch | fenced | fenced | not held | vacant |
/// | **completed**, own | completed, with the record | applied | completed | not held | completed |
/// | completed, another's | completed, with the record, whatever the fingerprint | fenced | fenced | not held | completed |
/// | **garbage**: it does not decode | replaced: recovered, attempt 1 | fenced | fenced | not held | vacant |
/// | **newer** ([A10](#every-operation)) | error | error | error | error | error |
///
/// *Acquired again* is of the kind fresh where the attempt is 1, else reclaimed: the record does not keep how it came about. *Not held*
/// is no failure: it is also what a release that is sent again is told.
///
/// # Every operation
///
/// - **A1, atomic.** Each of claim, complete, renew and release is one atomic step. No read followed by a write that
///   assumes the read, unless the write is conditional on all that was read.
/// - **A2, one record.** A key has one record or none. A separate "lock" and "result" leave a gap between them.
/// - **A3, own token.** A repeat of a request with the token that is already in the record is told that it succeeded,
///   as the table says: networks lose acknowledgements, and drivers retry by themselves. A claim, completion or release
///   that took effect must never be reported to its own caller as lost. A live claim that is claimed again by its token stays as
///   it is; a lapsed one gets a new lease, and keeps its attempt.
/// - **A4, unchanged means unwritten.** Where the table says *unchanged* or *fenced*, nothing in the record changes:
///   not a lease, not an expiry, not a counter, not a field that the store does not know.
/// - **A5, one clock.** Lease and expiry are judged by the deciding clock alone. Only durations cross this trait; a
///   lease is over when the deciding clock reads `now >= lease_until`. Durations handed out never exceed what is left.
///   They may fall short of it, and an age may exceed what it is, by no longer than a request takes to be answered: a store may
///   reckon with what the deciding clock read in an earlier answer. A lease's holder relies on what is handed out; nothing is decided by it.
/// - **A6, deadlines.** Every operation ends: it fails as [unavailable](crate::StoreErrorKind::Unavailable) within its
///   deadline (by default 10 s, and never longer than the lease that it concerns).
/// - **A7, errors.** Each error has its kind, its source, and says whether the write may have been applied. A write
///   without an acknowledgement is *unknown*. Contention (serialization failures, duplicate keys) is retried inside,
///   bounded, and never shown. No text contains a raw key, a password, or a connection string with one.
/// - **A8, droppable.** A future may be dropped at any await. The request has then taken effect or not, and the store
///   stays usable: no transaction stays open, no half-read reply stays on a shared connection.
/// - **A9, values are data.** Nothing in a stored value is ever read as an expression by the store: any byte in a body
///   or a header value, any text but the empty one in a header name, comes back as it went in, repeated header values in
///   their order.
/// - **A10, newer records.** A record of a newer schema, or in an encoding that this build cannot read, is a [corrupt
///   record](crate::StoreErrorKind::CorruptRecord) error for every operation and stays as it is. Unknown extra fields
///   of a readable record are ignored, and survive.
/// - **A11, namespaces.** Two stores with different namespaces on one server never see each other's records.
///
/// # Cancellation and sharing
///
/// A store is shared by all tasks of a process, behind `Arc<dyn Store>`; no operation may hold a lock across its I/O.
/// There are no default methods, so that a wrapper cannot silently lose one.
///
/// # Example
///
/// ```
/// use std::{sync::Arc, time::Duration};
/// use idemkit_core::{Claim, ClaimOutcome, ClaimToken, EffectiveKey, Fingerprint, MemoryStore, Store, Ttl};
///
/// # tokio::runtime::Builder::new_current_thread().enable_time().build()?.block_on(async {
/// let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
/// let key = EffectiveKey::message("msg-7", "orders", "billing");
/// let claim = Claim::new(ClaimToken::random()?, Fingerprint::of_payload("…"), Ttl::new(Duration::from_secs(30))?);
/// assert!(matches!(store.claim(&key, &claim).await?, ClaimOutcome::Acquired(_)));
/// # Ok::<(), Box<dyn std::error::Error>>(()) })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[async_trait]
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// What this store is and can do. It never changes during the store's life.
    fn capabilities(&self) -> Capabilities;

    /// Asks for the right to execute.
    ///
    /// - **C1.** Of any number of claims of a vacant key at the same instant, exactly one is acquired.
    /// - **C2.** A lapsed claim is taken over only by the same fingerprint
    ///   ([`Fingerprint::matches`](crate::Fingerprint::matches)), with attempt + 1; another fingerprint gets
    ///   [`ClaimOutcome::Mismatch`], and nothing changes.
    /// - **C3.** A claim that meets a live or completed record writes nothing, and never queues behind a holder whose
    ///   transaction is open: it answers at once.
    /// - **C4.** A record that does not decode is replaced by compare-and-set on what was seen: one winner.
    /// - **C5.** A completed record that has expired counts as absent: the new claim is fresh, with attempt 1.
    /// - **C6.** With a [take-over margin](Capabilities::take_over_margin), a lapsed claim is *in flight* to others for
    ///   so much longer.
    /// - **C7.** A lapsed claim is remembered, for a grace of 60 s unless the user chooses another, so that its take-over
    ///   is known as one. Whatever reaps (a key's time to live, an index, a task) goes by what the record says now: the
    ///   lease as it was renewed or claimed again, the expiry as it was completed.
    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError>;

    /// Records how the operation ended.
    ///
    /// - **F1.** Only the token in the record may complete it, lapsed or not; everyone else is fenced.
    /// - **F2.** A completed record never changes before its expiry, which is counted from completion and not prolonged
    ///   by reading.
    /// - **F3.** A result larger than the store can hold is [too large](crate::StoreErrorKind::ResultTooLarge), with
    ///   both sizes, before any write and before the record is looked at; the claim stays as it was.
    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError>;

    /// Prolongs the lease.
    ///
    /// - **R1.** A renewal never lowers a lease: it ends at the later of its present end and now + lease.
    /// - **R2.** A lapsed claim that nobody took over is renewed as a live one.
    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError>;

    /// Gives the claim up. The key is vacant at once, and a next claim is fresh.
    ///
    /// - **L1.** Only the token in the record may release it; a completed record is never released.
    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError>;

    /// Waits until the operation is done or the key is vacant, for at most `timeout`.
    ///
    /// - **W1.** It subscribes before it reads.
    /// - **W2.** A notice only makes it faster: a poll, backed off from 50 ms to 1 s with jitter, is what makes it
    ///   correct.
    /// - **W3.** It does not outlive the holder's lease: at the lease's end it looks again.
    /// - **W4.** All waiters for one key in one process share one watch.
    /// - **W5.** A dead listener is noticed and re-made, and every waiter looks again after that.
    /// - **W6.** A read that fails but may succeed later is repeated until the time-out; only then is it the wait's
    ///   error.
    ///
    /// [`Watches`](crate::Watches) does all of this for a store that can read a record: use it.
    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError>;
}

// A wrapper must not lose a method that is added later.
#[deny(clippy::missing_trait_methods)]
#[async_trait]
impl<S: Store + ?Sized> Store for Arc<S> {
    fn capabilities(&self) -> Capabilities {
        (**self).capabilities()
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        (**self).claim(key, request).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        (**self).complete(key, request).await
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        (**self).renew(key, request).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        (**self).release(key, request).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        (**self).wait(key, timeout).await
    }
}

/// What a store is and can do.
///
/// ```
/// use idemkit_core::{Capabilities, DecidingClock, MemoryStore, Store};
///
/// let store = MemoryStore::new();
/// assert_eq!(store.capabilities().clock, DecidingClock::Process);
/// let mine = Capabilities::new("mine", DecidingClock::Server).notifies(true);
/// assert_eq!(mine.store, "mine");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// The store's name in events and errors: `memory`, `redis`, …
    pub store: &'static str,
    /// Whose clock decides whether a lease or an expiry is over.
    pub clock: DecidingClock,
    /// The largest result, in bytes as the store counts them; `None` where there is no limit.
    pub result_bytes_max: Option<u64>,
    /// Whether waiters are woken by a notice, rather than by their poll alone.
    pub notifies: bool,
    /// Whether a completion can join the caller's own transaction.
    pub completes_in_transaction: bool,
    /// A lapsed claim is taken over only so much later.
    pub take_over_margin: Duration,
}

impl Capabilities {
    /// A store without limits, notices or transactions, and without a margin.
    #[must_use]
    pub const fn new(store: &'static str, clock: DecidingClock) -> Self {
        Self {
            store,
            clock,
            result_bytes_max: None,
            notifies: false,
            completes_in_transaction: false,
            take_over_margin: Duration::ZERO,
        }
    }

    /// With the largest result, in bytes.
    #[must_use]
    pub const fn result_bytes_max(mut self, bytes: u64) -> Self {
        self.result_bytes_max = Some(bytes);
        self
    }

    /// Whether waiters are woken by a notice.
    #[must_use]
    pub const fn notifies(mut self, notifies: bool) -> Self {
        self.notifies = notifies;
        self
    }

    /// Whether a completion can join the caller's own transaction.
    #[must_use]
    pub const fn completes_in_transaction(mut self, completes: bool) -> Self {
        self.completes_in_transaction = completes;
        self
    }

    /// With a take-over margin.
    #[must_use]
    pub const fn take_over_margin(mut self, margin: Duration) -> Self {
        self.take_over_margin = margin;
        self
    }
}

/// Whose clock decides whether a lease or an expiry is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum DecidingClock {
    /// The store server's: skewed clients decide exactly as others do.
    Server,
    /// This process's own clock, which a test may inject; nobody else sees the records.
    Process,
    /// The client's clock. Clients whose clocks differ by no more than `skew_bound` never take a live claim from each
    /// other.
    Client {
        /// The largest difference between two clients' clocks that is harmless.
        skew_bound: Duration,
    },
    /// The client's estimate of the server's clock.
    Calibrated,
}

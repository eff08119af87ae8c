//! The memory store, broken in one way.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use async_trait::async_trait;
use idemkit_conformance::Opening;
use idemkit_core::{
    Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, ClaimToken, Claimed, Clock, Complete,
    CompleteOutcome, Completed, DecidingClock, EffectiveKey, Fingerprint, Headers, InFlight, Look, MemoryStore,
    MonotonicClock, Outcome, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Store, StoreError,
    StoreErrorKind, StoredResult, Timestamp, Ttl, WaitOutcome,
    machine::{Request, Rules, Write, step},
};
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{sleep, timeout},
};

use crate::fault::Fault;

/// The bound that some declare.
pub(crate) const BOUND: Duration = Duration::from_secs(5);
/// Where the suite asks for no other.
const GRACE: Duration = Duration::from_secs(60);
/// The margin that one declares.
pub(crate) const MARGIN: Duration = Duration::from_secs(2);

/// What all handles of a namespace share beside the records.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shared {
    pub(crate) clock: MonotonicClock,
    pub(crate) locked: Arc<Mutex<HashSet<EffectiveKey>>>,
    pub(crate) deaf: Arc<Mutex<bool>>,
    /// When records go that are reaped by the lease which they began with.
    pub(crate) gone_at: Arc<Mutex<HashMap<EffectiveKey, Timestamp>>>,
    pub(crate) notices: Arc<Mutex<HashMap<EffectiveKey, Arc<Notify>>>>,
}

impl Shared {
    fn notice(&self, key: &EffectiveKey) -> Arc<Notify> {
        Arc::clone(self.notices.lock().entry(*key).or_default())
    }
}

/// One handle.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) inner: MemoryStore,
    pub(crate) shared: Shared,
    pub(crate) fault: Fault,
    declared: DecidingClock,
    /// How far ahead of the shared clock this handle's is, in milliseconds.
    ahead_ms: i64,
    grace: Duration,
}

impl Broken {
    pub(crate) fn new(inner: MemoryStore, shared: Shared, fault: Fault, opening: &Opening) -> Self {
        let declared = match fault {
            Fault::BoundNotKept => DecidingClock::Client { skew_bound: BOUND },
            Fault::ClockNotUsed => DecidingClock::Client { skew_bound: Duration::ZERO },
            _ => DecidingClock::Process,
        };
        let grace = opening.grace().unwrap_or(GRACE);
        Self { inner, shared, fault, declared, ahead_ms: ahead_ms(opening), grace }
    }

    /// Nothing is broken: the clock that is declared decides.
    pub(crate) fn sound(inner: MemoryStore, shared: Shared, declared: DecidingClock, opening: &Opening) -> Self {
        let grace = opening.grace().unwrap_or(GRACE);
        Self { inner, shared, fault: Fault::None, declared, ahead_ms: ahead_ms(opening), grace }
    }

    fn is(&self, fault: Fault) -> bool {
        self.fault == fault
    }

    /// The present by the handle's own clock, which began two hours before the shared one, so as not to begin before
    /// time did.
    fn own_now(&self) -> Timestamp {
        let shared = self.shared.clock.now().as_millis().saturating_add(2 * 60 * 60 * 1_000);
        Timestamp::from_millis(shared.saturating_add_signed(self.ahead_ms))
    }

    /// Whether waiting must look by the handle's own clock too.
    async fn wait_apart(&self, key: &EffectiveKey, length: Duration) -> Result<WaitOutcome, StoreError> {
        let end = tokio::time::Instant::now() + length;
        loop {
            let margin = self.margin();
            let seen = step(self.inner.record(key).as_ref(), &Look, self.own_now(), Rules { take_over_margin: margin });
            match seen.answer.map_err(|_| error(StoreErrorKind::CorruptRecord))? {
                Sight::Completed(record) => return Ok(WaitOutcome::Completed(record)),
                Sight::Vacant => return Ok(WaitOutcome::Vacant),
                Sight::Held { lease_left } if tokio::time::Instant::now() >= end => {
                    return Ok(WaitOutcome::TimedOut { lease_left: Some(lease_left) });
                }
                Sight::Held { .. } => sleep(Duration::from_millis(20)).await,
            }
        }
    }

    /// How much later than its end a lease is taken over.
    fn margin(&self) -> Duration {
        match self.declared {
            DecidingClock::Client { skew_bound } if !self.is(Fault::BoundNotKept) => skew_bound,
            _ => Duration::ZERO,
        }
    }

    /// One step of the rules at `now`, without the lock under which it would be one.
    async fn apart<R: Request>(
        &self,
        key: &EffectiveKey,
        request: &R,
        now: Timestamp,
        yields: bool,
    ) -> Option<R::Answer> {
        let seen = self.inner.record(key);
        if yields {
            yield_now().await;
        }
        let step = step(seen.as_ref(), request, now, Rules { take_over_margin: self.margin() });
        match step.write {
            Write::Nothing => {}
            Write::Put(record) => self.inner.plant(*key, record),
            // There is no other way to take a record out than its own token.
            Write::Delete => {
                let token = match self.inner.record(key) {
                    Some(Record::Claimed(claimed)) => claimed.token,
                    _ => return step.answer.ok(),
                };
                self.inner.release(key, &Release::new(token)).await.ok()?;
            }
        }
        step.answer.ok()
    }

    fn claimed(&self, key: &EffectiveKey) -> Option<Claimed> {
        match self.inner.record(key) {
            Some(Record::Claimed(claimed)) => Some(claimed),
            _ => None,
        }
    }

    fn completed(&self, key: &EffectiveKey) -> Option<Completed> {
        match self.inner.record(key) {
            Some(Record::Completed(completed)) if self.shared.clock.now() < completed.expires_at => Some(completed),
            _ => None,
        }
    }

    fn is_lapsed(&self, key: &EffectiveKey) -> bool {
        self.claimed(key).is_some_and(|claimed| claimed.lease_until <= self.shared.clock.now())
    }

    /// Whether this fault reads and writes in two steps for the condition that `key` is in.
    fn claims_in_two_steps(&self, key: &EffectiveKey) -> bool {
        let expired = matches!(self.inner.record(key), Some(Record::Completed(_))) && self.completed(key).is_none();
        match self.fault {
            Fault::ReadThenWrite => true,
            // The key is a hash: one in ten begins like this.
            Fault::ReadThenWriteRarely => key.as_bytes()[0] < 26,
            Fault::ReadThenWriteLapsed => self.is_lapsed(key),
            Fault::ReadThenWriteExpired => expired,
            Fault::GarbageOverwritten => self.inner.record(key) == Some(Record::Garbage),
            _ => false,
        }
    }

    /// The token in the record, where it begins like this one.
    fn nearly(&self, key: &EffectiveKey, token: ClaimToken) -> ClaimToken {
        let like = |held: &ClaimToken| held.as_bytes()[..15] == token.as_bytes()[..15];
        let held = self.claimed(key).map(|held| held.token).or_else(|| self.completed(key).map(|done| done.token));
        held.filter(like).unwrap_or(token)
    }

    /// Removes what its first lease and the grace say, or notes when that will be.
    async fn reap_by_first_lease(&self, key: &EffectiveKey, request: &Claim) -> Result<(), StoreError> {
        let now = self.shared.clock.now();
        let gone_at = self.shared.gone_at.lock().get(key).copied();
        match gone_at {
            None => {
                let gone_at = now.saturating_add(request.lease.as_duration()).saturating_add(self.grace);
                self.shared.gone_at.lock().insert(*key, gone_at);
            }
            Some(gone_at) if gone_at <= now => {
                if let Some(held) = self.claimed(key) {
                    self.inner.release(key, &Release::new(held.token)).await?;
                }
            }
            Some(_) => {}
        }
        Ok(())
    }

    fn clock_decides_apart(&self) -> bool {
        let clients = matches!(self.declared, DecidingClock::Client { .. }) && !self.is(Fault::ClockNotUsed);
        clients || matches!(self.fault, Fault::CallersClock | Fault::CallersClockWrites)
    }

    /// The result as this store keeps it.
    fn kept(&self, outcome: &Outcome) -> Outcome {
        let kept = |stored: &StoredResult| {
            let mut kept = stored.clone();
            match self.fault {
                Fault::CutAtNul => {
                    let end = kept.body.iter().position(|byte| *byte == 0).unwrap_or(kept.body.len());
                    kept.body.truncate(end);
                }
                Fault::HeadersCut | Fault::HeaderNameCut => {
                    kept.headers = Headers::default();
                    let lines =
                        stored.headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
                    let most = if self.is(Fault::HeadersCut) { 20 } else { usize::MAX };
                    for (name, value) in lines.take(most) {
                        kept.headers.append(&name[..name.len().min(255)], value.clone());
                    }
                }
                Fault::BodyAsText => kept.body = String::from_utf8_lossy(&stored.body).into_owned().into(),
                Fault::StatusSigned => kept.status = kept.status.min(i16::MAX as u16),
                Fault::HeadersDeduplicated | Fault::HeadersAsText | Fault::DollarEvaluated => {
                    kept.headers = Headers::default();
                    for (name, values) in stored.headers.iter() {
                        let first = if self.is(Fault::HeadersDeduplicated) { values.len() - 1 } else { 0 };
                        for value in &values[first..] {
                            match self.fault {
                                Fault::DollarEvaluated if value.starts_with(b"$") => kept.headers.append(name, "?"),
                                Fault::HeadersAsText => {
                                    kept.headers.append(name, String::from_utf8_lossy(value).into_owned());
                                }
                                _ => kept.headers.append(name, value.clone()),
                            }
                        }
                    }
                }
                _ => {}
            }
            kept
        };
        match outcome {
            Outcome::Error(stored) if self.is(Fault::ErrorAsResult) => Outcome::Result(stored.clone()),
            Outcome::Result(stored) => Outcome::Result(kept(stored)),
            Outcome::Error(stored) if self.is(Fault::ErrorCut) => {
                let mut cut = stored.clone();
                cut.body.truncate(1024);
                Outcome::Error(cut)
            }
            Outcome::Error(stored) => Outcome::Error(kept(stored)),
            Outcome::Unavailable => Outcome::Unavailable,
        }
    }

    /// What a claim is told, after it was told the truth.
    fn told(&self, key: &EffectiveKey, request: &Claim, outcome: ClaimOutcome) -> ClaimOutcome {
        match (self.fault, outcome) {
            (Fault::LapsedIsFresh, ClaimOutcome::Acquired(won)) => {
                ClaimOutcome::Acquired(Acquired { kind: ClaimKind::Fresh, ..won })
            }
            (Fault::LeaseLeftIsWhole, ClaimOutcome::InFlight(held)) => {
                ClaimOutcome::InFlight(InFlight { lease_left: request.lease.as_duration(), ..held })
            }
            (Fault::AgeIsZero, ClaimOutcome::Completed(mut record)) => {
                record.age = Duration::ZERO;
                ClaimOutcome::Completed(record)
            }
            (Fault::VersionForgotten, ClaimOutcome::Completed(mut record)) => {
                record.fingerprint = Fingerprint::from_stored(1, *record.fingerprint.hash());
                ClaimOutcome::Completed(record)
            }
            (Fault::ExpiryProlonged, ClaimOutcome::Completed(record)) => {
                if let Some(mut completed) = self.completed(key) {
                    completed.expires_at = completed.expires_at.saturating_add(Duration::from_millis(100));
                    self.inner.plant(*key, Record::Completed(completed));
                }
                ClaimOutcome::Completed(record)
            }
            (_, outcome) => outcome,
        }
    }
}

/// How far ahead a handle's clock shall be, in milliseconds.
fn ahead_ms(opening: &Opening) -> i64 {
    let millis = |skew: Duration| i64::try_from(skew.as_millis()).unwrap_or(i64::MAX);
    millis(opening.clock_ahead_by()) - millis(opening.clock_behind_by())
}

fn error(kind: StoreErrorKind) -> StoreError {
    StoreError::new("memory", kind, Applied::No)
}

fn in_flight(held: &Claimed, now: Timestamp) -> ClaimOutcome {
    let lease_left = held.lease_until.left_at(now);
    ClaimOutcome::InFlight(InFlight { fingerprint: held.fingerprint, attempt: held.attempt, lease_left })
}

#[async_trait]
impl Store for Broken {
    fn capabilities(&self) -> Capabilities {
        let mut declared = self.inner.capabilities();
        match self.fault {
            Fault::LimitNotDeclared => declared.result_bytes_max = None,
            Fault::MarginIgnored => declared.take_over_margin = MARGIN,
            _ => declared.clock = self.declared,
        }
        declared
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        let mut cut = *key.as_bytes();
        cut[31] = 0;
        let key = if self.is(Fault::KeyCut) { &EffectiveKey::from_bytes(cut) } else { key };
        let (now, held) = (self.shared.clock.now(), self.claimed(key));
        let mut request = *request;
        match self.fault {
            Fault::Panics => _ = Vec::<u8>::new()[self.ahead_ms.unsigned_abs() as usize],
            Fault::DroppedClaimLocks => {
                if !self.shared.locked.lock().insert(*key) {
                    return Err(error(StoreErrorKind::Unavailable));
                }
                yield_now().await;
                self.shared.locked.lock().remove(key);
            }
            Fault::ContentionShown => {
                yield_now().await;
                if held.is_none() && self.claimed(key).is_some() {
                    return Err(error(StoreErrorKind::Other));
                }
            }
            Fault::OwnClaimRefused => {
                if let Some(held) = held.filter(|held| held.token == request.token && now < held.lease_until) {
                    return Ok(in_flight(&held, now));
                }
            }
            Fault::OwnTakeOverCounted => {
                if let Some(mut held) = held.filter(|held| held.token == request.token && held.attempt > 1) {
                    held.attempt += 1;
                    self.inner.plant(*key, Record::Claimed(held));
                }
            }
            Fault::OwnClaimProlongs if held.as_ref().is_some_and(|held| held.token == request.token) => {
                self.inner.renew(key, &Renew::new(request.token, request.lease)).await?;
            }
            Fault::AttemptNotCounted => {
                if let Some(mut held) = held.filter(|_| self.is_lapsed(key)) {
                    held.attempt = 0;
                    self.inner.plant(*key, Record::Claimed(held));
                }
            }
            Fault::OwnLapsedBeginsAnew => {
                if let Some(mut held) = held.filter(|held| self.is_lapsed(key) && held.token == request.token) {
                    held.attempt = 1;
                    self.inner.plant(*key, Record::Claimed(held));
                }
            }
            Fault::FirstLeaseReaps => self.reap_by_first_lease(key, &request).await?,
            Fault::LapsedForgotten => {
                let forgotten = |held: &Claimed| held.lease_until.saturating_add(Duration::from_secs(3)) <= now;
                if let Some(held) = held.filter(forgotten) {
                    self.inner.release(key, &Release::new(held.token)).await?;
                }
            }
            Fault::TokenCut => request.token = self.nearly(key, request.token),
            Fault::FingerprintCut | Fault::VersionNotCompared => {
                let looked_at = if self.is(Fault::FingerprintCut) { 31 } else { 32 };
                let same =
                    |held: &Claimed| held.fingerprint.hash()[..looked_at] == request.fingerprint.hash()[..looked_at];
                if let Some(held) = held.filter(same) {
                    request.fingerprint = held.fingerprint;
                }
            }
            Fault::LeaseHalved => request.lease = Ttl::new(request.lease.as_duration() / 2).unwrap_or(Ttl::MIN),
            Fault::LeaseTooLong => {
                request.lease = Ttl::new(request.lease.as_duration() + Duration::from_secs(5)).unwrap_or(Ttl::MIN);
            }
            Fault::FingerprintIgnored => {
                if let Some(held) = held.filter(|_| self.is_lapsed(key)) {
                    request.fingerprint = held.fingerprint;
                }
            }
            Fault::UnknownVersionMatches => {
                if let Some(mut held) =
                    held.filter(|held| self.is_lapsed(key) && held.fingerprint == request.fingerprint)
                {
                    held.fingerprint = Fingerprint::of_payload("made to match");
                    request.fingerprint = held.fingerprint;
                    self.inner.plant(*key, Record::Claimed(held));
                }
            }
            Fault::NewerOverwritten if self.inner.record(key) == Some(Record::Newer) => {
                self.inner.plant(*key, Record::Garbage);
            }
            _ => {}
        }
        if self.claims_in_two_steps(key) {
            return self.apart(key, &request, now, true).await.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
        }
        if self.clock_decides_apart() {
            return self
                .apart(key, &request, self.own_now(), false)
                .await
                .ok_or_else(|| error(StoreErrorKind::CorruptRecord));
        }
        let mut outcome = self.inner.claim(key, &request).await?;
        if let (Fault::AttemptOutlivesClaim, ClaimOutcome::Acquired(won)) = (self.fault, &mut outcome) {
            // Fingerprints of released claims would be kept too; the number alone is enough to be wrong.
            won.attempt += u32::from(self.shared.locked.lock().contains(key));
        }
        Ok(self.told(key, &request, outcome))
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        let mut request = request.clone();
        request.outcome = self.kept(&request.outcome);
        match self.fault {
            Fault::CompleteUnfenced => {
                if let Some(held) = self.claimed(key) {
                    request.token = held.token;
                }
            }
            Fault::CompletionTokenCut => request.token = self.nearly(key, request.token),
            Fault::OwnCompletionRefused if self.completed(key).is_some() => return Ok(CompleteOutcome::Fenced),
            Fault::CompletedOverwritten => {
                if let Some(completed) = self.completed(key).filter(|completed| completed.token == request.token) {
                    self.inner.plant(*key, Record::Completed(Completed { outcome: request.outcome, ..completed }));
                    return Ok(CompleteOutcome::Applied);
                }
            }
            Fault::LapsedFenced if self.is_lapsed(key) => return Ok(CompleteOutcome::Fenced),
            Fault::ExpiryFromClaim => {
                if let Some(held) = self.claimed(key) {
                    let used = self.shared.clock.now().left_at(held.claimed_at);
                    let left = request.expires_after.as_duration().saturating_sub(used);
                    request.expires_after = Ttl::new(left).unwrap_or(Ttl::MIN);
                }
            }
            Fault::TooLargeLosesClaim => {
                let refused = self.inner.complete(key, &request).await;
                if refused.is_err() {
                    self.inner.release(key, &Release::new(request.token)).await?;
                }
                return refused;
            }
            Fault::ErrorsUnlimited => {
                if let (Outcome::Error(_), Some(held)) = (&request.outcome, self.claimed(key))
                    && held.token == request.token
                {
                    request.outcome = Outcome::Error(StoredResult::new(500, ""));
                    return self.inner.complete(key, &request).await;
                }
            }
            Fault::TooLargeProlongs => {
                let refused = self.inner.complete(key, &request).await;
                if refused.is_err() {
                    self.inner.renew(key, &Renew::new(request.token, Ttl::MAX)).await?;
                }
                return refused;
            }
            Fault::TooLargeUnknown => {
                let told = |error: StoreError| StoreError::new("memory", error.kind(), Applied::Unknown);
                return self.inner.complete(key, &request).await.map_err(told);
            }
            Fault::LimitNotDeclared => {
                let (size, max) = (request.outcome.stored().map_or(0, StoredResult::size), 400_000);
                if size > max {
                    return Err(error(StoreErrorKind::ResultTooLarge { size, max }));
                }
            }
            Fault::LimitLower => {
                let (size, max) = (
                    request.outcome.stored().map_or(0, StoredResult::size),
                    self.inner.capabilities().result_bytes_max,
                );
                let max = max.unwrap_or(u64::MAX);
                if size >= max {
                    return Err(error(StoreErrorKind::ResultTooLarge { size: size.max(max + 1), max }));
                }
            }
            Fault::CompleteReadThenWrite => {
                let answer = self.apart(key, &request, self.shared.clock.now(), true).await;
                return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
            }
            _ => {}
        }
        if self.clock_decides_apart() {
            let size = request.outcome.stored().map_or(0, StoredResult::size);
            if let Some(max) = self.inner.capabilities().result_bytes_max.filter(|max| size > *max) {
                return Err(error(StoreErrorKind::ResultTooLarge { size, max }));
            }
            let answer = self.apart(key, &request, self.own_now(), false).await;
            return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
        }
        let answer = self.inner.complete(key, &request).await;
        self.shared.notice(key).notify_waiters();
        answer
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        let (now, held, mut request) = (self.shared.clock.now(), self.claimed(key), *request);
        match self.fault {
            Fault::Hangs => std::future::pending().await,
            Fault::RenewUnfenced => request.token = held.map_or(request.token, |held| held.token),
            Fault::RenewalCapped => {
                let hour = Duration::from_secs(60 * 60);
                request.lease = Ttl::new(request.lease.as_duration().min(hour)).unwrap_or(Ttl::MIN);
            }
            Fault::RenewalLowers => {
                if let Some(mut held) = held.filter(|held| held.token == request.token) {
                    held.lease_until = now;
                    self.inner.plant(*key, Record::Claimed(held));
                }
            }
            Fault::RenewReadThenWrite => {
                let answer = self.apart(key, &request, now, true).await;
                return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
            }
            _ if self.clock_decides_apart() => {
                let answer = self.apart(key, &request, self.own_now(), false).await;
                return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
            }
            _ => {}
        }
        self.inner.renew(key, &request).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        let mut request = *request;
        match self.fault {
            Fault::ReleaseUnfenced => {
                if let Some(held) = self.claimed(key) {
                    request.token = held.token;
                }
            }
            Fault::CompletedReleased if self.completed(key).is_some_and(|done| done.token == request.token) => {
                self.inner.plant(*key, Record::Garbage);
                return Ok(ReleaseOutcome::Applied);
            }
            Fault::ReleaseReadThenWrite => {
                let answer = self.apart(key, &request, self.shared.clock.now(), true).await;
                return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
            }
            Fault::AttemptOutlivesClaim => _ = self.shared.locked.lock().insert(*key),
            _ => {}
        }
        if self.clock_decides_apart() {
            let answer = self.apart(key, &request, self.own_now(), false).await;
            return answer.ok_or_else(|| error(StoreErrorKind::CorruptRecord));
        }
        self.inner.release(key, &request).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout_after: Ttl) -> Result<WaitOutcome, StoreError> {
        let length = timeout_after.as_duration();
        match self.fault {
            Fault::WakeUpLost => {
                if self.claimed(key).is_none() {
                    return self.inner.wait(key, timeout_after).await;
                }
                // Between the look and the subscription.
                yield_now().await;
                let _ = timeout(length, self.shared.notice(key).notified()).await;
                self.inner.wait(key, Ttl::MIN).await
            }
            Fault::WaitOutlivesLease | Fault::RenewalUnseen => {
                let lease_left = self.claimed(key).map(|held| held.lease_until.left_at(self.shared.clock.now()));
                let seen = self.inner.wait(key, Ttl::MIN).await?;
                match lease_left {
                    Some(left) if matches!(seen, WaitOutcome::TimedOut { .. }) && self.is(Fault::RenewalUnseen) => {
                        match timeout(left, self.inner.wait(key, timeout_after)).await {
                            Ok(seen) => seen,
                            Err(_) => Ok(WaitOutcome::Vacant),
                        }
                    }
                    Some(_) if matches!(seen, WaitOutcome::TimedOut { .. }) => {
                        let _ = timeout(length, self.shared.notice(key).notified()).await;
                        self.inner.wait(key, Ttl::MIN).await
                    }
                    _ => Ok(seen),
                }
            }
            Fault::LeftUntold => Ok(match self.inner.wait(key, timeout_after).await? {
                WaitOutcome::TimedOut { .. } => WaitOutcome::TimedOut { lease_left: None },
                other => other,
            }),
            Fault::ReleaseNotNoticed => {
                let seen = self.inner.wait(key, timeout_after).await?;
                if seen == WaitOutcome::Vacant {
                    sleep(Duration::from_millis(900)).await;
                }
                Ok(seen)
            }
            Fault::NoticeMissing => {
                let end = tokio::time::Instant::now() + length;
                loop {
                    let seen = self.inner.wait(key, Ttl::MIN).await?;
                    if !matches!(seen, WaitOutcome::TimedOut { .. }) || tokio::time::Instant::now() >= end {
                        return Ok(seen);
                    }
                    sleep(Duration::from_secs(1)).await;
                }
            }
            Fault::DroppedWaitDeafens => {
                let deaf = *self.shared.deaf.lock();
                *self.shared.deaf.lock() = true;
                if deaf {
                    sleep(length).await;
                }
                let seen = self.inner.wait(key, timeout_after).await;
                *self.shared.deaf.lock() = deaf;
                seen
            }
            _ if self.clock_decides_apart() => self.wait_apart(key, length).await,
            _ => self.inner.wait(key, timeout_after).await,
        }
    }
}

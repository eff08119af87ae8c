//! The store: each operation one script call.

use std::{fmt, future::Future, sync::Arc, time::Duration};

use async_trait::async_trait;
use idemkit_core::{
    Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, Complete, CompleteOutcome, DecidingClock,
    EffectiveKey, InFlight, Look, Outcome, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Store,
    StoreError, StoreErrorKind, Ttl, WaitOutcome, Watches,
    machine::{Condition, Request, Rules, Step, Write, step},
};
use redis::Value;
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    NAME,
    hash::{encode, encode_outcome},
    link::{Link, Source, Timeouts},
    listener::{Listener, Subscription},
    policy,
    reply::{Reply, Seen, strange},
    scripts::{Arg, CLAIM, COMPLETE, LOOK, RELEASE, RENEW, REPLACE, Script},
};

/// How often an operation that met a record which changed under it is tried anew before it is given up as contended.
const TRIES: usize = 16;
/// How long a wait's first look is put off for the server to be told that somebody listens.
const HEARD_WITHIN: Duration = Duration::from_millis(500);

/// idemkit's store on Redis and Valkey: one hash a key, and one script call an operation.
///
/// Clones share one connection, one listener and one watch a key. See the crate's documentation for what a failover can
/// lose, and which permissions it needs.
///
/// ```no_run
/// use idemkit_core::Engine;
/// use idemkit_redis::RedisStore;
///
/// # fn example() -> Result<(), idemkit_redis::BuildError> {
/// let engine = Engine::new(RedisStore::new("redis://127.0.0.1:6379")?);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

struct Inner {
    settings: Settings,
    link: Link,
    listener: Option<Listener>,
    /// The command that reaches whoever listens; empty where nobody does.
    wake_by: &'static str,
    watches: Watches,
    checked: OnceCell<()>,
}

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) namespace: String,
    pub(crate) deadline: Duration,
    pub(crate) grace: Duration,
    pub(crate) take_over_margin: Duration,
    pub(crate) result_bytes_max: u64,
    pub(crate) allow_eviction: bool,
}

impl RedisStore {
    pub(crate) fn assemble(settings: Settings, link: Link, listens: Option<(Source, Timeouts)>) -> Self {
        let watches = Watches::default();
        let wake_by = listens.as_ref().map_or("", |(source, _)| source.publish_command());
        let listener = listens.map(|(source, timeouts)| {
            let namespace = settings.namespace.clone();
            Listener::new(source, timeouts, watches.clone(), move |key| key_text(&namespace, key))
        });
        let checked = OnceCell::new();
        Self { inner: Arc::new(Inner { settings, link, listener, wake_by, watches, checked }) }
    }
}

/// The key of a record, which is also the channel of its notices.
fn key_text(namespace: &str, key: &EffectiveKey) -> String {
    format!("{namespace}:{key}")
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

/// Whether an operation is over, or met a record that changed under it.
enum Tried<T> {
    Done(T),
    Changed,
}

impl Inner {
    fn rules(&self) -> Rules {
        Rules { take_over_margin: self.settings.take_over_margin }
    }

    fn key(&self, key: &EffectiveKey) -> String {
        key_text(&self.settings.namespace, key)
    }

    /// How much longer than its lease a claim's key is kept.
    fn keep(&self) -> Duration {
        self.settings.take_over_margin.saturating_add(self.settings.grace)
    }

    /// Runs an operation under its deadline, after what is looked at once. `late` says what became of one that is cut off.
    async fn within<T>(
        &self,
        lease: Option<Ttl>,
        late: Applied,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = lease.map_or(self.settings.deadline, |lease| self.settings.deadline.min(lease.as_duration()));
        let checked = async {
            if !self.settings.allow_eviction {
                self.checked.get_or_try_init(|| policy::check(&self.link)).await?;
            }
            operation.await
        };
        timeout(limit, checked).await.unwrap_or_else(|elapsed| {
            let error = StoreError::new(NAME, StoreErrorKind::Unavailable, late);
            Err(error.with_detail(format!("no answer within {limit:?}")).with_source(elapsed))
        })
    }

    async fn write(&self, script: &Script, key: &str, args: &[Arg<'_>]) -> Result<Reply, StoreError> {
        self.link.write(script, key, args).await.and_then(Reply::of)
    }

    /// What the rules say of what no script could decide; what they write, if it is still there.
    async fn decide<R: Request>(&self, key: &str, request: &R, seen: Seen) -> Result<Tried<R::Answer>, StoreError> {
        let Step { write, answer } = step(seen.record.as_ref(), request, seen.now, self.rules());
        let answer = answer.map_err(|unreadable| newer().with_source(unreadable))?;
        let record = match write {
            Write::Nothing => return Ok(Tried::Done(answer)),
            Write::Put(record) => Some(record),
            Write::Delete => None,
        };
        // Nothing was there, and now is: the scripts decide that.
        let Some(digest) = seen.digest else { return Ok(Tried::Changed) };
        let keep = match &record {
            None => Arg::Text(""),
            Some(Record::Completed(completed)) => Arg::Number(millis(completed.expires_at.left_at(seen.now))),
            Some(Record::Claimed(claimed)) => {
                Arg::Number(millis(claimed.lease_until.left_at(seen.now).saturating_add(self.keep())))
            }
            // The rules write no such thing.
            Some(Record::Garbage | Record::Newer) => return Err(strange("that no rule explains")),
        };
        let mut args = vec![Arg::Bytes(&digest), keep];
        args.extend(record.as_ref().map(encode).unwrap_or_default());
        match self.link.write(&REPLACE, key, &args).await? {
            Value::Int(1) => Ok(Tried::Done(answer)),
            _ => Ok(Tried::Changed),
        }
    }

    async fn claim_once(&self, key: &str, request: &Claim) -> Result<Tried<ClaimOutcome>, StoreError> {
        // A version that this release does not know equals nothing, not even itself.
        let comparable = request.fingerprint.matches(&request.fingerprint);
        let args = |all: bool| {
            [
                Arg::Owned(request.token.to_string()),
                Arg::Owned(request.fingerprint.to_hex()),
                Arg::Number(request.fingerprint.version().into()),
                Arg::Number(request.lease.as_millis()),
                Arg::Number(millis(self.settings.take_over_margin)),
                Arg::Number(millis(self.settings.grace)),
                Arg::Number(comparable.into()),
                Arg::Number(all.into()),
                Arg::Number(self.link.waits_for_replicas().into()),
            ]
        };
        let mut reply = self.write(&CLAIM, key, &args(false)).await?;
        Ok(Tried::Done(match reply.name.as_str() {
            "acquired" => ClaimOutcome::Acquired(Acquired {
                kind: match reply.text()?.as_str() {
                    "fresh" => ClaimKind::Fresh,
                    _ => ClaimKind::Reclaimed,
                },
                attempt: reply.attempt()?,
                lease_left: reply.millis()?,
            }),
            "in_flight" => ClaimOutcome::InFlight(InFlight {
                fingerprint: reply.fingerprint()?,
                attempt: reply.attempt()?,
                lease_left: reply.millis()?,
            }),
            "mismatch" => ClaimOutcome::Mismatch,
            "newer" => return Err(newer()),
            "completed" => {
                let (now, record) = reply.completed()?;
                match Condition::of(Some(&record), now) {
                    Condition::Completed(completed) => ClaimOutcome::Completed(completed.seen_at(now)),
                    // To the scripts it looked like a record: its headers, say, do not decode.
                    _ => {
                        let all = self.write(&CLAIM, key, &args(true)).await?;
                        return self.decide(key, request, all.odd()?).await;
                    }
                }
            }
            "odd" => return self.decide(key, request, reply.odd()?).await,
            _ => return Err(strange("that is not known")),
        }))
    }

    async fn complete_once(&self, key: &str, request: &Complete) -> Result<Tried<CompleteOutcome>, StoreError> {
        let mut args = vec![
            Arg::Owned(request.token.to_string()),
            Arg::Number(request.expires_after.as_millis()),
            Arg::Number(self.link.waits_for_replicas().into()),
        ];
        args.extend(encode_outcome(&request.outcome));
        let reply = self.write(&COMPLETE, key, &args).await?;
        Ok(Tried::Done(match reply.name.as_str() {
            "applied" => CompleteOutcome::Applied,
            "fenced" => CompleteOutcome::Fenced,
            "newer" => return Err(newer()),
            "odd" => return self.decide(key, request, reply.odd()?).await,
            _ => return Err(strange("that is not known")),
        }))
    }

    async fn renew_once(&self, key: &str, request: &Renew) -> Result<Tried<RenewOutcome>, StoreError> {
        let args = [
            Arg::Owned(request.token.to_string()),
            Arg::Number(request.lease.as_millis()),
            Arg::Number(millis(self.keep())),
        ];
        let mut reply = self.write(&RENEW, key, &args).await?;
        Ok(Tried::Done(match reply.name.as_str() {
            "renewed" => RenewOutcome::Renewed { lease_left: reply.millis()? },
            "completed" => RenewOutcome::Completed,
            "fenced" => RenewOutcome::Fenced,
            "newer" => return Err(newer()),
            "odd" => return self.decide(key, request, reply.odd()?).await,
            _ => return Err(strange("that is not known")),
        }))
    }

    async fn release_once(&self, key: &str, request: &Release) -> Result<Tried<ReleaseOutcome>, StoreError> {
        let reply = self.write(&RELEASE, key, &[Arg::Owned(request.token.to_string())]).await?;
        Ok(Tried::Done(match reply.name.as_str() {
            "applied" => ReleaseOutcome::Applied,
            "not_held" => ReleaseOutcome::NotHeld,
            "newer" => return Err(newer()),
            "odd" => return self.decide(key, request, reply.odd()?).await,
            _ => return Err(strange("that is not known")),
        }))
    }

    async fn look(&self, key: &EffectiveKey) -> Result<Sight, StoreError> {
        let key = self.key(key);
        let args = [Arg::Number(millis(self.settings.take_over_margin)), Arg::Text(self.wake_by)];
        let mut reply = Reply::of(self.link.read(&LOOK, &key, &args).await?)?;
        let (now, record) = match reply.name.as_str() {
            "vacant" => return Ok(Sight::Vacant),
            "held" => return Ok(Sight::Held { lease_left: reply.millis()? }),
            "newer" => return Err(newer()),
            "completed" => reply.completed().map(|(now, record)| (now, Some(record)))?,
            "odd" => reply.odd().map(|seen| (seen.now, seen.record))?,
            _ => return Err(strange("that is not known")),
        };
        step(record.as_ref(), &Look, now, self.rules()).answer.map_err(|unreadable| newer().with_source(unreadable))
    }

    /// Body and headers: what this store counts. An error where that is too much.
    fn check_size(&self, outcome: &Outcome) -> Result<(), StoreError> {
        let (size, max) =
            (outcome.stored().map_or(0, idemkit_core::StoredResult::size), self.settings.result_bytes_max);
        if size <= max {
            return Ok(());
        }
        Err(StoreError::new(NAME, StoreErrorKind::ResultTooLarge { size, max }, Applied::No))
    }
}

/// Tries until the record holds still.
macro_rules! settled {
    ($attempt:expr) => {{
        for _ in 0..TRIES {
            if let Tried::Done(done) = $attempt.await? {
                return Ok(done);
            }
        }
        let contended = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown);
        Err(contended.with_detail(format!("the record changed under {TRIES} tries in a row")))
    }};
}

impl Inner {
    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        let key = self.key(key);
        settled!(self.claim_once(&key, request))
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        let key = self.key(key);
        settled!(self.complete_once(&key, request))
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        let key = self.key(key);
        settled!(self.renew_once(&key, request))
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        let key = self.key(key);
        settled!(self.release_once(&key, request))
    }
}

fn newer() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No)
}

#[async_trait]
impl Store for RedisStore {
    fn capabilities(&self) -> Capabilities {
        let Settings { take_over_margin, result_bytes_max, .. } = self.inner.settings;
        Capabilities::new(NAME, DecidingClock::Server)
            .result_bytes_max(result_bytes_max)
            .notifies(self.inner.listener.is_some())
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
        let subscription: Option<Arc<Subscription>> =
            self.inner.listener.as_ref().map(|listener| Arc::new(listener.subscribe(key)));
        let first = Arc::new(OnceCell::new());
        let (inner, watched) = (Arc::clone(&self.inner), *key);
        let look = move || {
            let (inner, subscription, first) = (Arc::clone(&inner), subscription.clone(), Arc::clone(&first));
            async move {
                if let Some(subscription) = &subscription {
                    // It subscribes before it reads; once is enough, since the poll goes on.
                    first.get_or_init(|| subscription.heard(HEARD_WITHIN)).await;
                }
                inner.within(None, Applied::No, inner.look(&watched)).await
            }
        };
        self.inner.watches.wait(key, timeout, look).await
    }
}

impl fmt::Debug for RedisStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStore").field("settings", &self.inner.settings).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_round_up_to_milliseconds() {
        assert_eq!(millis(Duration::from_nanos(1)), 1);
        assert_eq!(millis(Duration::from_millis(7)), 7);
        assert_eq!(millis(Duration::MAX), u64::MAX);
    }
}

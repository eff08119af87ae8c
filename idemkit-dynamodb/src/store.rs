//! The store: each operation one request.

use std::{fmt, future::Future, pin::Pin, sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::{
    Client,
    operation::{delete_item::DeleteItemError, update_item::UpdateItemError},
    types::{AttributeValue, ReturnValue, ReturnValuesOnConditionCheckFailure},
};
use idemkit_core::{
    ATTEMPT_MAX, Acquired, Applied, Capabilities, Claim, ClaimKind, ClaimOutcome, Complete, CompleteOutcome,
    EffectiveKey, Look, Record, Release, ReleaseOutcome, Renew, RenewOutcome, Sight, Store, StoreError, StoreErrorKind,
    Timestamp, Ttl, WaitOutcome, Watches,
    machine::{Request, Rules, Write, step},
};
use tokio::{sync::OnceCell, time::timeout};

use crate::{
    NAME,
    classify::{Attempts, Effect, classify},
    clock::{ClockReading, Now, StoreClock},
    encoding,
    expression::{Placeholders, and, or},
    item::{
        self, ATTEMPT, ATTRIBUTES, BODY_ENCODING, CLAIM_TOKEN, CLAIMED, CLAIMED_AT, COMPLETED, COMPLETED_AT,
        FINGERPRINT, FINGERPRINT_VERSION, ITEM_BYTES_MAX, Item, LEASE_UNTIL, OUTCOME, RESPONSE_BODY, RESPONSE_HEADERS,
        RESPONSE_STATUS, SCHEMA_VERSION, STATE, TTL, encode_outcome, key_text, number, reaped_at, text, time,
    },
    table,
};

/// How often a claim that met a record which changed under it is tried anew before it is given up as contended.
const TRIES: usize = 16;

/// idemkit's store on Amazon DynamoDB: one item a key, and one request an operation.
///
/// Clones share one client, one clock and one watch a key. See the crate's documentation for what it costs, which
/// permissions it needs, and whose clock decides.
///
/// ```no_run
/// use idemkit_core::Engine;
/// use idemkit_dynamodb::DynamoDbStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = DynamoDbStore::builder().table("orders_idempotency").build().await?;
/// let engine = Engine::new(store);
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct DynamoDbStore {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) client: Client,
    pub(crate) settings: Settings,
    pub(crate) clock: StoreClock,
    prepared: OnceCell<()>,
    watches: Watches,
}

/// The SDK's futures are nested deeper than the compiler follows by default. Where one is awaited in a caller's own
/// future, it is behind this, so that callers need not raise their `recursion_limit`.
pub(crate) type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What the builder has set.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    pub(crate) table: String,
    pub(crate) partition_key: String,
    pub(crate) namespace: String,
    pub(crate) create_table: bool,
    pub(crate) read_first: bool,
    pub(crate) deadline: Duration,
    pub(crate) grace: Duration,
    pub(crate) take_over_margin: Duration,
}

/// What became of a conditional write.
pub(crate) enum Written {
    /// It was applied; what was there before, where that was asked for.
    Applied(Option<Item>),
    /// The condition did not hold; what is there, if anything.
    Refused(Option<Item>),
}

impl DynamoDbStore {
    pub(crate) fn new(client: Client, settings: Settings, clock: StoreClock) -> Self {
        let inner = Inner { client, settings, clock, prepared: OnceCell::new(), watches: Watches::default() };
        Self { inner: Arc::new(inner) }
    }

    /// What is known of the server's clock, where the mode is calibrated and a response was seen.
    #[must_use]
    pub fn clock_reading(&self) -> Option<ClockReading> {
        self.inner.clock.reading()
    }

    /// The store's client: for tables of your own that share its transactions, say. Its time-outs are the store's.
    #[must_use]
    pub fn client(&self) -> &Client {
        &self.inner.client
    }

    /// Makes the table if there is none, with on-demand billing and TTL on `ttl`, and waits until it is active or being updated. Safe to be called by
    /// many processes at once, and again.
    ///
    /// Needs `dynamodb:CreateTable`, `DescribeTable`, `DescribeTimeToLive` and `UpdateTimeToLive`. Where the role of the
    /// service must not have them, call this from a deployment, or make the table as the crate's documentation shows.
    ///
    /// # Errors
    /// *Misconfigured* where there is a table with another key, or permissions are missing; *unavailable* where it was
    /// not active within a minute.
    pub async fn create_table(&self) -> Result<(), StoreError> {
        let made: BoxFuture<'_, _> = Box::pin(table::ensure(&self.inner.client, &self.inner.settings));
        made.await
    }
}

impl Inner {
    /// The rules, with all that a take-over waits for.
    fn rules(&self) -> Rules {
        let take_over_margin = self.settings.take_over_margin.saturating_add(self.clock.skew_bound());
        Rules { take_over_margin }
    }

    pub(crate) fn key(&self, key: &EffectiveKey) -> AttributeValue {
        text(key_text(&self.settings.namespace, &key.to_string()))
    }

    /// Runs a request under its deadline. `late` says what became of one that is cut off.
    pub(crate) async fn within<T>(
        &self,
        lease: Option<Ttl>,
        late: Applied,
        request: impl Future<Output = Result<T, StoreError>>,
    ) -> Result<T, StoreError> {
        let limit = lease.map_or(self.settings.deadline, |lease| self.settings.deadline.min(lease.as_duration()));
        timeout(limit, request).await.unwrap_or_else(|elapsed| {
            let error = StoreError::new(NAME, StoreErrorKind::Unavailable, late);
            Err(error.with_detail(format!("no answer within {limit:?}")).with_source(elapsed))
        })
    }

    /// The time for a request. Before the first one the table is made, if that was asked for, and one read calibrates the
    /// clock; so does one after a long silence, or after a response that contradicted what was known.
    pub(crate) async fn prepare(&self, key: &EffectiveKey) -> Result<Now, StoreError> {
        if self.settings.create_table {
            self.prepared.get_or_try_init(|| table::ensure(&self.client, &self.settings)).await?;
        }
        if !self.clock.is_stale()
            && let Some(now) = self.clock.now()
        {
            return Ok(now);
        }
        self.read(key).await?;
        self.clock.now().ok_or_else(|| {
            let error = StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No);
            error.with_detail("responses have no Date header to calibrate by: choose ClockMode::Local")
        })
    }

    async fn read(&self, key: &EffectiveKey) -> Result<Option<Record>, StoreError> {
        let request = self.client.get_item().table_name(&self.settings.table).consistent_read(true);
        let answer = request.key(&self.settings.partition_key, self.key(key)).send().await;
        let answer = answer.map_err(|error| classify(error, &Effect::None, &self.settings.table))?;
        Ok(answer.item.as_ref().map(item::decode))
    }

    pub(crate) async fn update(
        &self,
        key: &EffectiveKey,
        update: String,
        condition: String,
        placeholders: Placeholders,
        returns: ReturnValue,
    ) -> Result<Written, StoreError> {
        let request = self
            .client
            .update_item()
            .table_name(&self.settings.table)
            .key(&self.settings.partition_key, self.key(key))
            .update_expression(update)
            .condition_expression(condition)
            .set_expression_attribute_names(Some(placeholders.names))
            .set_expression_attribute_values(Some(placeholders.values))
            .return_values(returns)
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
        let attempts = Attempts::default();
        match request.customize().interceptor(attempts.clone()).send().await {
            Ok(answer) => Ok(Written::Applied(answer.attributes)),
            Err(error) => match error.as_service_error() {
                Some(UpdateItemError::ConditionalCheckFailedException(met)) => Ok(Written::Refused(met.item.clone())),
                _ => Err(classify(error, &Effect::Write(attempts), &self.settings.table)),
            },
        }
    }

    /// What the rules say of a record that a refused write has met, or a read has seen.
    fn judge<R: Request>(
        &self,
        record: Option<&Record>,
        request: &R,
        now: &Now,
    ) -> Result<Judged<R::Answer>, StoreError> {
        let step = step(record, request, now.judged, self.rules());
        let answer = step.answer.map_err(|unreadable| {
            StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No).with_source(unreadable)
        })?;
        Ok(match step.write {
            Write::Nothing => Judged::Answer(answer),
            write => Judged::Writes(write, answer),
        })
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        let mut applied = Applied::No;
        self.claim_until_told(key, request, &mut applied).await.map_err(|error| error.with_applied(applied))
    }

    /// Sets `applied` once something was written, whatever error comes after that.
    async fn claim_until_told(
        &self,
        key: &EffectiveKey,
        request: &Claim,
        applied: &mut Applied,
    ) -> Result<ClaimOutcome, StoreError> {
        for _ in 0..TRIES {
            let now = self.prepare(key).await?;
            // A lease is written from the clock's upper edge: for the rules, which judge by the lower, it is longer by so much.
            let lease = Ttl::new(request.lease.as_duration().saturating_add(now.width())).unwrap_or(request.lease);
            let request = Claim::new(request.token, request.fingerprint, lease);
            if self.settings.read_first {
                let record = self.read(key).await?;
                if self.clock.contradicts(&now) {
                    continue;
                }
                if let Judged::Answer(answer) = self.judge(record.as_ref(), &request, &now)? {
                    return Ok(told(answer, &now));
                }
            }
            let answer = match self.claim_at_once(key, &request, &now).await? {
                Written::Applied(before) => Some(ClaimOutcome::Acquired(acquired(before.as_ref(), &request))),
                Written::Refused(item) => match self.judge(item.as_ref().map(item::decode).as_ref(), &request, &now)? {
                    Judged::Answer(answer) => Some(answer),
                    Judged::Writes(write, answer) => {
                        // What no expression can say: one compare-and-set on what was seen.
                        let won = self.compare_and_set(key, item.as_ref(), &write).await?;
                        won.then_some(answer)
                    }
                },
            };
            let Some(answer) = answer else { continue };
            if matches!(answer, ClaimOutcome::Acquired(_)) && self.clock.contradicts(&now) {
                // The lease was written with a time that this very response contradicts.
                *applied = Applied::Unknown;
                let renew = Renew::new(request.token, request.lease);
                match self.renew(key, &renew).await? {
                    RenewOutcome::Renewed { lease_left } => {
                        return Ok(match answer {
                            ClaimOutcome::Acquired(won) => ClaimOutcome::Acquired(Acquired { lease_left, ..won }),
                            other => other,
                        });
                    }
                    RenewOutcome::Completed | RenewOutcome::Fenced => continue,
                }
            }
            return Ok(told(answer, &now));
        }
        Err(contended())
    }

    /// The claim as one conditional update: of an absent key, of a result that has expired, or of a claim of the same
    /// request that has lapsed.
    async fn claim_at_once(&self, key: &EffectiveKey, request: &Claim, now: &Now) -> Result<Written, StoreError> {
        let mut p = Placeholders::default();
        let lease_until = now.judged.after(request.lease);
        let lapsed_by = earlier(now.judged, self.rules().take_over_margin);
        let expired = and([
            p.compare(STATE, "=", text(COMPLETED)),
            p.compare(LEASE_UNTIL, "<=", time(now.judged)),
            // An update has no branches: where an attempt was left, it would go on counting.
            p.absent(ATTEMPT),
        ]);
        let mut vacant = vec![expired];
        // A version that this release does not know equals nothing, not even itself.
        if request.fingerprint.matches(&request.fingerprint) {
            vacant.push(and([
                p.compare(STATE, "=", text(CLAIMED)),
                p.compare(LEASE_UNTIL, "<=", time(lapsed_by)),
                p.compare(CLAIM_TOKEN, "<>", text(request.token.to_string())),
                p.compare(FINGERPRINT, "=", text(request.fingerprint.to_hex())),
                p.compare(FINGERPRINT_VERSION, "=", number(request.fingerprint.version())),
                p.compare(ATTEMPT, ">=", number(1)),
                p.compare(ATTEMPT, "<", number(ATTEMPT_MAX)),
            ]));
        }
        let condition = or([p.absent(&self.settings.partition_key), and([readable(&mut p), or(vacant)])]);
        let set = p.set([
            (STATE, text(CLAIMED)),
            (FINGERPRINT, text(request.fingerprint.to_hex())),
            (FINGERPRINT_VERSION, number(request.fingerprint.version())),
            (CLAIM_TOKEN, text(request.token.to_string())),
            (CLAIMED_AT, time(now.judged)),
            (LEASE_UNTIL, time(lease_until)),
            (TTL, reaped_at(lease_until, self.grace())),
        ]);
        let (attempt, zero, one) = (p.name(ATTEMPT), p.value(number(0)), p.value(number(1)));
        let remove = p.remove([COMPLETED_AT, RESPONSE_STATUS, RESPONSE_HEADERS, RESPONSE_BODY, OUTCOME, BODY_ENCODING]);
        let update = format!("{set}, {attempt} = if_not_exists({attempt}, {zero}) + {one} {remove}");
        self.update(key, update, condition, p, ReturnValue::AllOld).await
    }

    /// Writes what the rules say, if the item is still what was seen. Fields that the library does not know survive.
    async fn compare_and_set(
        &self,
        key: &EffectiveKey,
        seen: Option<&Item>,
        write: &Write,
    ) -> Result<bool, StoreError> {
        let Write::Put(record) = write else { return Ok(false) };
        let mut p = Placeholders::default();
        let fresh = item::encode(record, self.grace());
        let condition = match seen {
            None => p.absent(&self.settings.partition_key),
            Some(seen) => and(ATTRIBUTES.iter().map(|name| match seen.get(*name) {
                Some(value) => p.compare(name, "=", value.clone()),
                None => p.absent(name),
            })),
        };
        let gone: Vec<&str> = ATTRIBUTES.into_iter().filter(|name| !fresh.contains_key(*name)).collect();
        let set = p.set(ATTRIBUTES.into_iter().filter_map(|name| Some((name, fresh.get(name)?.clone()))));
        let update = format!("{set} {}", p.remove(gone));
        Ok(matches!(self.update(key, update, condition, p, ReturnValue::None).await?, Written::Applied(_)))
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        let mut applied = Applied::No;
        self.renew_until_told(key, request, &mut applied).await.map_err(|error| error.with_applied(applied))
    }

    /// Sets `applied` once something was written, whatever error comes after that.
    async fn renew_until_told(
        &self,
        key: &EffectiveKey,
        request: &Renew,
        applied: &mut Applied,
    ) -> Result<RenewOutcome, StoreError> {
        for _ in 0..TRIES {
            let now = self.prepare(key).await?;
            let mut p = Placeholders::default();
            let lease_until = now.written.after(request.lease);
            let held = holds(&mut p, request.token);
            // It never lowers a lease: where that is longer, the condition refuses and brings it along.
            let condition = and([held, p.compare(LEASE_UNTIL, "<", time(lease_until))]);
            let update = p.set([(LEASE_UNTIL, time(lease_until)), (TTL, reaped_at(lease_until, self.grace()))]);
            let written = self.update(key, update, condition, p, ReturnValue::None).await?;
            if matches!(written, Written::Applied(_)) {
                *applied = Applied::Unknown;
            }
            // How much is left would be told by a time that this very response contradicts.
            if self.clock.contradicts(&now) {
                continue;
            }
            let item = match written {
                Written::Applied(_) => {
                    return Ok(RenewOutcome::Renewed { lease_left: lease_until.left_at(now.written) });
                }
                Written::Refused(item) => item,
            };
            match self.judge(item.as_ref().map(item::decode).as_ref(), request, &now)? {
                Judged::Answer(answer) => return Ok(answer),
                Judged::Writes(Write::Put(Record::Claimed(held)), _) if held.lease_until >= lease_until => {
                    return Ok(RenewOutcome::Renewed { lease_left: held.lease_until.left_at(now.written) });
                }
                // It changed between the two.
                Judged::Writes(..) => {}
            }
        }
        Err(contended())
    }

    async fn complete(
        &self,
        key: &EffectiveKey,
        request: &Complete,
        outcome: &Item,
    ) -> Result<CompleteOutcome, StoreError> {
        for _ in 0..TRIES {
            let now = self.prepare(key).await?;
            let mut p = Placeholders::default();
            let (update, condition) = self.completion(request, outcome, &now, &mut p);
            let item = match self.update(key, update, condition, p, ReturnValue::None).await? {
                Written::Applied(_) => return Ok(CompleteOutcome::Applied),
                Written::Refused(item) => item,
            };
            if let Judged::Answer(answer) = self.judge(item.as_ref().map(item::decode).as_ref(), request, &now)? {
                return Ok(answer);
            }
        }
        Err(contended())
    }

    /// The update that completes with an outcome from [`encode_checked`](Self::encode_checked), and its condition.
    pub(crate) fn completion(
        &self,
        request: &Complete,
        outcome: &Item,
        now: &Now,
        p: &mut Placeholders,
    ) -> (String, String) {
        let expires_at = now.written.after(request.expires_after);
        let condition = holds(p, request.token);
        let gone = [RESPONSE_STATUS, RESPONSE_HEADERS, RESPONSE_BODY, OUTCOME, BODY_ENCODING];
        let gone = gone.into_iter().filter(|name| !outcome.contains_key(*name));
        // Without an attempt the next fresh claim begins at 1.
        let remove = p.remove(gone.chain([ATTEMPT, CLAIMED_AT]));
        let fixed = [
            (STATE, text(COMPLETED)),
            (COMPLETED_AT, time(now.judged)),
            (LEASE_UNTIL, time(expires_at)),
            (TTL, reaped_at(expires_at, self.grace())),
        ];
        let set = p.set(fixed.into_iter().chain(outcome.iter().map(|(name, value)| (name.as_str(), value.clone()))));
        (format!("{set} {remove}"), condition)
    }

    /// The attributes of a completion's outcome. An error where the item that it leaves, with the longest numbers that it
    /// can have, would be larger than DynamoDB takes.
    pub(crate) fn encode_checked(&self, key: &EffectiveKey, request: &Complete) -> Result<Item, StoreError> {
        let far = Timestamp::from_millis(99_999_999_999_999);
        let outcome = encode_outcome(&request.outcome);
        let mut item = Item::new();
        item.insert(self.settings.partition_key.clone(), self.key(key));
        for (name, value) in [
            (STATE, text(COMPLETED)),
            (FINGERPRINT, text("0".repeat(64))),
            (FINGERPRINT_VERSION, number(u32::MAX)),
            (CLAIM_TOKEN, text(request.token.to_string())),
            (COMPLETED_AT, time(far)),
            (LEASE_UNTIL, time(far)),
            (TTL, number(far.as_millis())),
        ] {
            item.insert(name.to_owned(), value);
        }
        let size = item::size(&item).saturating_add(item::size(&outcome));
        if size <= ITEM_BYTES_MAX {
            return Ok(outcome);
        }
        let kind = StoreErrorKind::ResultTooLarge { size, max: ITEM_BYTES_MAX };
        Err(StoreError::new(NAME, kind, Applied::No))
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        for _ in 0..TRIES {
            let now = self.prepare(key).await?;
            let mut p = Placeholders::default();
            let condition = holds(&mut p, request.token);
            let delete = self
                .client
                .delete_item()
                .table_name(&self.settings.table)
                .key(&self.settings.partition_key, self.key(key))
                .condition_expression(condition)
                .set_expression_attribute_names(Some(p.names))
                .set_expression_attribute_values(Some(p.values))
                .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld);
            let attempts = Attempts::default();
            let item = match delete.customize().interceptor(attempts.clone()).send().await {
                Ok(_) => return Ok(ReleaseOutcome::Applied),
                Err(error) => match error.as_service_error() {
                    Some(DeleteItemError::ConditionalCheckFailedException(met)) => met.item.clone(),
                    _ => return Err(classify(error, &Effect::Write(attempts), &self.settings.table)),
                },
            };
            if let Judged::Answer(answer) = self.judge(item.as_ref().map(item::decode).as_ref(), request, &now)? {
                return Ok(answer);
            }
        }
        Err(contended())
    }

    async fn look(&self, key: &EffectiveKey) -> Result<Sight, StoreError> {
        self.within(None, Applied::No, async {
            let now = self.prepare(key).await?;
            let record = self.read(key).await?;
            match self.judge(record.as_ref(), &Look, &now)? {
                Judged::Answer(sight) | Judged::Writes(_, sight) => Ok(sight),
            }
        })
        .await
    }

    fn grace(&self) -> Duration {
        // A claim within its margin must not be reaped before it can be taken over.
        self.settings.grace.saturating_add(self.rules().take_over_margin)
    }
}

/// What the rules say of an item that a write was refused for.
enum Judged<A> {
    /// The answer, and nothing to write.
    Answer(A),
    /// There is something to write, which the condition could not express or which came in between.
    Writes(Write, A),
}

/// Whether the schema and the encoding are ones that this build can read.
fn readable(p: &mut Placeholders) -> String {
    let schema = or([p.absent(SCHEMA_VERSION), p.compare(SCHEMA_VERSION, "=", number(1))]);
    let encodings = encoding::known().iter().map(|encoding| p.compare(BODY_ENCODING, "=", text(*encoding)));
    let encodings: Vec<String> = encodings.collect();
    let encoding = or([p.absent(BODY_ENCODING)].into_iter().chain(encodings));
    and([schema, encoding])
}

/// Whether the item is a claim of this token, as far as an expression can tell that it decodes.
pub(crate) fn holds(p: &mut Placeholders, token: idemkit_core::ClaimToken) -> String {
    and([
        p.compare(CLAIM_TOKEN, "=", text(token.to_string())),
        p.compare(STATE, "=", text(CLAIMED)),
        p.is_of_type(FINGERPRINT, "S"),
        p.is_of_type(FINGERPRINT_VERSION, "N"),
        p.is_of_type(LEASE_UNTIL, "N"),
        readable(p),
    ])
}

/// What a claim that was applied is to be told, by what was there before.
fn acquired(before: Option<&Item>, request: &Claim) -> Acquired {
    // Some emulators return the key alone where AWS returns nothing.
    let before = before.filter(|item| ATTRIBUTES.iter().any(|name| item.contains_key(*name)));
    let (kind, attempt) = match before.map(item::decode) {
        None | Some(Record::Completed(_)) => (ClaimKind::Fresh, 1),
        Some(Record::Claimed(lapsed)) => (ClaimKind::Reclaimed, lapsed.attempt.saturating_add(1)),
        // As far as the condition could tell it was a record, and it was none.
        Some(Record::Garbage | Record::Newer) => (ClaimKind::Recovered, 1),
    };
    Acquired { kind, attempt, lease_left: request.lease.as_duration() }
}

/// The answer to a claim, with durations that are surely left: its lease was written from the clock's upper edge.
fn told(answer: ClaimOutcome, now: &Now) -> ClaimOutcome {
    match answer {
        ClaimOutcome::Acquired(won) => {
            ClaimOutcome::Acquired(Acquired { lease_left: won.lease_left.saturating_sub(now.width()), ..won })
        }
        other => other,
    }
}

/// `duration` before `at`, rounded up.
fn earlier(at: Timestamp, duration: Duration) -> Timestamp {
    let millis = u64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX);
    Timestamp::from_millis(at.as_millis().saturating_sub(millis))
}

fn contended() -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::No)
        .with_detail(format!("the record changed under {TRIES} tries in a row"))
}

#[async_trait]
impl Store for DynamoDbStore {
    fn capabilities(&self) -> Capabilities {
        Capabilities::new(NAME, self.inner.clock.deciding())
            .result_bytes_max(ITEM_BYTES_MAX)
            .completes_in_transaction(true)
            .take_over_margin(self.inner.settings.take_over_margin)
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        self.inner.within(Some(request.lease), Applied::Unknown, self.inner.claim(key, request)).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        let outcome = self.inner.encode_checked(key, request)?;
        self.inner.within(None, Applied::Unknown, self.inner.complete(key, request, &outcome)).await
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.inner.within(Some(request.lease), Applied::Unknown, self.inner.renew(key, request)).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        self.inner.within(None, Applied::Unknown, self.inner.release(key, request)).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        let (inner, watched) = (Arc::clone(&self.inner), *key);
        let look = move || {
            let inner = Arc::clone(&inner);
            async move { inner.look(&watched).await }
        };
        self.inner.watches.wait(key, timeout, look).await
    }
}

impl fmt::Debug for DynamoDbStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DynamoDbStore")
            .field("settings", &self.inner.settings)
            .field("clock", &self.inner.clock)
            .finish_non_exhaustive()
    }
}

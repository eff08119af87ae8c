//! Completing in the caller's own transaction: effect and record commit together, or not at all.

use std::time::Duration;

use aws_sdk_dynamodb::{
    error::ProvideErrorMetadata,
    operation::transact_write_items::TransactWriteItemsError,
    types::{CancellationReason, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update},
};
use idemkit_core::{
    Applied, Complete, EffectiveKey, HeldClaim, Outcome, StoreError, StoreErrorKind, Transacted, Ttl,
    machine::Condition,
};
use tokio::time::sleep;

use crate::{
    NAME,
    classify::{Attempts, Effect, classify, is_too_large, too_large},
    clock::Now,
    expression::Placeholders,
    item::{self, Item},
    store::{BoxFuture, DynamoDbStore, Inner},
};

/// How often a transaction that met another one on the same items is sent again.
const TRIES: u32 = 5;
/// Before the second try; twice as long before each next one.
const PAUSE: Duration = Duration::from_millis(20);

/// Why a transaction was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// One of the caller's own items was refused, by its condition or otherwise. Nothing was applied, and the claim is still held.
    ///
    /// Where an earlier attempt of the same call may yet be applied it is [`Store`](Self::Store) instead, with this as its source.
    #[error("item {index} of the transaction was refused ({code}): {message}")]
    Refused {
        /// Which of the caller's items, from 0.
        index: usize,
        /// DynamoDB's code, `ConditionalCheckFailed` for instance.
        code: String,
        /// DynamoDB's message.
        message: String,
    },
    /// The store failed. Whether the transaction may have been applied is in the error; it may be sent again.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl DynamoDbStore {
    /// Sends `items` and the completion of `claim` as one transaction. Either all of it is applied, or nothing.
    ///
    /// What the claim's operation does to DynamoDB happens here **exactly once**: a claim that was taken over refuses the
    /// whole transaction, and so does one that is completed already, by this very transaction too. So it may be sent again
    /// with the same claim until it is answered.
    ///
    /// At most 99 items. A transaction costs twice the write units of its items.
    ///
    /// # Errors
    /// [`TransactError::Refused`] where one of the caller's items was, and [`TransactError::Store`] as every operation of the store.
    ///
    /// ```no_run
    /// use std::time::Duration;
    /// use idemkit_core::{Begin, EffectiveKey, Engine, Fingerprint, Outcome, StoredResult, Transacted, Ttl};
    /// use idemkit_dynamodb::{DynamoDbStore, aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem}};
    ///
    /// # async fn example(engine: Engine, store: DynamoDbStore) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// if let Begin::Proceed(guard) = engine.begin(key, Fingerprint::of_payload("…")).await {
    ///     let order = Put::builder().table_name("orders").item("id", AttributeValue::S("7".into())).build()?;
    ///     let items = vec![TransactWriteItem::builder().put(order).build()];
    ///     let outcome = Outcome::Result(StoredResult::new(201, "order 7"));
    ///     let expires_after = Ttl::new(Duration::from_secs(86_400))?;
    ///     let done = store.transact(guard.hand_over(), outcome, expires_after, items).await?;
    ///     assert_eq!(done, Transacted::Committed(()));
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn transact(
        &self,
        claim: HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
        items: Vec<TransactWriteItem>,
    ) -> Result<Transacted, TransactError> {
        let sent: BoxFuture<'_, _> = Box::pin(self.inner.transact(claim, outcome, expires_after, items));
        sent.await
    }

    /// The completion of `claim` as an item for a transaction that the caller sends.
    ///
    /// Where the transaction is cancelled and this item's reason is `ConditionalCheckFailed`, its item is the record as it
    /// stands: [`Self::transact`] tells the two cases apart.
    ///
    /// # Errors
    /// As [`Store::complete`](idemkit_core::Store::complete): a result that is too large is refused before anything is sent.
    pub async fn completion_item(
        &self,
        claim: HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
    ) -> Result<TransactWriteItem, StoreError> {
        let request = Complete::new(claim.token, outcome, expires_after);
        let outcome = self.inner.encode_checked(&claim.key, &request)?;
        let prepared: BoxFuture<'_, _> = Box::pin(self.inner.within(None, Applied::No, self.inner.prepare(&claim.key)));
        let now = prepared.await?;
        self.inner.completion_item(&claim.key, &request, &outcome, &now)
    }
}

enum Cancelled {
    /// Another transaction or request was at the same items.
    Contended(StoreError),
    /// An item of the caller's was refused, and nothing was applied.
    Refused(TransactError),
    Failed(StoreError),
}

/// That an item was refused, where an earlier attempt may be applied yet: sent again, it is answered for certain.
fn perhaps(refused: TransactError) -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown)
        .with_detail("an item was refused, and an earlier attempt may be under way: send it again")
        .with_source(refused)
}

impl Inner {
    async fn transact(
        &self,
        claim: HeldClaim,
        outcome: Outcome,
        expires_after: Ttl,
        items: Vec<TransactWriteItem>,
    ) -> Result<Transacted, TransactError> {
        let request = Complete::new(claim.token, outcome, expires_after);
        let outcome = self.encode_checked(&claim.key, &request)?;
        // Its deadline is for all tries together. What refuses the caller's items is no error of the store's.
        let done = self.within(None, Applied::Unknown, async {
            let mut pause = PAUSE;
            let mut tries = 0;
            // Each try is a transaction of its own: one that is still under way may be applied after a later one was refused.
            let mut applied = Applied::No;
            loop {
                tries += 1;
                match self.transact_once(&claim.key, &request, &outcome, &items).await {
                    Ok(done) => return Ok(Ok(done)),
                    Err(Cancelled::Contended(error)) if tries < TRIES => {
                        if error.may_be_applied() {
                            applied = Applied::Unknown;
                        }
                    }
                    Err(Cancelled::Contended(error) | Cancelled::Failed(error)) => {
                        return Err(error.with_applied(applied));
                    }
                    Err(Cancelled::Refused(refused)) if applied == Applied::No => return Ok(Err(refused)),
                    Err(Cancelled::Refused(refused)) => return Err(perhaps(refused)),
                }
                sleep(pause).await;
                pause *= 2;
            }
        });
        done.await?
    }

    fn completion_item(
        &self,
        key: &EffectiveKey,
        request: &Complete,
        outcome: &Item,
        now: &Now,
    ) -> Result<TransactWriteItem, StoreError> {
        let mut p = Placeholders::default();
        let (update, condition) = self.completion(request, outcome, now, &mut p);
        let update = Update::builder()
            .table_name(&self.settings.table)
            .key(&self.settings.partition_key, self.key(key))
            .update_expression(update)
            .condition_expression(condition)
            .set_expression_attribute_names(Some(p.names))
            .set_expression_attribute_values(Some(p.values))
            .return_values_on_condition_check_failure(ReturnValuesOnConditionCheckFailure::AllOld)
            .build()
            .map_err(|error| StoreError::new(NAME, StoreErrorKind::InvalidArgument, Applied::No).with_source(error))?;
        Ok(TransactWriteItem::builder().update(update).build())
    }

    async fn transact_once(
        &self,
        key: &EffectiveKey,
        request: &Complete,
        outcome: &Item,
        items: &[TransactWriteItem],
    ) -> Result<Transacted, Cancelled> {
        let prepared = async {
            let now = self.prepare(key).await?;
            Ok((now, self.completion_item(key, request, outcome, &now)?))
        };
        let (now, completion) = prepared.await.map_err(Cancelled::Failed)?;
        let all = [completion].into_iter().chain(items.iter().cloned()).collect();
        // The SDK adds a token of its own, so that its retries of one call are one transaction.
        let attempts = Attempts::default();
        let request = self.client.transact_write_items().set_transact_items(Some(all));
        let Err(error) = request.customize().interceptor(attempts.clone()).send().await else {
            return Ok(Transacted::Committed(()));
        };
        let effect = Effect::Write(attempts);
        match error.as_service_error() {
            Some(TransactWriteItemsError::TransactionCanceledException(cancelled)) => {
                let cancelled = cancelled.clone();
                let reasons = cancelled.cancellation_reasons();
                explain(reasons, &now, effect.refused(), cancelled.clone().into())
            }
            Some(TransactWriteItemsError::TransactionInProgressException(_)) => {
                Err(Cancelled::Contended(classify(error, &effect, &self.settings.table)))
            }
            // Without reasons it may be said of any item; but the completion is none that is put.
            _ if error.message().is_some_and(|said| is_too_large(said) && !said.contains("to update")) => {
                let error = StoreError::new(NAME, StoreErrorKind::InvalidArgument, effect.refused()).with_source(error);
                Err(Cancelled::Failed(error.with_detail("an item that the transaction puts is too large")))
            }
            _ => Err(Cancelled::Failed(classify(error, &effect, &self.settings.table))),
        }
    }
}

/// Why a transaction was cancelled: the completion's own reason first. `applied` says what may become of its earlier attempts.
fn explain(
    reasons: &[CancellationReason],
    now: &Now,
    applied: Applied,
    source: Box<dyn std::error::Error + Send + Sync>,
) -> Result<Transacted, Cancelled> {
    let code = |reason: &CancellationReason| reason.code.clone().unwrap_or_default();
    let error = |kind| StoreError::new(NAME, kind, applied);
    if let Some(own) = reasons.first().filter(|reason| code(reason) == "ConditionalCheckFailed") {
        let record = own.item.as_ref().map(item::decode);
        return match Condition::of(record.as_ref(), now.judged) {
            Condition::Completed(completed) => Ok(Transacted::AlreadyCompleted(completed.seen_at(now.judged))),
            Condition::Newer => Err(Cancelled::Failed(error(StoreErrorKind::CorruptRecord).with_source(source))),
            _ => Ok(Transacted::Fenced),
        };
    }
    let contended = |reason: &CancellationReason| {
        matches!(code(reason).as_str(), "TransactionConflict" | "ProvisionedThroughputExceeded" | "ThrottlingError")
    };
    if reasons.iter().any(contended) {
        let error = error(StoreErrorKind::Unavailable).with_detail("another request was at the same items");
        return Err(Cancelled::Contended(error.with_source(source)));
    }
    let says_too_large =
        |own: &&CancellationReason| code(own) == "ValidationError" && own.message().is_some_and(is_too_large);
    if reasons.first().filter(says_too_large).is_some() {
        let (kind, why) = too_large();
        return Err(Cancelled::Failed(error(kind).with_detail(why).with_source(source)));
    }
    let refused = reasons.iter().enumerate().skip(1).find(|(_, reason)| code(reason) != "None");
    let Some((index, reason)) = refused else {
        return Err(Cancelled::Failed(error(StoreErrorKind::Other).with_source(source)));
    };
    let refused = TransactError::Refused {
        index: index - 1,
        code: code(reason),
        message: reason.message.clone().unwrap_or_default(),
    };
    Err(match applied {
        Applied::No => Cancelled::Refused(refused),
        Applied::Unknown => Cancelled::Failed(perhaps(refused)),
    })
}

//! Completing in the caller's own transaction: effect and record commit together, or not at all.

use aws_sdk_dynamodb::{
    error::SdkError,
    operation::transact_write_items::TransactWriteItemsError,
    types::{CancellationReason, ReturnValuesOnConditionCheckFailure, TransactWriteItem, Update},
};
use idemkit_core::{
    Applied, Complete, CompletedRecord, EffectiveKey, HeldClaim, Outcome, StoreError, StoreErrorKind, Ttl,
    machine::Condition,
};
use tokio::time::sleep;

use crate::{
    NAME,
    classify::{Effect, classify},
    clock::Now,
    expression::Placeholders,
    item,
    store::{DynamoDbStore, Inner},
};

/// How often a transaction that met another one on the same items is sent again.
const TRIES: u32 = 5;

/// How a transaction ended that was to complete a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transacted {
    /// All of it was applied: the caller's writes, and the completion.
    Committed,
    /// Nothing was applied, since the operation is done: here is what it ended with. So it is when a transaction whose
    /// acknowledgement was lost is sent again.
    AlreadyCompleted(CompletedRecord),
    /// Nothing was applied, since the claim is another's now, or nobody's.
    Fenced,
}

/// Why a transaction was not applied.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TransactError {
    /// One of the caller's own items was refused, by its condition or otherwise. Nothing was applied, and the claim is still held.
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
    /// use idemkit_core::{Begin, EffectiveKey, Engine, Fingerprint, Outcome, StoredResult, Ttl};
    /// use idemkit_dynamodb::{DynamoDbStore, Transacted, aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem}};
    ///
    /// # async fn example(engine: Engine, store: DynamoDbStore) -> Result<(), Box<dyn std::error::Error>> {
    /// let key = EffectiveKey::message("msg-7", "orders", "billing");
    /// if let Begin::Proceed(guard) = engine.begin(key, Fingerprint::of_payload("…")).await {
    ///     let order = Put::builder().table_name("orders").item("id", AttributeValue::S("7".into())).build()?;
    ///     let items = vec![TransactWriteItem::builder().put(order).build()];
    ///     let outcome = Outcome::Result(StoredResult::new(201, "order 7"));
    ///     let expires_after = Ttl::new(Duration::from_secs(86_400))?;
    ///     let done = store.transact(guard.hand_over(), outcome, expires_after, items).await?;
    ///     assert_eq!(done, Transacted::Committed);
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
        let request = Complete::new(claim.token, outcome, expires_after);
        self.inner.check_size(&claim.key, &request)?;
        let mut pause = std::time::Duration::from_millis(20);
        let mut tries = 0;
        loop {
            tries += 1;
            match self.inner.transact_once(&claim.key, &request, &items).await {
                Err(Cancelled::Contended(_)) if tries < TRIES => {
                    sleep(pause).await;
                    pause *= 2;
                }
                Err(Cancelled::Contended(error)) => return Err(error.into()),
                Err(Cancelled::Other(error)) => return Err(error),
                Ok(done) => return Ok(done),
            }
        }
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
        self.inner.check_size(&claim.key, &request)?;
        let now = self.inner.within(None, Effect::None, self.inner.prepare(&claim.key)).await?;
        self.inner.completion_item(&claim.key, &request, &now)
    }
}

enum Cancelled {
    /// Another transaction or request was at the same items.
    Contended(StoreError),
    Other(TransactError),
}

impl Inner {
    fn completion_item(
        &self,
        key: &EffectiveKey,
        request: &Complete,
        now: &Now,
    ) -> Result<TransactWriteItem, StoreError> {
        let mut p = Placeholders::default();
        let (update, condition) = self.completion(request, now, &mut p);
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
        items: &[TransactWriteItem],
    ) -> Result<Transacted, Cancelled> {
        let sent = async {
            let now = self.prepare(key).await?;
            let completion = self.completion_item(key, request, &now)?;
            let all = [completion].into_iter().chain(items.iter().cloned()).collect();
            // The SDK adds a token of its own, so that its retries of one call are one transaction.
            Ok((now, self.client.transact_write_items().set_transact_items(Some(all)).send().await))
        };
        let (now, answer) =
            self.within(None, Effect::Write, sent).await.map_err(|error| Cancelled::Other(error.into()))?;
        match answer {
            Ok(_) => Ok(Transacted::Committed),
            Err(SdkError::ServiceError(service)) => match service.into_err() {
                TransactWriteItemsError::TransactionCanceledException(cancelled) => {
                    let reasons = cancelled.cancellation_reasons.clone().unwrap_or_default();
                    self.explain(&reasons, &now, cancelled.into())
                }
                other => Err(self.failed(SdkError::service_error(other, ()))),
            },
            Err(error) => Err(self.failed(error)),
        }
    }

    fn failed<R: std::fmt::Debug + Send + Sync + 'static>(
        &self,
        error: SdkError<TransactWriteItemsError, R>,
    ) -> Cancelled {
        let contended = matches!(&error, SdkError::ServiceError(service)
            if matches!(service.err(), TransactWriteItemsError::TransactionInProgressException(_)));
        let error = classify(error, Effect::Write, &self.settings.table);
        if contended { Cancelled::Contended(error) } else { Cancelled::Other(error.into()) }
    }

    /// Why a transaction was cancelled: the completion's own reason first.
    fn explain(
        &self,
        reasons: &[CancellationReason],
        now: &Now,
        source: Box<dyn std::error::Error + Send + Sync>,
    ) -> Result<Transacted, Cancelled> {
        let code = |reason: &CancellationReason| reason.code.clone().unwrap_or_default();
        if let Some(own) = reasons.first().filter(|reason| code(reason) == "ConditionalCheckFailed") {
            let record = own.item.as_ref().map(item::decode);
            return match Condition::of(record.as_ref(), now.judged) {
                Condition::Completed(completed) => Ok(Transacted::AlreadyCompleted(completed.seen_at(now.judged))),
                Condition::Newer => {
                    let corrupt = StoreError::new(NAME, StoreErrorKind::CorruptRecord, Applied::No);
                    Err(Cancelled::Other(corrupt.with_source(source).into()))
                }
                _ => Ok(Transacted::Fenced),
            };
        }
        let contended = |reason: &CancellationReason| {
            matches!(code(reason).as_str(), "TransactionConflict" | "ProvisionedThroughputExceeded" | "ThrottlingError")
        };
        if reasons.iter().any(contended) {
            let error = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::No);
            return Err(Cancelled::Contended(
                error.with_detail("another request was at the same items").with_source(source),
            ));
        }
        let refused = reasons.iter().enumerate().skip(1).find(|(_, reason)| code(reason) != "None");
        Err(Cancelled::Other(match refused {
            Some((index, reason)) => TransactError::Refused {
                index: index - 1,
                code: code(reason),
                message: reason.message.clone().unwrap_or_default(),
            },
            None => StoreError::new(NAME, StoreErrorKind::Other, Applied::No).with_source(source).into(),
        }))
    }
}

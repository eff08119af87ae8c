//! The SDK's errors, sorted by what a caller can do.

use std::sync::{
    Arc,
    atomic::{AtomicU32, Ordering},
};

use aws_sdk_dynamodb::{
    config::{ConfigBag, Intercept, RuntimeComponents, interceptors::BeforeTransmitInterceptorContextRef},
    error::{BoxError, ProvideErrorMetadata, SdkError},
};
use idemkit_core::{Applied, StoreError, StoreErrorKind};

use crate::{NAME, item::ITEM_BYTES_MAX};

/// What a request would have done.
#[derive(Clone, Debug)]
pub(crate) enum Effect {
    /// Nothing: a read.
    None,
    /// A write. The SDK retries by itself, so that an earlier attempt than the one that was refused may have been applied.
    Write(Attempts),
}

impl Effect {
    /// Where it is not known what became of the last attempt.
    pub(crate) fn unknown(&self) -> Applied {
        match self {
            Self::None => Applied::No,
            Self::Write(_) => Applied::Unknown,
        }
    }

    /// Where the last attempt was refused.
    pub(crate) fn refused(&self) -> Applied {
        match self {
            Self::Write(attempts) if attempts.0.load(Ordering::Relaxed) > 1 => Applied::Unknown,
            _ => Applied::No,
        }
    }
}

/// How often the SDK has sent one request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Attempts(Arc<AtomicU32>);

impl Intercept for Attempts {
    fn name(&self) -> &'static str {
        "idemkit: attempts"
    }

    fn read_before_transmit(
        &self,
        _: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// The error as the store's contract has it. `table` is named where something must be done about it.
pub(crate) fn classify<E>(error: SdkError<E>, effect: &Effect, table: &str) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let (kind, applied, detail) = match &error {
        SdkError::ConstructionFailure(_) => {
            let why = "the request could not be made: look at the region, the endpoint and the credentials";
            (StoreErrorKind::Misconfigured, effect.refused(), why.to_owned())
        }
        SdkError::TimeoutError(_) => (StoreErrorKind::Unavailable, effect.unknown(), "no answer in time".to_owned()),
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            let why = "the request could not be sent: look at the endpoint";
            (StoreErrorKind::Misconfigured, effect.refused(), why.to_owned())
        }
        SdkError::DispatchFailure(_) => {
            (StoreErrorKind::Unavailable, effect.unknown(), "the service could not be reached".to_owned())
        }
        SdkError::ResponseError(_) => {
            (StoreErrorKind::Unavailable, effect.unknown(), "an answer that is none".to_owned())
        }
        SdkError::ServiceError(service) => match service.err().code() {
            Some(code) => {
                let (kind, mends) = of_code(code, service.err().message().unwrap_or(""), table);
                let applied = if kind == StoreErrorKind::Unavailable { effect.unknown() } else { effect.refused() };
                (kind, applied, if mends.is_empty() { code.to_owned() } else { format!("{code}: {mends}") })
            }
            // Not DynamoDB's: some proxy's, or what is left of an answer.
            None => {
                let status = service.raw().status().as_u16();
                let refused = (400..500).contains(&status) && !matches!(status, 408 | 429);
                let kind = if refused { StoreErrorKind::Other } else { StoreErrorKind::Unavailable };
                (kind, effect.unknown(), format!("an answer that is not DynamoDB's, with HTTP status {status}"))
            }
        },
        // The SDK may grow.
        _ => (StoreErrorKind::Other, effect.unknown(), String::new()),
    };
    StoreError::new(NAME, kind, applied).with_detail(detail).with_source(error)
}

/// What the service's code means, and what mends it.
fn of_code(code: &str, message: &str, table: &str) -> (StoreErrorKind, String) {
    match code {
        "ProvisionedThroughputExceededException"
        | "ThrottlingException"
        | "ThrottledException"
        | "RequestLimitExceeded"
        | "LimitExceededException"
        | "TransactionConflictException"
        | "TransactionInProgressException"
        | "ReplicatedWriteConflictException"
        | "ResourceInUseException"
        | "InternalServerError"
        | "InternalServerErrorException"
        | "InternalFailure"
        | "ServiceUnavailable"
        | "ServiceUnavailableException"
        | "RequestTimeout"
        | "RequestTimeoutException" => (StoreErrorKind::Unavailable, String::new()),
        "ResourceNotFoundException" => {
            let mends = format!(
                "there is no table `{table}` in this region and account, or it is being made; make it with \
                 DynamoDbStore::create_table, or let the store do so with the builder's create_table(true)"
            );
            (StoreErrorKind::Misconfigured, mends)
        }
        _ if is_denied(code) => {
            let mends = format!(
                "the credentials must be allowed dynamodb:GetItem, dynamodb:UpdateItem and dynamodb:DeleteItem on \
                 table `{table}`"
            );
            (StoreErrorKind::Misconfigured, mends)
        }
        // It means many things; only the text tells them apart.
        "ValidationException" if is_key_schema(message) => {
            let mends = format!(
                "the key of table `{table}` is not the store's: its partition key must be a string, with the name that \
                 the builder's partition_key has, and there must be no sort key"
            );
            (StoreErrorKind::Misconfigured, mends)
        }
        "ValidationException" if is_too_large(message) => {
            let (kind, why) = too_large();
            (kind, why.to_owned())
        }
        "ValidationException" => (StoreErrorKind::Other, message.to_owned()),
        // Codes that are numbers in text, as proxies make them.
        _ if code.starts_with('5') => (StoreErrorKind::Unavailable, String::new()),
        _ => (StoreErrorKind::Other, message.to_owned()),
    }
}

/// Whether the credentials are not allowed what was asked for, or are none that the service takes.
pub(crate) fn is_denied(code: &str) -> bool {
    matches!(
        code,
        "AccessDeniedException"
            | "UnrecognizedClientException"
            | "InvalidSignatureException"
            | "IncompleteSignatureException"
            | "IncompleteSignature"
            | "InvalidClientTokenId"
            | "MissingAuthenticationToken"
            | "MissingAuthenticationTokenException"
            | "NotAuthorized"
            | "OptInRequired"
            | "SignatureDoesNotMatch"
            | "ExpiredToken"
            | "ExpiredTokenException"
    )
}

/// Whether the service says of an item that it would be too large: with what others have put into it, which the store has
/// not counted.
pub(crate) fn is_too_large(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("item size") && message.contains("exceeded the maximum allowed size")
}

/// What the store says of such an item. How large it would be the service does not tell: by one byte too much at least.
pub(crate) fn too_large() -> (StoreErrorKind, &'static str) {
    let kind = StoreErrorKind::ResultTooLarge { size: ITEM_BYTES_MAX + 1, max: ITEM_BYTES_MAX };
    (kind, "with attributes of others that are in the item, it would be larger than an item may be")
}

fn is_key_schema(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    [
        "key element does not match the schema",
        "missing the key",
        "one of the required keys",
        "number of conditions on the keys",
        "type mismatch for key",
    ]
    .iter()
    .any(|said| message.contains(said))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const TOO_LARGE: StoreErrorKind = StoreErrorKind::ResultTooLarge { size: ITEM_BYTES_MAX + 1, max: ITEM_BYTES_MAX };

    #[rstest]
    #[case("ProvisionedThroughputExceededException", "", StoreErrorKind::Unavailable)]
    #[case("ThrottlingException", "", StoreErrorKind::Unavailable)]
    #[case("TransactionConflictException", "", StoreErrorKind::Unavailable)]
    #[case("InternalServerError", "", StoreErrorKind::Unavailable)]
    #[case("503", "", StoreErrorKind::Unavailable)]
    #[case("ResourceNotFoundException", "", StoreErrorKind::Misconfigured)]
    #[case("AccessDeniedException", "", StoreErrorKind::Misconfigured)]
    #[case("ValidationException", "The provided key element does not match the schema", StoreErrorKind::Misconfigured)]
    #[case("ValidationException", "One of the required keys was not given a value", StoreErrorKind::Misconfigured)]
    #[case("ValidationException", "Invalid UpdateExpression", StoreErrorKind::Other)]
    #[case("ValidationException", "Item size has exceeded the maximum allowed size", TOO_LARGE)]
    #[case("ValidationException", "Item size to update has exceeded the maximum allowed size", TOO_LARGE)]
    #[case("", "", StoreErrorKind::Other)]
    fn a_code_means(#[case] code: &str, #[case] message: &str, #[case] kind: StoreErrorKind) {
        let (seen, mends) = of_code(code, message, "orders");
        assert_eq!(seen, kind);
        assert_eq!(seen == StoreErrorKind::Misconfigured, mends.contains("orders"), "what mends it is said: {mends}");
    }
}

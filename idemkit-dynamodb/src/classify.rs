//! The SDK's errors, sorted by what a caller can do.

use aws_sdk_dynamodb::error::{ProvideErrorMetadata, SdkError};
use idemkit_core::{Applied, StoreError, StoreErrorKind};

use crate::NAME;

/// What a request would have done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: a read.
    None,
    /// A write. The SDK retries by itself, so an earlier attempt than the one that failed may have been applied.
    Write,
}

impl Effect {
    fn applied(self) -> Applied {
        match self {
            Self::None => Applied::No,
            Self::Write => Applied::Unknown,
        }
    }
}

/// The error as the store's contract has it. `table` is named where something must be done about it.
pub(crate) fn classify<E, R>(error: SdkError<E, R>, effect: Effect, table: &str) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
    R: std::fmt::Debug + Send + Sync + 'static,
{
    let (kind, applied, detail) = match &error {
        SdkError::ConstructionFailure(_) => {
            let why = "the request could not be made: look at the region, the endpoint and the credentials";
            (StoreErrorKind::Misconfigured, Applied::No, why.to_owned())
        }
        SdkError::TimeoutError(_) => (StoreErrorKind::Unavailable, effect.applied(), "no answer in time".to_owned()),
        SdkError::DispatchFailure(failure) if failure.is_user() => {
            let why = "the request could not be sent: look at the endpoint";
            (StoreErrorKind::Misconfigured, Applied::No, why.to_owned())
        }
        SdkError::DispatchFailure(_) => {
            (StoreErrorKind::Unavailable, effect.applied(), "the service could not be reached".to_owned())
        }
        SdkError::ResponseError(_) => {
            (StoreErrorKind::Unavailable, effect.applied(), "an answer that is none".to_owned())
        }
        SdkError::ServiceError(service) => {
            let (code, message) = (service.err().code().unwrap_or(""), service.err().message().unwrap_or(""));
            let (kind, mends) = of_code(code, message, table);
            let applied = if kind == StoreErrorKind::Unavailable { effect.applied() } else { Applied::No };
            (kind, applied, if mends.is_empty() { code.to_owned() } else { format!("{code}: {mends}") })
        }
        // The SDK may grow.
        _ => (StoreErrorKind::Other, effect.applied(), String::new()),
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
        | "ExpiredTokenException" => {
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
        "ValidationException" => (StoreErrorKind::Other, message.to_owned()),
        // Codes that are numbers in text, as proxies make them.
        _ if code.starts_with('5') => (StoreErrorKind::Unavailable, String::new()),
        _ => (StoreErrorKind::Other, message.to_owned()),
    }
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
    #[case("", "", StoreErrorKind::Other)]
    fn a_code_means(#[case] code: &str, #[case] message: &str, #[case] kind: StoreErrorKind) {
        let (seen, mends) = of_code(code, message, "orders");
        assert_eq!(seen, kind);
        assert_eq!(seen == StoreErrorKind::Misconfigured, mends.contains("orders"), "what mends it is said: {mends}");
    }
}

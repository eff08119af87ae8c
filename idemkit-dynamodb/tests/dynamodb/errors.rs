//! What the service refuses or cannot do, and what is said of it.

use std::time::Duration;

use idemkit_core::{ClaimKind, Store, StoreError, StoreErrorKind};
use idemkit_dynamodb::{ClockMode, DynamoDbStore};
use rstest::rstest;

use crate::{
    stub::{Answer, Stub},
    support::{Table, acquired, claim, config, key, secs, store, unique, url},
};

/// A store behind a stub, that tries twice.
async fn stubbed(table: &Table) -> (DynamoDbStore, Stub) {
    let stub = Stub::before(&table.url).await;
    let builder = table.store().config(config(&stub.url())).attempts(2);
    let store = builder.clock(ClockMode::Local { skew_bound: Duration::ZERO }).build().await.unwrap();
    (store, stub)
}

fn all_of(error: &StoreError) -> String {
    let mut text = format!("{error} {error:?}");
    let mut source = std::error::Error::source(error);
    while let Some(error) = source {
        text += &format!(" {error}");
        source = error.source();
    }
    text
}

#[rstest]
#[case::throttled(400, "ProvisionedThroughputExceededException")]
#[case::throttled_on_demand(400, "ThrottlingException")]
#[case::too_many_requests(400, "RequestLimitExceeded")]
#[case::a_transaction_has_the_item(400, "TransactionConflictException")]
#[case::internal(500, "InternalServerError")]
#[case::unavailable(503, "ServiceUnavailable")]
#[tokio::test]
async fn what_may_pass_is_unavailable_and_is_tried_again(#[case] status: u16, #[case] code: &str) {
    let table = Table::make("busy").await;
    let (store, stub) = stubbed(&table).await;
    let told = |times| (0..times).map(|_| Answer::error("UpdateItem", status, code, "as told"));

    // A conflict with a transaction is not tried again by the SDK: only then is once enough.
    let times = if code == "TransactionConflictException" { 1 } else { 2 };
    stub.will_answer(told(times));
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    assert_eq!(stub.left(), 0, "the SDK made two tries");

    stub.will_answer(told(times - 1));
    let won = acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    assert_eq!((won.kind, won.attempt), (ClaimKind::Fresh, 1));
    assert_eq!(stub.left(), 0);
    table.delete().await.unwrap();
}

#[rstest]
#[case::not_json(200, "<html>a captive portal</html>")]
#[case::an_error_without_a_body(502, "")]
#[case::an_error_of_a_proxy(504, "<html>gateway time-out</html>")]
#[tokio::test]
async fn an_answer_that_is_none_is_unavailable_and_unknown(#[case] status: u16, #[case] body: &str) {
    let table = Table::make("strange").await;
    let (store, stub) = stubbed(&table).await;
    stub.will_answer((0..2).map(|_| Answer::new("UpdateItem", status, body)));
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true), "{error}");
    table.delete().await.unwrap();
}

#[rstest]
#[case::no_permission(
    "AccessDeniedException",
    "is not authorized to perform: dynamodb:UpdateItem",
    "dynamodb:UpdateItem"
)]
#[case::unknown_credentials("UnrecognizedClientException", "The security token is invalid", "credentials")]
#[case::expired_credentials("ExpiredTokenException", "expired", "credentials")]
#[case::no_table("ResourceNotFoundException", "Requested resource not found", "create_table")]
#[case::another_key("ValidationException", "The provided key element does not match the schema", "partition_key")]
#[tokio::test]
async fn what_must_be_mended_says_how(#[case] code: &str, #[case] message: &str, #[case] mends: &str) {
    let table = Table::make("wrong").await;
    let (store, stub) = stubbed(&table).await;
    stub.will_answer([Answer::error("UpdateItem", 400, code, message)]);
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, false), "{error}");
    let text = error.to_string();
    assert!(text.contains(mends) && text.contains(&table.name), "{text}");
    assert!(std::error::Error::source(&error).is_some());
    assert_eq!(stub.left(), 0);
    table.delete().await.unwrap();
}

/// The same by the server itself, as far as an emulator goes.
#[tokio::test]
async fn a_missing_table_is_misconfigured() {
    let builder = store(&url(), &unique("missing")).create_table(false);
    for clock in [ClockMode::default(), ClockMode::Local { skew_bound: Duration::ZERO }] {
        let store = builder.clone().clock(clock).build().await.unwrap();
        let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
        assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, false), "{error}");
        assert!(error.to_string().contains("create_table"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_away_is_unavailable() {
    // A port that nobody listens on, and nobody else can take.
    let taken = tokio::net::TcpSocket::new_v4().unwrap();
    taken.bind(([127, 0, 0, 1], 0).into()).unwrap();
    let address = taken.local_addr().unwrap();
    let store = store(&format!("http://{address}"), "t").create_table(false).build().await.unwrap();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}");
    assert!(!all_of(&error).contains("secret"));
}

#[tokio::test]
async fn no_credential_is_in_any_text() {
    use aws_sdk_dynamodb::config::Credentials;
    let secret = "wJalrXUtnFEMI/K7MDENG";
    let table = Table::make("secret").await;
    let stub = Stub::before(&table.url).await;
    let credentials = Credentials::new("AKIAEXAMPLEKEY", secret, Some("a-session-token".into()), None, "tests");
    let config = config(&stub.url()).to_builder().credentials_provider(credentials).build();
    let builder = table.store().config(config);
    let shown = format!("{builder:?}");
    let store = builder.build().await.unwrap();
    stub.will_answer([Answer::error("GetItem", 400, "AccessDeniedException", "no")]);
    let error = store.claim(&key("a raw key"), &claim(secs(30))).await.unwrap_err();
    for text in [shown, format!("{store:?}"), all_of(&error)] {
        for hidden in [secret, "a-session-token", "a raw key"] {
            assert!(!text.contains(hidden), "{hidden} is in: {text}");
        }
    }
    table.delete().await.unwrap();
}

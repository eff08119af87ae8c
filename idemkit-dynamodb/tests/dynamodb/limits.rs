//! The largest item, and bodies that are compressed.

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use idemkit_core::{
    ClaimOutcome, Complete, CompleteOutcome, Headers, HeldClaim, Outcome, Store, StoreErrorKind, StoredResult,
};
use idemkit_dynamodb::TransactError;
use rstest::rstest;

use crate::support::{Table, acquired, claim, completion, key, result, secs};

/// Bytes that do not compress.
fn random(length: usize) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(1);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

/// The store counts as the server does: by no more than a few numbers' bytes less goes in than would.
#[rstest]
#[case::body(|bytes| StoredResult::new(200, random(bytes)))]
#[case::headers(|bytes| {
    let mut headers = Headers::default();
    for _ in 0..10 {
        headers.append("x-é-header", vec![0xe9; 11]);
    }
    // Each byte of a value above 0x7f is stored as a code point of two bytes.
    headers.append("x-long", vec![0xe9; bytes / 2]);
    let mut result = StoredResult::new(200, vec![1; bytes % 2]);
    result.headers = headers;
    result
})]
#[tokio::test]
async fn the_limit_is_known_to_the_byte_before_anything_is_sent(#[case] of_size: fn(usize) -> StoredResult) {
    let table = Table::make("limit").await;
    let store = table.store().build().await.unwrap();
    let (order, request) = (key("order"), claim(secs(30)));
    acquired(store.claim(&order, &request).await.unwrap());
    let complete = |bytes| Complete::new(request.token, Outcome::Result(of_size(bytes)), secs(3_600));

    // One byte more than fits is refused with both sizes, and the claim stays.
    let far = store.complete(&order, &complete(500_000)).await.unwrap_err();
    let StoreErrorKind::ResultTooLarge { size, max } = far.kind() else { panic!("{far}") };
    let too_long = usize::try_from(500_000 - (size - max) + 1).unwrap();
    let error = store.complete(&order, &complete(too_long)).await.unwrap_err();
    assert!(matches!(error.kind(), StoreErrorKind::ResultTooLarge { size, max } if size > max && size <= max + 2));
    assert!(matches!(store.claim(&order, &claim(secs(30))).await.unwrap(), ClaimOutcome::InFlight(_)));

    // What the store takes for small enough, the server takes too.
    let done = complete(too_long - 2);
    assert_eq!(store.complete(&order, &done).await.unwrap(), CompleteOutcome::Applied);
    match store.claim(&order, &claim(secs(30))).await.unwrap() {
        ClaimOutcome::Completed(completed) => assert!(completed.outcome == done.outcome),
        other => panic!("{other:?}"),
    }
    table.delete().await.unwrap();
}

/// Attributes that others have put into the item stay there, and are not counted before anything is sent.
#[rstest]
#[tokio::test]
async fn a_result_that_is_too_large_beside_what_others_keep_in_the_item_is_told_so(
    #[values(true, false)] transacts: bool,
) {
    let table = Table::make("beside").await;
    let store = table.store().build().await.unwrap();
    let (order, request) = (key("order"), claim(secs(30)));
    acquired(store.claim(&order, &request).await.unwrap());
    let extra = table
        .client()
        .update_item()
        .table_name(&table.name)
        .key("effective_key", AttributeValue::S(order.to_string()))
        .update_expression("SET extra = :extra")
        .expression_attribute_values(":extra", AttributeValue::B(Blob::new(random(300 * 1024))));
    extra.send().await.unwrap();

    let error = if transacts {
        let held = HeldClaim { key: order, token: request.token };
        match store.transact(held, result(random(200 * 1024)), secs(60), vec![]).await {
            Err(TransactError::Store(error)) => error,
            other => panic!("{other:?}"),
        }
    } else {
        store.complete(&order, &completion(request.token, random(200 * 1024))).await.unwrap_err()
    };
    assert!(!error.may_be_applied(), "{error}");
    assert!(matches!(error.kind(), StoreErrorKind::ResultTooLarge { size, max } if size > max), "{error}");
    // The claim stays, and what fits is taken.
    let done = store.complete(&order, &completion(request.token, "done")).await.unwrap();
    assert_eq!(done, CompleteOutcome::Applied);
    assert!(table.item(&order).await.unwrap().contains_key("extra"));
    table.delete().await.unwrap();
}

#[cfg(feature = "gzip")]
#[tokio::test]
async fn a_large_body_that_compresses_is_stored_compressed_and_comes_back() {
    let table = Table::make("gzip").await;
    let store = table.store().build().await.unwrap();
    let body = "the same line again and again\n".repeat(100_000);
    for (name, body) in [("large", body.as_bytes()), ("small", b"small"), ("random", &random(20_000))] {
        let (order, request) = (key(name), claim(secs(30)));
        acquired(store.claim(&order, &request).await.unwrap());
        store.complete(&order, &completion(request.token, body)).await.unwrap();
        let item = table.item(&order).await.unwrap();
        let encoding = item.get("body_encoding").map(|encoding| encoding.as_s().unwrap().as_str());
        assert_eq!(encoding, (name == "large").then_some("gzip"), "{name}");
        match store.claim(&order, &claim(secs(30))).await.unwrap() {
            ClaimOutcome::Completed(completed) => assert!(completed.outcome.stored().unwrap().body == body),
            other => panic!("{other:?}"),
        }
    }
    table.delete().await.unwrap();
}

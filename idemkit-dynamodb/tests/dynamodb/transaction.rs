//! The completion in a transaction with the caller's own writes: both or neither, whatever happens.

use std::{collections::HashMap, process::Stdio, time::Duration};

use aws_sdk_dynamodb::types::{AttributeValue, Put, TransactWriteItem, Update};
use idemkit_core::{ClaimOutcome, EffectiveKey, HeldClaim, Store, StoreErrorKind, Transacted, Ttl};
use idemkit_dynamodb::{DynamoDbStore, TransactError};
use idemkit_servers::{Kind, Lost, Proxy};
use rstest::rstest;
use tokio::process::Command;

use crate::{
    stub::{Answer, Stub},
    support::{Table, acquired, claim, claimed_for_a_second, completion, config, key, result, secs, store, until},
    wire::attempt_timeout,
};

const WRITES: &[u8] = b"DynamoDB_20120810.TransactWriteItems";

fn text(value: &str) -> AttributeValue {
    AttributeValue::S(value.to_owned())
}

/// A business write that shows how often it was applied: one more on a counter.
fn counts(table: &Table, counter: &str) -> TransactWriteItem {
    let update = Update::builder()
        .table_name(&table.name)
        .key("effective_key", text(counter))
        .update_expression("ADD #count :one")
        .expression_attribute_names("#count", "count")
        .expression_attribute_values(":one", AttributeValue::N("1".into()));
    TransactWriteItem::builder().update(update.build().unwrap()).build()
}

/// A business write that is refused when the item is there.
fn inserts(table: &Table, name: &str) -> TransactWriteItem {
    let put = Put::builder()
        .table_name(&table.name)
        .item("effective_key", text(name))
        .condition_expression("attribute_not_exists(effective_key)");
    TransactWriteItem::builder().put(put.build().unwrap()).build()
}

async fn count(table: &Table, counter: &str) -> u32 {
    let get = table.client().get_item().table_name(&table.name).key("effective_key", text(counter));
    let item = get.consistent_read(true).send().await.unwrap().item.unwrap_or_default();
    item.get("count").map_or(0, |count| count.as_n().unwrap().parse().unwrap())
}

async fn held(store: &DynamoDbStore, key: EffectiveKey, lease: Ttl) -> HeldClaim {
    let request = claim(lease);
    acquired(store.claim(&key, &request).await.unwrap());
    HeldClaim { key, token: request.token }
}

async fn transact(store: &DynamoDbStore, table: &Table, claim: HeldClaim) -> Result<Transacted, TransactError> {
    store.transact(claim, result("done"), secs(3_600), vec![counts(table, "counter")]).await
}

#[tokio::test]
async fn the_write_and_the_completion_commit_together_and_once() {
    let table = Table::make("transact").await;
    let store = table.store().build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;

    assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(()));
    assert_eq!(count(&table, "counter").await, 1);
    let replay = store.claim(&order.key, &claim(secs(30))).await.unwrap();
    assert!(matches!(&replay, ClaimOutcome::Completed(record) if record.outcome == result("done")), "{replay:?}");

    // Sent again, by the same holder too, it applies nothing and hands back what is recorded.
    for again in [order, HeldClaim { key: order.key, token: claim(secs(1)).token }] {
        match transact(&store, &table, again).await.unwrap() {
            Transacted::AlreadyCompleted(record) => assert_eq!(record.outcome, result("done")),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(count(&table, "counter").await, 1);
    table.delete().await.unwrap();
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_whose_acknowledgement_is_lost_applies_its_effect_once(
    #[values(Lost::ByReset, Lost::InSilence)] how: Lost,
    #[values(1, 8)] attempts: u32,
) {
    let table = Table::make("transact").await;
    let proxy = Proxy::before(Kind::DynamoDb, &table.url).unwrap();
    let builder = table.store().config(config(proxy.url())).attempt_timeout(attempt_timeout(how));
    let store = builder.attempts(attempts).build().await.unwrap();
    let patient = table.store().build().await.unwrap();
    let order = held(&patient, key("order"), secs(120)).await;

    proxy.lose_reply_to(WRITES, how);
    let first = transact(&store, &table, order).await;
    until("the reply is lost", || proxy.lost() == 1).await;
    if attempts == 1 {
        let Err(TransactError::Store(error)) = first else { panic!("{first:?}") };
        assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, true));
        let again = transact(&patient, &table, order).await.unwrap();
        assert!(matches!(again, Transacted::AlreadyCompleted(_)), "{again:?}");
    } else {
        // The SDK's second try is the same transaction to the service.
        assert_eq!(first.unwrap(), Transacted::Committed(()));
    }
    assert_eq!(count(&table, "counter").await, 1);
    table.delete().await.unwrap();
}

#[tokio::test]
async fn a_zombies_transaction_is_refused_whole() {
    let table = Table::make("transact").await;
    let store = table.store().build().await.unwrap();
    let zombie = claimed_for_a_second(&store).await;
    let successor = claim(secs(60));
    let until = tokio::time::Instant::now() + Duration::from_secs(60);
    while !matches!(store.claim(&zombie.key, &successor).await.unwrap(), ClaimOutcome::Acquired(_)) {
        assert!(tokio::time::Instant::now() < until, "the lease ends");
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(transact(&store, &table, zombie).await.unwrap(), Transacted::Fenced);
    assert_eq!(count(&table, "counter").await, 0, "nothing of it was applied");

    // Nor after its successor is done: then it gets the successor's result.
    let other = completion(successor.token, "the successor's");
    store.complete(&zombie.key, &other).await.unwrap();
    match transact(&store, &table, zombie).await.unwrap() {
        Transacted::AlreadyCompleted(record) => assert_eq!(record.outcome, result("the successor's")),
        other => panic!("{other:?}"),
    }
    // Nor where nobody holds the key.
    let nobody = HeldClaim { key: key("never claimed"), token: zombie.token };
    assert_eq!(transact(&store, &table, nobody).await.unwrap(), Transacted::Fenced);
    assert_eq!(count(&table, "counter").await, 0);
    table.delete().await.unwrap();
}

#[tokio::test]
async fn a_refused_write_of_the_callers_is_told_and_the_claim_is_kept() {
    let table = Table::make("transact").await;
    let store = table.store().build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    let items = || vec![counts(&table, "counter"), inserts(&table, "once")];
    assert_eq!(store.transact(order, result("done"), secs(60), items()).await.unwrap(), Transacted::Committed(()));
    let second = held(&store, key("another order"), secs(30)).await;
    match store.transact(second, result("done"), secs(60), items()).await {
        Err(TransactError::Refused { index: 1, code, .. }) => assert_eq!(code, "ConditionalCheckFailed"),
        other => panic!("{other:?}"),
    }
    assert_eq!(count(&table, "counter").await, 1);
    // It is still held: its holder may do something else, and complete.
    assert_eq!(transact(&store, &table, second).await.unwrap(), Transacted::Committed(()));
    table.delete().await.unwrap();
}

#[tokio::test]
async fn a_transaction_that_meets_another_is_sent_again() {
    let table = Table::make("transact").await;
    let stub = Stub::before(&table.url).await;
    let store = table.store().config(config(&stub.url())).build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    let conflict = || Answer::cancelled(&[("None", ""), ("TransactionConflict", "Transaction is ongoing")]);
    stub.will_answer([conflict(), conflict()]);
    assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(()));
    assert_eq!((stub.left(), count(&table, "counter").await), (0, 1));

    // Again and again: unavailable, and nothing of it was applied.
    let other = held(&store, key("another"), secs(30)).await;
    stub.will_answer((0..100).map(|_| conflict()));
    match transact(&store, &table, other).await {
        Err(TransactError::Store(error)) => {
            assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Unavailable, false));
        }
        other => panic!("{other:?}"),
    }
    assert_eq!(count(&table, "counter").await, 1);
    table.delete().await.unwrap();
}

/// An earlier attempt that the service is still at may commit after a later one was refused.
#[rstest]
#[case::by_another_transaction(&[("None", ""), ("TransactionConflict", "ongoing")], 5)]
#[case::by_the_callers_item(&[("None", ""), ("ConditionalCheckFailed", "is there")], 1)]
#[case::by_something_else(&[("None", ""), ("None", "")], 1)]
#[tokio::test]
async fn what_is_refused_after_an_attempt_that_may_be_under_way_is_unknown(
    #[case] reasons: &[(&str, &str)],
    #[case] times: usize,
    #[values(true, false)] of_the_same_try: bool,
) {
    let table = Table::make("transact").await;
    let stub = Stub::before(&table.url).await;
    let store = table.store().config(config(&stub.url())).attempts(2).build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    // The SDK sends a call twice.
    let in_progress = || Answer::error("TransactWriteItems", 400, "TransactionInProgressException", "as told");
    stub.will_answer((0..if of_the_same_try { 1 } else { 2 }).map(|_| in_progress()));
    let times = if of_the_same_try || times == 1 { times } else { times - 1 };
    stub.will_answer((0..times).map(|_| Answer::cancelled(reasons)));
    match transact(&store, &table, order).await {
        Err(TransactError::Store(error)) => assert!(error.may_be_applied(), "{error}"),
        other => panic!("{other:?}"),
    }
    assert_eq!(stub.left(), 0, "each was asked for");
    // Sent again it is answered.
    assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(()));
    table.delete().await.unwrap();
}

#[tokio::test]
async fn the_item_for_a_transaction_of_the_callers_own_completes() {
    let table = Table::make("transact").await;
    let store = table.store().build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    let item = store.completion_item(order, result("done"), secs(60)).await.unwrap();
    let send = || {
        let items = table.client().transact_write_items().transact_items(item.clone());
        items.transact_items(counts(&table, "counter")).send()
    };
    send().await.unwrap();
    send().await.unwrap_err();
    assert_eq!(count(&table, "counter").await, 1);
    let replay = store.claim(&order.key, &claim(secs(30))).await.unwrap();
    assert!(matches!(replay, ClaimOutcome::Completed(_)), "{replay:?}");
    table.delete().await.unwrap();
}

#[tokio::test]
async fn a_result_that_is_too_large_is_refused_before_anything_is_applied() {
    let table = Table::make("transact").await;
    let store = table.store().build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    let mut random = fastrand::Rng::with_seed(1);
    let body: Vec<u8> = std::iter::repeat_with(|| random.u8(..)).take(410 * 1024).collect();
    match store.transact(order, result(body), secs(60), vec![counts(&table, "counter")]).await {
        Err(TransactError::Store(error)) => assert!(matches!(error.kind(), StoreErrorKind::ResultTooLarge { .. })),
        other => panic!("{other:?}"),
    }
    assert_eq!(count(&table, "counter").await, 0);
    assert_eq!(transact(&store, &table, order).await.unwrap(), Transacted::Committed(()));
    table.delete().await.unwrap();
}

/// Whose item it is decides: the completion's is the result, with what others keep beside it.
#[rstest]
#[case::the_completion(Answer::cancelled(&[("ValidationError", UPDATE_TOO_LARGE), ("None", "")]), TooLarge::Result)]
#[case::the_callers(Answer::cancelled(&[("None", ""), ("ValidationError", UPDATE_TOO_LARGE)]), TooLarge::Item)]
#[case::an_update(Answer::error("TransactWriteItems", 400, "ValidationException", UPDATE_TOO_LARGE), TooLarge::Result)]
#[case::a_put(Answer::error("TransactWriteItems", 400, "ValidationException", PUT_TOO_LARGE), TooLarge::Request)]
#[tokio::test]
async fn an_item_of_a_transaction_that_is_too_large_is_told_as_whose_it_is(
    #[case] answer: Answer,
    #[case] told: TooLarge,
) {
    let table = Table::make("transact").await;
    let stub = Stub::before(&table.url).await;
    let store = table.store().config(config(&stub.url())).build().await.unwrap();
    let order = held(&store, key("order"), secs(30)).await;
    stub.will_answer([answer]);
    let seen = match transact(&store, &table, order).await.unwrap_err() {
        TransactError::Refused { index: 0, .. } => TooLarge::Item,
        TransactError::Store(error) => {
            assert!(!error.may_be_applied(), "{error}");
            match error.kind() {
                StoreErrorKind::ResultTooLarge { size, max } if size > max => TooLarge::Result,
                StoreErrorKind::InvalidArgument => TooLarge::Request,
                other => panic!("{other:?}"),
            }
        }
        other => panic!("{other:?}"),
    };
    assert_eq!(seen, told);
    table.delete().await.unwrap();
}

const PUT_TOO_LARGE: &str = "Item size has exceeded the maximum allowed size";
const UPDATE_TOO_LARGE: &str = "Item size to update has exceeded the maximum allowed size";

#[derive(Debug, PartialEq)]
enum TooLarge {
    Result,
    Item,
    Request,
}

/// What a worker that will be killed is told by the environment.
const TABLE: &str = "IDEMKIT_TRANSACT_TEST_TABLE";
const URL: &str = "IDEMKIT_TRANSACT_TEST_URL";
const ROUND: &str = "IDEMKIT_TRANSACT_TEST_ROUND";

/// Does one order after the other, until it is killed.
#[tokio::test]
#[ignore = "a part of a_crash_between_the_write_and_the_completion_cannot_be_observed, which kills it"]
async fn worker() {
    let variable = |name| std::env::var(name).unwrap();
    let table = Table { url: variable(URL), name: variable(TABLE) };
    let store = store(&table.url, &table.name).create_table(false).build().await.unwrap();
    for order in 0.. {
        let name = format!("order {} {order}", variable(ROUND));
        let order = held(&store, key(&name), secs(30)).await;
        let items = vec![counts(&table, &format!("counter of {}", order.key))];
        let done = store.transact(order, result("done"), secs(60), items).await.unwrap();
        assert_eq!(done, Transacted::Committed(()));
        println!("\nworker: done");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_between_the_write_and_the_completion_cannot_be_observed() {
    let table = Table::make("crash").await;
    for round in 0..12_u64 {
        let mut worker = Command::new(std::env::current_exe().unwrap())
            .args(["transaction::worker", "--exact", "--ignored", "--nocapture"])
            .env(URL, &table.url)
            .env(TABLE, &table.name)
            .env(ROUND, round.to_string())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        let mut lines = tokio::io::AsyncBufReadExt::lines(tokio::io::BufReader::new(worker.stdout.take().unwrap()));
        // However slow the machine is: it has done one order, and is at some point of a later one.
        while lines.next_line().await.unwrap().unwrap() != "worker: done" {}
        tokio::time::sleep(Duration::from_micros(fastrand::u64(..100_000))).await;
        // SIGKILL: no destructor runs.
        worker.kill().await.unwrap();
    }
    // What it had sent last may still be under way in the server, which ends it or has done nothing of it.
    let began = tokio::time::Instant::now();
    let (done, cut_off) = loop {
        match both_or_neither(&table).await {
            Ok(counted) => break counted,
            Err(wrong) => assert!(began.elapsed() < Duration::from_secs(30), "{wrong}"),
        }
        tokio::time::sleep(Duration::from_millis(500)).await;
    };
    println!("{done} done, {cut_off} cut off");
    assert!(done >= 12, "the workers worked: {done} done, {cut_off} cut off");
    table.delete().await.unwrap();
}

/// How many orders are done, and how many cut off; what is wrong, where one has its write without its completion or the
/// other way round.
async fn both_or_neither(table: &Table) -> Result<(u32, u32), String> {
    let mut items = HashMap::new();
    let mut pages = table.client().scan().table_name(&table.name).consistent_read(true).into_paginator().items().send();
    while let Some(item) = pages.next().await {
        let item = item.unwrap();
        items.insert(item["effective_key"].as_s().unwrap().clone(), item);
    }
    let records: Vec<_> = items.iter().filter(|(_, item)| item.contains_key("state")).collect();
    let (mut done, mut cut_off) = (0, 0);
    for (key, record) in records {
        let counter = items.get(&format!("counter of {key}"));
        match record["state"].as_s().unwrap().as_str() {
            "COMPLETED" => {
                let count = counter.and_then(|counter| counter.get("count"));
                if count != Some(&AttributeValue::N("1".into())) {
                    return Err(format!("{key} is done, and was written: {count:?}"));
                }
                done += 1;
            }
            _ if counter.is_some() => return Err(format!("{key} was written, and is not done")),
            _ => cut_off += 1,
        }
    }
    Ok((done, cut_off))
}

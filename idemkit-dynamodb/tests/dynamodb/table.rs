//! The table: made by many at once, and what is wrong with one.

use aws_sdk_dynamodb::types::{
    AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TimeToLiveStatus,
};
use idemkit_core::{Store, StoreErrorKind};
use rstest::rstest;

use crate::{
    stub::{Answer, Stub},
    support::{Table, acquired, claim, client, config, key, secs, store, unique, url},
};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_make_it_at_once_and_all_of_them_use_it() {
    let name = unique("raced");
    let mut makers = tokio::task::JoinSet::new();
    for maker in 0..20 {
        let name = name.clone();
        makers.spawn(async move {
            // By the first request, each in a process's worth of its own: client, clock and all.
            let store = store(&url(), &name).build().await.unwrap();
            store.claim(&key(&format!("order {maker}")), &claim(secs(300))).await
        });
    }
    while let Some(made) = makers.join_next().await {
        acquired(made.unwrap().unwrap());
    }
    let client = client(&url());
    let ttl = client.describe_time_to_live().table_name(&name).send().await.unwrap();
    let ttl = ttl.time_to_live_description.unwrap();
    assert_eq!(ttl.attribute_name.as_deref(), Some("ttl"));
    assert!(matches!(ttl.time_to_live_status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)));
    let table = client.describe_table().table_name(&name).send().await.unwrap().table.unwrap();
    let billing = table.billing_mode_summary.and_then(|summary| summary.billing_mode);
    assert_eq!(billing, Some(BillingMode::PayPerRequest));
    client.delete_table().table_name(&name).send().await.unwrap();
}

/// AWS takes seconds to make a table, and tells whoever comes second that it is in use: all of them must wait.
#[tokio::test]
async fn whoever_loses_the_race_waits_until_it_is_active() {
    let table = Table::make("slow").await;
    let stub = Stub::before(&table.url).await;
    let creating = r#"{"Table":{"TableName":"t","TableStatus":"CREATING"}}"#;
    stub.will_answer([
        Answer::error("CreateTable", 400, "ResourceInUseException", "Table is being created"),
        // What was just made may not be seen at once.
        Answer::error("DescribeTable", 400, "ResourceNotFoundException", "Requested resource not found"),
        Answer::new("DescribeTable", 200, creating),
        Answer::new("DescribeTable", 200, creating),
        Answer::new("DescribeTimeToLive", 200, "{}"),
        // Another was faster at this too.
        Answer::error("UpdateTimeToLive", 400, "ValidationException", "TimeToLive is already enabled"),
    ]);
    let store = table.store().config(config(&stub.url())).create_table(true).build().await.unwrap();
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    assert_eq!(stub.left(), 0, "each was asked for");
    table.delete().await.unwrap();
}

/// A table that gets an index, say, serves meanwhile.
#[tokio::test]
async fn a_table_that_is_being_changed_is_used() {
    let table = Table::make("changed").await;
    let stub = Stub::before(&table.url).await;
    let updating = r#"{"Table":{"TableName":"t","TableStatus":"UPDATING",
        "AttributeDefinitions":[{"AttributeName":"effective_key","AttributeType":"S"}],
        "KeySchema":[{"AttributeName":"effective_key","KeyType":"HASH"}]}}"#;
    // More than are asked for.
    stub.will_answer((0..1_000).map(|_| Answer::new("DescribeTable", 200, updating)));
    let store = table.store().config(config(&stub.url())).create_table(true).build().await.unwrap();
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    assert_eq!(stub.left(), 999);
    table.delete().await.unwrap();
}

#[rstest]
#[tokio::test]
async fn what_may_not_make_the_table_is_told_which_actions_mend_it(
    #[values("CreateTable", "DescribeTable", "DescribeTimeToLive", "UpdateTimeToLive")] action: &'static str,
) {
    let table = Table::make("denied").await;
    let stub = Stub::before(&table.url).await;
    // As if the one before had not switched it on.
    stub.will_answer([
        Answer::error(action, 400, "AccessDeniedException", "is not authorized"),
        Answer::new("DescribeTimeToLive", 200, "{}"),
    ]);
    let store = table.store().config(config(&stub.url())).create_table(true).build().await.unwrap();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    let text = error.to_string();
    for said in [&format!("dynamodb:{action}"), "create_table(false)", &table.name] {
        assert!(text.contains(said), "{said} is not in: {text}");
    }
    table.delete().await.unwrap();
}

#[rstest]
#[case::another_name("id", ScalarAttributeType::S, None)]
#[case::a_number("effective_key", ScalarAttributeType::N, None)]
#[case::a_sort_key("effective_key", ScalarAttributeType::S, Some("sort"))]
#[tokio::test]
async fn a_table_with_another_key_is_misconfigured(
    #[case] partition_key: &str,
    #[case] of: ScalarAttributeType,
    #[case] sort_key: Option<&str>,
    #[values(true, false)] create: bool,
) {
    let name = unique("odd");
    let mut request = client(&url()).create_table().table_name(&name).billing_mode(BillingMode::PayPerRequest);
    for (name, of, role) in
        [(Some(partition_key), of.clone(), KeyType::Hash), (sort_key, ScalarAttributeType::S, KeyType::Range)]
    {
        let Some(name) = name else { continue };
        request = request
            .key_schema(KeySchemaElement::builder().attribute_name(name).key_type(role).build().unwrap())
            .attribute_definitions(
                AttributeDefinition::builder().attribute_name(name).attribute_type(of).build().unwrap(),
            );
    }
    request.send().await.unwrap();

    let store = store(&url(), &name).create_table(create).build().await.unwrap();
    let error = store.claim(&key("order"), &claim(secs(30))).await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains(&name), "{error}");
    // Asked to make it, the store sees it before a record does, and says what the key is.
    let error = store.create_table().await.unwrap_err();
    assert_eq!(error.kind(), StoreErrorKind::Misconfigured, "{error}");
    assert!(error.to_string().contains(&format!("{partition_key} of type {}", of.as_str())), "{error}");
    client(&url()).delete_table().table_name(&name).send().await.unwrap();
}

#[tokio::test]
async fn a_table_with_a_partition_key_of_another_name_is_used_by_that_name() {
    let name = unique("named");
    let store = store(&url(), &name).partition_key("pk").namespace("billing").build().await.unwrap();
    acquired(store.claim(&key("order"), &claim(secs(30))).await.unwrap());
    let items = client(&url()).scan().table_name(&name).send().await.unwrap().items.unwrap();
    let keys: Vec<&str> = items.iter().map(|item| item["pk"].as_s().unwrap().as_str()).collect();
    assert_eq!(keys, [format!("billing:{}", key("order"))]);
    client(&url()).delete_table().table_name(&name).send().await.unwrap();
}

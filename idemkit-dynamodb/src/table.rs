//! The table: made where it was asked for, by any number of processes at once.

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableStatus,
        TimeToLiveSpecification, TimeToLiveStatus,
    },
};
use idemkit_core::{Applied, StoreError, StoreErrorKind};
use tokio::time::{sleep, timeout};

use crate::{
    NAME,
    classify::{Effect, classify},
    item::TTL,
    store::Settings,
};

/// How long a table may take to become active.
const ACTIVE_WITHIN: Duration = Duration::from_secs(60);
/// The longest pause between two looks at it.
const LOOK_EVERY_MAX: Duration = Duration::from_secs(2);

/// Makes the table where there is none, waits until it is active, and switches TTL on. Whoever loses the race to make it
/// waits as well.
pub(crate) async fn ensure(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let made = async {
        create(client, settings).await?;
        wait_until_active(client, settings).await?;
        enable_ttl(client, settings).await
    };
    timeout(ACTIVE_WITHIN, made).await.unwrap_or_else(|elapsed| {
        let late = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown);
        let detail = format!("table `{}` was not active within {ACTIVE_WITHIN:?}", settings.table);
        Err(late.with_detail(detail).with_source(elapsed))
    })
}

async fn create(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let key = KeySchemaElement::builder().attribute_name(&settings.partition_key).key_type(KeyType::Hash).build();
    let attribute = AttributeDefinition::builder()
        .attribute_name(&settings.partition_key)
        .attribute_type(ScalarAttributeType::S)
        .build();
    let (key, attribute) = key
        .and_then(|key| Ok((key, attribute?)))
        .map_err(|error| StoreError::new(NAME, StoreErrorKind::InvalidArgument, Applied::No).with_source(error))?;
    let request = client
        .create_table()
        .table_name(&settings.table)
        .key_schema(key)
        .attribute_definitions(attribute)
        .billing_mode(BillingMode::PayPerRequest);
    match request.send().await {
        Ok(_) => Ok(()),
        // It is there, or being made by another.
        Err(SdkError::ServiceError(error)) if error.err().is_resource_in_use_exception() => Ok(()),
        Err(error) => Err(classify(error, Effect::Write, &settings.table)),
    }
}

async fn wait_until_active(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let mut pause = Duration::from_millis(50);
    loop {
        match client.describe_table().table_name(&settings.table).send().await {
            Ok(described) => {
                let table =
                    described.table.unwrap_or_else(|| aws_sdk_dynamodb::types::TableDescription::builder().build());
                if table.table_status == Some(TableStatus::Active) {
                    return check_key(table.key_schema.unwrap_or_default(), settings);
                }
            }
            // What was just made may not be seen at once.
            Err(SdkError::ServiceError(error)) if error.err().is_resource_not_found_exception() => {}
            Err(error) => return Err(classify(error, Effect::None, &settings.table)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_EVERY_MAX);
    }
}

fn check_key(schema: Vec<KeySchemaElement>, settings: &Settings) -> Result<(), StoreError> {
    match schema.as_slice() {
        [key] if key.attribute_name == settings.partition_key => Ok(()),
        _ => {
            let names: Vec<String> = schema.into_iter().map(|key| key.attribute_name).collect();
            let detail = format!(
                "table `{}` has the key ({}), and the store wants ({}) alone: name its partition key in the builder, or \
                 choose another table",
                settings.table,
                names.join(", "),
                settings.partition_key
            );
            Err(StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No).with_detail(detail))
        }
    }
}

async fn enable_ttl(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let described = client.describe_time_to_live().table_name(&settings.table).send().await;
    let described = described.map_err(|error| classify(error, Effect::None, &settings.table))?;
    let status = described.time_to_live_description.and_then(|ttl| ttl.time_to_live_status);
    if matches!(status, Some(TimeToLiveStatus::Enabled | TimeToLiveStatus::Enabling)) {
        return Ok(());
    }
    let ttl = TimeToLiveSpecification::builder()
        .enabled(true)
        .attribute_name(TTL)
        .build()
        .map_err(|error| StoreError::new(NAME, StoreErrorKind::InvalidArgument, Applied::No).with_source(error))?;
    match client.update_time_to_live().table_name(&settings.table).time_to_live_specification(ttl).send().await {
        Ok(_) => Ok(()),
        // Another was faster: AWS refuses what is so already, or changed within the hour.
        Err(SdkError::ServiceError(error)) if error.err().code() == Some("ValidationException") => Ok(()),
        Err(error) => Err(classify(error, Effect::Write, &settings.table)),
    }
}

//! The table: made where it was asked for, by any number of processes at once.

use std::time::Duration;

use aws_sdk_dynamodb::{
    Client,
    error::{ProvideErrorMetadata, SdkError},
    types::{
        AttributeDefinition, BillingMode, KeySchemaElement, KeyType, ScalarAttributeType, TableDescription,
        TableStatus, TimeToLiveSpecification, TimeToLiveStatus,
    },
};
use idemkit_core::{Applied, StoreError, StoreErrorKind};
use tokio::time::{sleep, timeout};

use crate::{
    NAME,
    classify::{Attempts, Effect, classify, is_denied},
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
        Err(error) => Err(refused(error, &Effect::Write(Attempts::default()), settings)),
    }
}

async fn wait_until_active(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let mut pause = Duration::from_millis(50);
    loop {
        match client.describe_table().table_name(&settings.table).send().await {
            Ok(described) => {
                let table = described.table.unwrap_or_else(|| TableDescription::builder().build());
                // One that is being changed serves meanwhile, and a new index may take it hours.
                if matches!(table.table_status, Some(TableStatus::Active | TableStatus::Updating)) {
                    return check_key(table, settings);
                }
            }
            // What was just made may not be seen at once.
            Err(SdkError::ServiceError(error)) if error.err().is_resource_not_found_exception() => {}
            Err(error) => return Err(refused(error, &Effect::None, settings)),
        }
        sleep(pause).await;
        pause = (pause * 2).min(LOOK_EVERY_MAX);
    }
}

fn check_key(table: TableDescription, settings: &Settings) -> Result<(), StoreError> {
    let (schema, attributes) = (table.key_schema.unwrap_or_default(), table.attribute_definitions.unwrap_or_default());
    let wanted = &settings.partition_key;
    let is_other = |attribute: &AttributeDefinition| {
        attribute.attribute_name == *wanted && attribute.attribute_type != ScalarAttributeType::S
    };
    match schema.as_slice() {
        [key] if key.attribute_name == *wanted && !attributes.iter().any(is_other) => Ok(()),
        _ => {
            let names = schema.into_iter().map(|key| {
                let named = attributes.iter().find(|attribute| attribute.attribute_name == key.attribute_name);
                let of = named.map_or("?", |attribute| attribute.attribute_type.as_str());
                format!("{} of type {of}", key.attribute_name)
            });
            let detail = format!(
                "table `{}` has the key ({}), and the store wants ({wanted} of type S) alone: name its partition key in \
                 the builder, or choose another table",
                settings.table,
                names.collect::<Vec<_>>().join(", "),
            );
            Err(StoreError::new(NAME, StoreErrorKind::Misconfigured, Applied::No).with_detail(detail))
        }
    }
}

/// The error of a request about the table itself. Where it was denied, other actions mend it than for the store's operations.
fn refused<E>(error: SdkError<E>, effect: &Effect, settings: &Settings) -> StoreError
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let denied = error.code().filter(|code| is_denied(code)).map(|code| {
        format!(
            "{code}: to make table `{}` the credentials must be allowed dynamodb:CreateTable, dynamodb:DescribeTable, \
             dynamodb:DescribeTimeToLive and dynamodb:UpdateTimeToLive; where it is made by others, build the store with \
             create_table(false)",
            settings.table
        )
    });
    let error = classify(error, effect, &settings.table);
    match denied {
        Some(mends) => error.with_detail(mends),
        None => error,
    }
}

async fn enable_ttl(client: &Client, settings: &Settings) -> Result<(), StoreError> {
    let described = client.describe_time_to_live().table_name(&settings.table).send().await;
    let described = described.map_err(|error| refused(error, &Effect::None, settings))?;
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
        Err(error) => Err(refused(error, &Effect::Write(Attempts::default()), settings)),
    }
}

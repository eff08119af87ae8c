//! The conformance suite, in each of the three clocks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, Store};
use idemkit_dynamodb::{Builder, ClockMode};

use crate::support::{Skewed, Table, url};

/// One table, and a namespace in it for each vector.
pub(crate) struct Namespaces {
    table: Table,
    set: fn(Builder) -> Builder,
}

impl Namespaces {
    fn key(namespace: &str, key: &EffectiveKey) -> String {
        format!("{namespace}:{key}")
    }
}

#[async_trait]
impl Factory for Namespaces {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let clock = Skewed { ahead: opening.clock_ahead_by(), behind: opening.clock_behind_by() };
        let mut builder = self.table.store().namespace(opening.namespace()).host_clock(clock);
        if let Some(grace) = opening.grace() {
            builder = builder.grace(grace);
        }
        Ok(Arc::new((self.set)(builder).build().await?))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let number = |number: &str| AttributeValue::N(number.to_owned());
        let put = self.table.client().put_item().table_name(&self.table.name);
        let put = put.item("effective_key", text(&Namespaces::key(namespace, key)));
        let put = match with {
            Spoil::Garbage => put.item("state", text("CLAIMED")).item("lease_until", text("soon")),
            Spoil::NewerSchema => put.item("schema_version", number("2")).item("state", text("CLAIMED")),
            Spoil::UnknownEncoding => put
                .item("state", text("COMPLETED"))
                .item("claim_token", text(&"0".repeat(32)))
                .item("fingerprint", text(&"0".repeat(64)))
                .item("fingerprint_version", number("1"))
                .item("lease_until", number("99999999999"))
                .item("response_status", number("200"))
                .item("body_encoding", text("brotli-of-tomorrow")),
            _ => return Ok(Spoiled::Impossible("not known here")),
        };
        put.send().await?;
        Ok(Spoiled::Done)
    }

    async fn clean_up(&self, _: &str) -> Result<(), BoxError> {
        // All of them go with their table.
        Ok(())
    }
}

/// Each suite brings two hundred requests at once: two of them are what a machine of two cores has room for.
static AT_ONCE: tokio::sync::Semaphore = tokio::sync::Semaphore::const_new(2);

/// Runs the suite on a table of its own.
pub(crate) async fn conforms(url: String, set: fn(Builder) -> Builder) {
    let _permit = AT_ONCE.acquire().await.unwrap();
    let table = Table::make_at(url, "conformance").await;
    let report = idemkit_conformance::run(Namespaces { table: table.clone(), set }).await;
    println!("{report}");
    report.assert_passed();
    table.delete().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calibrated() {
    conforms(url(), |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local() {
    conforms(url(), |builder| builder.clock(ClockMode::Local { skew_bound: Duration::ZERO })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_with_a_bound() {
    conforms(url(), |builder| builder.clock(ClockMode::Local { skew_bound: Duration::from_secs(2) })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_first_with_a_margin() {
    conforms(url(), |builder| builder.read_first(true).take_over_margin(Duration::from_millis(500))).await;
}

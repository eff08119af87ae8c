//! The conformance suite, in each of the three clocks.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use aws_sdk_dynamodb::types::AttributeValue;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, Store};
use idemkit_dynamodb::{Builder, ClockMode};

use crate::support::{Skewed, client, store, url};

/// A table a namespace.
pub(crate) struct Tables {
    url: String,
    set: fn(Builder) -> Builder,
}

impl Tables {
    pub(crate) fn new(url: String, set: fn(Builder) -> Builder) -> Self {
        Self { url, set }
    }
}

#[async_trait]
impl Factory for Tables {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let clock = Skewed { ahead: opening.clock_ahead_by(), behind: opening.clock_behind_by() };
        let builder = store(&self.url, opening.namespace()).host_clock(clock);
        let store = (self.set)(builder).build().await?;
        store.create_table().await?;
        Ok(Arc::new(store))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let text = |text: &str| AttributeValue::S(text.to_owned());
        let number = |number: &str| AttributeValue::N(number.to_owned());
        let put = client(&self.url).put_item().table_name(namespace).item("effective_key", text(&key.to_string()));
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

    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError> {
        client(&self.url).delete_table().table_name(namespace).send().await?;
        Ok(())
    }
}

async fn conforms(set: fn(Builder) -> Builder) {
    let report = idemkit_conformance::run(Tables::new(url(), set)).await;
    report.assert_passed();
    println!("{report}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calibrated() {
    conforms(|builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local() {
    conforms(|builder| builder.clock(ClockMode::Local { skew_bound: Duration::ZERO })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn local_with_a_bound() {
    conforms(|builder| builder.clock(ClockMode::Local { skew_bound: Duration::from_secs(2) })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn read_first_with_a_margin() {
    conforms(|builder| builder.read_first(true).take_over_margin(Duration::from_millis(500))).await;
}

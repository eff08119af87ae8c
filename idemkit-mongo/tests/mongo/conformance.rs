//! The conformance suite: on a replica set, and on a server that is none.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Spoil, Spoiled};
use idemkit_core::{EffectiveKey, Store};
use idemkit_mongo::{
    Builder, MongoStore,
    mongodb::{
        Client,
        bson::{DateTime, Document, doc},
    },
};

use crate::support::{machine_alone, own, unique, url};

/// A collection for each vector.
struct Collections {
    client: Client,
    database: String,
    set: fn(Builder) -> Builder,
}

impl Collections {
    async fn new(url: String, set: fn(Builder) -> Builder) -> Self {
        Self { client: Client::with_uri_str(url).await.unwrap(), database: unique(), set }
    }
}

#[async_trait]
impl Factory for Collections {
    async fn open(&self, opening: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        let mut builder = MongoStore::builder().client(self.client.clone()).database(&self.database);
        if let Some(grace) = opening.grace() {
            builder = builder.grace(grace);
        }
        Ok(Arc::new((self.set)(builder.collection(opening.namespace())).build().await?))
    }

    async fn spoil(&self, namespace: &str, key: &EffectiveKey, with: Spoil) -> Result<Spoiled, BoxError> {
        let document = match with {
            Spoil::Garbage => doc! { "state": "CLAIMED", "lease_until": "soon" },
            Spoil::NewerSchema => doc! { "schema_version": 2, "state": "CLAIMED" },
            Spoil::UnknownEncoding => doc! {
                "state": "COMPLETED",
                "claim_token": "0".repeat(32),
                "fingerprint": "0".repeat(64),
                "fingerprint_version": 1,
                "lease_until": DateTime::from_millis(99_999_999_999_999),
                "response_status": 200,
                "body_encoding": "brotli-of-tomorrow",
            },
            _ => return Ok(Spoiled::Impossible("not known here")),
        };
        let collection = self.client.database(&self.database).collection::<Document>(namespace);
        let query = doc! { "_id": key.to_string() };
        collection.delete_one(query.clone()).await?;
        let mut whole = query;
        whole.extend(document);
        collection.insert_one(whole).await?;
        Ok(Spoiled::Done)
    }

    async fn clean_up(&self, namespace: &str) -> Result<(), BoxError> {
        self.client.database(&self.database).collection::<Document>(namespace).drop().await?;
        Ok(())
    }
}

async fn conforms(url: String, set: fn(Builder) -> Builder) {
    let _alone = machine_alone().await;
    let report = idemkit_conformance::run(Collections::new(url, set).await).await;
    println!("{report}");
    report.assert_passed();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_mongo() {
    conforms(url(), |builder| builder).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn on_a_standalone_server_with_a_margin_and_without_notices() {
    let server = own(&["--standalone"]);
    conforms(server.url(), |builder| builder.take_over_margin(Duration::from_millis(500)).notices(false)).await;
}

//! Stores, clients and operations for tests.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
};
use aws_smithy_http_client::Builder as HttpBuilder;
use idemkit_conformance::BoxError;
use idemkit_core::{
    Acquired, Claim, ClaimOutcome, ClaimToken, Clock, Complete, EffectiveKey, Fingerprint, HeldClaim, Outcome, Store,
    StoreErrorKind, StoredResult, Timestamp, Ttl,
};
use idemkit_dynamodb::{Builder, DynamoDbStore};
use idemkit_servers::Kind;

/// Where the server is.
pub(crate) fn url() -> String {
    idemkit_servers::url(Kind::DynamoDb).unwrap_or_else(|missing| panic!("{missing}"))
}

/// A configuration for the server at `url`. On AWS (`https://…`) with the credentials and the region of the environment.
pub(crate) fn config(url: &str) -> Config {
    let variable = |name: &str, otherwise: &str| std::env::var(name).unwrap_or_else(|_| otherwise.to_owned());
    let credentials = Credentials::new(
        variable("AWS_ACCESS_KEY_ID", "test"),
        variable("AWS_SECRET_ACCESS_KEY", "test"),
        std::env::var("AWS_SESSION_TOKEN").ok(),
        None,
        "tests",
    );
    let config = Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new(variable("AWS_REGION", "eu-central-1")))
        .credentials_provider(credentials)
        .endpoint_url(url);
    // The SDK's default client would want certificates even where the server speaks plain HTTP.
    let http = HttpBuilder::new();
    let tls =
        aws_smithy_http_client::tls::Provider::Rustls(aws_smithy_http_client::tls::rustls_provider::CryptoMode::Ring);
    let http = if url.starts_with("https") { http.tls_provider(tls).build_https() } else { http.build_http() };
    config.http_client(http).build()
}

pub(crate) fn client(url: &str) -> Client {
    Client::from_conf(config(url))
}

/// Far more than a request takes: several suites run at once, and one may hold a server up for seconds.
pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

/// A store on a table of its own, with time-outs that nothing but a fault of the test's own reaches.
pub(crate) fn store(url: &str, table: &str) -> Builder {
    let builder = DynamoDbStore::builder().config(config(url)).table(table).create_table(true);
    builder.connect_timeout(PATIENCE).attempt_timeout(PATIENCE).deadline(3 * PATIENCE)
}

/// A table's name that nobody else has.
pub(crate) fn unique(what: &str) -> String {
    format!("idemkit_{what}_{}_{:016x}", std::process::id(), fastrand::u64(..))
}

/// A table that is there, and is deleted by [`Table::delete`].
#[derive(Clone)]
pub(crate) struct Table {
    pub(crate) url: String,
    pub(crate) name: String,
}

impl Table {
    pub(crate) async fn make(what: &str) -> Self {
        Self::make_at(url(), what).await
    }

    pub(crate) async fn make_at(url: String, what: &str) -> Self {
        let name = unique(what);
        let store = store(&url, &name).build().await.unwrap();
        store.create_table().await.unwrap();
        Self { url, name }
    }

    pub(crate) fn client(&self) -> Client {
        client(&self.url)
    }

    /// A store on this table, which is there.
    pub(crate) fn store(&self) -> Builder {
        store(&self.url, &self.name).create_table(false)
    }

    /// The item of a key.
    pub(crate) async fn item(&self, key: &EffectiveKey) -> Option<Item> {
        let key = aws_sdk_dynamodb::types::AttributeValue::S(key.to_string());
        let get = self.client().get_item().table_name(&self.name).key("effective_key", key).consistent_read(true);
        get.send().await.unwrap().item
    }

    pub(crate) async fn delete(self) -> Result<(), BoxError> {
        self.client().delete_table().table_name(&self.name).send().await?;
        Ok(())
    }
}

pub(crate) type Item = std::collections::HashMap<String, aws_sdk_dynamodb::types::AttributeValue>;

pub(crate) fn key(name: &str) -> EffectiveKey {
    EffectiveKey::message(name, "orders", "tests")
}

pub(crate) fn secs(secs: u64) -> Ttl {
    Ttl::new(Duration::from_secs(secs)).unwrap()
}

/// A claim of a token of its own, for the one request that tests have.
pub(crate) fn claim(lease: Ttl) -> Claim {
    Claim::new(ClaimToken::random().unwrap(), Fingerprint::of_payload("request"), lease)
}

pub(crate) fn completion(token: ClaimToken, body: impl Into<Vec<u8>>) -> Complete {
    Complete::new(token, result(body), secs(3_600))
}

pub(crate) fn result(body: impl Into<Vec<u8>>) -> Outcome {
    Outcome::Result(StoredResult::new(201, body.into()))
}

#[track_caller]
pub(crate) fn acquired(outcome: ClaimOutcome) -> Acquired {
    match outcome {
        ClaimOutcome::Acquired(acquired) => acquired,
        other => panic!("not acquired: {other:?}"),
    }
}

/// A key that is claimed for a second. Its claim is cut off where the server stalls for as long, and another is made.
pub(crate) async fn claimed_for_a_second(store: &DynamoDbStore) -> HeldClaim {
    for n in 0..20 {
        let (key, request) = (key(&format!("order {n}")), claim(secs(1)));
        match store.claim(&key, &request).await {
            Ok(outcome) => {
                acquired(outcome);
                return HeldClaim { key, token: request.token };
            }
            Err(error) => assert_eq!(error.kind(), StoreErrorKind::Unavailable, "{error}"),
        }
    }
    panic!("no claim within its second")
}

/// Claims a key on a store that has so long for it. It is tried again only where all of that was not enough, as on a busy
/// machine.
pub(crate) async fn claimed_within(store: &DynamoDbStore, deadline: Duration, name: &str) {
    let request = claim(secs(30));
    for _ in 0..10 {
        let began = Instant::now();
        match store.claim(&key(name), &request).await {
            Ok(outcome) => {
                acquired(outcome);
                return;
            }
            Err(error) => assert!(began.elapsed() >= deadline, "{error}"),
        }
    }
    panic!("no claim within its deadline")
}

/// Until something holds, with far more patience than that needs.
pub(crate) async fn until(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < 3 * PATIENCE, "not within a minute: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// A host's clock that is wrong.
#[derive(Debug)]
pub(crate) struct Skewed {
    pub(crate) ahead: Duration,
    pub(crate) behind: Duration,
}

impl Clock for Skewed {
    fn now(&self) -> Timestamp {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default() + self.ahead - self.behind;
        Timestamp::from_millis(u64::try_from(now.as_millis()).unwrap_or(u64::MAX))
    }
}

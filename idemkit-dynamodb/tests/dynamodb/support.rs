//! Stores and clients for tests.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{BehaviorVersion, Credentials, Region},
};
use aws_smithy_http_client::Builder as HttpBuilder;
use idemkit_core::{Clock, Timestamp};
use idemkit_dynamodb::{Builder, DynamoDbStore};

/// Where the server is.
pub(crate) fn url() -> String {
    std::env::var("IDEMKIT_TEST_DYNAMODB_URL").expect("a server")
}

/// A configuration for the server at `url`.
pub(crate) fn config(url: &str) -> Config {
    Config::builder()
        .behavior_version(BehaviorVersion::latest())
        .region(Region::new("eu-central-1"))
        .credentials_provider(Credentials::new("test", "test", None, None, "tests"))
        .http_client(HttpBuilder::new().build_http())
        .endpoint_url(url)
        .build()
}

pub(crate) fn client(url: &str) -> Client {
    Client::from_conf(config(url))
}

/// A store on a table of its own.
pub(crate) fn store(url: &str, table: &str) -> Builder {
    DynamoDbStore::builder().config(config(url)).table(table).create_table(true)
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

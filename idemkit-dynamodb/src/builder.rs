//! How to connect.

use std::{sync::Arc, time::Duration};

use aws_sdk_dynamodb::{
    Client, Config,
    config::{Credentials, Region, SharedCredentialsProvider, retry::RetryConfig, timeout::TimeoutConfig},
};
use idemkit_core::Clock;

use crate::{
    clock::{ClockMode, HostClock, StoreClock},
    store::{DynamoDbStore, Settings},
};

const DEFAULT_TABLE: &str = "idemkit_records";
const DEFAULT_PARTITION_KEY: &str = "effective_key";
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);
const DEFAULT_ATTEMPTS: u32 = 3;
const DEFAULT_GRACE: Duration = Duration::from_secs(60);

/// Builds a [`DynamoDbStore`].
///
/// Without a [client](Self::client) it makes one of its own, with region and credentials from the SDK's chain
/// (environment, profile, container or instance role), unless they are set here.
///
/// ```no_run
/// use std::time::Duration;
/// use idemkit_dynamodb::DynamoDbStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = DynamoDbStore::builder()
///     .table("idemkit_records")
///     .namespace("billing")
///     .attempt_timeout(Duration::from_secs(1))
///     .build()
///     .await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct Builder {
    settings: Settings,
    clock: ClockMode,
    host_clock: Arc<dyn Clock>,
    source: Source,
    region: Option<String>,
    endpoint: Option<String>,
    credentials: Option<Credentials>,
    connect_timeout: Duration,
    attempt_timeout: Duration,
    attempts: u32,
}

/// Where the client comes from.
#[derive(Clone, Debug)]
enum Source {
    /// The SDK's chain.
    #[cfg(feature = "aws-config")]
    Chain,
    /// Nothing was given, and this build does not include the chain.
    #[cfg(not(feature = "aws-config"))]
    Missing,
    /// A client or a configuration that the user has.
    Config(Box<Config>),
}

/// The builder was given something that can never work. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// A table's name, a partition key's name or a namespace has characters that would not work, or is empty.
    #[error("{what} {why}")]
    InvalidName {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// There is neither a client nor a configuration, and the feature `aws-config`, which makes one, is off.
    #[error("no client: hand one in, or switch the feature `aws-config` on")]
    NoClient,
}

impl DynamoDbStore {
    /// Builds a store.
    #[must_use]
    pub fn builder() -> Builder {
        Builder {
            settings: Settings {
                table: DEFAULT_TABLE.to_owned(),
                partition_key: DEFAULT_PARTITION_KEY.to_owned(),
                namespace: String::new(),
                create_table: false,
                read_first: false,
                deadline: DEFAULT_DEADLINE,
                grace: DEFAULT_GRACE,
                take_over_margin: Duration::ZERO,
            },
            clock: ClockMode::default(),
            host_clock: Arc::new(HostClock),
            #[cfg(feature = "aws-config")]
            source: Source::Chain,
            #[cfg(not(feature = "aws-config"))]
            source: Source::Missing,
            region: None,
            endpoint: None,
            credentials: None,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            attempt_timeout: DEFAULT_ATTEMPT_TIMEOUT,
            attempts: DEFAULT_ATTEMPTS,
        }
    }
}

impl Builder {
    /// Uses this client's configuration: its credentials, region, HTTP client and interceptors. Time-outs and retries are set as the builder
    /// has them.
    #[must_use]
    pub fn client(self, client: &Client) -> Self {
        self.config(client.config().clone())
    }

    /// Uses this configuration, as [`client`](Self::client) does: from `aws_sdk_dynamodb::config::Builder`, or
    /// `Config::new(&aws_config::load_from_env().await)`.
    #[must_use]
    pub fn config(mut self, config: Config) -> Self {
        self.source = Source::Config(Box::new(config));
        self
    }

    /// The region, instead of the one that the SDK's chain finds.
    #[must_use]
    pub fn region(mut self, region: impl Into<String>) -> Self {
        self.region = Some(region.into());
        self
    }

    /// The endpoint's URL: for an emulator, or a VPC endpoint.
    #[must_use]
    pub fn endpoint(mut self, url: impl Into<String>) -> Self {
        self.endpoint = Some(url.into());
        self
    }

    /// DynamoDB Local, or another emulator, at this URL: with a region and with credentials that no emulator looks at, so
    /// that nothing is asked of the environment.
    #[must_use]
    pub fn emulator(mut self, url: impl Into<String>) -> Self {
        self.credentials = Some(Credentials::new("emulator", "emulator", None, None, "idemkit: emulator"));
        self.region("local").endpoint(url)
    }

    /// The table (default `idemkit_records`), by name or ARN.
    #[must_use]
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.settings.table = name.into();
        self
    }

    /// The name of the table's partition key (default `effective_key`).
    #[must_use]
    pub fn partition_key(mut self, name: impl Into<String>) -> Self {
        self.settings.partition_key = name.into();
        self
    }

    /// In front of each key, with a colon: for several services, or several kinds of records, in one table (default
    /// none).
    #[must_use]
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// Whether the first request makes the table where there is none (default no); see
    /// [`DynamoDbStore::create_table`].
    #[must_use]
    pub fn create_table(mut self, create: bool) -> Self {
        self.settings.create_table = create;
        self
    }

    /// Whether a claim reads the item first (default no).
    ///
    /// A conditional write that is refused costs write units by the size of the item that it met: a replay of 100 KB costs 100 of
    /// them. Read first, it costs 25 read units, and each claim that is acquired costs half a read unit and a round trip
    /// more. Worth it where results are large and duplicates many.
    #[must_use]
    pub fn read_first(mut self, read_first: bool) -> Self {
        self.settings.read_first = read_first;
        self
    }

    /// Which time decides (default [`ClockMode::Calibrated`]). All clients of a table must have the same.
    #[must_use]
    pub fn clock(mut self, mode: ClockMode) -> Self {
        self.clock = mode;
        self
    }

    /// The host's wall clock, as milliseconds since the Unix epoch: for tests of what a wrong one does.
    #[must_use]
    pub fn host_clock(mut self, clock: impl Clock) -> Self {
        self.host_clock = Arc::new(clock);
        self
    }

    /// How long a connection may take (default 2 s).
    #[must_use]
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// How long each attempt may take, and how long a response may be silent (default 3 s).
    #[must_use]
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.attempt_timeout = timeout;
        self
    }

    /// How long an operation may take in all (default 10 s). It never takes longer than the lease that it concerns.
    #[must_use]
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How many attempts the SDK makes in all (default 3; at least one).
    #[must_use]
    pub fn attempts(mut self, attempts: u32) -> Self {
        self.attempts = attempts.max(1);
        self
    }

    /// How long a record is kept after its lease or its expiry (default 60 s), so that a crash is seen as a take-over.
    /// DynamoDB reaps by TTL, at some time after that.
    #[must_use]
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How much later than its lease's end a claim is taken over, beside what the clock takes (default 0).
    #[must_use]
    pub fn take_over_margin(mut self, margin: Duration) -> Self {
        self.settings.take_over_margin = margin;
        self
    }

    /// The store. Nothing is sent to DynamoDB yet: connections are opened by the first request.
    ///
    /// # Errors
    /// [`BuildError`], where a name cannot be one, or no client is there and none can be made.
    pub async fn build(self) -> Result<DynamoDbStore, BuildError> {
        self.check_names()?;
        let clock = StoreClock::new(self.clock, Arc::clone(&self.host_clock));
        let mut config = match self.source {
            Source::Config(config) => config.to_builder(),
            #[cfg(feature = "aws-config")]
            Source::Chain => chain::load(self.region.clone(), self.credentials.clone()).await,
            #[cfg(not(feature = "aws-config"))]
            Source::Missing => return Err(BuildError::NoClient),
        };
        if let Some(region) = self.region {
            config.set_region(Some(Region::new(region)));
        }
        if let Some(endpoint) = self.endpoint {
            config.set_endpoint_url(Some(endpoint));
        }
        if let Some(credentials) = self.credentials {
            config.set_credentials_provider(Some(SharedCredentialsProvider::new(credentials)));
        }
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(self.connect_timeout)
            .read_timeout(self.attempt_timeout)
            .operation_attempt_timeout(self.attempt_timeout)
            .operation_timeout(self.settings.deadline);
        config.set_timeout_config(Some(timeouts.build()));
        config.set_retry_config(Some(RetryConfig::standard().with_max_attempts(self.attempts)));
        if let Some(interceptor) = clock.interceptor() {
            config.push_interceptor(interceptor);
        }
        Ok(DynamoDbStore::new(Client::from_conf(config.build()), self.settings, clock))
    }

    fn check_names(&self) -> Result<(), BuildError> {
        let Settings { table, partition_key, namespace, .. } = &self.settings;
        let refuse = |what, why| Err(BuildError::InvalidName { what, why });
        if table.is_empty() {
            return refuse("the table's name", "is empty");
        }
        if partition_key.is_empty() || partition_key.len() > 255 {
            return refuse("the partition key's name", "must have 1 to 255 bytes");
        }
        if crate::item::ATTRIBUTES.contains(&partition_key.as_str()) {
            return refuse("the partition key's name", "is one that the record has for something else");
        }
        if namespace.len() > 1024 || namespace.chars().any(char::is_control) {
            return refuse("the namespace", "must have at most 1,024 bytes, and no control characters");
        }
        Ok(())
    }
}

/// The SDK's chain, with an HTTP client whose TLS needs no C compiler's friends: ring, and not aws-lc.
#[cfg(feature = "aws-config")]
mod chain {
    use aws_config::BehaviorVersion;
    use aws_sdk_dynamodb::config::{self, Credentials, Region};
    use aws_smithy_http_client::{
        Builder as HttpBuilder,
        tls::{Provider, rustls_provider::CryptoMode},
    };

    use crate::store::BoxFuture;

    pub(super) fn load(
        region: Option<String>,
        credentials: Option<Credentials>,
    ) -> BoxFuture<'static, config::Builder> {
        Box::pin(async move {
            let http = HttpBuilder::new().tls_provider(Provider::Rustls(CryptoMode::Ring)).build_https();
            let mut loader = aws_config::defaults(BehaviorVersion::latest()).http_client(http);
            if let Some(region) = region {
                loader = loader.region(Region::new(region));
            }
            if let Some(credentials) = credentials {
                loader = loader.credentials_provider(credentials);
            }
            config::Builder::from(&loader.load().await)
        })
    }
}

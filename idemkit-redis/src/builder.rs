//! How to connect.

use std::{fmt, time::Duration};

use idemkit_core::Ttl;
use redis::{Client, IntoConnectionInfo, RedisError, aio::ConnectionManager};

use crate::{
    link::{Link, Replicas, Source, Timeouts},
    store::{RedisStore, Settings},
};

const DEFAULT_NAMESPACE: &str = "idemkit";
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_GRACE: Duration = Duration::from_secs(60);
/// Large values keep the one thread of the server from everybody else.
const DEFAULT_RESULT_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// What the server takes for one value, and what a key's name may have.
const VALUE_BYTES_MAX: u64 = 512 * 1024 * 1024;
const NAMESPACE_BYTES_MAX: usize = 1024;

/// Builds a [`RedisStore`].
///
/// ```no_run
/// use std::time::Duration;
/// use idemkit_redis::RedisStore;
///
/// # fn example() -> Result<(), idemkit_redis::BuildError> {
/// let store = RedisStore::builder()
///     .url("redis://127.0.0.1:6379/0")
///     .namespace("billing")
///     .deadline(Duration::from_secs(3))
///     .build()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use]
pub struct Builder {
    settings: Settings,
    source: From,
    timeouts: Timeouts,
    replicas: Option<Replicas>,
    notices: bool,
}

/// Where the store's connections come from.
enum From {
    Nowhere,
    Url(String),
    Source(Box<Source>),
    #[cfg(feature = "cluster")]
    Nodes(Vec<String>),
}

impl fmt::Debug for From {
    /// Without the password that a URL may hold.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nowhere => f.write_str("Nowhere"),
            Self::Url(_) => f.write_str("Url"),
            Self::Source(source) => source.fmt(f),
            #[cfg(feature = "cluster")]
            Self::Nodes(nodes) => write!(f, "{} nodes", nodes.len()),
        }
    }
}

/// The builder was given something that can never work. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no URL and no client.
    #[error("no server: give a URL or a client")]
    NoServer,
    /// A URL that the driver does not understand. It is not shown, since it may hold a password.
    #[error("the URL cannot be read, or needs a feature that is off (rediss:// needs `tls`)")]
    InvalidUrl(#[source] RedisError),
    /// A namespace that cannot be one.
    #[error("the namespace {why}")]
    InvalidNamespace {
        /// What is wrong with it.
        why: &'static str,
    },
    /// Replicas can be waited for only on connections of the store's own.
    #[error("wait_replicas needs a URL, a client or Sentinel: WAIT would block a connection that is shared")]
    CannotWaitForReplicas,
    /// A limit that is not one.
    #[error("{what} {why}")]
    InvalidLimit {
        /// Which one.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl RedisStore {
    /// Builds a store.
    pub fn builder() -> Builder {
        Builder {
            settings: Settings {
                namespace: DEFAULT_NAMESPACE.to_owned(),
                deadline: DEFAULT_DEADLINE,
                grace: DEFAULT_GRACE,
                take_over_margin: Duration::ZERO,
                result_bytes_max: DEFAULT_RESULT_BYTES_MAX,
                allow_eviction: false,
            },
            source: From::Nowhere,
            timeouts: Timeouts { connect: DEFAULT_CONNECT_TIMEOUT, attempt: DEFAULT_ATTEMPT_TIMEOUT },
            replicas: None,
            notices: true,
        }
    }

    /// A store on the server at `url`, with all that is default.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub fn new(url: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder().url(url).build()
    }
}

impl Builder {
    /// The server's URL: `redis://[user[:password]@]host[:port][/database]`, or `rediss://` with the feature `tls`.
    pub fn url(self, url: impl Into<String>) -> Self {
        self.from(From::Url(url.into()))
    }

    /// A client that you have. Connections are made from it on first use.
    pub fn client(self, client: Client) -> Self {
        self.from(From::Source(Box::new(Source::Client(Box::new(client)))))
    }

    /// A connection manager that you have. It has its own time-outs, beside the store's.
    ///
    /// It cannot listen for notices: waiters poll.
    pub fn connection_manager(self, manager: ConnectionManager) -> Self {
        self.from(From::Source(Box::new(Source::Manager(manager))))
    }

    /// A cluster, by the URLs of some of its nodes.
    #[cfg(feature = "cluster")]
    pub fn cluster<U: Into<String>>(self, nodes: impl IntoIterator<Item = U>) -> Self {
        self.from(From::Nodes(nodes.into_iter().map(Into::into).collect()))
    }

    /// A cluster client that you have. Waiters get notices where it speaks RESP3, and poll otherwise.
    #[cfg(feature = "cluster")]
    pub fn cluster_client(self, client: redis::cluster::ClusterClient) -> Self {
        self.from(From::Source(Box::new(Source::Cluster(Box::new(client)))))
    }

    /// A Sentinel client that you have, of the server type `Master`.
    #[cfg(feature = "sentinel")]
    pub fn sentinel_client(self, client: redis::sentinel::SentinelClient) -> Self {
        let client = std::sync::Arc::new(tokio::sync::Mutex::new(client));
        self.from(From::Source(Box::new(Source::Sentinel(client))))
    }

    fn from(mut self, source: From) -> Self {
        self.source = source;
        self
    }

    /// In front of each key, with a colon (default `idemkit`). Braces are refused: in a cluster they would put all keys
    /// in one slot.
    pub fn namespace(mut self, namespace: impl Into<String>) -> Self {
        self.settings.namespace = namespace.into();
        self
    }

    /// How long it may take to connect (default 5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.connect = timeout;
        self
    }

    /// How long the server may be silent before a call is made again, on another connection (default 2 s).
    pub fn attempt_timeout(mut self, timeout: Duration) -> Self {
        self.timeouts.attempt = timeout;
        self
    }

    /// How long an operation may take in all (default 10 s). It never takes longer than the lease that it concerns.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long a claim is kept after its lease (default 60 s), so that a crash is seen as a take-over.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How much later than its lease's end a claim is taken over (default 0): for servers whose clocks may differ after a
    /// failover.
    pub fn take_over_margin(mut self, margin: Duration) -> Self {
        self.settings.take_over_margin = margin;
        self
    }

    /// The largest result, in bytes of body and headers (default 64 MiB, at most 512 MiB).
    pub fn result_bytes_max(mut self, bytes: u64) -> Self {
        self.settings.result_bytes_max = bytes;
        self
    }

    /// Whether waiters are woken by notices (default yes). Without, no connection listens, and waiters poll.
    pub fn notices(mut self, notices: bool) -> Self {
        self.notices = notices;
        self
    }

    /// Each write waits until so many replicas have it, for at most `within`; with fewer it is *unavailable, and may have
    /// been applied*. It narrows what a failover can lose, and does not close it: see the crate's documentation.
    pub fn wait_replicas(mut self, count: u32, within: Duration) -> Self {
        self.replicas = Some(Replicas { count, within });
        self
    }

    /// Accepts a server that evicts keys when its memory is full (default no). **An evicted record is a second
    /// execution.**
    pub fn allow_eviction(mut self, allow: bool) -> Self {
        self.settings.allow_eviction = allow;
        self
    }

    /// The store. Nothing is sent yet: connections are opened by the first call.
    ///
    /// # Errors
    /// [`BuildError`]: no server, or a URL, a namespace or a limit that cannot work.
    pub fn build(mut self) -> Result<RedisStore, BuildError> {
        self.check()?;
        // As every duration: what is longer the server could not count.
        let longest = Ttl::MAX.as_duration();
        self.settings.grace = self.settings.grace.min(longest);
        self.settings.take_over_margin = self.settings.take_over_margin.min(longest);
        #[cfg(feature = "tls")]
        if rustls::crypto::CryptoProvider::get_default().is_none() {
            // Without one the driver would panic where two are compiled in. Whoever was faster has chosen.
            _ = rustls::crypto::ring::default_provider().install_default();
        }
        let source = match self.source {
            From::Nowhere => return Err(BuildError::NoServer),
            From::Url(url) => {
                let info = url.into_connection_info().map_err(BuildError::InvalidUrl)?;
                Source::Client(Box::new(Client::open(info).map_err(BuildError::InvalidUrl)?))
            }
            From::Source(source) => *source,
            #[cfg(feature = "cluster")]
            From::Nodes(nodes) => {
                // Notices are pushes, which RESP3 has. What a failed call means, and when to make it again, is the
                // store's own.
                let client = redis::cluster::ClusterClient::builder(nodes).use_protocol(redis::ProtocolVersion::RESP3);
                Source::Cluster(Box::new(client.build().map_err(BuildError::InvalidUrl)?))
            }
        };
        if self.replicas.is_some() && !source.has_own_connections() {
            return Err(BuildError::CannotWaitForReplicas);
        }
        let notices = self.notices && source.listens();
        let link = Link::new(source.clone(), self.timeouts, self.replicas);
        Ok(RedisStore::assemble(self.settings, link, notices.then_some((source, self.timeouts))))
    }

    fn check(&self) -> Result<(), BuildError> {
        let namespace = &self.settings.namespace;
        let refuse = |why| Err(BuildError::InvalidNamespace { why });
        if namespace.is_empty() || namespace.len() > NAMESPACE_BYTES_MAX {
            return refuse("must have 1 to 1,024 bytes");
        }
        if namespace.contains(['{', '}']) {
            return refuse("must have no braces: in a cluster they would put all keys in one slot");
        }
        if namespace.chars().any(char::is_control) {
            return refuse("must have no control characters");
        }
        if self.settings.result_bytes_max > VALUE_BYTES_MAX {
            return Err(BuildError::InvalidLimit { what: "result_bytes_max", why: "is more than the server takes" });
        }
        if self.replicas.is_some_and(|replicas| replicas.count == 0 || replicas.within.is_zero()) {
            // WAIT takes a time-out of zero for "for ever".
            return Err(BuildError::InvalidLimit {
                what: "wait_replicas",
                why: "must be at least one replica, and a time",
            });
        }
        Ok(())
    }
}

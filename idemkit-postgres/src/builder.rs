//! How to connect.

use std::{fmt, str::FromStr as _, time::Duration};

use sqlx::{
    PgPool,
    postgres::{PgConnectOptions, PgPoolOptions},
};

use crate::{
    link::{Link, Pool},
    listener::Address,
    statement::{Names, Protocol},
    store::{PostgresStore, Settings},
};

const DEFAULT_TABLE: &str = "idemkit_records";
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_GRACE: Duration = Duration::from_secs(60);
const DEFAULT_IDLE_IN_TRANSACTION: Duration = Duration::from_secs(30);
const DEFAULT_MAX_CONNECTIONS: u32 = 10;
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// The server counts milliseconds in 31 bits.
const IDLE_MAX: Duration = Duration::from_secs(24 * 24 * 60 * 60);
/// PostgreSQL cuts longer names, and ours get `_lease_until` behind them.
const NAME_BYTES_MAX: usize = 63 - "_lease_until".len();
/// A row of the server's holds up to 1 GB; a body that comes near that holds everybody up.
const DEFAULT_RESULT_BYTES_MAX: u64 = 64 * 1024 * 1024;
const RESULT_BYTES_MAX: u64 = 512 * 1024 * 1024;

/// Builds a [`PostgresStore`].
///
/// ```no_run
/// use idemkit_postgres::PostgresStore;
///
/// # fn example() -> Result<(), idemkit_postgres::BuildError> {
/// let store = PostgresStore::builder().url("postgres://localhost/orders").schema("idemkit").build()?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct Builder {
    source: Source,
    schema: Option<String>,
    table: String,
    max_connections: u32,
    connect_timeout: Duration,
    listen_url: Option<String>,
    notices: bool,
    pooler: bool,
    settings: Settings,
}

enum Source {
    Nowhere,
    Url(String),
    LikePool(PgPool),
}

/// The builder was given something that can never work. Nothing was sent.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no URL and no pool.
    #[error("no server: give a URL or a pool")]
    NoServer,
    /// A URL that the driver does not understand. It is not shown, since it may hold a password.
    #[error("the URL cannot be read")]
    InvalidUrl,
    /// A name that cannot be one.
    #[error("the name of the {what} {why}")]
    InvalidName {
        /// Of what.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
    /// A limit that is more than the server takes.
    #[error("result_bytes_max is more than the server takes")]
    InvalidLimit,
    /// None, by which a holder that stalls would keep its key for ever, or one that is longer than the server can count.
    #[error("idle_in_transaction must be from a millisecond to 24 days")]
    InvalidIdleTimeout,
}

impl PostgresStore {
    /// Builds a store.
    pub fn builder() -> Builder {
        Builder {
            source: Source::Nowhere,
            schema: None,
            table: DEFAULT_TABLE.to_owned(),
            max_connections: DEFAULT_MAX_CONNECTIONS,
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            listen_url: None,
            notices: true,
            pooler: false,
            settings: Settings {
                deadline: DEFAULT_DEADLINE,
                grace: DEFAULT_GRACE,
                take_over_margin: Duration::ZERO,
                idle_in_transaction: DEFAULT_IDLE_IN_TRANSACTION,
                result_bytes_max: DEFAULT_RESULT_BYTES_MAX,
                allow_asynchronous_commit: false,
            },
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
    /// The server's URL: `postgres://[user[:password]@]host[:port]/database`. Connections are opened as they are needed.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = Source::Url(url.into());
        self
    }

    /// The server of a pool that you have. The store opens connections of its own in the same way, hooks and later
    /// [`set_connect_options`](PgPool::set_connect_options) included; it does not share those of the pool. So nothing of your
    /// code is left in them: a `begin` whose future is dropped leaves its transaction open in sqlx 0.9.0, and a claim in it
    /// would never be committed. Nor can a handler that holds one of your connections wait for itself.
    ///
    /// Your own transactions complete claims by [`PostgresStore::complete_in`], on any connection to the same database.
    pub fn pool(mut self, pool: &PgPool) -> Self {
        self.source = Source::LikePool(pool.clone());
        self
    }

    /// The most connections that the store opens (default 10), one more for notices aside.
    pub fn max_connections(mut self, max: u32) -> Self {
        self.max_connections = max.max(1);
        self
    }

    /// How long an operation waits for a connection (default 5 s): until one is free, or is opened.
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// The schema of the table (default: the first of the role's search path that has it). It is quoted.
    pub fn schema(mut self, name: impl Into<String>) -> Self {
        self.schema = Some(name.into());
        self
    }

    /// The name of the table (default `idemkit_records`). It is quoted.
    pub fn table(mut self, name: impl Into<String>) -> Self {
        self.table = name.into();
        self
    }

    /// For pgbouncer and others in transaction mode: no statement is prepared, and each is one message. To be notified of
    /// ends, give a direct address with [`listen_url`](Self::listen_url); otherwise waiters poll.
    pub fn pooler(mut self, pooler: bool) -> Self {
        self.pooler = pooler;
        self
    }

    /// Where to listen for notices, where that is another address than the pool's: past a pooler, which cannot.
    pub fn listen_url(mut self, url: impl Into<String>) -> Self {
        self.listen_url = Some(url.into());
        self
    }

    /// Whether waiters are woken by notices (default yes). Without, no connection listens, and waiters poll.
    pub fn notices(mut self, notices: bool) -> Self {
        self.notices = notices;
        self
    }

    /// How long an operation may take in all (default 10 s), waiting for a connection included. It never takes longer than
    /// the lease that it concerns.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long a row is kept after its lease or its expiry (default 60 s), so that a crash is seen as a take-over.
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

    /// How long a transaction of [`PostgresStore::transact`] may be idle (default 30 s, rounded up to milliseconds) before the
    /// server ends it: its row is locked, and a holder that stalls must not keep the key for ever. A statement that runs, or waits
    /// for a lock of another's, is not idle: give such statements a `statement_timeout` or `lock_timeout` of your own.
    pub fn idle_in_transaction(mut self, timeout: Duration) -> Self {
        self.settings.idle_in_transaction = timeout;
        self
    }

    /// The largest result, in bytes of body and headers (default 64 MiB, at most 512 MiB).
    pub fn result_bytes_max(mut self, bytes: u64) -> Self {
        self.settings.result_bytes_max = bytes;
        self
    }

    /// Accepts a server or a role with `synchronous_commit = off` (default no): after a crash of the server, what it has
    /// forgotten of its last moments **runs again**.
    pub fn allow_asynchronous_commit(mut self, allow: bool) -> Self {
        self.settings.allow_asynchronous_commit = allow;
        self
    }

    /// The store. Nothing is sent yet: connections are opened by the first operation.
    ///
    /// Must be called in a tokio runtime, as the driver's pools must.
    ///
    /// # Errors
    /// [`BuildError`]: no server, or a URL, a name, a limit or a time-out that cannot work.
    pub fn build(self) -> Result<PostgresStore, BuildError> {
        check_name("table", &self.table)?;
        if let Some(schema) = &self.schema {
            check_name("schema", schema)?;
        }
        if self.settings.result_bytes_max > RESULT_BYTES_MAX {
            return Err(BuildError::InvalidLimit);
        }
        let idle = self.settings.idle_in_transaction;
        if idle.is_zero() || idle > IDLE_MAX {
            return Err(BuildError::InvalidIdleTimeout);
        }
        let options = |url: &str| PgConnectOptions::from_str(url).map_err(|_| BuildError::InvalidUrl);
        let (connect, like) = match self.source {
            Source::Nowhere => return Err(BuildError::NoServer),
            Source::Url(url) => (options(&url)?, None),
            Source::LikePool(pool) => {
                let seen = pool.connect_options();
                ((*seen).clone(), Some((pool, seen)))
            }
        };
        let listens_at = match (&self.listen_url, &like) {
            (Some(url), _) => Some(Address::At(options(url)?.into())),
            (None, _) if self.pooler => None,
            (None, Some((pool, _))) => Some(Address::LikePool(pool.clone())),
            (None, None) => Some(Address::At(connect.clone().into())),
        };
        let protocol = if self.pooler { Protocol::Simple } else { Protocol::Prepared };
        let pool = like.as_ref().map_or_else(PgPoolOptions::new, |(pool, _)| pool.options().clone());
        let own = pool
            .min_connections(0)
            .max_connections(self.max_connections)
            .acquire_timeout(self.settings.deadline.min(self.connect_timeout))
            // A round trip each: a dead connection is found by the statement itself, which is sent again.
            .test_before_acquire(false)
            .connect_lazy_with(protocol.shape(connect));
        let pool = match like {
            None => Pool::new(own),
            Some((pool, seen)) => Pool::following(own, pool, seen, protocol),
        };
        let names = Names::new(self.schema.as_deref(), &self.table);
        Ok(PostgresStore::assemble(self.settings, Link { pool, protocol }, names, listens_at.filter(|_| self.notices)))
    }
}

fn check_name(what: &'static str, name: &str) -> Result<(), BuildError> {
    let refuse = |why| Err(BuildError::InvalidName { what, why });
    if name.is_empty() || name.len() > NAME_BYTES_MAX {
        return refuse("must have 1 to 51 bytes");
    }
    if name.contains(char::is_control) {
        return refuse("must have no control characters");
    }
    Ok(())
}

impl fmt::Debug for Builder {
    /// Without a URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { schema, table, settings, .. } = self;
        f.debug_struct("Builder")
            .field("schema", schema)
            .field("table", table)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

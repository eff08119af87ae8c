//! How to connect.

use std::{fmt, time::Duration};

use mongodb::{
    Client, Collection,
    bson::Document,
    options::{Acknowledgment, ClientOptions, ReadConcern, WriteConcern},
};

use crate::{
    link::Link,
    store::{MongoStore, Settings},
};

const DEFAULT_DATABASE: &str = "idemkit";
const DEFAULT_COLLECTION: &str = "idemkit_records";
const DEFAULT_DEADLINE: Duration = Duration::from_secs(10);
const DEFAULT_CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_COMMAND_TIMEOUT: Duration = Duration::from_secs(5);
const DEFAULT_GRACE: Duration = Duration::from_secs(60);
/// What a server gives a transaction where nothing else is set.
const DEFAULT_TRANSACTION_WITHIN: Duration = Duration::from_secs(60);

/// Builds a [`MongoStore`].
///
/// ```no_run
/// use idemkit_mongo::MongoStore;
///
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let store = MongoStore::builder().url("mongodb://localhost/?replicaSet=rs0").database("orders").build().await?;
/// # Ok(()) }
/// ```
#[must_use]
pub struct Builder {
    source: Source,
    database: Option<String>,
    collection: String,
    connect_timeout: Duration,
    command_timeout: Duration,
    write_concern: WriteConcern,
    read_concern: ReadConcern,
    notices: bool,
    settings: Settings,
}

enum Source {
    Nowhere,
    Url(String),
    Client(Client),
    Collection(Collection<Document>),
}

/// The builder was given something that can never work.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// There is no URL and no client.
    #[error("no server: give a URL, a client or a collection")]
    NoServer,
    /// A URL that the driver does not understand, or cannot resolve. It is not shown, since it may hold a password.
    #[error("the URL cannot be read, or its SRV record cannot be resolved")]
    InvalidUrl,
    /// A write concern that is not acknowledged by anybody tells nobody who has the claim.
    #[error("the write concern must be acknowledged")]
    Unacknowledged,
    /// A name that cannot be one.
    #[error("the name of the {what} {why}")]
    InvalidName {
        /// Of what.
        what: &'static str,
        /// What is wrong with it.
        why: &'static str,
    },
}

impl MongoStore {
    /// Builds a store.
    pub fn builder() -> Builder {
        Builder {
            source: Source::Nowhere,
            database: None,
            collection: DEFAULT_COLLECTION.to_owned(),
            connect_timeout: DEFAULT_CONNECT_TIMEOUT,
            command_timeout: DEFAULT_COMMAND_TIMEOUT,
            write_concern: WriteConcern::majority(),
            read_concern: ReadConcern::majority(),
            notices: true,
            settings: Settings {
                deadline: DEFAULT_DEADLINE,
                grace: DEFAULT_GRACE,
                take_over_margin: Duration::ZERO,
                transaction_within: DEFAULT_TRANSACTION_WITHIN,
                create_index: true,
            },
        }
    }

    /// A store on the deployment at `url`, with all that is default.
    ///
    /// # Errors
    /// As [`Builder::build`].
    pub async fn new(url: impl Into<String>) -> Result<Self, BuildError> {
        Self::builder().url(url).build().await
    }
}

impl Builder {
    /// The deployment's URL: `mongodb://[user[:password]@]host[:port][/database][?options]`, or `mongodb+srv://`. Its
    /// time-outs are the store's.
    pub fn url(mut self, url: impl Into<String>) -> Self {
        self.source = Source::Url(url.into());
        self
    }

    /// A client that you have. Its settings stay yours: server selection and connecting should fail within seconds, or
    /// the store's deadline ends what they keep waiting.
    pub fn client(mut self, client: Client) -> Self {
        self.source = Source::Client(client);
        self
    }

    /// A collection that you have, of any name in any database.
    pub fn collection_of(mut self, collection: Collection<Document>) -> Self {
        self.source = Source::Collection(collection);
        self
    }

    /// The database (default: that of the URL, or `idemkit`).
    pub fn database(mut self, name: impl Into<String>) -> Self {
        self.database = Some(name.into());
        self
    }

    /// The collection (default `idemkit_records`).
    pub fn collection(mut self, name: impl Into<String>) -> Self {
        self.collection = name.into();
        self
    }

    /// How long connecting and the selection of a server may take (default 5 s).
    pub fn connect_timeout(mut self, timeout: Duration) -> Self {
        self.connect_timeout = timeout;
        self
    }

    /// What the server gets for one command (`maxTimeMS`, default 5 s).
    pub fn command_timeout(mut self, timeout: Duration) -> Self {
        self.command_timeout = timeout;
        self
    }

    /// How long an operation may take in all (default 10 s). It never takes longer than the lease that it concerns.
    pub fn deadline(mut self, deadline: Duration) -> Self {
        self.settings.deadline = deadline;
        self
    }

    /// How long a document is kept after its lease or its expiry (default 60 s), so that a crash is seen as a take-over.
    pub fn grace(mut self, grace: Duration) -> Self {
        self.settings.grace = grace;
        self
    }

    /// How much later than its lease's end a claim is taken over (default 0): for primaries whose clocks may differ. On a sharded
    /// cluster the clock is that of each router's host, and the margin must be more than any two of them differ by.
    pub fn take_over_margin(mut self, margin: Duration) -> Self {
        self.settings.take_over_margin = margin;
        self
    }

    /// How many members must have a write (default the majority). **With less, a failover can forget a claim, and hand its key
    /// to a second**; see the crate's documentation.
    pub fn write_concern(mut self, concern: WriteConcern) -> Self {
        self.write_concern = concern;
        self
    }

    /// Of what reads are (default majority). With less, a waiter can be told of a completion that a failover takes back.
    pub fn read_concern(mut self, concern: ReadConcern) -> Self {
        self.read_concern = concern;
        self
    }

    /// Whether waiters are woken by a change stream, where the deployment has them (default yes). Without, they poll.
    pub fn notices(mut self, notices: bool) -> Self {
        self.notices = notices;
        self
    }

    /// Whether the first operation makes the TTL index on `expire_at` (default yes), which needs the right to.
    pub fn create_index(mut self, create: bool) -> Self {
        self.settings.create_index = create;
        self
    }

    /// How long a transaction of [`MongoStore::transact`] may take (default 60 s, as servers allow): its claim is renewed for
    /// as long before it begins.
    pub fn transaction_within(mut self, within: Duration) -> Self {
        self.settings.transaction_within = within;
        self
    }

    /// The store. Nothing is sent to the deployment yet; a `mongodb+srv://` URL is resolved.
    ///
    /// # Errors
    /// [`BuildError`]: no server, or a URL, a name or a write concern that cannot work.
    pub async fn build(self) -> Result<MongoStore, BuildError> {
        if self.write_concern.w == Some(Acknowledgment::Nodes(0)) {
            return Err(BuildError::Unacknowledged);
        }
        let refuse = |what, why| Err(BuildError::InvalidName { what, why });
        if self.collection.is_empty() || self.collection.contains(['$', '\0']) || self.collection.starts_with("system.")
        {
            return refuse("collection", "must not be empty, have a dollar or a NUL, or begin with `system.`");
        }
        if self
            .database
            .as_ref()
            .is_some_and(|name| name.is_empty() || name.contains(['/', '\\', '.', ' ', '"', '$', '\0']))
        {
            return refuse("database", "must not be empty, or have any of /\\. \"$");
        }
        let of = |client: &Client| {
            let default = client.default_database().map(|database| database.name().to_owned());
            let name = self.database.clone().or(default).unwrap_or_else(|| DEFAULT_DATABASE.to_owned());
            client.database(&name).collection(&self.collection)
        };
        let collection = match self.source {
            Source::Nowhere => return Err(BuildError::NoServer),
            Source::Collection(collection) => collection,
            Source::Client(client) => of(&client),
            Source::Url(url) => {
                let mut options = ClientOptions::parse(url).await.map_err(|_| BuildError::InvalidUrl)?;
                options.connect_timeout = Some(self.connect_timeout);
                options.server_selection_timeout = Some(self.connect_timeout);
                of(&Client::with_options(options).map_err(|_| BuildError::InvalidUrl)?)
            }
        };
        let link = Link {
            collection,
            write_concern: self.write_concern,
            read_concern: self.read_concern,
            command_within: self.command_timeout,
        };
        Ok(MongoStore::assemble(self.settings, link, self.notices))
    }
}

impl fmt::Debug for Builder {
    /// Without a URL, which may hold a password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { database, collection, settings, .. } = self;
        f.debug_struct("Builder")
            .field("database", database)
            .field("collection", collection)
            .field("settings", settings)
            .finish_non_exhaustive()
    }
}

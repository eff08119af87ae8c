//! Connections: opened on first use, shared by all calls, and made anew once they break or fall silent.

use std::{fmt, sync::Arc, time::Duration};

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use parking_lot::Mutex;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionInfo, Pipeline, ProtocolVersion, PushInfo, RedisError, RedisFuture,
    Value,
    aio::{ConnectionLike, ConnectionManager, MultiplexedConnection},
};
use tokio::{
    sync::{OnceCell, Semaphore},
    time::{sleep, timeout},
};

use crate::{
    NAME,
    classify::{classify, meaning},
    scripts::{Arg, Script},
};

/// How often a call is made in all, where it may succeed in a moment: for a second and a half, which a restart takes.
const TRIES: u32 = 7;
/// Before the second try; twice as long before each next one, up to the longest.
const PAUSE: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_millis(400);
/// Connections that wait for replicas: each waits for one call at a time.
const WAITING_MAX: usize = 16;

/// Where connections come from.
#[derive(Clone)]
pub(crate) enum Source {
    Client(Box<Client>),
    /// The user's own, which makes its connections anew by itself.
    Manager(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(Box<redis::cluster::ClusterClient>),
    /// The driver's client changes as it asks.
    #[cfg(feature = "sentinel")]
    Sentinel(Arc<tokio::sync::Mutex<redis::sentinel::SentinelClient>>),
}

/// One connection; clones share it.
#[derive(Clone)]
pub(crate) enum Connection {
    One(MultiplexedConnection),
    Manager(ConnectionManager),
    #[cfg(feature = "cluster")]
    Cluster(redis::cluster_async::ClusterConnection),
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Timeouts {
    pub(crate) connect: Duration,
    pub(crate) attempt: Duration,
}

/// How many replicas must have a write, and for how long they are waited for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Replicas {
    pub(crate) count: u32,
    pub(crate) within: Duration,
}

/// The connection that all calls share.
pub(crate) struct Link {
    source: Source,
    timeouts: Timeouts,
    /// A cell for each connection: whoever comes first makes it, and the others wait for that.
    current: Mutex<Arc<OnceCell<Connection>>>,
    replicas: Option<Replicas>,
    waiting: Mutex<Vec<MultiplexedConnection>>,
    slots: Semaphore,
}

impl Link {
    pub(crate) fn new(source: Source, timeouts: Timeouts, replicas: Option<Replicas>) -> Self {
        Self {
            source,
            timeouts,
            current: Mutex::default(),
            replicas,
            waiting: Mutex::default(),
            slots: Semaphore::new(WAITING_MAX),
        }
    }

    pub(crate) fn waits_for_replicas(&self) -> bool {
        self.replicas.is_some()
    }

    /// Runs a script that only reads.
    pub(crate) async fn read(&self, script: &Script, key: &str, args: &[Arg<'_>]) -> Result<Value, StoreError> {
        let mut tries = Tries::new(Applied::No);
        loop {
            match self.once(script, key, args).await {
                Ok(value) => return Ok(value),
                Err(error) => tries.after(error).await?,
            }
        }
    }

    /// Runs a script that writes; where that is set, until enough replicas have it.
    pub(crate) async fn write(&self, script: &Script, key: &str, args: &[Arg<'_>]) -> Result<Value, StoreError> {
        let mut tries = Tries::new(Applied::Unknown);
        tries.driver_resends = self.is_cluster();
        loop {
            let done = match self.replicas {
                None => self.once(script, key, args).await.map(|value| (value, None)),
                Some(replicas) => {
                    let done = self.replicated(script, key, args, replicas).await;
                    if done.as_ref().is_err_and(|error| meaning(error).reconnect) {
                        // What has ended one of them, a failover, has most likely ended all: each would cost a try.
                        self.waiting.lock().clear();
                    }
                    done.map(|(value, have)| (value, Some((have, replicas))))
                }
            };
            match done {
                Ok((value, Some((have, replicas)))) if have < i64::from(replicas.count) && has_written(&value) => {
                    let few = StoreError::new(NAME, StoreErrorKind::Unavailable, Applied::Unknown);
                    let Replicas { count, within } = replicas;
                    return Err(few.with_detail(format!("{have} of {count} replicas have the write within {within:?}")));
                }
                Ok((value, _)) => return Ok(value),
                Err(error) => tries.after(error).await?,
            }
        }
    }

    /// Sends a command of no key. Nothing where the server does not do that, or not for this user.
    pub(crate) async fn command(&self, command: &Cmd) -> Result<Option<Value>, StoreError> {
        let mut tries = Tries::new(Applied::No);
        loop {
            let asked = async {
                let (cell, mut connection) = self.connection().await?;
                let answer = self.answered(connection.req_packed_command(command)).await;
                self.keep_unless_broken(&cell, &answer);
                answer
            };
            match asked.await {
                Ok(answer) => return Ok(Some(answer)),
                Err(error) if meaning(&error).kind == StoreErrorKind::Unavailable => tries.after(error).await?,
                Err(_) => return Ok(None),
            }
        }
    }

    /// Whether the connection is one to several nodes, some of whose answers are one node's alone.
    pub(crate) fn is_cluster(&self) -> bool {
        match self.source {
            #[cfg(feature = "cluster")]
            Source::Cluster(_) => true,
            _ => false,
        }
    }

    async fn once(&self, script: &Script, key: &str, args: &[Arg<'_>]) -> Result<Value, RedisError> {
        let (cell, mut connection) = self.connection().await?;
        let mut answer = self.answered(connection.req_packed_command(&script.by_sha(key, args))).await;
        if answer.as_ref().is_err_and(is_no_script) {
            answer = self.answered(connection.req_packed_command(&script.by_code(key, args))).await;
        }
        self.keep_unless_broken(&cell, &answer);
        answer
    }

    fn keep_unless_broken(&self, cell: &Arc<OnceCell<Connection>>, answer: &Result<Value, RedisError>) {
        if answer.as_ref().is_err_and(|error| meaning(error).reconnect) {
            self.discard(cell);
        }
    }

    /// The script and WAIT on a connection that nobody else waits on. Where this is dropped half-way, so is the
    /// connection.
    async fn replicated(
        &self,
        script: &Script,
        key: &str,
        args: &[Arg<'_>],
        replicas: Replicas,
    ) -> Result<(Value, i64), RedisError> {
        let _slot = self.slots.acquire().await.map_err(|_| closed())?;
        let kept = self.waiting.lock().pop();
        let mut connection = match kept {
            Some(connection) => connection,
            None => self.source.connect_one(self.timeouts, self.timeouts.attempt + replicas.within, None).await?,
        };
        let mut wait = redis::cmd("WAIT");
        wait.arg(replicas.count).arg(u64::try_from(replicas.within.as_millis()).unwrap_or(u64::MAX));
        let mut answers = Vec::new();
        for call in [script.by_sha(key, args), script.by_code(key, args)] {
            let mut both = Pipeline::with_capacity(2);
            both.add_command(call).add_command(wait.clone());
            let sent = connection.req_packed_commands(&both, 0, 2);
            answers = timeout(self.timeouts.attempt + replicas.within, sent).await.map_err(|_| late())??;
            let unknown = answers
                .first()
                .is_some_and(|first| matches!(first, Value::ServerError(error) if error.code() == "NOSCRIPT"));
            if !unknown {
                break;
            }
        }
        let mut answers = answers.into_iter();
        let (value, have) = (answers.next().unwrap_or_default(), answers.next().unwrap_or_default());
        let value = value.extract_error()?;
        let have = match have.extract_error()? {
            Value::Int(have) => have,
            _ => 0,
        };
        self.waiting.lock().push(connection);
        Ok((value, have))
    }

    async fn answered(&self, answer: impl Future<Output = Result<Value, RedisError>>) -> Result<Value, RedisError> {
        // An error of the server's is a value to the driver.
        timeout(self.timeouts.attempt, answer).await.map_err(|_| late())??.extract_error()
    }

    async fn connection(&self) -> Result<(Arc<OnceCell<Connection>>, Connection), RedisError> {
        let cell = Arc::clone(&self.current.lock());
        let made = cell.get_or_try_init(|| self.source.connect(self.timeouts)).await?.clone();
        Ok((cell, made))
    }

    /// The next call makes a connection of its own, unless another has made one since.
    fn discard(&self, cell: &Arc<OnceCell<Connection>>) {
        let mut current = self.current.lock();
        if Arc::ptr_eq(&current, cell) {
            *current = Arc::default();
        }
    }
}

/// Whether a script's reply says that it has written: the others need no replica, and are not refused for want of one.
fn has_written(reply: &Value) -> bool {
    match reply {
        Value::Int(replaced) => *replaced == 1,
        Value::Array(items) => {
            let wrote = |name: &[u8]| matches!(name, b"acquired" | b"applied" | b"renewed");
            matches!(items.first(), Some(Value::BulkString(name)) if wrote(name))
        }
        _ => true,
    }
}

/// The tries of one call: with the same token, each call of a store may be made again.
struct Tries {
    made: u32,
    pause: Duration,
    /// What becomes of the call where its answer is lost.
    lost: Applied,
    /// Whether the driver sends it again by itself, and tells the last error alone.
    driver_resends: bool,
    /// What has become of it so far: once that is unknown it stays so, whatever the next try is told.
    applied: Applied,
}

impl Tries {
    fn new(lost: Applied) -> Self {
        Self { made: 0, pause: PAUSE, lost, driver_resends: false, applied: Applied::No }
    }

    /// Pauses before the next try; an error where none would help.
    async fn after(&mut self, error: RedisError) -> Result<(), StoreError> {
        self.made += 1;
        let meaning = meaning(&error);
        if meaning.applied == Applied::Unknown || (self.driver_resends && meaning.retry) {
            self.applied = self.lost;
        }
        if !meaning.retry || self.made >= TRIES {
            return Err(classify(error, self.applied));
        }
        sleep(self.pause / 2 + self.pause.mul_f64(fastrand::f64() / 2.0)).await;
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        Ok(())
    }
}

impl Source {
    async fn connect(&self, timeouts: Timeouts) -> Result<Connection, RedisError> {
        match self {
            Self::Manager(manager) => Ok(Connection::Manager(manager.clone())),
            #[cfg(feature = "cluster")]
            Self::Cluster(client) => connect_cluster(client, timeouts.connect, cluster_config(timeouts)).await,
            _ => self.connect_one(timeouts, timeouts.attempt, None).await.map(Connection::One),
        }
    }

    /// A connection to the one server that is the primary.
    fn connect_one(
        &self,
        timeouts: Timeouts,
        response: Duration,
        pushes: Option<PushSender>,
    ) -> RedisFuture<'_, MultiplexedConnection> {
        Box::pin(self.connect_one_unboxed(timeouts, response, pushes))
    }

    async fn connect_one_unboxed(
        &self,
        timeouts: Timeouts,
        response: Duration,
        pushes: Option<PushSender>,
    ) -> Result<MultiplexedConnection, RedisError> {
        let mut config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(timeouts.connect))
            .set_response_timeout(Some(response));
        let made = async {
            let client = match self {
                Self::Client(client) => (**client).clone(),
                #[cfg(feature = "sentinel")]
                Self::Sentinel(sentinel) => sentinel.lock().await.async_get_client().await?,
                Self::Manager(_) => return Err(closed()),
                #[cfg(feature = "cluster")]
                Self::Cluster(_) => return Err(closed()),
            };
            let client = match pushes {
                None => client,
                Some(pushes) => {
                    config = config.set_push_sender(pushes);
                    Client::open(with_pushes(client.get_connection_info()))?
                }
            };
            client.get_multiplexed_async_connection_with_config(&config).await
        };
        timeout(timeouts.connect, made).await.map_err(|_| late())?
    }

    /// A connection that hands what the server pushes to `pushes`; none where that cannot be had.
    pub(crate) async fn listen(&self, timeouts: Timeouts, pushes: PushSender) -> Result<Connection, RedisError> {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(client) => {
                let config = cluster_config(timeouts).set_push_sender(pushes);
                connect_cluster(client, timeouts.connect, config).await
            }
            _ => self.connect_one(timeouts, timeouts.attempt, Some(pushes)).await.map(Connection::One),
        }
    }

    /// Whether connections can be made that are nobody else's.
    pub(crate) fn has_own_connections(&self) -> bool {
        match self {
            Self::Client(_) => true,
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => true,
            _ => false,
        }
    }

    /// Whether notices can be listened for.
    pub(crate) fn listens(&self) -> bool {
        !matches!(self, Self::Manager(_))
    }

    /// The command that reaches whoever listens.
    pub(crate) fn publish_command(&self) -> &'static str {
        match self {
            // In a cluster a plain message goes to every node; this one stays on the key's own.
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => "SPUBLISH",
            _ => "PUBLISH",
        }
    }
}

/// What takes pushes from the driver: it must not block.
#[derive(Clone)]
pub(crate) struct PushSender(pub(crate) Arc<dyn Fn(PushInfo) + Send + Sync>);

impl redis::aio::AsyncPushSender for PushSender {
    fn send(&self, info: PushInfo) -> Result<(), redis::aio::SendError> {
        (self.0)(info);
        Ok(())
    }
}

/// Boxed, as every connection that is made here: the driver's futures are nested deeper than the compiler follows.
#[cfg(feature = "cluster")]
fn connect_cluster(
    client: &redis::cluster::ClusterClient,
    within: Duration,
    config: redis::cluster::ClusterConfig,
) -> RedisFuture<'_, Connection> {
    Box::pin(async move {
        let made = timeout(within, client.get_async_connection_with_config(config));
        made.await.map_err(|_| late())?.map(Connection::Cluster)
    })
}

#[cfg(feature = "cluster")]
fn cluster_config(timeouts: Timeouts) -> redis::cluster::ClusterConfig {
    redis::cluster::ClusterConfig::new().set_connection_timeout(timeouts.connect).set_response_timeout(timeouts.attempt)
}

/// Pushes beside answers are what RESP3 has.
fn with_pushes(info: &ConnectionInfo) -> ConnectionInfo {
    let settings = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
    info.clone().set_redis_settings(settings)
}

pub(crate) fn is_no_script(error: &RedisError) -> bool {
    error.code() == Some("NOSCRIPT")
}

fn late() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::TimedOut).into()
}

fn closed() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::NotConnected).into()
}

impl ConnectionLike for Connection {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        match self {
            Self::One(connection) => connection.req_packed_command(cmd),
            Self::Manager(connection) => connection.req_packed_command(cmd),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_command(cmd),
        }
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        cmd: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        match self {
            Self::One(connection) => connection.req_packed_commands(cmd, offset, count),
            Self::Manager(connection) => connection.req_packed_commands(cmd, offset, count),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.req_packed_commands(cmd, offset, count),
        }
    }

    fn get_db(&self) -> i64 {
        match self {
            Self::One(connection) => connection.get_db(),
            Self::Manager(connection) => connection.get_db(),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.get_db(),
        }
    }
}

impl fmt::Debug for Source {
    /// Without anything that a URL holds.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client(_) => "Client",
            Self::Manager(_) => "Manager",
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => "Cluster",
            #[cfg(feature = "sentinel")]
            Self::Sentinel(_) => "Sentinel",
        })
    }
}

impl Connection {
    /// Listens for a channel: in a cluster on the node that has the key of this name.
    pub(crate) async fn subscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::One(connection) => connection.subscribe(channel).await,
            Self::Manager(_) => Err(closed()),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.ssubscribe(channel).await,
        }
    }

    pub(crate) async fn unsubscribe(&mut self, channel: &str) -> Result<(), RedisError> {
        match self {
            Self::One(connection) => connection.unsubscribe(channel).await,
            Self::Manager(_) => Err(closed()),
            #[cfg(feature = "cluster")]
            Self::Cluster(connection) => connection.sunsubscribe(channel).await,
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        match self {
            #[cfg(feature = "cluster")]
            Self::Cluster(_) => true,
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// A driver that sends a call again by itself tells the last error alone: what was sent before it may have been applied.
    #[rstest]
    #[case(false, Applied::No)]
    #[case(true, Applied::Unknown)]
    #[tokio::test(start_paused = true)]
    async fn a_refused_connection_says_that_nothing_was_applied_unless_the_driver_had_sent_it_before(
        #[case] driver_resends: bool,
        #[case] applied: Applied,
    ) {
        let mut tries = Tries::new(Applied::Unknown);
        tries.driver_resends = driver_resends;
        let failed = loop {
            let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
            if let Err(failed) = tries.after(refused.into()).await {
                break failed;
            }
        };
        assert_eq!(failed.may_be_applied(), applied == Applied::Unknown, "{failed}");
    }
}

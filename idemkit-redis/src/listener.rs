//! Notices: one connection a process that listens for the keys somebody waits for.
//!
//! It is found dead by a heartbeat, made anew with a back-off, and after each time every waiter looks again: what was
//! published in between is lost. Waiters poll all the while, so that a notice only makes them faster.

use std::{
    collections::{HashMap, HashSet},
    sync::Arc,
    time::Duration,
};

use idemkit_core::{EffectiveKey, Watches};
use parking_lot::Mutex;
use redis::{PushInfo, PushKind, RedisError, Value, aio::ConnectionLike};
use tokio::{
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, sleep, sleep_until, timeout},
};

use crate::link::{Connection, PushSender, Source, Timeouts};

/// Between two heartbeats; the answer to one may take as long again.
const HEARTBEAT: Duration = Duration::from_secs(2);
/// Before the second attempt to connect; twice as long before each next one, up to the longest.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The one listener of a store.
pub(crate) struct Listener {
    shared: Arc<Shared>,
    source: Source,
    timeouts: Timeouts,
    watches: Watches,
    /// How a key's channel is called: as the key itself.
    channel: Arc<dyn Fn(&EffectiveKey) -> String + Send + Sync>,
    /// The task, once somebody has waited. It ends with this.
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Default)]
struct Shared {
    wanted: Mutex<HashMap<EffectiveKey, Wanted>>,
    /// Told of every change of what is wanted.
    changed: Notify,
}

struct Wanted {
    waiters: usize,
    /// Whether the server has been told.
    heard: watch::Sender<bool>,
}

/// A key that is listened for, until this is dropped.
pub(crate) struct Subscription {
    key: EffectiveKey,
    shared: Arc<Shared>,
    heard: watch::Receiver<bool>,
}

impl Listener {
    pub(crate) fn new(
        source: Source,
        timeouts: Timeouts,
        watches: Watches,
        channel: impl Fn(&EffectiveKey) -> String + Send + Sync + 'static,
    ) -> Self {
        let channel = Arc::new(channel);
        Self { shared: Arc::default(), source, timeouts, watches, channel, task: Mutex::default() }
    }

    /// Listens for `key`. Must be called in a tokio runtime.
    pub(crate) fn subscribe(&self, key: &EffectiveKey) -> Subscription {
        let heard = {
            let mut wanted = self.shared.wanted.lock();
            let entry = wanted.entry(*key).or_insert_with(|| Wanted { waiters: 0, heard: watch::Sender::new(false) });
            entry.waiters += 1;
            entry.heard.subscribe()
        };
        self.shared.changed.notify_one();
        let mut task = self.task.lock();
        // Where the runtime that ran it has ended, another one's takes over.
        if task.as_ref().is_none_or(AbortHandle::is_finished) {
            let run = run(
                Arc::clone(&self.shared),
                self.source.clone(),
                self.timeouts,
                self.watches.clone(),
                Arc::clone(&self.channel),
            );
            *task = Some(tokio::spawn(run).abort_handle());
        }
        drop(task);
        Subscription { key: *key, shared: Arc::clone(&self.shared), heard }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl Subscription {
    /// Waits until the server has been told, for at most so long.
    pub(crate) async fn heard(&self, within: Duration) {
        let mut heard = self.heard.clone();
        // Not told in time, or no listener any more: the poll finds it.
        _ = timeout(within, heard.wait_for(|heard| *heard)).await;
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        let mut wanted = self.shared.wanted.lock();
        if let Some(entry) = wanted.get_mut(&self.key) {
            entry.waiters -= 1;
            if entry.waiters == 0 {
                wanted.remove(&self.key);
                drop(wanted);
                self.shared.changed.notify_one();
            }
        }
    }
}

type Channel = Arc<dyn Fn(&EffectiveKey) -> String + Send + Sync>;

async fn run(shared: Arc<Shared>, source: Source, timeouts: Timeouts, watches: Watches, channel: Channel) {
    let mut back_off = BACK_OFF;
    loop {
        // This connection's own: what is said of the one before must not end it.
        let broken = Arc::new(Notify::new());
        let pushes = pushes(Arc::clone(&broken), watches.clone());
        match source.listen(timeouts, pushes).await {
            Ok(connection) => {
                let began = Instant::now();
                let mut listening = Listening {
                    shared: &shared,
                    broken: &broken,
                    watches: &watches,
                    channel: &channel,
                    connection,
                    told: HashMap::new(),
                };
                let error = listening.listen().await;
                tracing::warn!(%error, "idemkit: the connection that listens for notices is lost; waiters poll");
                for entry in shared.wanted.lock().values() {
                    entry.heard.send_replace(false);
                }
                if began.elapsed() > BACK_OFF_MAX {
                    back_off = BACK_OFF;
                }
            }
            Err(error) => {
                tracing::warn!(%error, "idemkit: no connection to listen for notices; waiters poll");
            }
        }
        sleep(back_off / 2 + back_off.mul_f64(fastrand::f64() / 2.0)).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

/// Takes what the server pushes. It runs in the driver's own task, and only notes what is to be done.
fn pushes(broken: Arc<Notify>, watches: Watches) -> PushSender {
    PushSender(Arc::new(move |push: PushInfo| match push.kind {
        PushKind::Message | PushKind::SMessage => {
            if let Some(key) = push.data.first().and_then(key_of) {
                watches.notify(&key);
            }
        }
        PushKind::Disconnection => broken.notify_one(),
        _ => {}
    }))
}

/// The key at the end of its channel's name.
fn key_of(channel: &Value) -> Option<EffectiveKey> {
    let Value::BulkString(name) = channel else { return None };
    let (_, hex) = std::str::from_utf8(name).ok()?.rsplit_once(':')?;
    hex.parse().ok()
}

/// One connection's life.
struct Listening<'a> {
    shared: &'a Shared,
    broken: &'a Notify,
    watches: &'a Watches,
    channel: &'a Channel,
    connection: Connection,
    /// What the server listens for, and the name by which it was told.
    told: HashMap<EffectiveKey, String>,
}

impl Listening<'_> {
    /// Until the connection is dead.
    async fn listen(&mut self) -> RedisError {
        match self.follow().await {
            Ok(()) => {}
            Err(error) => return error,
        }
        // Whatever was published before is lost.
        self.watches.notify_all();
        let mut beat_at = Instant::now() + HEARTBEAT;
        loop {
            let done = tokio::select! {
                () = self.broken.notified() => Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into()),
                () = self.shared.changed.notified() => self.follow().await,
                () = sleep_until(beat_at) => {
                    beat_at = Instant::now() + HEARTBEAT;
                    self.beat().await
                }
            };
            if let Err(error) = done {
                return error;
            }
        }
    }

    /// Tells the server what has changed.
    async fn follow(&mut self) -> Result<(), RedisError> {
        let wanted: HashSet<EffectiveKey> = self.shared.wanted.lock().keys().copied().collect();
        let gone: Vec<EffectiveKey> = self.told.keys().filter(|key| !wanted.contains(*key)).copied().collect();
        for key in gone {
            if let Some(name) = self.told.remove(&key) {
                within(self.connection.unsubscribe(&name)).await?;
            }
        }
        for key in wanted {
            if !self.told.contains_key(&key) {
                let name = (self.channel)(&key);
                within(self.connection.subscribe(&name)).await?;
                self.told.insert(key, name);
            }
            if let Some(entry) = self.shared.wanted.lock().get(&key) {
                entry.heard.send_replace(true);
            }
        }
        Ok(())
    }

    /// Whether the connection is alive. A subscription is told again: in a cluster it is on one node of several.
    async fn beat(&mut self) -> Result<(), RedisError> {
        // Another one each time: in the end each node has been asked.
        match self.told.values().nth(fastrand::usize(..self.told.len().max(1))) {
            Some(name) if self.connection.is_cluster() => within(self.connection.subscribe(name)).await,
            _ => within(self.connection.req_packed_command(&redis::cmd("PING"))).await.map(drop),
        }
    }
}

async fn within<T>(answer: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
    let late = || std::io::Error::from(std::io::ErrorKind::TimedOut).into();
    timeout(HEARTBEAT, answer).await.unwrap_or_else(|_| Err(late()))
}

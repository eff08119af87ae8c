//! Notices: one connection a process, outside the pool, that listens while somebody waits.
//!
//! It is found dead by a heartbeat, made anew with a back-off, and after each time every waiter looks again: what was
//! notified in between is lost. Waiters poll all the while, so that a notice only makes them faster.

use std::{sync::Arc, time::Duration};

use idemkit_core::Watches;
use parking_lot::Mutex;
use sqlx::{
    Executor as _, PgPool,
    postgres::{PgConnectOptions, PgListener, PgPoolOptions},
};
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

/// The channel of every table: its payload is a key, which is a hash and no other table's.
const CHANNEL: &str = "idemkit_records";
/// How long it may be silent before it is asked whether it lives; the answer may take as long again.
const HEARTBEAT: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Before the second attempt to connect; twice as long before each next one, up to the longest.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// Where to listen.
#[derive(Clone, Debug)]
pub(crate) enum Address {
    At(Arc<PgConnectOptions>),
    /// As the user's pool says: the password may change as it runs.
    LikePool(PgPool),
}

impl Address {
    fn options(&self) -> Arc<PgConnectOptions> {
        match self {
            Self::At(options) => Arc::clone(options),
            Self::LikePool(pool) => pool.connect_options(),
        }
    }
}

/// The one listener of a store.
pub(crate) struct Listener {
    address: Address,
    watches: Watches,
    listening: watch::Sender<bool>,
    /// The task, once somebody has waited. It ends with this.
    task: Mutex<Option<AbortHandle>>,
}

impl Listener {
    pub(crate) fn new(address: Address, watches: Watches) -> Self {
        Self { address, watches, listening: watch::Sender::new(false), task: Mutex::default() }
    }

    /// Listens from now on; waits until it does, for at most so long. Must be called in a tokio runtime.
    pub(crate) async fn listens(&self, within: Duration) {
        let mut listening = self.listening.subscribe();
        {
            let mut task = self.task.lock();
            // Where the runtime that ran it has ended, another one's takes over.
            if task.as_ref().is_none_or(AbortHandle::is_finished) {
                self.listening.send_replace(false);
                let run = run(self.address.clone(), self.watches.clone(), self.listening.clone());
                *task = Some(tokio::spawn(run).abort_handle());
            }
        }
        // Not in time: the poll finds it.
        _ = timeout(within, listening.wait_for(|listening| *listening)).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

async fn run(address: Address, watches: Watches, listening: watch::Sender<bool>) {
    let mut back_off = BACK_OFF;
    loop {
        let began = Instant::now();
        let connected = timeout(CONNECT_WITHIN, connect((*address.options()).clone())).await;
        let error = match connected.unwrap_or(Err(sqlx::Error::PoolTimedOut)) {
            Ok(listener) => {
                listening.send_replace(true);
                // Whatever was notified before is lost.
                watches.notify_all();
                let error = listen(listener, &watches).await;
                listening.send_replace(false);
                error
            }
            Err(error) => error,
        };
        tracing::warn!(%error, "idemkit: no connection listens for notices; waiters poll");
        if began.elapsed() > BACK_OFF_MAX {
            back_off = BACK_OFF;
        }
        sleep(back_off / 2 + back_off.mul_f64(fastrand::f64() / 2.0)).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

/// A connection of its own: one of the pool's would be missing there.
async fn connect(options: PgConnectOptions) -> Result<PgListener, sqlx::Error> {
    let one = PgPoolOptions::new().max_connections(1).acquire_timeout(CONNECT_WITHIN).connect_lazy_with(options);
    let mut listener = PgListener::connect_with(&one).await?;
    // Reconnecting is ours: in between, notices are lost without a word.
    listener.eager_reconnect(false);
    listener.listen(CHANNEL).await?;
    Ok(listener)
}

/// Until the connection is dead.
async fn listen(mut listener: PgListener, watches: &Watches) -> sqlx::Error {
    let lost = || sqlx::Error::Io(std::io::ErrorKind::ConnectionReset.into());
    loop {
        match timeout(HEARTBEAT, listener.try_recv()).await {
            Ok(Ok(Some(notice))) => {
                if let Ok(key) = notice.payload().parse() {
                    watches.notify(&key);
                }
            }
            Ok(Ok(None)) => return lost(),
            Ok(Err(error)) => return error,
            // Silent: that is usual, or the end.
            Err(_) => match timeout(HEARTBEAT, listener.execute("SELECT 1")).await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => return error,
                Err(_) => return lost(),
            },
        }
    }
}

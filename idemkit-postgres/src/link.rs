//! Connections of the pool, one for each statement: given back when it is answered, and closed when it is not.

use std::{
    ops::{Deref, DerefMut},
    sync::Arc,
    time::Duration,
};

use idemkit_core::{Applied, StoreError};
use parking_lot::Mutex;
use sqlx::{
    PgConnection, PgPool, Postgres,
    pool::PoolConnection,
    postgres::{PgConnectOptions, PgRow},
};
use tokio::time::sleep;

use crate::{
    classify::{Meaning, classify, ends_connection, meaning},
    statement::{Arg, Protocol, Statement},
};

/// How often a statement is sent in all, where it may succeed in a moment.
const TRIES: u32 = 12;
/// The longest pause between two tries.
const PAUSE_MAX: Duration = Duration::from_millis(200);

#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) pool: Pool,
    pub(crate) protocol: Protocol,
}

/// The store's connections. Nobody else's statements run on them: what others leave behind in a connection, an open
/// transaction above all, would take the store's writes with it.
#[derive(Debug)]
pub(crate) struct Pool {
    own: PgPool,
    follows: Option<Followed>,
}

/// The pool of the user's that says how to connect: the password may change as it runs.
#[derive(Debug)]
struct Followed {
    pool: PgPool,
    seen: Mutex<Arc<PgConnectOptions>>,
    protocol: Protocol,
}

impl Pool {
    pub(crate) fn new(own: PgPool) -> Self {
        Self { own, follows: None }
    }

    pub(crate) fn following(own: PgPool, pool: PgPool, seen: Arc<PgConnectOptions>, protocol: Protocol) -> Self {
        Self { own, follows: Some(Followed { pool, seen: Mutex::new(seen), protocol }) }
    }

    /// Closes what lies idle: what ended one connection, a restart or a failover, has most likely ended all of them, and each
    /// would cost its user a try.
    pub(crate) fn distrust_idle(&self) {
        while let Some(mut idle) = self.own.try_acquire() {
            idle.close_on_drop();
        }
    }

    pub(crate) async fn close(&self) {
        self.own.close().await;
    }

    async fn acquire(&self) -> Result<PoolConnection<Postgres>, sqlx::Error> {
        if let Some(followed) = &self.follows {
            let options = followed.pool.connect_options();
            let mut seen = followed.seen.lock();
            if !Arc::ptr_eq(&options, &seen) {
                self.own.set_connect_options(followed.protocol.shape((*options).clone()));
                *seen = options;
            }
        }
        self.own.acquire().await
    }
}

impl Link {
    /// Runs a statement, and again while that may help: with the same token, each of them may be run again. `lost` says
    /// what becomes of one whose answer is lost.
    pub(crate) async fn fetch(
        &self,
        statement: &Statement,
        args: &[Arg<'_>],
        lost: Applied,
    ) -> Result<Option<PgRow>, StoreError> {
        let mut applied = Applied::No;
        let mut tries = 0;
        loop {
            tries += 1;
            let error = match self.fetch_once(statement, args).await {
                Ok(row) => return Ok(row),
                Err(error) => error,
            };
            let again = match meaning(&error) {
                // Once it is unknown it stays so, whatever the next try is told.
                Meaning::Lost => {
                    applied = lost;
                    self.pool.distrust_idle();
                    true
                }
                Meaning::NotReached | Meaning::Contended => true,
                Meaning::Refused(..) => false,
            };
            if !again || tries >= TRIES {
                return Err(classify(error, applied));
            }
            // At once for a pool's dead connections, and for contention that is over; more slowly for a server that is away.
            let pause = Duration::from_millis(5).saturating_mul(1 << tries.min(8)).min(PAUSE_MAX);
            sleep(pause.mul_f64(fastrand::f64())).await;
        }
    }

    async fn fetch_once(&self, statement: &Statement, args: &[Arg<'_>]) -> Result<Option<PgRow>, sqlx::Error> {
        let mut connection = Lease::take(&self.pool).await?;
        let row = statement.fetch(&mut connection, self.protocol, args).await;
        connection.give_back_after(row)
    }
}

/// A connection of the pool. Where it is dropped in the middle of something, it is closed, and not given back with half an
/// answer in it or a transaction open.
pub(crate) struct Lease {
    connection: PoolConnection<Postgres>,
    is_clean: bool,
}

impl Lease {
    pub(crate) async fn take(pool: &Pool) -> Result<Self, sqlx::Error> {
        Ok(Self { connection: pool.acquire().await?, is_clean: false })
    }

    /// Gives the connection back, unless the answer says that it is broken.
    pub(crate) fn give_back_after<T>(mut self, answer: Result<T, sqlx::Error>) -> Result<T, sqlx::Error> {
        self.is_clean = match &answer {
            Ok(_) => true,
            Err(error) => !ends_connection(error),
        };
        answer
    }

    /// From here on it is given back when it is dropped, and what is queued on it is sent before anybody else has it.
    pub(crate) fn give_back_when_dropped(&mut self) {
        self.is_clean = true;
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_clean {
            self.connection.close_on_drop();
        }
    }
}

impl Deref for Lease {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        &self.connection
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut PgConnection {
        &mut self.connection
    }
}

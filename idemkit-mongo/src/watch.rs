//! Notices: one change stream a process, on the ends of operations, where the deployment has them. And the index that reaps.
//!
//! A stream is found dead by its silence, resumed after what it has seen, and after each time every waiter looks again.
//! Waiters poll all the while, so that a notice only makes them faster.

use std::time::Duration;

use idemkit_core::{Applied, StoreError, StoreErrorKind, Watches};
use mongodb::{
    Collection, IndexModel,
    bson::{Document, doc},
    change_stream::event::{ChangeStreamEvent, ResumeToken},
    error::{Error, ErrorKind},
    options::IndexOptions,
};
use parking_lot::Mutex;
use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep, timeout},
};

use crate::{
    classify::{Meaning, classify, meaning},
    document::EXPIRE_AT,
    pipeline,
};

/// How long the server waits for an event before it answers that there is none; the answer may take as long again.
const AWAIT: Duration = Duration::from_secs(2);
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// Before the second attempt; twice as long before each next one, up to the longest.
const BACK_OFF: Duration = Duration::from_millis(100);
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// The one listener of a store.
pub(crate) struct Listener {
    collection: Collection<Document>,
    watches: Watches,
    listening: watch::Sender<Listening>,
    /// The task, once somebody has waited. It ends with this.
    task: Mutex<Option<AbortHandle>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Listening {
    NotYet,
    Now,
    /// This deployment has no change streams. Found out once.
    Never,
}

impl Listener {
    pub(crate) fn new(collection: Collection<Document>, watches: Watches) -> Self {
        Self { collection, watches, listening: watch::Sender::new(Listening::NotYet), task: Mutex::default() }
    }

    /// Listens from now on; waits until it does, for at most so long. Must be called in a tokio runtime.
    pub(crate) async fn listens(&self, within: Duration) {
        let mut listening = self.listening.subscribe();
        if *listening.borrow() == Listening::Never {
            return;
        }
        {
            let mut task = self.task.lock();
            // Where the runtime that ran it has ended, another one's takes over.
            if task.as_ref().is_none_or(AbortHandle::is_finished) {
                let run = run(self.collection.clone(), self.watches.clone(), self.listening.clone());
                *task = Some(tokio::spawn(run).abort_handle());
            }
        }
        // Not in time: the poll finds it.
        _ = timeout(within, listening.wait_for(|listening| *listening != Listening::NotYet)).await;
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

async fn run(collection: Collection<Document>, watches: Watches, listening: watch::Sender<Listening>) {
    let mut back_off = BACK_OFF;
    let mut after = None;
    loop {
        let began = Instant::now();
        let error = follow(&collection, &watches, &listening, &mut after).await;
        if has_none(&error) {
            listening.send_replace(Listening::Never);
            tracing::warn!(%error, "idemkit: this deployment has no change streams; waiters poll");
            return;
        }
        listening.send_replace(Listening::NotYet);
        tracing::warn!(%error, "idemkit: no change stream; waiters poll");
        if !matches!(meaning(&error), Meaning::Lost | Meaning::NotReached) {
            // What it was to be resumed after is gone, perhaps: every waiter looks again anyway.
            after = None;
        }
        if began.elapsed() > BACK_OFF_MAX {
            back_off = BACK_OFF;
        }
        sleep(back_off / 2 + back_off.mul_f64(fastrand::f64() / 2.0)).await;
        back_off = (back_off * 2).min(BACK_OFF_MAX);
    }
}

/// A standalone server, or one that does not know them.
fn has_none(error: &Error) -> bool {
    matches!(error.kind.as_ref(), ErrorKind::Command(command) if matches!(command.code, 40573 | 59 | 115))
}

/// Until the stream is dead.
async fn follow(
    collection: &Collection<Document>,
    watches: &Watches,
    listening: &watch::Sender<Listening>,
    after: &mut Option<ResumeToken>,
) -> Error {
    let late = || Error::from(std::io::Error::from(std::io::ErrorKind::TimedOut));
    let opened = async {
        let watch = collection.watch().pipeline(pipeline::ends()).max_await_time(AWAIT);
        let watch = match after.take() {
            Some(token) => watch.resume_after(token),
            None => watch,
        };
        watch.await
    };
    let mut stream = match timeout(CONNECT_WITHIN, opened).await {
        Ok(Ok(stream)) => stream.with_type::<ChangeStreamEvent<Document>>(),
        Ok(Err(error)) => return error,
        Err(_) => return late(),
    };
    listening.send_replace(Listening::Now);
    // What came before it is lost, where it was not resumed.
    watches.notify_all();
    loop {
        match timeout(AWAIT * 2, stream.next_if_any()).await {
            Ok(Ok(Some(event))) => {
                let key = event.document_key.as_ref().and_then(|key| key.get_str("_id").ok());
                if let Some(Ok(key)) = key.map(str::parse) {
                    watches.notify(&key);
                }
            }
            Ok(Ok(None)) if stream.is_alive() => {}
            Ok(Ok(None)) => return late(),
            Ok(Err(error)) => return error,
            Err(_) => return late(),
        }
        *after = stream.resume_token();
    }
}

/// The index that reaps, made where it is not there. One with other options is said once, and everything goes on.
pub(crate) async fn ensure_index(collection: &Collection<Document>) -> Result<(), StoreError> {
    let options = IndexOptions::builder().expire_after(Duration::ZERO).build();
    let index = IndexModel::builder().keys(doc! { EXPIRE_AT: 1 }).options(options).build();
    let Err(error) = collection.create_index(index).await else { return Ok(()) };
    let code = match error.kind.as_ref() {
        ErrorKind::Command(command) => command.code,
        _ => 0,
    };
    match code {
        85 | 86 => {
            let namespace = collection.namespace();
            let mend = format!(
                "db.getSiblingDB('{}').runCommand({{ collMod: '{}', index: {{ keyPattern: {{ {EXPIRE_AT}: 1 }}, expireAfterSeconds: 0 }} }})",
                namespace.db, namespace.coll
            );
            tracing::warn!(%mend, "idemkit: the index on expire_at has other options: records are reaped at another time, or not at all");
            Ok(())
        }
        13 => {
            let error = StoreError::new(crate::NAME, StoreErrorKind::Misconfigured, Applied::No).with_source(error);
            Err(error.with_detail("this user may not create the index on expire_at: create it in a deployment, and build the store with create_index(false)"))
        }
        _ => Err(classify(error, Applied::No)),
    }
}

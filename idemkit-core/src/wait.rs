//! Waiting for a key: one watch a key and process, a poll schedule that is right without any notice, and notices that
//! make it fast.

#[cfg(test)]
mod tests;

use std::{
    collections::HashMap,
    fmt,
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    runtime::Handle,
    sync::{Notify, watch},
    task::AbortHandle,
    time::{Instant, timeout, timeout_at},
};

use crate::{
    Applied, EffectiveKey, Sight, StoreError, StoreErrorKind, Ttl, WaitOutcome, backoff::Backoff, clock::later,
};

/// The first delay between two looks; it doubles up to [`POLL_MAX`].
const POLL_MIN: Duration = Duration::from_millis(50);
/// The longest delay between two looks: what a lost notice costs at most.
const POLL_MAX: Duration = Duration::from_secs(1);
/// A look that takes longer counts as failed: a watch must outlive a store that hangs.
const LOOK_DEADLINE: Duration = Duration::from_secs(10);

/// The watches of one store handle: what a store author builds [`Store::wait`](crate::Store::wait) from.
///
/// All waiters for one key share one watch, a task that looks at the record on the schedule of the contract (rules W1
/// to W6): at once, then after 50 ms doubling to 1 s with jitter, at the end of the holder's lease, and whenever it is
/// [notified](Watches::notify). The watch ends with its last waiter; nothing is left behind.
///
/// A watch runs on the tokio runtime of the first waiter. Where that runtime ends, another waiter's own takes over; a
/// runtime that stays but is no longer driven keeps its watches from looking, so waiters that share them should share a
/// runtime that runs.
///
/// Clones share the same watches.
#[derive(Clone, Default)]
pub struct Watches {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    by_key: Mutex<HashMap<EffectiveKey, Weak<Watch>>>,
    /// How many keys are watched, so that a notice for a key that nobody watches costs one load.
    ///
    /// A waiter adds its key before it looks, and a store writes before it notifies: whichever of write and look comes
    /// first, either the look sees the write or the notice sees the watch.
    watched: AtomicUsize,
}

/// One key being watched. The waiters own it together; with the last of them it ends its task and leaves the map.
struct Watch {
    /// How many waiters have been told that the key is vacant.
    sent_to_claim: AtomicUsize,
    key: EffectiveKey,
    shared: Arc<Shared>,
    state: watch::Receiver<State>,
    look_again: Arc<Notify>,
    task: AbortHandle,
}

/// What a watch has seen so far.
#[derive(Clone)]
enum State {
    Looking {
        last_error: Option<StoreError>,
        /// When the claim that was seen last ends, if it is not renewed.
        held_until: Option<Instant>,
    },
    Decided {
        outcome: Result<WaitOutcome, StoreError>,
        /// How many waiters may be told so where the key is vacant; the others look again.
        claimers: usize,
    },
}

impl Watches {
    /// Waits until `look` finds the key completed or vacant, for at most `timeout`.
    ///
    /// `look` reads the record, without changing it. The watch calls it for all waiters of `key` together, one call at
    /// a time, each for at most 10 s. Must be called in a tokio runtime.
    ///
    /// Only one of them can have a vacant key, so one is told of it first, and after another look two, four, … : a
    /// thousand waiters are all told soon if nobody claims, and otherwise do not all claim at once, each time that an
    /// operation fails.
    ///
    /// # Errors
    /// What `look` failed with: at once where a retry cannot help, else where the time-out ends on a failed look.
    pub async fn wait<L, F>(&self, key: &EffectiveKey, timeout: Ttl, look: L) -> Result<WaitOutcome, StoreError>
    where
        L: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = Result<Sight, StoreError>> + Send + 'static,
    {
        let deadline = Instant::now() + timeout.as_duration();
        let (mut claimers, mut dead) = (1, 0);
        loop {
            let watch = self.join(key, &look, claimers)?;
            let mut state = watch.state.clone();
            let decided = timeout_at(deadline, state.wait_for(|state| matches!(state, State::Decided { .. }))).await;
            let died = matches!(decided, Ok(Err(_)));
            let timed_out = decided.is_err();
            drop(decided);
            let seen = state.borrow().clone();
            match seen {
                State::Decided { outcome: Ok(WaitOutcome::Vacant), claimers: may_claim }
                    if !timed_out && watch.sent_to_claim.fetch_add(1, Ordering::Relaxed) >= may_claim =>
                {
                    claimers = may_claim.saturating_mul(2);
                }
                State::Decided { outcome, .. } => return outcome,
                // The runtime that ran the watch ended before this waiter's own: this one makes another.
                State::Looking { .. } if died && dead == 0 => dead += 1,
                State::Looking { .. } if died => return Err(failed("the watch of this key ended without a decision")),
                State::Looking { last_error: Some(error), .. } => return Err(error),
                State::Looking { last_error: None, .. } if claimers > 1 => return Ok(WaitOutcome::Vacant),
                State::Looking { last_error: None, held_until } => {
                    let lease_left = held_until.map(|until| until.saturating_duration_since(Instant::now()));
                    return Ok(WaitOutcome::TimedOut { lease_left });
                }
            }
        }
    }

    /// The watch of `key`: the one that runs, or a new one.
    /// `claimers` is how many it may tell at once of a key that is vacant from the beginning.
    fn join<L, F>(&self, key: &EffectiveKey, look: &L, claimers: usize) -> Result<Arc<Watch>, StoreError>
    where
        L: Fn() -> F + Clone + Send + 'static,
        F: Future<Output = Result<Sight, StoreError>> + Send + 'static,
    {
        let runtime = Handle::try_current().map_err(|error| failed("not in a tokio runtime").with_source(error))?;
        let mut by_key = self.shared.by_key.lock();
        let present = by_key.get(key).and_then(Weak::upgrade);
        if let Some(watch) = &present
            && watch.is_running()
        {
            return Ok(Arc::clone(watch));
        }
        let (sender, state) = watch::channel(State::Looking { last_error: None, held_until: None });
        let look_again = Arc::new(Notify::new());
        let task = runtime.spawn(watch_key(look.clone(), Arc::clone(&look_again), sender, claimers)).abort_handle();
        let watch = Arc::new(Watch {
            sent_to_claim: AtomicUsize::new(0),
            key: *key,
            shared: Arc::clone(&self.shared),
            state,
            look_again,
            task,
        });
        if by_key.insert(*key, Arc::downgrade(&watch)).is_none() {
            self.shared.watched.fetch_add(1, Ordering::Relaxed);
        }
        // A watch that is over locks the map as it drops.
        drop(by_key);
        drop(present);
        Ok(watch)
    }

    /// Makes the watch of `key` look again now, if there is one. Cheap where nobody waits.
    ///
    /// To be called **after** the write that it tells of.
    pub fn notify(&self, key: &EffectiveKey) {
        if self.shared.watched.load(Ordering::Relaxed) == 0 {
            return;
        }
        let watch = self.shared.by_key.lock().get(key).and_then(Weak::upgrade);
        if let Some(watch) = watch {
            watch.look_again.notify_one();
        }
    }

    /// Makes every watch look again now: after a listener was connected anew, since notices in between are lost.
    pub fn notify_all(&self) {
        let watches: Vec<_> = self.shared.by_key.lock().values().filter_map(Weak::upgrade).collect();
        for watch in watches {
            watch.look_again.notify_one();
        }
    }

    /// How many keys are being watched.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shared.watched.load(Ordering::Relaxed)
    }

    /// Whether nobody waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl fmt::Debug for Watches {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watches").field("watched_keys", &self.len()).finish()
    }
}

impl Watch {
    /// Whether it still looks: neither decided, nor dead with its runtime.
    fn is_running(&self) -> bool {
        matches!(*self.state.borrow(), State::Looking { .. }) && self.state.has_changed().is_ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.task.abort();
        let mut by_key = self.shared.by_key.lock();
        // Another watch may have taken the place of one that was over.
        if by_key.get(&self.key).is_some_and(|present| std::ptr::eq(present.as_ptr(), self)) {
            by_key.remove(&self.key);
            self.shared.watched.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// The task of one watch: looks until there is something to tell.
async fn watch_key<L, F>(look: L, look_again: Arc<Notify>, state: watch::Sender<State>, mut claimers: usize)
where
    L: Fn() -> F,
    F: Future<Output = Result<Sight, StoreError>>,
{
    let mut backoff = Backoff::new(POLL_MIN, POLL_MAX);
    let decided = loop {
        let seen = match timeout(LOOK_DEADLINE, look()).await {
            Ok(seen) => seen,
            Err(elapsed) => Err(failed("no answer to a read within its deadline").with_source(elapsed)),
        };
        let delay = backoff.next_delay();
        let (delay, looking) = match seen {
            Ok(Sight::Completed(record)) => break Ok(WaitOutcome::Completed(record)),
            Ok(Sight::Vacant) => break Ok(WaitOutcome::Vacant),
            Ok(Sight::Held { lease_left }) => {
                // Somebody has claimed it.
                claimers = 1;
                let held_until = Some(later(Instant::now(), lease_left));
                (delay.min(lease_left).max(Duration::from_millis(1)), State::Looking { last_error: None, held_until })
            }
            Err(error) if error.is_retryable() => (delay, State::Looking { last_error: Some(error), held_until: None }),
            Err(error) => break Err(error),
        };
        // Nobody is woken by what changes nothing for them.
        state.send_if_modified(|state| {
            *state = looking;
            false
        });
        // Woken or not, it looks again.
        let _ = timeout(delay, look_again.notified()).await;
    };
    let _ = state.send(State::Decided { outcome: decided, claimers });
}

fn failed(detail: &'static str) -> StoreError {
    StoreError::new("idemkit", StoreErrorKind::Unavailable, Applied::No).with_detail(detail)
}

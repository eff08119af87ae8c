//! Renewing the lease while the operation runs.

use std::{
    future::{Future, pending},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    task::AbortHandle,
    time::{Instant, sleep_until, timeout_at},
};

use super::{HeldClaim, Inner, OnUnconfirmed, Policy, Subject, call::call};
use crate::{Acquired, ClaimToken, EventKind, Renew, RenewOutcome, backoff::Backoff, clock::later};

/// How the lease stands, by this process's monotonic count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeaseState {
    /// Held at least until then; after that unconfirmed, until a renewal says more.
    Held { until: Instant },
    /// Another took over.
    Lost,
}

/// Why an operation must not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseLoss {
    /// A renewal was fenced: another took over.
    Fenced,
    /// The lease ended without a confirmed renewal, and the policy says to stop then.
    Unconfirmed,
}

/// The heartbeat of one claim. Dropping it ends its task.
#[derive(Debug)]
pub(super) struct Heartbeat {
    state: watch::Receiver<LeaseState>,
    hand_over: HandOver,
    /// Set once the work is over: what limits it does not limit how long its outcome takes to be recorded.
    work_ended: Arc<AtomicBool>,
}

/// Hands a claim over to a transaction, on behalf of whoever holds its guard: see [`Guard::to_hand_over`](super::Guard::to_hand_over).
#[derive(Clone, Debug)]
pub struct HandOver(Arc<Handing>);

#[derive(Debug)]
struct Handing {
    claim: HeldClaim,
    task: AbortHandle,
    is_done: AtomicBool,
}

impl HandOver {
    /// Ends the heartbeat for good. From here on the transaction completes the claim, and nobody else. May be called again.
    #[must_use = "nobody else completes the claim from here on"]
    pub fn hand_over(&self) -> HeldClaim {
        self.0.is_done.store(true, Ordering::Release);
        self.0.task.abort();
        self.0.claim
    }

    pub(super) fn is_done(&self) -> bool {
        self.0.is_done.load(Ordering::Acquire)
    }
}

impl Heartbeat {
    /// Begins to renew. `sent` is when the claim was first asked for: the lease is counted from there.
    pub(super) fn start(
        engine: Arc<Inner>,
        subject: Subject,
        policy: Policy,
        token: ClaimToken,
        sent: Instant,
        acquired: Acquired,
    ) -> Self {
        let until = later(sent, acquired.lease_left);
        let claim = HeldClaim { key: subject.key, token };
        let (sender, state) = watch::channel(LeaseState::Held { until });
        let work_ended = Arc::new(AtomicBool::new(false));
        let beats = Beats { engine, subject, policy, token, sender, work_ended: Arc::clone(&work_ended) };
        let task = tokio::spawn(beats.run(sent)).abort_handle();
        Self {
            state,
            hand_over: HandOver(Arc::new(Handing { claim, task, is_done: AtomicBool::new(false) })),
            work_ended,
        }
    }

    /// Ends the renewals; what is known of the lease stays.
    pub(super) fn stop(&self) {
        self.hand_over.0.task.abort();
    }

    /// From here on the claim is renewed for as long as it takes to record what the work came to.
    pub(super) fn work_ended(&self) {
        self.work_ended.store(true, Ordering::Release);
    }

    pub(super) fn hand_over(&self) -> &HandOver {
        &self.hand_over
    }

    pub(super) fn state(&self) -> &watch::Receiver<LeaseState> {
        &self.state
    }

    /// Ends when the operation must not go on; never, while it may.
    pub(super) fn loss(&self, policy: &Policy, margin: Duration) -> impl Future<Output = LeaseLoss> + Send + use<> {
        let (mut state, hand_over) = (self.state.clone(), self.hand_over.clone());
        let drops_unconfirmed = policy.on_unconfirmed == OnUnconfirmed::Drop;
        async move {
            loop {
                let LeaseState::Held { until } = *state.borrow_and_update() else { return LeaseLoss::Fenced };
                // A heartbeat that has ended says nothing more, but the lease still ends.
                let changed = async {
                    if state.changed().await.is_err() {
                        pending::<()>().await;
                    }
                };
                if !drops_unconfirmed {
                    changed.await;
                } else if timeout_at(later(until, margin), changed).await.is_err() {
                    if hand_over.is_done() {
                        // The transaction holds the record, or finds out that it does not.
                        pending::<()>().await;
                    }
                    return LeaseLoss::Unconfirmed;
                }
            }
        }
    }
}

impl Drop for Heartbeat {
    fn drop(&mut self) {
        self.stop();
    }
}

struct Beats {
    engine: Arc<Inner>,
    subject: Subject,
    policy: Policy,
    token: ClaimToken,
    sender: watch::Sender<LeaseState>,
    work_ended: Arc<AtomicBool>,
}

impl Beats {
    async fn run(self, claimed: Instant) {
        let interval = self.policy.heartbeat_interval();
        let ends = self.policy.max_execution.map(|limit| claimed + limit.as_duration());
        let mut due = claimed + interval;
        let mut outage: Option<Outage> = None;
        loop {
            if let Some(ends) = ends.filter(|ends| due >= *ends) {
                sleep_until(ends).await;
                if !self.work_ended.load(Ordering::Acquire) {
                    return;
                }
            }
            sleep_until(due).await;
            let sent = Instant::now();
            // A renewal that hangs must not keep the next one from being tried.
            let deadline = sent + interval.min(self.policy.call_deadline()).max(Duration::from_millis(1));
            let renew = Renew::new(self.token, self.policy.lease);
            match call(deadline, self.engine.name(), self.engine.store.renew(&self.subject.key, &renew)).await {
                Ok(RenewOutcome::Renewed { lease_left }) => {
                    outage = None;
                    self.sender.send_modify(|state| *state = LeaseState::Held { until: later(sent, lease_left) });
                    due = sent + interval;
                }
                // The guard's own completion came first.
                Ok(RenewOutcome::Completed) => return,
                Ok(RenewOutcome::Fenced) => {
                    self.sender.send_modify(|state| *state = LeaseState::Lost);
                    self.engine.emit(EventKind::LeaseLost, &self.subject, None, None);
                    return;
                }
                Err(error) => {
                    let outage = outage.get_or_insert_with(|| {
                        self.engine.emit(EventKind::StorageError, &self.subject, self.lease_left(), Some(&error));
                        Outage::new(interval)
                    });
                    due = Instant::now() + outage.retry.next_delay();
                    if !outage.told_unconfirmed && self.lease_left() == Some(Duration::ZERO) {
                        outage.told_unconfirmed = true;
                        self.engine.emit(
                            EventKind::LeaseUnconfirmed,
                            &self.subject,
                            Some(Duration::ZERO),
                            Some(&error),
                        );
                    }
                }
            }
        }
    }

    fn lease_left(&self) -> Option<Duration> {
        match *self.sender.borrow() {
            LeaseState::Held { until } => Some(until.saturating_duration_since(Instant::now())),
            LeaseState::Lost => None,
        }
    }
}

/// Renewals that fail one after the other: told of once each, and tried on.
struct Outage {
    retry: Backoff,
    told_unconfirmed: bool,
}

impl Outage {
    fn new(interval: Duration) -> Self {
        let longest = interval.clamp(Duration::from_millis(1), Duration::from_secs(1));
        Self { retry: Backoff::new(longest / 8, longest), told_unconfirmed: false }
    }
}

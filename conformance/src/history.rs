//! Linearizability: whether what happened at once could have happened one after the other.
//!
//! Requests to one key are sent at the same time, and each is noted with when it was sent and when it was answered. The
//! answers are right if there is an order in which the rules give them, and in which no request comes before one that
//! was answered before it was sent. The search is Wing and Gong's, with Lowe's memory of the states that led nowhere.
//! The rules' clock stands still meanwhile: every lease in such a history is over when it begins, or outlives it.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use idemkit_core::{EffectiveKey, Record};
use tokio::{
    sync::Barrier,
    task::{JoinSet, yield_now},
};

use crate::{
    case::{Checked, Handle, Stop, check},
    model::{Model, Op, Reply},
};

/// The most requests that a history may have: the search may look at every subset of those under way at once.
const REQUESTS_MAX: usize = 24;

/// A request with its answer, and the two places in the history where it began and ended.
#[derive(Clone, Debug)]
pub(crate) struct Event {
    pub(crate) op: Op,
    pub(crate) reply: Reply,
    pub(crate) sent: u64,
    pub(crate) answered: u64,
}

/// Sends all requests at the same instant, each on its handle, and notes what was answered when.
pub(crate) async fn at_once(key: EffectiveKey, requests: Vec<(Handle, Op)>) -> Checked<Vec<Event>> {
    let (clock, start) = (Arc::new(AtomicU64::new(0)), Arc::new(Barrier::new(requests.len())));
    let mut tasks = JoinSet::new();
    for (index, (handle, op)) in requests.into_iter().enumerate() {
        let (clock, start) = (Arc::clone(&clock), Arc::clone(&start));
        tasks.spawn(async move {
            start.wait().await;
            // Some a few steps later than others: what one of them has begun, another meets half-way.
            for _ in 0..index % 4 {
                yield_now().await;
            }
            let sent = clock.fetch_add(1, Ordering::SeqCst);
            let reply = handle.send(&key, &op).await.without_times();
            Event { op, reply, sent, answered: clock.fetch_add(1, Ordering::SeqCst) }
        });
    }
    let mut events = vec![];
    while let Some(event) = tasks.join_next().await {
        events.push(event.map_err(|error| Stop::Failed(format!("the store panicked: {error}")))?);
    }
    events.sort_by_key(|event| event.sent);
    Ok(events)
}

/// Fails unless the history can be explained by the rules, beginning with `model`.
pub(crate) fn check_history(model: &Model, events: &[Event]) -> Checked {
    check(is_linearizable(model, events), || {
        let lines: Vec<String> = events
            .iter()
            .map(|event| format!("\n      [{}, {}] {:?} → {:?}", event.sent, event.answered, event.op, event.reply))
            .collect();
        format!(
            "no order of these requests, which ran at once on {:?}, gives these answers:{}",
            model.record,
            lines.concat()
        )
    })
}

/// Whether there is such an order.
pub(crate) fn is_linearizable(model: &Model, events: &[Event]) -> bool {
    events.len() <= REQUESTS_MAX && search(model.clone(), events, 0, &mut HashMap::new())
}

/// Depth first; `done` has a bit for each request that has taken effect.
fn search(model: Model, events: &[Event], done: u32, dead_ends: &mut HashMap<u32, Vec<Option<Record>>>) -> bool {
    let pending = || events.iter().enumerate().filter(|(index, _)| done & 1 << index == 0);
    // What was sent after another's answer comes after it.
    let Some(first_answer) = pending().map(|(_, event)| event.answered).min() else { return true };
    if dead_ends.get(&done).is_some_and(|records| records.contains(&model.record)) {
        return false;
    }
    for (index, event) in pending().filter(|(_, event)| event.sent < first_answer) {
        let mut next = model.clone();
        if next.apply(&event.op) == event.reply && search(next, events, done | 1 << index, dead_ends) {
            return true;
        }
    }
    dead_ends.entry(done).or_default().push(model.record);
    false
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use idemkit_core::{
        Acquired, Claim, ClaimKind, ClaimOutcome, ClaimToken, Fingerprint, InFlight, Release, ReleaseOutcome, Ttl,
    };

    use super::*;

    fn claim(actor: u8) -> Op {
        let lease = Ttl::new(Duration::from_secs(60)).unwrap();
        Op::Claim(Claim::new(ClaimToken::from_bytes([actor; 16]), Fingerprint::of_payload("x"), lease))
    }

    fn acquired() -> Reply {
        Reply::Claim(ClaimOutcome::Acquired(Acquired {
            kind: ClaimKind::Fresh,
            attempt: 1,
            lease_left: Duration::ZERO,
        }))
    }

    fn in_flight() -> Reply {
        let fingerprint = Fingerprint::of_payload("x");
        Reply::Claim(ClaimOutcome::InFlight(InFlight { fingerprint, attempt: 1, lease_left: Duration::ZERO }))
    }

    fn event(op: Op, reply: Reply, sent: u64, answered: u64) -> Event {
        Event { op, reply, sent, answered }
    }

    fn explained(events: &[Event]) -> bool {
        is_linearizable(&Model::new(Duration::ZERO), events)
    }

    #[test]
    fn one_winner_of_two_is_an_order_and_two_are_none() {
        assert!(explained(&[event(claim(1), in_flight(), 0, 3), event(claim(2), acquired(), 1, 2)]));
        assert!(!explained(&[event(claim(1), acquired(), 0, 3), event(claim(2), acquired(), 1, 2)]));
        assert!(!explained(&[event(claim(1), in_flight(), 0, 3), event(claim(2), in_flight(), 1, 2)]));
    }

    #[test]
    fn an_answer_that_came_first_counts_first() {
        // The same answers, but the loser was answered before the winner was sent.
        assert!(!explained(&[event(claim(1), in_flight(), 0, 1), event(claim(2), acquired(), 2, 3)]));
    }

    #[test]
    fn a_release_between_two_claims_explains_two_winners() {
        let release = Op::Release(Release::new(ClaimToken::from_bytes([1; 16])));
        let applied = Reply::Release(ReleaseOutcome::Applied);
        let history = |answered| {
            [
                event(claim(1), acquired(), 0, 1),
                event(release.clone(), applied.clone(), 2, answered),
                event(claim(2), acquired(), 3, 5),
            ]
        };
        assert!(explained(&history(4)));
        let not_held = event(release.clone(), Reply::Release(ReleaseOutcome::NotHeld), 2, 4);
        assert!(!explained(&[event(claim(1), acquired(), 0, 1), not_held, event(claim(2), acquired(), 3, 5)]));
    }
}

//! Waiting for a key. Bounds are generous: what they tell apart is seconds, and a machine may be slow.

use std::time::Duration;

use idemkit_core::{ClaimOutcome, CompletedRecord, EffectiveKey, WaitOutcome};
use tokio::{
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::ROUNDS;
use crate::{
    case::{
        Case, Checked, GRAIN, Handle, LONG, SHORT, Stop, chain, check, claim, complete, expect, release, renew, result,
        ttl,
    },
    mirror::{Condition, Mirror},
    model::Reply,
};

/// Longer than any wait here may last, so that one which ends with its time-out is told from one which was right.
const PATIENT: Duration = Duration::from_secs(60);
/// What the polls of a sound store need at most to see a change: a second with its jitter, and as much again for a slow
/// machine.
const SEEN_WITHIN: Duration = Duration::from_secs(4);
/// Half of many waiters must be woken this fast where the store notifies. A store that does not, and polls once a
/// second, has one in four so fast.
const NOTICE_WITHIN: Duration = Duration::from_millis(250);
/// So many that a store which only polls has half of them woken in time once in a million runs.
const NOTICED_KEYS: usize = 64;

/// The record that a wait must have ended with, within `bound`.
fn completed(outcome: WaitOutcome, began: Instant, bound: Duration) -> Checked<CompletedRecord> {
    within(began, bound)?;
    match outcome {
        WaitOutcome::Completed(record) => Ok(record),
        other => Err(Stop::Failed(format!("a wait for a key that was completed ended with {other:?}"))),
    }
}

fn vacant(outcome: &WaitOutcome, began: Instant, bound: Duration) -> Checked {
    within(began, bound)?;
    expect("how a wait for a vacant key ended", &WaitOutcome::Vacant, outcome)
}

fn within(began: Instant, bound: Duration) -> Checked {
    let took = began.elapsed();
    check(took <= bound, || format!("it took {took:?} where {bound:?} are enough"))
}

/// Starts to wait in a task of its own.
fn waiting(tasks: &mut JoinSet<Checked<WaitOutcome>>, handle: &Handle, key: EffectiveKey) {
    let handle = handle.clone();
    tasks.spawn(async move { handle.wait(&key, PATIENT).await });
}

async fn joined(tasks: &mut JoinSet<Checked<WaitOutcome>>) -> Checked<WaitOutcome> {
    match tasks.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(error)) => Err(Stop::Failed(format!("the store panicked: {error}"))),
        None => Err(Stop::Failed("nobody waits".to_owned())),
    }
}

pub(super) async fn wait_for_completed(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Completed).await?;
    for handle in case.handles() {
        let began = Instant::now();
        let record = completed(handle.wait(&key.key, PATIENT).await?, began, SEEN_WITHIN)?;
        expect("the outcome", &result("recorded"), &record.outcome)?;
        expect("the fingerprint", &crate::case::request(), &record.fingerprint)?;
    }
    Ok(())
}

pub(super) async fn wait_for_vacant(case: &Case) -> Checked {
    let mut keys = vec![];
    for condition in [Condition::Absent, Condition::Expired, Condition::Lapsed] {
        let mut key = Mirror::new(case, case.key(format!("{condition:?}")));
        key.prepare(condition).await?;
        keys.push(key);
    }
    case.pass(SHORT).await;
    for key in keys {
        for handle in case.handles() {
            let began = Instant::now();
            vacant(&handle.wait(&key.key, PATIENT).await?, began, SEEN_WITHIN)?;
        }
    }
    Ok(())
}

pub(super) async fn wait_for_garbage(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Garbage).await?;
    let began = Instant::now();
    vacant(&case.b.wait(&key.key, PATIENT).await?, began, SEEN_WITHIN)
}

pub(super) async fn wait_for_newer(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Newer).await?;
    let began = Instant::now();
    match case.b.store.wait(&key.key, ttl(PATIENT)).await {
        Err(error) => {
            within(began, SEEN_WITHIN)?;
            expect("the error's kind", &idemkit_core::StoreErrorKind::CorruptRecord, &error.kind())
        }
        Ok(outcome) => Err(Stop::Failed(format!("a wait for a newer record ended with {outcome:?}"))),
    }
}

pub(super) async fn wait_ends_with_completion(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, LONG)).await;
    let mut tasks = JoinSet::new();
    waiting(&mut tasks, &case.b, key);
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    case.a.send(&key, &complete(token, result("recorded"), LONG)).await;
    let record = completed(joined(&mut tasks).await?, began, SEEN_WITHIN)?;
    expect("the outcome", &result("recorded"), &record.outcome)
}

pub(super) async fn wait_ends_with_release(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, LONG)).await;
    let mut tasks = JoinSet::new();
    waiting(&mut tasks, &case.b, key);
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    case.a.send(&key, &release(token)).await;
    vacant(&joined(&mut tasks).await?, began, SEEN_WITHIN)
}

pub(super) async fn wait_ends_with_the_lease(case: &Case) -> Checked {
    let key = case.key("key");
    let sent = Instant::now();
    case.a.send(&key, &claim(case.token(), SHORT)).await;
    let outcome = case.b.wait(&key, PATIENT).await?;
    let held = sent.elapsed();
    vacant(&outcome, sent, SHORT + case.slack() + SEEN_WITHIN)?;
    check(held + GRAIN >= SHORT, || format!("a lease of {SHORT:?} was told vacant after {held:?}"))
}

pub(super) async fn wait_outlives_a_renewed_lease(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, SHORT)).await;
    let renewal = async {
        sleep(SHORT / 2).await;
        case.a.send(&key, &renew(token, LONG)).await
    };
    let (waited, _) = tokio::join!(case.b.wait(&key, SHORT * 2 + case.slack()), renewal);
    check(matches!(waited, Ok(WaitOutcome::TimedOut { .. })), || {
        format!("a wait for a claim that was renewed ended with {waited:?}")
    })
}

pub(super) async fn wait_times_out(case: &Case) -> Checked {
    let key = case.key("key");
    case.a.send(&key, &claim(case.token(), LONG)).await;
    let (began, length) = (Instant::now(), Duration::from_millis(700));
    let outcome = case.b.wait(&key, length).await?;
    let took = began.elapsed();
    within(began, length + SEEN_WITHIN)?;
    check(took + GRAIN >= length, || format!("a wait of {length:?} timed out after {took:?}"))?;
    let WaitOutcome::TimedOut { lease_left } = outcome else {
        return Err(Stop::Failed(format!("a wait for a live claim ended with {outcome:?}")));
    };
    let most = LONG + case.slack();
    check(lease_left.is_some_and(|left| left <= most), || format!("{lease_left:?} left of a lease of {LONG:?}"))
}

/// Waits for many keys, each of which is completed or released at the same instant as the wait begins, or a few steps
/// later.
async fn wait_against(case: &Case, release_it: bool) -> Checked {
    let mut rounds = JoinSet::new();
    for round in 0..ROUNDS {
        let (key, token, handles) = (case.key(round), case.token(), [case.a.clone(), case.b.clone()]);
        rounds.spawn(async move {
            let held = handles[0].send(&key, &claim(token, LONG)).await;
            check(matches!(held, Reply::Claim(ClaimOutcome::Acquired(_))), || {
                format!("a fresh key was told {held:?}")
            })?;
            let began = Instant::now();
            let change = async {
                for _ in 0..round % 8 {
                    tokio::task::yield_now().await;
                }
                let op = if release_it { release(token) } else { complete(token, result("recorded"), LONG) };
                handles[0].send(&key, &op).await
            };
            // By the handle that changes it, where a notice is likely to be lost in process, or by the other.
            let (waited, _) = tokio::join!(handles[round % 2].wait(&key, PATIENT), change);
            // As long as many seconds at once on a slow machine, and far from the time-out.
            let bound = SEEN_WITHIN * 4;
            if release_it { vacant(&waited?, began, bound) } else { completed(waited?, began, bound).map(drop) }
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.map_err(|error| Stop::Failed(format!("the store panicked: {error}")))??;
    }
    Ok(())
}

pub(super) async fn wait_against_complete(case: &Case) -> Checked {
    wait_against(case, false).await
}

pub(super) async fn wait_against_release(case: &Case) -> Checked {
    wait_against(case, true).await
}

pub(super) async fn wait_is_woken(case: &Case) -> Checked {
    let keys: Vec<_> = (0..NOTICED_KEYS).map(|index| (case.key(index), case.token())).collect();
    let mut waits = JoinSet::new();
    for (key, token) in keys.clone() {
        case.a.send(&key, &claim(token, LONG)).await;
        let handle = case.b.clone();
        waits.spawn(async move {
            let outcome = handle.wait(&key, PATIENT).await;
            (key, outcome, Instant::now())
        });
    }
    // Until each poll has backed off to a second.
    sleep(Duration::from_secs(4)).await;
    let mut done = std::collections::HashMap::new();
    for (index, (key, token)) in keys.into_iter().enumerate() {
        let released = index % 2 == 1;
        let end = if released { release(token) } else { complete(token, result("recorded"), LONG) };
        case.a.send(&key, &end).await;
        done.insert(key, (Instant::now(), released));
        // Spread over a second, in which polls come at any moment.
        sleep(Duration::from_millis(17)).await;
    }
    let mut took = [vec![], vec![]];
    while let Some(wait) = waits.join_next().await {
        let (key, outcome, woken) = wait.map_err(|error| Stop::Failed(format!("the store panicked: {error}")))?;
        let (ended, released) = done[&key];
        let after = woken.saturating_duration_since(ended);
        if released {
            vacant(&outcome?, Instant::now() - after, SEEN_WITHIN)?;
        } else {
            completed(outcome?, Instant::now() - after, SEEN_WITHIN)?;
        }
        took[usize::from(released)].push(after);
    }
    for (mut took, what) in took.into_iter().zip(["completed", "released"]) {
        took.sort_unstable();
        let median = took[took.len() / 2];
        check(!case.capabilities.notifies || median <= NOTICE_WITHIN, || {
            format!(
                "the store says that it notifies, but half of {} waiters took {median:?} or more to wake when the key was {what}",
                took.len()
            )
        })?;
    }
    Ok(())
}

pub(super) async fn wait_of_500(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, LONG)).await;
    let mut tasks = JoinSet::new();
    for index in 0..500 {
        waiting(&mut tasks, case.handles()[index % 2], key);
    }
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    case.a.send(&key, &complete(token, result("recorded"), LONG)).await;
    while !tasks.is_empty() {
        let record = completed(joined(&mut tasks).await?, began, SEEN_WITHIN)?;
        expect("the outcome", &result("recorded"), &record.outcome)?;
    }
    Ok(())
}

pub(super) async fn wait_of_many_for_a_vacant_key(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, LONG)).await;
    let mut tasks = JoinSet::new();
    for index in 0..50 {
        waiting(&mut tasks, case.handles()[index % 2], key);
    }
    sleep(Duration::from_millis(300)).await;
    let began = Instant::now();
    case.a.send(&key, &release(token)).await;
    while !tasks.is_empty() {
        // A store may tell a few of them first, so that not all claim at once.
        vacant(&joined(&mut tasks).await?, began, SEEN_WITHIN * 4)?;
    }
    Ok(())
}

pub(super) async fn wait_dropped(case: &Case) -> Checked {
    let key = case.key("key");
    let token = case.token();
    case.a.send(&key, &claim(token, LONG)).await;
    for index in 0..40 {
        let wait = case.b.store.wait(&key, ttl(PATIENT));
        // Dropped before its first look, during it, and after it.
        let ended = timeout(Duration::from_millis(index % 5), wait).await;
        check(ended.is_err(), || format!("a wait for a live claim ended with {ended:?}"))?;
    }
    let mut tasks = JoinSet::new();
    waiting(&mut tasks, &case.b, key);
    sleep(Duration::from_millis(100)).await;
    let began = Instant::now();
    match case.a.store.complete(&key, &idemkit_core::Complete::new(token, result("recorded"), ttl(LONG))).await {
        Ok(_) => {}
        Err(error) => return Err(Stop::Failed(format!("a completion failed: {}", chain(&error)))),
    }
    completed(joined(&mut tasks).await?, began, SEEN_WITHIN).map(drop)
}

//! Requests at the same instant. Each race is run [`ROUNDS`] times, on as many keys.

use std::sync::Arc;

use idemkit_core::{ClaimKind, ClaimOutcome, EffectiveKey, RenewOutcome};
use tokio::{sync::Barrier, task::JoinSet};

use super::{ROUNDS, retransmission::random_op};
use crate::{
    case::{Case, Checked, Handle, LONG, Stop, check, claim, complete, expect, release, renew, request, result},
    history::{at_once, check_history},
    mirror::{Condition, Mirror},
    model::{Op, Reply},
};

/// How many claim a vacant key at once.
const CLAIMERS: usize = 200;
/// How many claim a record that does not decode.
const GARBAGE_CLAIMERS: usize = 50;

pub(super) async fn fresh_key_has_one_winner(case: &Case) -> Checked {
    one_winner(case, Condition::Absent, CLAIMERS, (ClaimKind::Fresh, 1)).await
}

pub(super) async fn lapsed_key_has_one_winner(case: &Case) -> Checked {
    one_winner(case, Condition::Lapsed, CLAIMERS, (ClaimKind::Reclaimed, 2)).await
}

pub(super) async fn expired_key_has_one_winner(case: &Case) -> Checked {
    one_winner(case, Condition::Expired, CLAIMERS, (ClaimKind::Fresh, 1)).await
}

pub(super) async fn garbage_has_one_winner(case: &Case) -> Checked {
    one_winner(case, Condition::Garbage, GARBAGE_CLAIMERS, (ClaimKind::Recovered, 1)).await
}

async fn one_winner(case: &Case, condition: Condition, claimers: usize, expected: (ClaimKind, u32)) -> Checked {
    for key in prepared(case, |_| condition).await? {
        let (kind, attempt, token) = winner_of(case, key.key, claimers).await?;
        expect("how the winner came by the claim, and its attempt", &expected, &(kind, attempt))?;
        // The record is the winner's, and not that of a claim which was told that it lost.
        let renewed = case.a.send(&key.key, &renew(token, LONG)).await;
        check(matches!(renewed, Reply::Renew(RenewOutcome::Renewed { .. })), || {
            format!("the only winner does not hold the claim: its renewal is told {renewed:?}")
        })?;
    }
    Ok(())
}

/// Claims `key` many times at once. Exactly one claim may be acquired, and each other must be in flight behind it.
async fn winner_of(
    case: &Case,
    key: EffectiveKey,
    claimers: usize,
) -> Checked<(ClaimKind, u32, idemkit_core::ClaimToken)> {
    let start = Arc::new(Barrier::new(claimers));
    let mut claims = JoinSet::new();
    for index in 0..claimers {
        let (handle, token, start) = (case.handles()[index % 2].clone(), case.token(), Arc::clone(&start));
        claims.spawn(async move {
            start.wait().await;
            (token, handle.send(&key, &claim(token, LONG)).await)
        });
    }
    let (mut winners, mut in_flight) = (vec![], vec![]);
    while let Some(answer) = claims.join_next().await {
        match answer.map_err(|error| Stop::Failed(format!("the store panicked: {error}")))? {
            (token, Reply::Claim(ClaimOutcome::Acquired(won))) => winners.push((won.kind, won.attempt, token)),
            (_, Reply::Claim(ClaimOutcome::InFlight(held))) => in_flight.push((held.fingerprint, held.attempt)),
            (_, other) => return Err(Stop::Failed(format!("one of {claimers} claims at once was told {other:?}"))),
        }
    }
    let [winner] = winners[..] else {
        return Err(Stop::Failed(format!("{} winners of {claimers} claims at once", winners.len())));
    };
    check(in_flight.iter().all(|held| *held == (request(), winner.1)), || {
        "a loser was told another fingerprint or attempt than the winner's".to_owned()
    })?;
    Ok(winner)
}

/// A key for each round, in its condition.
async fn prepared<'c>(case: &'c Case, condition: impl Fn(usize) -> Condition) -> Checked<Vec<Mirror<'c>>> {
    let mut keys = vec![];
    for round in 0..ROUNDS {
        let mut key = Mirror::new(case, case.key(round));
        key.prepare(condition(round)).await?;
        keys.push(key);
    }
    if (0..ROUNDS).any(|round| matches!(condition(round), Condition::Lapsed | Condition::Expired)) {
        case.pass(crate::case::SHORT).await;
        keys.iter_mut().for_each(Mirror::has_passed);
    }
    Ok(keys)
}

/// Runs the requests that `requests` makes for a key at once, in each round, and explains the answers by the rules.
async fn rounds(
    case: &Case,
    condition: impl Fn(usize) -> Condition,
    requests: impl Fn(&Mirror<'_>, usize) -> Vec<Op>,
) -> Checked {
    for (round, key) in prepared(case, condition).await?.into_iter().enumerate() {
        let mut ops = requests(&key, round);
        fastrand::Rng::with_seed(round as u64).shuffle(&mut ops);
        let requests: Vec<(Handle, Op)> =
            ops.into_iter().enumerate().map(|(index, op)| (case.handles()[index % 2].clone(), op)).collect();
        let mut events = at_once(key.key, requests).await?;
        // What is left when all have answered is part of the history.
        events.extend(afterwards(case, &key, events.len() as u64 * 2).await?);
        check_history(&key.model, &events)?;
    }
    Ok(())
}

/// One more claim and a completion by the first holder, each after all that went before.
async fn afterwards(case: &Case, key: &Mirror<'_>, mut now: u64) -> Checked<Vec<crate::history::Event>> {
    let mut events = vec![];
    for op in [claim(case.token(), LONG), complete(key.holder, result("afterwards"), LONG)] {
        let reply = case.a.send(&key.key, &op).await.without_times();
        events.push(crate::history::Event { op, reply, sent: now, answered: now + 1 });
        now += 2;
    }
    Ok(events)
}

pub(super) async fn claim_against_release(case: &Case) -> Checked {
    rounds(case, live_or_lapsed, |key, _| with_claims(case, [release(key.holder)])).await
}

pub(super) async fn claim_against_renew(case: &Case) -> Checked {
    rounds(case, live_or_lapsed, |key, _| with_claims(case, [renew(key.holder, LONG)])).await
}

pub(super) async fn claim_against_complete(case: &Case) -> Checked {
    rounds(case, live_or_lapsed, |key, _| with_claims(case, [complete(key.holder, result("late"), LONG)])).await
}

/// A holder that is alive, and one that others may take over from while it acts.
fn live_or_lapsed(round: usize) -> Condition {
    if round.is_multiple_of(4) { Condition::Live } else { Condition::Lapsed }
}

fn with_claims(case: &Case, ops: impl IntoIterator<Item = Op>) -> Vec<Op> {
    let claims = (0..5).map(|_| claim(case.token(), LONG));
    claims.chain(ops).collect()
}

pub(super) async fn completions_at_once(case: &Case) -> Checked {
    let completions = |key: &Mirror<'_>, _| {
        let completion = |body: u8| complete(key.holder, result(vec![body]), LONG);
        // The claims see what is kept, and none may see another result than the others.
        with_claims(case, (0..6).map(completion))
    };
    rounds(case, |_| Condition::Live, completions).await
}

pub(super) async fn random_histories(case: &Case) -> Checked {
    let requests = |key: &Mirror<'_>, round: usize| {
        let mut random = fastrand::Rng::with_seed(round as u64);
        let tokens = [key.holder, case.token(), case.token()];
        (0..10).map(|_| random_op(&mut random, &tokens)).collect()
    };
    rounds(case, |round| Condition::READABLE[round % Condition::READABLE.len()], requests).await
}

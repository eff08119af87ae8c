//! Keys, namespaces and callers that must not disturb each other.

use std::{future::Future, time::Duration};

use idemkit_core::{ClaimOutcome, ClaimToken, EffectiveKey, Fingerprint};
use tokio::{
    task::{JoinSet, yield_now},
    time::timeout,
};

use crate::{
    case::{Case, Checked, LONG, Stop, check, claim, claim_for, complete, release, renew, request, result},
    mirror::{Condition, Mirror},
    model::{Op, Reply},
};

pub(super) async fn namespaces_do_not_meet(case: &Case) -> Checked {
    let (elsewhere, namespace) = case.open_elsewhere("c (another namespace)").await?;
    let name = case.key("key");
    let (mut here, mut there) = (Mirror::new(case, name), Mirror::new(case, name));
    let (mine, theirs) = (here.holder, there.holder);
    here.step(&case.a, claim(mine, LONG)).await?;
    there.step(&elsewhere, claim(theirs, LONG)).await?;
    // Each is fenced by the other's record, as if it were not there.
    there.step(&elsewhere, complete(mine, result("mine"), LONG)).await?;
    here.step(&case.b, release(theirs)).await?;
    here.step(&case.a, complete(mine, result("mine"), LONG)).await?;
    there.step(&elsewhere, claim(case.token(), LONG)).await?;
    there.step(&elsewhere, release(theirs)).await?;
    here.step(&case.b, claim(case.token(), LONG)).await?;
    case.clean_up(&namespace).await?;
    // Cleaning one up does not touch the other either.
    here.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn keys_do_not_meet(case: &Case) -> Checked {
    const KEYS: usize = 1_000;
    let keys: Vec<(EffectiveKey, _)> = (0..KEYS).map(|index| (case.key(index), case.token())).collect();
    for chunk in keys.chunks(50) {
        let mut tasks = JoinSet::new();
        for (index, (key, token)) in chunk.iter().copied().enumerate() {
            let handle = case.handles()[index % 2].clone();
            tasks.spawn(async move {
                handle.send(&key, &claim(token, LONG)).await;
                handle.send(&key, &complete(token, result(key.to_string()), LONG)).await;
            });
        }
        while tasks.join_next().await.is_some() {}
    }
    for (key, _) in keys {
        let Reply::Claim(ClaimOutcome::Completed(record)) = case.b.send(&key, &claim(case.token(), LONG)).await else {
            return Err(Stop::Failed("a completed key was not told as completed".to_owned()));
        };
        check(record.outcome == result(key.to_string()), || "a key has another key's result".to_owned())?;
    }
    Ok(())
}

/// The bytes, and then so many others of which each differs from them by one bit in one byte.
fn one_bit_apart<const N: usize>(bytes: [u8; N]) -> impl Iterator<Item = [u8; N]> {
    let others = (0..N).map(move |index| {
        let mut other = bytes;
        other[index] ^= 1 << (index % 8);
        other
    });
    std::iter::once(bytes).chain(others)
}

pub(super) async fn keys_differ_in_every_byte(case: &Case) -> Checked {
    for bytes in one_bit_apart(*case.key("key").as_bytes()) {
        let mut key = Mirror::new(case, EffectiveKey::from_bytes(bytes));
        let holder = key.holder;
        key.step(&case.a, claim(holder, LONG)).await?;
        key.step(&case.b, claim(case.token(), LONG)).await?;
    }
    Ok(())
}

pub(super) async fn tokens_differ_in_every_byte(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let holder = key.holder;
    key.step(a, claim(holder, LONG)).await?;
    for other in one_bit_apart(*holder.as_bytes()).skip(1).map(ClaimToken::from_bytes) {
        key.step(b, claim(other, LONG)).await?;
        key.step(b, renew(other, LONG)).await?;
        key.step(b, complete(other, result("another's"), LONG)).await?;
        key.step(b, release(other)).await?;
    }
    key.step(a, complete(holder, result("done"), LONG)).await?;
    for other in one_bit_apart(*holder.as_bytes()).skip(1).map(ClaimToken::from_bytes) {
        key.step(b, renew(other, LONG)).await?;
        key.step(b, complete(other, result("another's"), LONG)).await?;
    }
    key.step(a, complete(holder, result("again"), LONG)).await?;
    Ok(())
}

pub(super) async fn fingerprints_differ_in_every_byte(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    key.pass().await;
    let (version, hash) = (request().version(), *request().hash());
    let others = one_bit_apart(hash).skip(1).map(|hash| Fingerprint::from_stored(version, hash));
    // That of a keyed hash is another's, though each of the two is known.
    for other in others.chain([Fingerprint::from_stored(version + 1, hash)]) {
        key.step(&case.b, claim_for(case.token(), other, LONG)).await?;
    }
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

/// Lets a request begin and drops it, at another moment in each round: after so many steps, or after so long.
async fn drop_half_way(round: usize, request: impl Future<Output = Reply>) {
    let steps = async {
        for _ in 0..round / 2 {
            yield_now().await;
        }
    };
    if round.is_multiple_of(2) {
        tokio::select! {
            biased;
            () = steps => {}
            _ = request => {}
        }
    } else {
        // Not an error if it was faster.
        let _ = timeout(Duration::from_micros(100 * round as u64), request).await;
    }
}

const DROPS: usize = 40;

/// Drops `op` half-way, sends it again, and then has the key completed: whether the first one was applied may not show.
async fn dropped(
    case: &Case,
    condition: Condition,
    op: impl Fn(&Mirror<'_>) -> Op,
    again: impl Fn(&Reply) -> bool,
) -> Checked {
    for round in 0..DROPS {
        let mut key = Mirror::new(case, case.key(round));
        key.prepare(condition).await?;
        let op = op(&key);
        drop_half_way(round, case.a.send(&key.key, &op)).await;
        let reply = case.a.send(&key.key, &op).await;
        check(again(&reply), || format!("dropped half-way and sent again, {op:?} was told {reply:?}"))?;
    }
    // The handle is as good as new.
    let mut key = Mirror::new(case, case.key("afterwards"));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    key.step(&case.a, complete(token, result("done"), LONG)).await?;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn dropped_claim(case: &Case) -> Checked {
    let again = |reply: &Reply| matches!(reply, Reply::Claim(ClaimOutcome::Acquired(won)) if won.attempt == 1);
    dropped(case, Condition::Absent, |key| claim(key.holder, LONG), again).await
}

pub(super) async fn dropped_complete(case: &Case) -> Checked {
    let again = |reply: &Reply| *reply == Reply::Complete(idemkit_core::CompleteOutcome::Applied);
    dropped(case, Condition::Live, |key| complete(key.holder, result("done"), LONG), again).await
}

pub(super) async fn dropped_renew(case: &Case) -> Checked {
    let again = |reply: &Reply| matches!(reply, Reply::Renew(idemkit_core::RenewOutcome::Renewed { .. }));
    dropped(case, Condition::Live, |key| renew(key.holder, LONG), again).await
}

pub(super) async fn dropped_release(case: &Case) -> Checked {
    let again = |reply: &Reply| matches!(reply, Reply::Release(_));
    dropped(case, Condition::Live, |key| release(key.holder), again).await?;
    // Whichever of the two took effect, the key is free.
    let mut key = Mirror::new(case, case.key(DROPS - 1));
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

//! The same request again: networks lose acknowledgements, and drivers retry by themselves.

use std::time::Duration;

use idemkit_core::ClaimToken;

use crate::{
    case::{
        Case, Checked, LONG, SHORT, Stop, claim, claim_for, complete, other_request, release, renew, request, result,
    },
    mirror::{Condition, Mirror},
    model::Op,
};

pub(super) async fn retransmitted_claim(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("short"));
    let token = case.token();
    key.step(a, claim(token, SHORT)).await?;
    // By the same host, as it is in life.
    key.step(a, claim(token, LONG)).await?;
    key.pass().await;
    // The longer lease was not taken on: the first one has lapsed.
    key.step(b, claim(case.token(), LONG)).await?;

    let mut key = Mirror::new(case, case.key("long"));
    let token = case.token();
    key.step(a, claim(token, LONG)).await?;
    key.step(a, claim(token, SHORT)).await?;
    key.pass().await;
    key.step(b, claim(case.token(), LONG)).await?;
    key.step(a, complete(token, result("done"), LONG)).await?;
    Ok(())
}

pub(super) async fn retransmitted_take_over(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    key.pass().await;
    let token = case.token();
    for handle in [a, b, a] {
        key.step(handle, claim(token, LONG)).await?;
    }
    key.step(b, complete(token, result("done"), LONG)).await?;
    Ok(())
}

pub(super) async fn retransmitted_complete(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let token = case.token();
    key.step(a, claim(token, LONG)).await?;
    for (handle, body) in [(a, "first"), (a, "first"), (b, "second")] {
        key.step(handle, complete(token, result(body), LONG)).await?;
    }
    key.step(b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn retransmitted_release(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let (token, next) = (case.token(), case.token());
    key.step(a, claim(token, LONG)).await?;
    key.step(a, release(token)).await?;
    key.step(b, release(token)).await?;
    key.step(b, claim(next, LONG)).await?;
    key.step(a, release(token)).await?;
    key.step(b, complete(next, result("done"), LONG)).await?;
    Ok(())
}

/// Keys with a sequence each; what a sequence reaches depends on its seed, and the seed is in the failure.
pub(super) async fn random_sequences(case: &Case) -> Checked {
    const SEQUENCES: u64 = 64;
    const REQUESTS: usize = 24;
    for seed in 0..SEQUENCES {
        let mut random = fastrand::Rng::with_seed(seed);
        let mut key = Mirror::new(case, case.key(seed));
        let tokens = [case.token(), case.token(), case.token()];
        for _ in 0..REQUESTS {
            let handle = case.handles()[random.usize(..2)];
            let op = random_op(&mut random, &tokens);
            key.step(handle, op).await.map_err(|stop| match stop {
                Stop::Failed(seen) => Stop::Failed(format!("with seed {seed}: {seen}")),
                other => other,
            })?;
        }
    }
    Ok(())
}

/// A request whose lease or expiry outlives the run.
pub(super) fn random_op(random: &mut fastrand::Rng, tokens: &[ClaimToken]) -> Op {
    let token = tokens[random.usize(..tokens.len())];
    let lease = LONG + Duration::from_secs(random.u64(..60));
    let fingerprint = if random.u8(..4) == 0 { other_request() } else { request() };
    match random.u8(..8) {
        0..=3 => claim_for(token, fingerprint, lease),
        4 => complete(token, result(vec![random.u8(..)]), lease),
        5 => renew(token, lease),
        _ => release(token),
    }
}

//! Whose clock decides. A store that declares one clock and goes by another fails here by name.

use std::time::Duration;

use idemkit_core::{ClaimKind, DecidingClock};

use super::lease::never_early;
use crate::{
    case::{Case, Checked, HOUR, Handle, SHORT, claim, complete, not_applicable, release, renew, result},
    mirror::Mirror,
    model::{Op, Reply},
};

/// A lease that a host whose clock is wrong takes for over, and that outlives the vector.
const LEASE: Duration = Duration::from_secs(60);

fn skew_bound(case: &Case) -> Option<Duration> {
    match case.capabilities.clock {
        DecidingClock::Client { skew_bound } => Some(skew_bound),
        _ => None,
    }
}

pub(super) async fn an_hour_ahead(case: &Case) -> Checked {
    if skew_bound(case).is_some() {
        return not_applicable("the client's clock decides: `skew_beyond_the_bound` shows what an hour does");
    }
    agrees(case, &case.open_ahead("c (an hour ahead)", HOUR).await?).await
}

pub(super) async fn an_hour_behind(case: &Case) -> Checked {
    if skew_bound(case).is_some() {
        return not_applicable("the client's clock decides: `skew_beyond_the_bound` shows what an hour does");
    }
    agrees(case, &case.open_behind("c (an hour behind)", HOUR).await?).await
}

pub(super) async fn skew_within_the_bound(case: &Case) -> Checked {
    match skew_bound(case) {
        None => not_applicable("the client's clock does not decide"),
        Some(Duration::ZERO) => not_applicable("the declared skew bound is zero: no skew is harmless"),
        Some(bound) => {
            // One ahead of the right one by the bound, and one behind it.
            let ahead = case.open_ahead("c (ahead by the bound)", bound).await?;
            let behind = case.open_behind("d (behind by the bound)", bound).await?;
            agrees(case, &ahead).await?;
            agrees(case, &behind).await?;
            never_early(case, &case.a, &ahead).await?;
            never_early(case, &behind, &case.a).await
        }
    }
}

/// Whether `wrong` and a host whose clock is right take each other's claims and results for what they are, in both
/// directions.
async fn agrees(case: &Case, wrong: &Handle) -> Checked {
    let right = &case.a;
    for (name, holder, other) in [("right first", right, wrong), ("wrong first", wrong, right)] {
        let key_name = |what: &str| case.key(format!("{name} {} {what}", case.token()));
        // A live claim is in flight to the other; it is renewed, completed, and its result replayed.
        let mut key = Mirror::new(case, key_name("live"));
        let token = key.holder;
        key.step(holder, claim(token, LEASE)).await?;
        key.step(other, claim(case.token(), LEASE)).await?;
        key.step(holder, renew(token, LEASE)).await?;
        key.step(other, claim(case.token(), LEASE)).await?;
        key.step(holder, complete(token, result("done"), LEASE)).await?;
        key.step(other, claim(case.token(), LEASE)).await?;
        key.step(holder, claim(case.token(), LEASE)).await?;
        // A lapsed one is taken over, and an expired result is gone.
        let mut lapsed = Mirror::new(case, key_name("lapsed"));
        let mut expired = Mirror::new(case, key_name("expired"));
        let token = expired.holder;
        expired.step(holder, claim(token, LEASE)).await?;
        expired.step(holder, complete(token, result("done"), SHORT)).await?;
        lapsed.step(holder, claim(case.token(), SHORT)).await?;
        lapsed.pass().await;
        expired.has_passed();
        lapsed.step(other, claim(case.token(), LEASE)).await?;
        expired.step(other, claim(case.token(), LEASE)).await?;
    }
    Ok(())
}

pub(super) async fn skew_beyond_the_bound(case: &Case) -> Checked {
    let skew = skew_bound(case).unwrap_or(Duration::ZERO) + LEASE + Duration::from_secs(30);
    let ahead = case.open_ahead("c (ahead by more than the lease)", skew).await?;
    let (mut key, right) = (Mirror::new(case, case.key("key")), &case.a);
    let (old, taker) = (key.holder, case.token());
    key.step(right, claim(old, LEASE)).await?;
    if skew_bound(case).is_none() {
        // The lack of the caveat: a clock that does not decide takes nothing.
        key.step(&ahead, claim(taker, LEASE)).await?;
        key.step(right, complete(old, result("done"), LEASE)).await?;
        return Ok(());
    }
    // The caveat of a client's clock, as it is documented. The rules say the same of a lease that is over, so the model
    // is told that it is.
    key.model.now = key.model.now.saturating_add(skew);
    let reply = key.step(&ahead, claim(taker, LEASE)).await?;
    crate::case::check(
        matches!(reply, Reply::Claim(idemkit_core::ClaimOutcome::Acquired(won)) if won.kind == ClaimKind::Reclaimed),
        || "the declared caveat was not seen".to_owned(),
    )?;
    // Fencing does not depend on any clock.
    let late: [Op; 3] = [complete(old, result("the loser's"), LEASE), renew(old, LEASE), release(old)];
    for op in late {
        key.step(right, op).await?;
    }
    key.step(&ahead, complete(taker, result("the taker's"), LEASE)).await?;
    Ok(())
}

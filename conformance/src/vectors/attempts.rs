//! Attempts are counted within the life of one claim.

use crate::{
    case::{Case, Checked, INSTANT, LONG, SHORT, claim, complete, release, renew, result},
    mirror::{Condition, Mirror},
};

pub(super) async fn attempts_count_take_overs(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    for taker in [&case.b, &case.a, &case.b] {
        key.pass().await;
        key.step(taker, claim(case.token(), SHORT)).await?;
        // In flight, with the holder's attempt.
        key.step(taker, claim(case.token(), LONG)).await?;
    }
    Ok(())
}

pub(super) async fn attempts_begin_anew(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut released = Mirror::new(case, case.key("released"));
    let mut expired = Mirror::new(case, case.key("expired"));
    released.prepare(Condition::Lapsed).await?;
    expired.prepare(Condition::Lapsed).await?;
    released.pass().await;
    expired.has_passed();

    let taker = case.token();
    released.step(b, claim(taker, LONG)).await?;
    released.step(b, release(taker)).await?;
    released.step(a, claim(case.token(), LONG)).await?;

    expired.step(b, claim(taker, LONG)).await?;
    expired.step(b, complete(taker, result("done"), INSTANT)).await?;
    expired.pass().await;
    expired.step(a, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn own_claim_keeps_its_attempt(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    key.pass().await;
    let taker = case.token();
    key.step(b, claim(taker, SHORT)).await?;
    key.pass().await;
    // Neither a take-over, which would be attempt 3, nor a fresh claim.
    key.step(a, claim(taker, LONG)).await?;
    key.step(b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn attempts_survive_renewal(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    key.pass().await;
    let taker = case.token();
    key.step(b, claim(taker, LONG)).await?;
    key.step(a, renew(taker, LONG)).await?;
    key.step(b, claim(taker, LONG)).await?;
    key.step(a, claim(case.token(), LONG)).await?;
    Ok(())
}

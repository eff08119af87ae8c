//! A holder that was overtaken can do no harm.

use crate::{
    case::{Case, Checked, LONG, SHORT, claim, complete, release, renew, result},
    factory::Spoil,
    mirror::{Condition, Mirror},
};
use idemkit_core::Record;

/// A key that was taken over, the new holder's token, and the old one's in the mirror.
async fn taken_over(case: &Case, lease: std::time::Duration) -> Checked<(Mirror<'_>, idemkit_core::ClaimToken)> {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    key.pass().await;
    let taker = case.token();
    key.step(&case.b, claim(taker, lease)).await?;
    Ok((key, taker))
}

pub(super) async fn fenced_complete(case: &Case) -> Checked {
    let (mut key, taker) = taken_over(case, LONG).await?;
    let [a, b] = case.handles();
    let old = key.holder;
    key.step(a, complete(old, result("the zombie's"), LONG)).await?;
    key.step(b, complete(taker, result("the taker's"), LONG)).await?;
    key.step(a, complete(old, result("the zombie's"), LONG)).await?;
    key.step(a, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn fenced_renew(case: &Case) -> Checked {
    let (mut key, taker) = taken_over(case, SHORT).await?;
    let [a, b] = case.handles();
    let old = key.holder;
    key.step(a, renew(old, LONG)).await?;
    // Had it prolonged the taker's lease, this would be in flight.
    key.pass().await;
    key.step(b, claim(case.token(), LONG)).await?;
    key.step(b, renew(taker, LONG)).await?;
    Ok(())
}

pub(super) async fn fenced_release(case: &Case) -> Checked {
    let (mut key, taker) = taken_over(case, LONG).await?;
    let [a, b] = case.handles();
    let old = key.holder;
    key.step(a, release(old)).await?;
    key.step(a, claim(case.token(), LONG)).await?;
    key.step(b, complete(taker, result("the taker's"), LONG)).await?;
    Ok(())
}

pub(super) async fn fenced_after_release(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let (old, next) = (case.token(), case.token());
    key.step(a, claim(old, LONG)).await?;
    key.step(a, release(old)).await?;
    key.step(b, claim(next, LONG)).await?;
    for op in [renew(old, LONG), complete(old, result("late"), LONG), release(old)] {
        key.step(a, op).await?;
    }
    key.step(b, complete(next, result("done"), LONG)).await?;
    key.step(a, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn fenced_after_recovery(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let (old, next) = (case.token(), case.token());
    key.step(a, claim(old, LONG)).await?;
    case.spoil(&key.key, Spoil::Garbage).await?;
    key.model.record = Some(Record::Garbage);
    key.step(b, claim(next, LONG)).await?;
    for op in [renew(old, LONG), complete(old, result("late"), LONG), release(old)] {
        key.step(a, op).await?;
    }
    // The recovered claim is as good as any: sent again it is its own, and it completes.
    key.step(b, renew(next, LONG)).await?;
    key.step(b, complete(next, result("done"), LONG)).await?;
    key.step(a, claim(case.token(), LONG)).await?;
    Ok(())
}

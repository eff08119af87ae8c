//! When a lease is over, seen from outside: bounds that hold however slow the machine is.
//!
//! The deciding clock sets a lease between the moment before its request was sent and the moment after it was answered.
//! Whoever takes the claim over earlier than one lease after the first of these is early; whoever is refused later than
//! one lease after the second is late.

use std::time::Duration;

use idemkit_core::{Acquired, ClaimOutcome, InFlight, RenewOutcome};
use tokio::time::{Instant, sleep};

use crate::{
    case::{Case, Checked, GRAIN, Handle, LONG, SHORT, Stop, check, claim, complete, renew, result},
    mirror::{Condition, Mirror},
    model::{Op, Reply},
};

/// Between two looks at a lease that is about to end.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// A claim that must be acquired, with when it was sent and answered.
async fn acquire(handle: &Handle, key: &Mirror<'_>, op: Op) -> Checked<(Acquired, Instant, Instant)> {
    let sent = Instant::now();
    match handle.send(&key.key, &op).await {
        Reply::Claim(ClaimOutcome::Acquired(acquired)) => Ok((acquired, sent, Instant::now())),
        other => Err(Stop::Failed(format!("a claim that must be acquired was told {other:?}"))),
    }
}

/// Claims by `taker` until the claim is acquired, and tells when the last refused one was sent, and when the acquired
/// one was answered.
async fn take_over(case: &Case, taker: &Handle, key: &Mirror<'_>) -> Checked<(Option<Instant>, Instant)> {
    let (mut refused, patience) = (None, Instant::now() + SHORT + case.slack() + Duration::from_secs(20));
    loop {
        let sent = Instant::now();
        match taker.send(&key.key, &claim(case.token(), LONG)).await {
            Reply::Claim(ClaimOutcome::Acquired(_)) => return Ok((refused, Instant::now())),
            Reply::Claim(ClaimOutcome::InFlight(_)) if sent < patience => refused = Some(sent),
            other => return Err(Stop::Failed(format!("a claim of a lapsing lease of {SHORT:?} was told {other:?}"))),
        }
        sleep(LOOK_EVERY).await;
    }
}

pub(super) async fn lease_is_never_taken_early(case: &Case) -> Checked {
    never_early(case, &case.a, &case.b).await?;
    never_early(case, &case.b, &case.a).await
}

/// Whether `taker` leaves `holder` its whole lease.
pub(super) async fn never_early(case: &Case, holder: &Handle, taker: &Handle) -> Checked {
    let key = Mirror::new(case, case.key(format!("taken over {:?}", case.token())));
    let (_, sent, _) = acquire(holder, &key, claim(case.token(), SHORT)).await?;
    let (_, taken) = take_over(case, taker, &key).await?;
    let held = taken.duration_since(sent);
    let least = SHORT + case.capabilities.take_over_margin;
    check(held + GRAIN >= least, || format!("a claim was taken over after {held:?}, {least:?} or more expected"))
}

pub(super) async fn lease_is_taken_when_over(case: &Case) -> Checked {
    let key = Mirror::new(case, case.key("key"));
    let (_, _, answered) = acquire(&case.a, &key, claim(case.token(), SHORT)).await?;
    let (refused, _) = take_over(case, &case.b, &key).await?;
    let late = refused.map_or(Duration::ZERO, |refused| refused.saturating_duration_since(answered));
    let latest = SHORT + case.slack();
    check(late <= latest, || {
        format!("a lease of {SHORT:?} was still in flight {late:?} later, at most {latest:?} expected")
    })
}

pub(super) async fn lease_left_is_true(case: &Case) -> Checked {
    let key = Mirror::new(case, case.key("key"));
    let (lease, token) = (Duration::from_secs(60), case.token());
    let (mine, sent, answered) = acquire(&case.a, &key, claim(token, lease)).await?;
    let granted = Span { sent, answered };
    check_left(case, mine.lease_left, lease, granted, granted, Duration::ZERO)?;
    for _ in 0..5 {
        sleep(Duration::from_millis(100)).await;
        let sent = Instant::now();
        let Reply::Claim(ClaimOutcome::InFlight(InFlight { lease_left, .. })) =
            case.b.send(&key.key, &claim(case.token(), lease)).await
        else {
            return Err(Stop::Failed("a claim of a live key was not in flight".to_owned()));
        };
        let asked = Span { sent, answered: Instant::now() };
        check_left(case, lease_left, lease, granted, asked, case.capabilities.take_over_margin)?;
        let (mine, sent, answered) = acquire(&case.b, &key, claim(token, lease)).await?;
        check_left(case, mine.lease_left, lease, granted, Span { sent, answered }, Duration::ZERO)?;
    }
    Ok(())
}

/// A request as its caller's monotonic clock has it.
#[derive(Clone, Copy)]
pub(super) struct Span {
    sent: Instant,
    answered: Instant,
}

/// A claim or a renewal that must be answered as the rules say, which is with a lease: what is left of it, and when it was asked for.
pub(super) async fn granted(handle: &Handle, key: &mut Mirror<'_>, op: Op) -> Checked<(Duration, Span)> {
    let sent = Instant::now();
    let lease_left = match key.step(handle, op).await? {
        Reply::Claim(ClaimOutcome::Acquired(Acquired { lease_left, .. }))
        | Reply::Renew(RenewOutcome::Renewed { lease_left }) => lease_left,
        other => return Err(Stop::Failed(format!("no lease was granted: {other:?}"))),
    };
    Ok((lease_left, Span { sent, answered: Instant::now() }))
}

/// Whether `left` can be what is left, for a request `asked`, of a lease that was granted at some moment within
/// `granted`.
pub(super) fn check_left(
    case: &Case,
    left: Duration,
    lease: Duration,
    granted: Span,
    asked: Span,
    margin: Duration,
) -> Checked {
    let off = case.uncertainty() + GRAIN;
    let most = lease.saturating_sub(asked.sent.saturating_duration_since(granted.answered)) + margin + off;
    let least = (lease + margin).saturating_sub(asked.answered.duration_since(granted.sent) + off + case.estimated());
    check((least..=most).contains(&left), || {
        format!("{left:?} left of a lease of {lease:?}, where {least:?} to {most:?} can be right")
    })
}

pub(super) async fn renewal_prolongs(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let token = case.token();
    key.step(&case.a, claim(token, SHORT)).await?;
    let (lease_left, asked) = granted(&case.b, &mut key, renew(token, LONG)).await?;
    check_left(case, lease_left, LONG, asked, asked, Duration::ZERO)?;
    key.pass().await;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

pub(super) async fn renewal_never_lowers(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let token = case.token();
    let (_, claimed) = granted(&case.a, &mut key, claim(token, LONG)).await?;
    let (lease_left, asked) = granted(&case.b, &mut key, renew(token, SHORT)).await?;
    check_left(case, lease_left, LONG, claimed, asked, Duration::ZERO)?;
    key.pass().await;
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

/// A grace that is over soon.
const GRACE: Duration = Duration::from_millis(500);
/// Whatever reaps may do so by whole seconds, and a little late.
const REAPED_WITHIN: Duration = Duration::from_secs(2);

pub(super) async fn records_outlive_their_first_lease(case: &Case) -> Checked {
    let brief = case.open_with_grace("c (a short grace)", GRACE).await?;
    let names = ["renewed", "completed", "claimed again"];
    let [mut renewed, mut completed, mut again] = names.map(|name| Mirror::new(case, case.key(name)));
    for key in [&mut renewed, &mut completed, &mut again] {
        let holder = key.holder;
        key.step(&brief, claim(holder, SHORT)).await?;
    }
    renewed.step(&brief, renew(renewed.holder, LONG)).await?;
    completed.step(&brief, complete(completed.holder, result("done"), LONG)).await?;
    case.pass(SHORT).await;
    [&mut renewed, &mut completed, &mut again].into_iter().for_each(Mirror::has_passed);
    // It may have been reaped by now, and is fresh either way.
    again.step(&brief, claim(again.holder, LONG)).await?;
    case.pass(GRACE + REAPED_WITHIN).await;
    for key in [&mut renewed, &mut completed, &mut again] {
        key.step(&case.b, claim(case.token(), LONG)).await?;
    }
    Ok(())
}

pub(super) async fn lapsed_claim_is_remembered(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Lapsed).await?;
    case.pass(SHORT + Duration::from_secs(8)).await;
    key.has_passed();
    key.step(&case.b, claim(case.token(), LONG)).await?;
    Ok(())
}

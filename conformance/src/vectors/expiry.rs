//! How long a result is replayed.

use std::time::Duration;

use idemkit_core::{ClaimKind, ClaimOutcome, CompletedRecord, WaitOutcome};
use tokio::time::{Instant, sleep};

use crate::{
    case::{
        Case, Checked, GRAIN, LONG, SHORT, Stop, check, claim, claim_for, complete, other_request, release, renew,
        result,
    },
    mirror::{Condition, Mirror},
    model::Reply,
};

/// How often what takes a machine that is not too slow is tried.
const SLOW_MACHINE_TRIES: u32 = 5;

/// Completes a key with a short expiry, some time after its claim, and returns when the completion was sent and
/// answered.
async fn complete_late(case: &Case, key: &mut Mirror<'_>) -> Checked<(Instant, Instant)> {
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    // An expiry counted from the claim would be half over.
    sleep(SHORT / 2).await;
    let sent = Instant::now();
    key.step(&case.a, complete(token, result("recorded"), SHORT)).await?;
    Ok((sent, Instant::now()))
}

/// Replays the key with everything that reads, until it is fresh again, and checks when that was.
async fn until_fresh(case: &Case, key: &Mirror<'_>, sent: Instant, answered: Instant) -> Checked {
    loop {
        let asked = Instant::now();
        match case.b.send(&key.key, &claim(case.token(), LONG)).await {
            Reply::Claim(ClaimOutcome::Completed(_)) => {}
            Reply::Claim(ClaimOutcome::Acquired(won)) if won.kind == ClaimKind::Fresh && won.attempt == 1 => break,
            other => return Err(Stop::Failed(format!("a claim of a completed key was told {other:?}"))),
        }
        let late = asked.saturating_duration_since(answered);
        let latest = SHORT + case.uncertainty() + Duration::from_millis(50);
        check(late <= latest, || {
            format!("a result with an expiry of {SHORT:?} was replayed {late:?} after its completion")
        })?;
        // Reads of every kind, none of which may prolong it.
        case.a.send(&key.key, &complete(key.holder, result("again"), LONG)).await;
        case.a.send(&key.key, &renew(key.holder, LONG)).await;
        case.b.wait(&key.key, Duration::from_millis(20)).await?;
        sleep(Duration::from_millis(10)).await;
    }
    let kept = sent.elapsed();
    check(kept + GRAIN + case.early() >= SHORT, || {
        format!("a result with an expiry of {SHORT:?} was gone after {kept:?}")
    })
}

pub(super) async fn expiry_counts_from_completion(case: &Case) -> Checked {
    // On a machine that is too busy it may be over before it is asked for: then the whole is done once more.
    for attempt in 0..SLOW_MACHINE_TRIES {
        let mut key = Mirror::new(case, case.key(format!("key {attempt}")));
        let (sent, answered) = complete_late(case, &mut key).await?;
        // Past half its time; from the claim it would be over.
        sleep(SHORT * 6 / 10).await;
        let replay = case.a.send(&key.key, &claim(case.token(), LONG)).await;
        if !matches!(replay, Reply::Claim(ClaimOutcome::Completed(_))) {
            let may_be_over = sent.elapsed() + GRAIN >= SHORT;
            check(may_be_over, || format!("within its expiry, a completed key was told {replay:?}"))?;
            continue;
        }
        // Nobody reads it meanwhile.
        let over = answered + SHORT + case.uncertainty() + Duration::from_millis(50);
        sleep(over.saturating_duration_since(Instant::now())).await;
        key.has_passed();
        key.step(&case.b, claim(case.token(), LONG)).await?;
        return Ok(());
    }
    Err(Stop::Failed(format!("{SLOW_MACHINE_TRIES} times in a row an expiry was over before it could be looked at")))
}

pub(super) async fn reading_does_not_prolong(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let (sent, answered) = complete_late(case, &mut key).await?;
    until_fresh(case, &key, sent, answered).await
}

pub(super) async fn completed_never_changes(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    key.prepare(Condition::Completed).await?;
    let (own, other) = (key.holder, case.token());
    for token in [own, other] {
        for handle in [a, b] {
            let ops = [
                claim(token, SHORT),
                claim_for(token, other_request(), LONG),
                complete(token, result("another"), LONG),
                renew(token, LONG),
                release(token),
            ];
            for op in ops {
                key.step(handle, op).await?;
                key.step(b, claim(case.token(), LONG)).await?;
            }
        }
    }
    Ok(())
}

pub(super) async fn ages_are_true(case: &Case) -> Checked {
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    let sent = Instant::now();
    key.step(&case.a, complete(token, result("recorded"), LONG)).await?;
    let answered = Instant::now();
    for _ in 0..3 {
        sleep(Duration::from_millis(100)).await;
        let asked = Instant::now();
        let Reply::Claim(ClaimOutcome::Completed(claimed)) = case.b.send(&key.key, &claim(case.token(), LONG)).await
        else {
            return Err(Stop::Failed("a claim of a completed key did not get its record".to_owned()));
        };
        check_ages(case, &claimed, asked.duration_since(answered), sent.elapsed())?;
        let asked = Instant::now();
        let WaitOutcome::Completed(waited) = case.a.wait(&key.key, SHORT).await? else {
            return Err(Stop::Failed("a wait for a completed key did not get its record".to_owned()));
        };
        check_ages(case, &waited, asked.duration_since(answered), sent.elapsed())?;
    }
    Ok(())
}

/// Whether the record can be as old as it says, completed with an expiry of [`LONG`] between `least` and `most` ago.
fn check_ages(case: &Case, record: &CompletedRecord, least: Duration, most: Duration) -> Checked {
    let off = case.uncertainty() + GRAIN;
    let (age, expires_in) = (record.age, record.expires_in);
    let most = most + case.estimated();
    check(age + off >= least && age <= most + off, || {
        format!("an age of {age:?}, where {least:?} to {most:?} can be right")
    })?;
    let (least, most) = (LONG.saturating_sub(most + off), LONG.saturating_sub(least) + off);
    check((least..=most).contains(&expires_in), || {
        format!("expires in {expires_in:?}, where {least:?} to {most:?} can be right")
    })
}

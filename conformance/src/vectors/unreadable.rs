//! Records that say more than this build knows.

use idemkit_core::{ClaimOutcome, CompletedRecord, Fingerprint, StoreErrorKind};
use tokio::task::JoinSet;

use crate::{
    case::{Case, Checked, LONG, SHORT, Stop, check, claim, claim_for, complete, expect, renew, result},
    factory::Spoil,
    mirror::Mirror,
    model::Reply,
};

/// A fingerprint of a version that no release of today knows.
fn unknown() -> Fingerprint {
    Fingerprint::from_stored(99, [7; 32])
}

pub(super) async fn unknown_fingerprint_live(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(a, claim_for(token, unknown(), LONG)).await?;
    // Its own holder is told by its token, not by its fingerprint.
    key.step(b, claim_for(token, unknown(), LONG)).await?;
    key.step(b, claim_for(case.token(), unknown(), LONG)).await?;
    key.step(b, claim(case.token(), LONG)).await?;
    key.step(a, renew(token, LONG)).await?;
    key.step(a, complete(token, result("done"), LONG)).await?;
    Ok(())
}

pub(super) async fn unknown_fingerprint_lapsed(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(a, claim_for(token, unknown(), SHORT)).await?;
    key.pass().await;
    key.step(b, claim_for(case.token(), unknown(), LONG)).await?;
    key.step(b, claim(case.token(), LONG)).await?;
    key.step(a, complete(token, result("done"), LONG)).await?;
    Ok(())
}

pub(super) async fn unknown_fingerprint_completed(case: &Case) -> Checked {
    let [a, b] = case.handles();
    let mut key = Mirror::new(case, case.key("key"));
    let token = key.holder;
    key.step(a, claim_for(token, unknown(), LONG)).await?;
    key.step(a, complete(token, result("done"), LONG)).await?;
    for fingerprint in [unknown(), Fingerprint::of_payload("the request")] {
        let reply = key.step(b, claim_for(case.token(), fingerprint, LONG)).await?;
        let Reply::Claim(ClaimOutcome::Completed(CompletedRecord { fingerprint, .. })) = reply else {
            return Err(Stop::Failed(format!("a completed record was told as {reply:?}")));
        };
        check(fingerprint.version() == 99 && !fingerprint.matches(&unknown()), || {
            format!("version {} came back where 99 was stored", fingerprint.version())
        })?;
    }
    Ok(())
}

pub(super) async fn newer_record_stays(case: &Case) -> Checked {
    let key = case.key("key");
    case.spoil(&key, Spoil::NewerSchema).await?;
    let mut claims = JoinSet::new();
    for index in 0..50 {
        let (handle, token) = (case.handles()[index % 2].clone(), case.token());
        claims.spawn(async move { handle.send(&key, &claim(token, LONG)).await });
    }
    while let Some(reply) = claims.join_next().await {
        let reply = reply.map_err(|error| Stop::Failed(format!("the store panicked: {error}")))?;
        expect("a claim of a newer record", &Reply::Error(StoreErrorKind::CorruptRecord), &reply)?;
    }
    Ok(())
}

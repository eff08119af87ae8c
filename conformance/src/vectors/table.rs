//! Every cell of the transition table that is reachable from outside. What is expected is what the rules say, in the
//! cell and after it.

use idemkit_core::{ClaimToken, Fingerprint};

use crate::{
    case::{Case, Checked, LONG, claim_for, complete, other_request, release, renew, request, result},
    mirror::{Condition, Mirror},
    model::Op,
};

#[derive(Clone, Copy)]
enum Who {
    /// The token that is, or was, in the record.
    Own,
    Other,
    OtherRequest,
}

/// One cell: brings a key to `condition`, sends the request, and then asks four more things, which would show what the
/// request has changed and should not have.
async fn cell(case: &Case, condition: Condition, who: Who, op: impl Fn(ClaimToken, Fingerprint) -> Op) -> Checked {
    let mut key = Mirror::new(case, case.key("cell"));
    key.prepare(condition).await?;
    if matches!(condition, Condition::Lapsed | Condition::Expired) {
        key.pass().await;
    }
    let token = if matches!(who, Who::Own) { key.holder } else { case.token() };
    let fingerprint = if matches!(who, Who::OtherRequest) { other_request() } else { request() };
    let [a, b] = case.handles();
    key.step(b, op(token, fingerprint)).await?;
    key.step(a, claim_for(case.token(), other_request(), LONG)).await?;
    key.step(b, claim_for(case.token(), request(), LONG)).await?;
    let holder = key.holder;
    key.step(a, complete(holder, result("later"), LONG)).await?;
    key.step(b, claim_for(case.token(), request(), LONG)).await?;
    Ok(())
}

macro_rules! cells {
    ($($name:ident: $condition:ident, $who:ident, $op:expr;)+) => {
        $(pub(super) async fn $name(case: &Case) -> Checked {
            cell(case, Condition::$condition, Who::$who, $op).await
        })+
    };
}

fn ask_claim(token: ClaimToken, fingerprint: Fingerprint) -> Op {
    claim_for(token, fingerprint, LONG)
}

fn ask_complete(token: ClaimToken, _: Fingerprint) -> Op {
    complete(token, result("from the cell"), LONG)
}

fn ask_renew(token: ClaimToken, _: Fingerprint) -> Op {
    renew(token, LONG)
}

fn ask_release(token: ClaimToken, _: Fingerprint) -> Op {
    release(token)
}

cells! {
    claim_absent: Absent, Other, ask_claim;
    claim_expired: Expired, Other, ask_claim;
    claim_live_own: Live, Own, ask_claim;
    claim_live_other: Live, Other, ask_claim;
    claim_live_other_request: Live, OtherRequest, ask_claim;
    claim_lapsed_own: Lapsed, Own, ask_claim;
    claim_lapsed_same_request: Lapsed, Other, ask_claim;
    claim_lapsed_other_request: Lapsed, OtherRequest, ask_claim;
    claim_completed_own: Completed, Own, ask_claim;
    claim_completed_other: Completed, Other, ask_claim;
    claim_completed_other_request: Completed, OtherRequest, ask_claim;
    claim_garbage: Garbage, Other, ask_claim;
    claim_newer: Newer, Other, ask_claim;
    claim_unknown_encoding: UnknownEncoding, Other, ask_claim;

    complete_absent: Absent, Other, ask_complete;
    complete_expired: Expired, Own, ask_complete;
    complete_live_own: Live, Own, ask_complete;
    complete_live_other: Live, Other, ask_complete;
    complete_lapsed_own: Lapsed, Own, ask_complete;
    complete_lapsed_other: Lapsed, Other, ask_complete;
    complete_completed_own: Completed, Own, ask_complete;
    complete_completed_other: Completed, Other, ask_complete;
    complete_garbage: Garbage, Other, ask_complete;
    complete_newer: Newer, Other, ask_complete;
    complete_unknown_encoding: UnknownEncoding, Other, ask_complete;

    renew_absent: Absent, Other, ask_renew;
    renew_expired: Expired, Own, ask_renew;
    renew_live_own: Live, Own, ask_renew;
    renew_live_other: Live, Other, ask_renew;
    renew_lapsed_own: Lapsed, Own, ask_renew;
    renew_lapsed_other: Lapsed, Other, ask_renew;
    renew_completed_own: Completed, Own, ask_renew;
    renew_completed_other: Completed, Other, ask_renew;
    renew_garbage: Garbage, Other, ask_renew;
    renew_newer: Newer, Other, ask_renew;
    renew_unknown_encoding: UnknownEncoding, Other, ask_renew;

    release_absent: Absent, Other, ask_release;
    release_expired: Expired, Own, ask_release;
    release_live_own: Live, Own, ask_release;
    release_live_other: Live, Other, ask_release;
    release_lapsed_own: Lapsed, Own, ask_release;
    release_lapsed_other: Lapsed, Other, ask_release;
    release_completed_own: Completed, Own, ask_release;
    release_completed_other: Completed, Other, ask_release;
    release_garbage: Garbage, Other, ask_release;
    release_newer: Newer, Other, ask_release;
    release_unknown_encoding: UnknownEncoding, Other, ask_release;
}

//! What is stored comes back, byte for byte.

use bytes::Bytes;
use idemkit_core::{ClaimOutcome, Outcome, StoreErrorKind, StoredResult, WaitOutcome};

use crate::{
    case::{Case, Checked, LONG, Stop, check, claim, complete, not_applicable, request},
    mirror::Mirror,
    model::Reply,
};

const KIB: usize = 1024;
/// Results of a store's own limit are tried up to this size: what is larger proves nothing more and needs the memory
/// several times.
const LIMIT_TRIED_MAX: u64 = 64 * 1024 * 1024;

/// Bytes in which every value occurs, and no stretch is like another.
fn body(len: usize) -> Bytes {
    let mut bytes = vec![0; len];
    fastrand::Rng::with_seed(len as u64).fill(&mut bytes);
    bytes.into()
}

/// Records `outcome` under a key of its own, and reads it back by a claim and by a wait, on the other handle.
async fn comes_back(case: &Case, name: &str, outcome: Outcome) -> Checked {
    let mut key = Mirror::new(case, case.key(name));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    key.step(&case.a, complete(token, outcome.clone(), LONG)).await?;
    let Reply::Claim(ClaimOutcome::Completed(claimed)) = case.b.send(&key.key, &claim(case.token(), LONG)).await else {
        return Err(Stop::Failed(format!("{name}: a completed key was not told as completed")));
    };
    let WaitOutcome::Completed(waited) = case.b.wait(&key.key, LONG).await? else {
        return Err(Stop::Failed(format!("{name}: a wait for a completed key did not get its record")));
    };
    for record in [claimed, waited] {
        same(name, &outcome, &record.outcome)?;
        check(record.fingerprint == request(), || format!("{name}: another fingerprint came back"))?;
    }
    Ok(())
}

/// Says where two outcomes differ, which their `Debug` does not tell.
fn same(name: &str, stored: &Outcome, back: &Outcome) -> Checked {
    let (Some(went_in), Some(came_out)) = (stored.stored(), back.stored()) else {
        return check(stored == back, || format!("{name}: {stored:?} went in, {back:?} came back"));
    };
    check(matches!(stored, Outcome::Result(_)) == matches!(back, Outcome::Result(_)), || {
        format!("{name}: {stored:?} went in, {back:?} came back")
    })?;
    check(went_in.status == came_out.status, || {
        format!("{name}: status {} went in, {} came back", went_in.status, came_out.status)
    })?;
    let headers = |result: &StoredResult| {
        let lines = result.headers.iter().map(|(name, values)| format!("{name}: {values:?}"));
        lines.collect::<Vec<_>>().join("; ")
    };
    check(went_in.headers == came_out.headers, || {
        format!("{name}: headers [{}] went in, [{}] came back", headers(went_in), headers(came_out))
    })?;
    check(went_in.body == came_out.body, || {
        let (sent, got) = (&went_in.body, &came_out.body);
        let differs = sent.iter().zip(got.iter()).position(|(one, other)| one != other);
        let differs = differs.unwrap_or(sent.len().min(got.len()));
        format!(
            "{name}: a body of {} bytes went in, one of {} came back, another from byte {differs} on",
            sent.len(),
            got.len()
        )
    })
}

fn of(body: Bytes) -> Outcome {
    Outcome::Result(StoredResult::new(200, body).with_header("content-type", "application/octet-stream"))
}

pub(super) async fn result_of_0_bytes(case: &Case) -> Checked {
    comes_back(case, "empty", of(Bytes::new())).await
}

pub(super) async fn result_of_1_byte(case: &Case) -> Checked {
    comes_back(case, "nul", of(Bytes::from_static(b"\0"))).await?;
    comes_back(case, "letter", of(Bytes::from_static(b"x"))).await
}

pub(super) async fn result_of_all_byte_values(case: &Case) -> Checked {
    comes_back(case, "up", of((0..=255).collect())).await?;
    comes_back(case, "down", of((0..=255).rev().collect())).await
}

pub(super) async fn result_of_64_kib(case: &Case) -> Checked {
    comes_back(case, "64 KiB", of(body(64 * KIB))).await
}

pub(super) async fn result_of_300_kib(case: &Case) -> Checked {
    let len = 300 * KIB;
    if case.capabilities.result_bytes_max.is_some_and(|max| max < len as u64) {
        return refused(case, len).await.map(drop);
    }
    comes_back(case, "300 KiB", of(body(len))).await
}

/// A completion with a body of `len` bytes, which must be refused as too large, with both sizes, and leave the claim.
/// Returns the size that the store counted.
async fn refused(case: &Case, len: usize) -> Checked<u64> {
    let mut key = Mirror::new(case, case.key(format!("{len} bytes")));
    let token = key.holder;
    let limit = case.capabilities.result_bytes_max.unwrap_or(u64::MAX);
    key.step(&case.a, claim(token, LONG)).await?;
    let reply = case.a.send(&key.key, &complete(token, of(body(len)), LONG)).await;
    let Reply::Error(StoreErrorKind::ResultTooLarge { size, max }) = reply else {
        return Err(Stop::Failed(format!("a body of {len} bytes, where {limit} are the limit, was told {reply:?}")));
    };
    check(max == limit && size > max && size >= len as u64, || {
        format!("sizes {size} and {max} were told for a body of {len} bytes and a limit of {limit}")
    })?;
    // The claim is still there, and still the holder's.
    key.step(&case.b, claim(case.token(), LONG)).await?;
    key.step(&case.a, complete(token, of(body(10)), LONG)).await?;
    Ok(size)
}

/// The length of a body that is one byte over the limit, and how many bytes the store counts beside it.
async fn over_the_limit(case: &Case) -> Checked<(usize, u64)> {
    let Some(max) = case.capabilities.result_bytes_max else {
        return not_applicable("the store declares no limit");
    };
    if max > LIMIT_TRIED_MAX {
        return not_applicable(format!("the store's limit of {max} bytes is too large to be tried"));
    }
    let len = usize::try_from(max + 1).unwrap_or(usize::MAX);
    let beside = refused(case, len).await? - len as u64;
    Ok((len, beside))
}

pub(super) async fn result_at_the_limit(case: &Case) -> Checked {
    let (over, beside) = over_the_limit(case).await?;
    let len = over - 1 - usize::try_from(beside).unwrap_or(usize::MAX).min(over - 1);
    comes_back(case, "at the limit", of(body(len))).await
}

pub(super) async fn result_over_the_limit(case: &Case) -> Checked {
    let (over, beside) = over_the_limit(case).await?;
    // The smallest that is too large.
    refused(case, over - usize::try_from(beside).unwrap_or(usize::MAX).min(over)).await.map(drop)
}

pub(super) async fn statuses(case: &Case) -> Checked {
    for status in [0, 1, 100, 200, 201, 404, 599, 999, i16::MAX as u16, i16::MAX as u16 + 1, u16::MAX] {
        comes_back(case, &format!("status {status}"), Outcome::Result(StoredResult::new(status, "x"))).await?;
    }
    Ok(())
}

pub(super) async fn outcomes(case: &Case) -> Checked {
    let stored = StoredResult::new(402, "no funds").with_header("content-type", "text/plain");
    comes_back(case, "error", Outcome::Error(stored.clone())).await?;
    comes_back(case, "empty error", Outcome::Error(StoredResult::new(0, ""))).await?;
    comes_back(case, "unavailable", Outcome::Unavailable).await?;
    comes_back(case, "result", Outcome::Result(stored)).await
}

pub(super) async fn headers_repeated(case: &Case) -> Checked {
    let result = StoredResult::new(200, "x")
        .with_header("link", "</b>; rel=next")
        .with_header("link", "</a>; rel=prev")
        .with_header("etag", "\"7\"")
        .with_header("link", "</b>; rel=next");
    comes_back(case, "repeated", Outcome::Result(result)).await
}

pub(super) async fn headers_empty(case: &Case) -> Checked {
    comes_back(case, "none", Outcome::Result(StoredResult::new(204, ""))).await?;
    let result =
        StoredResult::new(200, "x").with_header("x-empty", "").with_header("x-two", "").with_header("x-two", "");
    comes_back(case, "without a value", Outcome::Result(result)).await
}

pub(super) async fn headers_non_ascii(case: &Case) -> Checked {
    let all: Bytes = (0..=255).collect();
    let result = StoredResult::new(200, "x")
        .with_header("x-latin", &b"caf\xE9"[..])
        .with_header("x-utf8", "naïve — 漢字")
        .with_header("x-all", all.clone())
        .with_header("x-all", all)
        .with_header("x-nul", &b"a\0b"[..]);
    comes_back(case, "non-ASCII", Outcome::Result(result)).await
}

pub(super) async fn headers_like_expressions(case: &Case) -> Checked {
    let values = [
        "$$ROOT",
        "$claim_token",
        "$5.00",
        "{\"$set\":{}}",
        "'; drop table x; --",
        "#state",
        ":now",
        "%s",
        "null",
        "${x}",
        "\\",
    ];
    let names = ["$where", "a.b.c", "$$now", "x[0]", "__proto__", "_id", "state", "x y", "\"", "ümlaut", "{}"];
    for name in names {
        let result =
            values.iter().fold(StoredResult::new(200, "$$ROOT"), |result, value| result.with_header(name, *value));
        comes_back(case, &format!("header {name:?}"), Outcome::Result(result)).await?;
    }
    Ok(())
}

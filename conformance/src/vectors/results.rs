//! What is stored comes back, byte for byte.

use bytes::Bytes;
use idemkit_core::{ClaimOutcome, CompleteOutcome, EffectiveKey, Outcome, StoreErrorKind, StoredResult, WaitOutcome};

use crate::{
    case::{Case, Checked, LONG, SHORT, Stop, check, claim, complete, expect, not_applicable, request},
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
    reads_back(case, name, &key.key, &outcome).await
}

/// Reads `outcome` back by a claim and by a wait.
async fn reads_back(case: &Case, name: &str, key: &EffectiveKey, outcome: &Outcome) -> Checked {
    let Reply::Claim(ClaimOutcome::Completed(claimed)) = case.b.send(key, &claim(case.token(), LONG)).await else {
        return Err(Stop::Failed(format!("{name}: a completed key was not told as completed")));
    };
    let WaitOutcome::Completed(waited) = case.b.wait(key, LONG).await? else {
        return Err(Stop::Failed(format!("{name}: a wait for a completed key did not get its record")));
    };
    for record in [claimed, waited] {
        same(name, outcome, &record.outcome)?;
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
    comes_back_or_is_refused(case, "300 KiB", of(body(300 * KIB))).await
}

pub(super) async fn result_of_1_mib(case: &Case) -> Checked {
    comes_back_or_is_refused(case, "1 MiB", of(body(1024 * KIB))).await
}

/// What a store counts beside a body is its own: it alone says whether a result is within its limit.
async fn comes_back_or_is_refused(case: &Case, name: &str, outcome: Outcome) -> Checked {
    let mut key = Mirror::new(case, case.key(name));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    match case.a.send(&key.key, &complete(token, outcome.clone(), LONG)).await {
        Reply::Complete(CompleteOutcome::Applied) => reads_back(case, name, &key.key, &outcome).await,
        // A limit that is not declared is none.
        Reply::Error(StoreErrorKind::ResultTooLarge { .. }) if case.capabilities.result_bytes_max.is_some() => {
            refused(case, outcome).await.map(drop)
        }
        told => Err(Stop::Failed(format!("{name}: its completion by the holder was told {told:?}"))),
    }
}

/// A completion that must be refused as too large, with both sizes, and leave the claim as it was. Returns the size that
/// the store counted.
async fn refused(case: &Case, outcome: Outcome) -> Checked<u64> {
    let len = outcome.stored().map_or(0, |stored| stored.body.len());
    let limit = case.capabilities.result_bytes_max.unwrap_or(u64::MAX);
    let names = ["held", "lapses"].map(|what| format!("{what}, {len} bytes, {:?}", case.token()));
    let [mut key, mut lapses] = names.map(|name| Mirror::new(case, case.key(name)));
    let token = key.holder;
    key.step(&case.a, claim(token, LONG)).await?;
    lapses.step(&case.a, claim(lapses.holder, SHORT)).await?;
    case.a.send(&lapses.key, &complete(lapses.holder, outcome.clone(), LONG)).await;
    let reply = case.a.ask(&key.key, &complete(token, outcome, LONG)).await;
    let told = |what: &dyn std::fmt::Debug| {
        Stop::Failed(format!("a body of {len} bytes, where {limit} are the limit, was told {what:?}"))
    };
    let error = reply.map_or_else(Ok, |reply| Err(told(&reply)))?;
    let StoreErrorKind::ResultTooLarge { size, max } = error.kind() else { return Err(told(&error)) };
    check(!error.may_be_applied(), || format!("before any write, and yet: {error}"))?;
    expect("the store that the error names", &case.capabilities.store, &error.store())?;
    check(max == limit && size > max && size >= len as u64, || {
        format!("sizes {size} and {max} were told for a body of {len} bytes and a limit of {limit}")
    })?;
    // The claim is still there, and still the holder's.
    key.step(&case.b, claim(case.token(), LONG)).await?;
    key.step(&case.a, complete(token, of(body(10)), LONG)).await?;
    // And no longer than it was.
    lapses.pass().await;
    lapses.step(&case.b, claim(case.token(), LONG)).await?;
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
    let beside = refused(case, of(body(len))).await? - len as u64;
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
    let len = over - usize::try_from(beside).unwrap_or(usize::MAX).min(over);
    refused(case, of(body(len))).await?;
    refused(case, Outcome::Error(StoredResult::new(500, body(over)))).await.map(drop)
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
    comes_back(case, "long error", Outcome::Error(StoredResult::new(402, body(64 * KIB)))).await?;
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

pub(super) async fn headers_many(case: &Case) -> Checked {
    let many = (0..200).fold(StoredResult::new(200, "x"), |result, index| {
        result.with_header(&format!("x-{index}"), format!("{index}")).with_header("x-same", format!("{index}"))
    });
    comes_back(case, "many", Outcome::Result(many)).await?;
    let long = StoredResult::new(200, "x")
        .with_header(&"n".repeat(1_000), "a long name")
        .with_header("x-long", body(16 * KIB))
        .with_header("x-long", body(8 * KIB));
    comes_back(case, "long", Outcome::Result(long)).await
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
    let names = [
        "$where",
        "a.b.c",
        "$$now",
        "x[0]",
        "__proto__",
        "_id",
        "state",
        "x y",
        "\"",
        "ümlaut",
        "{}",
        "\0",
        "\u{100}",
        "\u{101}\u{100}",
        "\u{10000}",
        "\u{10024}$",
    ];
    for name in names {
        let result =
            values.iter().fold(StoredResult::new(200, "$$ROOT"), |result, value| result.with_header(name, *value));
        comes_back(case, &format!("header {name:?}"), Outcome::Result(result)).await?;
    }
    Ok(())
}

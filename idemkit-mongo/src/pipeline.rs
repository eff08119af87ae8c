//! Commands: conditions, and updates as pipelines by the server's clock. Every value goes in as `$literal`, so that nothing
//! stored is ever read as an expression.

use std::time::Duration;

use idemkit_core::{ATTEMPT_MAX, Claim, ClaimToken};
use mongodb::bson::{Bson, Document, doc};

use crate::document::{
    ATTEMPT, BODY_ENCODING, CLAIM_TOKEN, CLAIMED, CLAIMED_AT, COMPLETED, COMPLETED_AT, EXPIRE_AT, FIELDS, FINGERPRINT,
    FINGERPRINT_VERSION, LEASE_UNTIL, OUTCOME, RESPONSE_BODY, RESPONSE_HEADERS, RESPONSE_STATUS, SCHEMA_VERSION, STATE,
    fingerprint_version,
};

fn literal(value: impl Into<Bson>) -> Bson {
    doc! { "$literal": value.into() }.into()
}

fn field(name: &str) -> String {
    format!("${name}")
}

/// Milliseconds since the epoch by the server's clock, and so much later. In numbers: not every server that speaks this
/// protocol adds to dates.
fn now_and(millis: i64) -> Document {
    doc! { "$add": [{ "$toLong": "$$NOW" }, millis] }
}

fn date_in(millis: i64) -> Document {
    doc! { "$toDate": now_and(millis) }
}

pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos().div_ceil(1_000_000)).unwrap_or(i64::MAX).min(MILLIS_MAX)
}

/// Ten years: what durations are clamped to everywhere.
const MILLIS_MAX: i64 = 3_650 * 24 * 60 * 60 * 1_000;

/// Whether there is no such field. Other languages write null for that.
fn absent(name: &str) -> Document {
    doc! { "$in": [{ "$type": field(name) }, ["missing", "null"]] }
}

/// The whole number that the client reads in a field: `or` where there is none, and -1 where it reads nothing.
fn whole(name: &str, or: i64) -> Document {
    let field = field(name);
    let is_none = doc! { "$or": [
        { "$gte": [&field, 9e15] },
        { "$lte": [&field, -9e15] },
        { "$ne": [{ "$mod": [&field, 1] }, 0] },
    ] };
    doc! { "$switch": {
        "branches": [
            { "case": absent(name), "then": or },
            { "case": { "$in": [{ "$type": &field }, ["int", "long"]] }, "then": &field },
            { "case": { "$ne": [{ "$type": &field }, "double"] }, "then": -1 },
            { "case": is_none, "then": -1 },
        ],
        "default": &field,
    } }
}

fn is(name: &str, value: impl Into<Bson>) -> Document {
    doc! { "$eq": [field(name), literal(value)] }
}

/// Whether the document is a record that the update can decide about: one that the client decodes. What is not stays as it is,
/// for the client to decide; so does a result with headers, whose values only it reads.
fn is_record() -> Document {
    let of_type = |name: &str, of: &str| doc! { "$eq": [{ "$type": field(name) }, of] };
    let hex = |name: &str, digits: u32| {
        let text = doc! { "$cond": [of_type(name, "string"), field(name), ""] };
        doc! { "$regexMatch": { "input": text, "regex": format!("^[0-9a-f]{{{digits}}}\\z") } }
    };
    let at_most = |name: &str, max: u32| {
        doc! { "$and": [{ "$gte": [whole(name, -1), 0] }, { "$lte": [whole(name, -1), i64::from(max)] }] }
    };
    let result = doc! { "$and": [
        { "$or": [absent(OUTCOME), is(OUTCOME, "result"), is(OUTCOME, "error")] },
        at_most(RESPONSE_STATUS, u16::MAX.into()),
        { "$or": [absent(RESPONSE_BODY), of_type(RESPONSE_BODY, "binData")] },
        absent(RESPONSE_HEADERS),
    ] };
    doc! { "$and": [
        { "$eq": [whole(SCHEMA_VERSION, 1), 1] },
        absent(BODY_ENCODING),
        of_type(LEASE_UNTIL, "date"),
        hex(CLAIM_TOKEN, 32),
        hex(FINGERPRINT, 64),
        at_most(FINGERPRINT_VERSION, u32::MAX),
        { "$or": [
            { "$and": [is(STATE, CLAIMED), { "$gte": [whole(ATTEMPT, 1), 1] }] },
            { "$and": [is(STATE, COMPLETED), { "$or": [is(OUTCOME, "unavailable"), result] }] },
        ] },
    ] }
}

/// Claims what is absent, expired, or a lapsed claim of the same request; leaves everything else exactly as it is.
pub(crate) fn claim(request: &Claim, margin: Duration, grace: Duration) -> Vec<Document> {
    let lease = millis(request.lease.as_duration());
    let (margin, kept) = (millis(margin), lease.saturating_add(millis(margin)).saturating_add(millis(grace)));
    // Only asked of records, whose lease ends at a date.
    let over = |later: i64| doc! { "$lte": [{ "$add": [{ "$toLong": field(LEASE_UNTIL) }, later] }, now_and(0)] };
    let token = request.token.to_string();
    let held = doc! {
        STATE: literal(CLAIMED),
        FINGERPRINT: literal(request.fingerprint.to_hex()),
        FINGERPRINT_VERSION: literal(fingerprint_version(&request.fingerprint)),
        CLAIM_TOKEN: literal(token.clone()),
        CLAIMED_AT: "$$NOW",
        LEASE_UNTIL: date_in(lease),
        EXPIRE_AT: date_in(kept),
    };
    let with_attempt = |attempt: Bson| {
        let mut held = held.clone();
        held.insert(ATTEMPT, attempt);
        held
    };
    let fresh = doc! { "$mergeObjects": [{ "_id": "$_id" }, with_attempt(literal(1))] };
    let mut branches = vec![
        // What an upsert begins with.
        doc! { "case": { "$eq": ["$$ROOT", { "_id": "$_id" }] }, "then": fresh.clone() },
        doc! { "case": { "$not": [is_record()] }, "then": "$$ROOT" },
        doc! { "case": { "$and": [is(STATE, COMPLETED), over(0)] }, "then": fresh },
        doc! {
            "case": { "$and": [is(STATE, CLAIMED), is(CLAIM_TOKEN, token), over(0)] },
            "then": { "$mergeObjects": ["$$ROOT", { LEASE_UNTIL: date_in(lease), EXPIRE_AT: date_in(kept) }] },
        },
    ];
    // A version that this release does not know equals nothing, not even itself.
    if request.fingerprint.matches(&request.fingerprint) {
        let attempt = doc! { "$ifNull": [field(ATTEMPT), 1] };
        let next = doc! { "$min": [{ "$add": [attempt, 1] }, i64::from(ATTEMPT_MAX)] };
        branches.push(doc! {
            "case": { "$and": [
                is(STATE, CLAIMED),
                is(FINGERPRINT, request.fingerprint.to_hex()),
                is(FINGERPRINT_VERSION, fingerprint_version(&request.fingerprint)),
                over(margin),
            ] },
            "then": { "$mergeObjects": ["$$ROOT", with_attempt(doc! { "$toInt": next }.into())] },
        });
    }
    vec![doc! { "$replaceWith": { "$switch": { "branches": branches, "default": "$$ROOT" } } }]
}

/// The document of `key`, where it is a record claimed by `token`.
pub(crate) fn held_by(key: &str, token: ClaimToken) -> Document {
    held_where(key, token, is_record())
}

/// The same, where the lease ends before what a renewal asks for.
pub(crate) fn held_for_less(key: &str, token: ClaimToken, lease: Duration) -> Document {
    let ends_before = doc! { "$lt": [{ "$toLong": field(LEASE_UNTIL) }, now_and(millis(lease))] };
    held_where(key, token, doc! { "$cond": [is_record(), ends_before, false] })
}

fn held_where(key: &str, token: ClaimToken, is: Document) -> Document {
    doc! { "_id": key, STATE: { "$eq": CLAIMED }, CLAIM_TOKEN: { "$eq": token.to_string() }, "$expr": is }
}

/// Completes, with the fields of an outcome.
pub(crate) fn complete(outcome: &Document, expires_after: Duration, grace: Duration) -> Vec<Document> {
    let (expires, kept) = (millis(expires_after), millis(expires_after.saturating_add(grace)));
    let mut set = doc! {
        STATE: literal(COMPLETED),
        COMPLETED_AT: "$$NOW",
        LEASE_UNTIL: date_in(expires),
        EXPIRE_AT: date_in(kept),
    };
    for (name, value) in outcome {
        set.insert(name, literal(value.clone()));
    }
    let gone = [OUTCOME, RESPONSE_STATUS, RESPONSE_HEADERS, RESPONSE_BODY].into_iter();
    let gone = gone.filter(|name| !outcome.contains_key(name)).chain([ATTEMPT, CLAIMED_AT]);
    vec![doc! { "$set": set }, doc! { "$unset": gone.map(Bson::from).collect::<Vec<_>>() }]
}

pub(crate) fn renew(lease: Duration, keep: Duration) -> Vec<Document> {
    let kept = millis(lease.saturating_add(keep));
    vec![doc! { "$set": { LEASE_UNTIL: date_in(millis(lease)), EXPIRE_AT: date_in(kept) } }]
}

/// The first write of a transaction: it locks the document, and changes its lease by a millisecond, since a write that
/// changes nothing locks nothing.
pub(crate) fn lock() -> Vec<Document> {
    vec![doc! { "$set": { LEASE_UNTIL: { "$toDate": { "$add": [{ "$toLong": field(LEASE_UNTIL) }, 1] } } } }]
}

/// The document with the server's time.
pub(crate) fn look(key: &str) -> Vec<Document> {
    vec![doc! { "$match": { "_id": key } }, doc! { "$project": { "_id": 0, "doc": "$$ROOT", "now": "$$NOW" } }]
}

/// The document of `key`, where all fields of ours are still as they were seen.
pub(crate) fn as_seen(key: &str, seen: &Document) -> Document {
    let mut filter = doc! { "_id": key };
    for name in FIELDS {
        let condition = match seen.get(name) {
            Some(value) => doc! { "$eq": value.clone(), "$exists": true },
            None => doc! { "$exists": false },
        };
        filter.insert(name, condition);
    }
    filter
}

/// Writes `fields` over what is there; fields that are not ours stay.
pub(crate) fn replace(fields: &Document) -> Vec<Document> {
    let set: Document = fields.iter().map(|(name, value)| (name.clone(), literal(value.clone()))).collect();
    let gone: Vec<Bson> = FIELDS.into_iter().filter(|name| !fields.contains_key(name)).map(Bson::from).collect();
    vec![doc! { "$set": set }, doc! { "$unset": gone }]
}

/// The ends of operations, in a change stream: pipelines make updates of some and replacements of others.
pub(crate) fn ends() -> Vec<Document> {
    vec![
        doc! { "$match": { "$or": [
            { "operationType": "delete" },
            { "updateDescription.updatedFields.state": COMPLETED },
            { "fullDocument.state": COMPLETED },
        ] } },
        // The identity of the event, without which the stream could not be resumed, and no result's body.
        doc! { "$project": { "_id": 1, "operationType": 1, "documentKey": 1, "ns": 1 } },
    ]
}

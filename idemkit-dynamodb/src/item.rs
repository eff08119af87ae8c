//! The record as an item: both directions, and its size as DynamoDB counts it.

use std::{borrow::Cow, collections::HashMap, time::Duration};

use aws_sdk_dynamodb::{primitives::Blob, types::AttributeValue};
use bytes::Bytes;
use idemkit_core::{
    ATTEMPT_MAX, ClaimToken, Claimed, Completed, Fingerprint, Headers, Outcome, Record, StoredResult, Timestamp,
};

use crate::encoding::{self, Encoded};

/// An item as the SDK has it.
pub(crate) type Item = HashMap<String, AttributeValue>;

/// The largest item that DynamoDB takes: names and values together.
pub(crate) const ITEM_BYTES_MAX: u64 = 400 * 1024;

/// The schema that this build writes: an absent `schema_version` means it.
const SCHEMA: u64 = 1;

pub(crate) const STATE: &str = "state";
pub(crate) const FINGERPRINT: &str = "fingerprint";
pub(crate) const FINGERPRINT_VERSION: &str = "fingerprint_version";
pub(crate) const CLAIM_TOKEN: &str = "claim_token";
pub(crate) const ATTEMPT: &str = "attempt";
pub(crate) const CLAIMED_AT: &str = "claimed_at";
pub(crate) const LEASE_UNTIL: &str = "lease_until";
pub(crate) const COMPLETED_AT: &str = "completed_at";
pub(crate) const RESPONSE_STATUS: &str = "response_status";
pub(crate) const RESPONSE_HEADERS: &str = "response_headers";
pub(crate) const RESPONSE_BODY: &str = "response_body";
pub(crate) const OUTCOME: &str = "outcome";
pub(crate) const BODY_ENCODING: &str = "body_encoding";
pub(crate) const TTL: &str = "ttl";
pub(crate) const SCHEMA_VERSION: &str = "schema_version";

pub(crate) const CLAIMED: &str = "CLAIMED";
pub(crate) const COMPLETED: &str = "COMPLETED";

/// Every attribute of ours but the key, whose name can be chosen.
pub(crate) const ATTRIBUTES: [&str; 15] = [
    STATE,
    FINGERPRINT,
    FINGERPRINT_VERSION,
    CLAIM_TOKEN,
    ATTEMPT,
    CLAIMED_AT,
    LEASE_UNTIL,
    COMPLETED_AT,
    RESPONSE_STATUS,
    RESPONSE_HEADERS,
    RESPONSE_BODY,
    OUTCOME,
    BODY_ENCODING,
    TTL,
    SCHEMA_VERSION,
];

pub(crate) fn text(value: impl Into<String>) -> AttributeValue {
    AttributeValue::S(value.into())
}

pub(crate) fn number(value: impl ToString) -> AttributeValue {
    AttributeValue::N(value.to_string())
}

/// Epoch seconds with a fraction of three digits: exact, and compared as numbers.
pub(crate) fn time(at: Timestamp) -> AttributeValue {
    let millis = at.as_millis();
    AttributeValue::N(format!("{}.{:03}", millis / 1_000, millis % 1_000))
}

/// Whole epoch seconds, as DynamoDB's TTL wants them: `grace` after the end, and never before it.
pub(crate) fn reaped_at(end: Timestamp, grace: Duration) -> AttributeValue {
    number(end.saturating_add(grace).as_millis().div_ceil(1_000))
}

/// The record as the attributes that it has, without the key.
pub(crate) fn encode(record: &Record, grace: Duration) -> Item {
    let mut item = Item::new();
    let mut put = |name: &str, value| _ = item.insert(name.to_owned(), value);
    match record {
        Record::Claimed(claimed) => {
            put(STATE, text(CLAIMED));
            put(FINGERPRINT, text(claimed.fingerprint.to_hex()));
            put(FINGERPRINT_VERSION, number(claimed.fingerprint.version()));
            put(CLAIM_TOKEN, text(claimed.token.to_string()));
            put(ATTEMPT, number(claimed.attempt));
            put(CLAIMED_AT, time(claimed.claimed_at));
            put(LEASE_UNTIL, time(claimed.lease_until));
            put(TTL, reaped_at(claimed.lease_until, grace));
        }
        Record::Completed(completed) => {
            put(STATE, text(COMPLETED));
            put(FINGERPRINT, text(completed.fingerprint.to_hex()));
            put(FINGERPRINT_VERSION, number(completed.fingerprint.version()));
            put(CLAIM_TOKEN, text(completed.token.to_string()));
            put(COMPLETED_AT, time(completed.completed_at));
            put(LEASE_UNTIL, time(completed.expires_at));
            put(TTL, reaped_at(completed.expires_at, grace));
            item.extend(encode_outcome(&completed.outcome));
        }
        // Never written.
        Record::Garbage | Record::Newer => {}
    }
    item
}

/// The attributes of an outcome. One that is absent means: a result, plain.
pub(crate) fn encode_outcome(outcome: &Outcome) -> Item {
    let mut item = Item::new();
    let mut put = |name: &str, value| _ = item.insert(name.to_owned(), value);
    match outcome {
        Outcome::Result(_) => {}
        Outcome::Error(_) => put(OUTCOME, text("error")),
        Outcome::Unavailable => put(OUTCOME, text("unavailable")),
    }
    if let Some(stored) = outcome.stored() {
        let Encoded { body, encoding } = encoding::encode(&stored.body);
        put(RESPONSE_STATUS, number(stored.status));
        if !stored.headers.is_empty() {
            put(RESPONSE_HEADERS, encode_headers(&stored.headers));
        }
        put(RESPONSE_BODY, AttributeValue::B(Blob::new(body)));
        if let Some(encoding) = encoding {
            put(BODY_ENCODING, text(encoding));
        }
    }
    item
}

/// Each byte of a value is the code point of that number.
fn encode_headers(headers: &Headers) -> AttributeValue {
    let value = |value: &Bytes| text(value.iter().map(|byte| char::from(*byte)).collect::<String>());
    let by_name = headers.iter().map(|(name, values)| {
        let encoded = match values {
            [one] => value(one),
            several => AttributeValue::L(several.iter().map(value).collect()),
        };
        (name.to_owned(), encoded)
    });
    AttributeValue::M(by_name.collect())
}

/// What an item holds.
pub(crate) fn decode(item: &Item) -> Record {
    match item.get(SCHEMA_VERSION).map(as_u64) {
        None | Some(Some(SCHEMA)) => {}
        Some(Some(version)) if version > SCHEMA => return Record::Newer,
        Some(_) => return Record::Garbage,
    }
    match item.get(BODY_ENCODING) {
        Some(AttributeValue::S(encoding)) if !encoding::is_known(encoding) => return Record::Newer,
        None | Some(AttributeValue::S(_)) => {}
        Some(_) => return Record::Garbage,
    }
    decode_known(item).unwrap_or(Record::Garbage)
}

/// A record of this schema; nothing where it does not decode.
fn decode_known(item: &Item) -> Option<Record> {
    let fingerprint_version = u32::try_from(as_u64(item.get(FINGERPRINT_VERSION)?)?).ok()?;
    let fingerprint = Fingerprint::from_stored_hex(fingerprint_version, as_text(item.get(FINGERPRINT)?)?).ok()?;
    let token: ClaimToken = as_text(item.get(CLAIM_TOKEN)?)?.parse().ok()?;
    let until = as_time(item.get(LEASE_UNTIL)?)?;
    match as_text(item.get(STATE)?)? {
        CLAIMED => {
            let attempt = match item.get(ATTEMPT) {
                None => 1,
                Some(attempt) => as_u64(attempt).filter(|attempt| *attempt > 0)?,
            };
            Some(Record::Claimed(Claimed {
                fingerprint,
                token,
                attempt: u32::try_from(attempt).unwrap_or(ATTEMPT_MAX).min(ATTEMPT_MAX),
                // Nothing is decided by it.
                claimed_at: item.get(CLAIMED_AT).and_then(as_time).unwrap_or_default(),
                lease_until: until,
            }))
        }
        COMPLETED => Some(Record::Completed(Completed {
            fingerprint,
            token,
            completed_at: item.get(COMPLETED_AT).and_then(as_time).unwrap_or(until),
            expires_at: until,
            outcome: decode_outcome(item)?,
        })),
        _ => None,
    }
}

fn decode_outcome(item: &Item) -> Option<Outcome> {
    let stored = || {
        let status = u16::try_from(as_u64(item.get(RESPONSE_STATUS)?)?).ok()?;
        let body = match item.get(RESPONSE_BODY) {
            None => Bytes::new(),
            Some(AttributeValue::B(body)) => {
                let encoding = item.get(BODY_ENCODING).and_then(as_text);
                encoding::decode(Bytes::copy_from_slice(body.as_ref()), encoding)?
            }
            Some(_) => return None,
        };
        let mut stored = StoredResult::new(status, body);
        if let Some(headers) = item.get(RESPONSE_HEADERS) {
            stored.headers = decode_headers(headers)?;
        }
        Some(stored)
    };
    match item.get(OUTCOME).map(as_text) {
        None | Some(Some("result")) => stored().map(Outcome::Result),
        Some(Some("error")) => stored().map(Outcome::Error),
        Some(Some("unavailable")) => Some(Outcome::Unavailable),
        Some(_) => None,
    }
}

fn decode_headers(stored: &AttributeValue) -> Option<Headers> {
    let bytes = |value: &AttributeValue| -> Option<Vec<u8>> {
        as_text(value)?.chars().map(|code_point| u8::try_from(u32::from(code_point)).ok()).collect()
    };
    let mut headers = Headers::default();
    for (name, values) in stored.as_m().ok()? {
        match values {
            AttributeValue::L(values) => {
                for value in values {
                    headers.append(name, bytes(value)?);
                }
            }
            value => headers.append(name, bytes(value)?),
        }
    }
    Some(headers)
}

fn as_text(value: &AttributeValue) -> Option<&str> {
    value.as_s().ok().map(String::as_str)
}

fn as_u64(value: &AttributeValue) -> Option<u64> {
    value.as_n().ok()?.parse().ok()
}

/// Numbers come back as DynamoDB likes to write them. A double is exact to far less than a millisecond here.
fn as_time(value: &AttributeValue) -> Option<Timestamp> {
    let secs: f64 = value.as_n().ok()?.parse().ok()?;
    // Saturates at both ends.
    secs.is_finite().then(|| Timestamp::from_millis((secs * 1_000.0).round() as u64))
}

/// The size of an item as DynamoDB counts it, or a little more: numbers are counted by their digits as they are sent.
pub(crate) fn size(item: &Item) -> u64 {
    item.iter().map(|(name, value)| bytes(name.len()) + value_size(value)).sum()
}

fn value_size(value: &AttributeValue) -> u64 {
    /// What a map or a list takes beside its elements, and each element beside itself.
    const CONTAINER: u64 = 3;
    const ELEMENT: u64 = 1;
    match value {
        AttributeValue::S(text) => bytes(text.len()),
        // One byte for two digits, and one more.
        AttributeValue::N(digits) => bytes(digits.len()).div_ceil(2) + 1,
        AttributeValue::B(blob) => bytes(blob.as_ref().len()),
        AttributeValue::M(map) => {
            let entry = |(name, value): (&String, &AttributeValue)| ELEMENT + bytes(name.len()) + value_size(value);
            CONTAINER + map.iter().map(entry).sum::<u64>()
        }
        AttributeValue::L(list) => CONTAINER + list.iter().map(|value| ELEMENT + value_size(value)).sum::<u64>(),
        // Nothing else is written.
        _ => 1,
    }
}

fn bytes(len: usize) -> u64 {
    u64::try_from(len).unwrap_or(u64::MAX)
}

/// The key of a record in the table: behind its namespace, where there is one.
pub(crate) fn key_text<'k>(namespace: &str, hex: &'k str) -> Cow<'k, str> {
    if namespace.is_empty() { Cow::Borrowed(hex) } else { Cow::Owned(format!("{namespace}:{hex}")) }
}

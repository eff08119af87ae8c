//! The record as a document: both directions, and its size.

use std::time::Duration;

use bytes::Bytes;
use idemkit_core::{
    ATTEMPT_MAX, ClaimToken, Claimed, Completed, Fingerprint, Headers, Outcome, Record, StoredResult, Timestamp,
};
use mongodb::bson::{Binary, Bson, DateTime, Document, doc, spec::BinarySubtype};

/// The schema that this build writes: an absent `schema_version` means it.
const SCHEMA: i64 = 1;
/// The largest document that a server takes, and what is left of it for the fields beside a result.
pub(crate) const RESULT_BYTES_MAX: u64 = 16 * 1024 * 1024 - 16 * 1024;

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
pub(crate) const SCHEMA_VERSION: &str = "schema_version";
pub(crate) const EXPIRE_AT: &str = "expire_at";

pub(crate) const CLAIMED: &str = "CLAIMED";
pub(crate) const COMPLETED: &str = "COMPLETED";

/// Every field of ours but the key.
pub(crate) const FIELDS: [&str; 15] = [
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
    SCHEMA_VERSION,
    EXPIRE_AT,
];

/// The version as a number of the server's. One beyond it is one that nobody knows, as its largest is.
pub(crate) fn fingerprint_version(fingerprint: &Fingerprint) -> Bson {
    i32::try_from(fingerprint.version()).map_or(Bson::Int64(fingerprint.version().into()), Bson::Int32)
}

pub(crate) fn date(at: Timestamp) -> DateTime {
    DateTime::from_millis(i64::try_from(at.as_millis()).unwrap_or(i64::MAX))
}

/// A claimed record as its fields, without the key. No other one is written whole.
pub(crate) fn encode_claimed(claimed: &Claimed, grace: Duration) -> Document {
    doc! {
        STATE: CLAIMED,
        FINGERPRINT: claimed.fingerprint.to_hex(),
        FINGERPRINT_VERSION: fingerprint_version(&claimed.fingerprint),
        CLAIM_TOKEN: claimed.token.to_string(),
        ATTEMPT: i32::try_from(claimed.attempt.min(ATTEMPT_MAX)).unwrap_or(i32::MAX),
        CLAIMED_AT: date(claimed.claimed_at),
        LEASE_UNTIL: date(claimed.lease_until),
        EXPIRE_AT: date(claimed.lease_until.saturating_add(grace)),
    }
}

/// The fields of an outcome. One that is absent means: a result, without headers.
pub(crate) fn encode_outcome(outcome: &Outcome) -> Document {
    let mut fields = Document::new();
    match outcome {
        Outcome::Result(_) => {}
        Outcome::Error(_) => _ = fields.insert(OUTCOME, "error"),
        Outcome::Unavailable => _ = fields.insert(OUTCOME, "unavailable"),
    }
    if let Some(stored) = outcome.stored() {
        fields.insert(RESPONSE_STATUS, i32::from(stored.status));
        if !stored.headers.is_empty() {
            fields.insert(RESPONSE_HEADERS, encode_headers(&stored.headers));
        }
        fields.insert(RESPONSE_BODY, Binary { subtype: BinarySubtype::Generic, bytes: stored.body.to_vec() });
    }
    fields
}

/// BSON's names end at a NUL, and older servers take no name with a dot or a dollar in front. Such a name is stored with its
/// odd characters as those 0x10000 further on, their stand-ins; a name that has a stand-in itself, with a dollar after that. No
/// name of HTTP's has any.
const SHIFT: u32 = 0x1_0000;
/// Never in front, where servers refuse it, and nowhere else in a name that is stored.
const ITSELF: char = '$';

fn is_odd(character: char) -> bool {
    matches!(character, '\0' | '.' | '$')
}

/// What a character stands in for, where it is a stand-in.
fn stands_for(character: char) -> Option<char> {
    u32::from(character).checked_sub(SHIFT).and_then(char::from_u32).filter(|original| is_odd(*original))
}

fn encode_name(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        if is_odd(character) {
            encoded.push(char::from_u32(u32::from(character) + SHIFT).unwrap_or(character));
            continue;
        }
        encoded.push(character);
        if stands_for(character).is_some() {
            encoded.push(ITSELF);
        }
    }
    encoded
}

fn decode_name(name: &str) -> String {
    let mut decoded = String::with_capacity(name.len());
    let mut characters = name.chars().peekable();
    while let Some(character) = characters.next() {
        let original = stands_for(character);
        let is_itself = original.is_some() && characters.next_if_eq(&ITSELF).is_some();
        decoded.push(original.filter(|_| !is_itself).unwrap_or(character));
    }
    decoded
}

/// Each byte of a value is the code point of that number.
fn encode_headers(headers: &Headers) -> Document {
    let value = |value: &Bytes| Bson::String(value.iter().map(|byte| char::from(*byte)).collect());
    let by_name = headers.iter().map(|(name, values)| {
        let encoded = match values {
            [one] => value(one),
            several => Bson::Array(several.iter().map(value).collect()),
        };
        (encode_name(name), encoded)
    });
    by_name.collect()
}

/// What a result takes in a document, or a little more: what this store's limit is about.
pub(crate) fn size(outcome: &Outcome) -> u64 {
    const BESIDE_A_VALUE: usize = 16;
    let Some(stored) = outcome.stored() else { return 0 };
    let values = stored.headers.iter().flat_map(|(name, values)| values.iter().map(move |value| (name, value)));
    // A byte above 0x7f takes two; a name, once a value at most.
    let header = |(name, value): (&str, &Bytes)| {
        name.len() * 4 + value.iter().map(|byte| if *byte < 0x80 { 1 } else { 2 }).sum::<usize>() + BESIDE_A_VALUE
    };
    let headers: usize = values.map(header).sum();
    u64::try_from(stored.body.len() + headers).unwrap_or(u64::MAX)
}

/// A field that may be absent. Other languages write null for that.
fn optional<'d>(document: &'d Document, name: &str) -> Option<&'d Bson> {
    document.get(name).filter(|value| **value != Bson::Null)
}

/// What a document holds.
pub(crate) fn decode(document: &Document) -> Record {
    match optional(document, SCHEMA_VERSION).map(as_i64) {
        None | Some(Some(SCHEMA)) => {}
        Some(Some(version)) if version > SCHEMA => return Record::Newer,
        Some(_) => return Record::Garbage,
    }
    // Every encoding but plain, which is none, is unknown to this version.
    if optional(document, BODY_ENCODING).is_some() {
        return Record::Newer;
    }
    decode_known(document).unwrap_or(Record::Garbage)
}

/// A record of this schema; nothing where it does not decode.
fn decode_known(document: &Document) -> Option<Record> {
    let fingerprint_version = u32::try_from(as_i64(document.get(FINGERPRINT_VERSION)?)?).ok()?;
    let fingerprint = Fingerprint::from_stored_hex(fingerprint_version, document.get_str(FINGERPRINT).ok()?).ok()?;
    let token: ClaimToken = document.get_str(CLAIM_TOKEN).ok()?.parse().ok()?;
    let until = time(document, LEASE_UNTIL)?;
    match document.get_str(STATE).ok()? {
        CLAIMED => {
            let attempt = match optional(document, ATTEMPT) {
                None => 1,
                Some(attempt) => as_i64(attempt).filter(|attempt| *attempt > 0)?,
            };
            Some(Record::Claimed(Claimed {
                fingerprint,
                token,
                attempt: u32::try_from(attempt).unwrap_or(ATTEMPT_MAX).min(ATTEMPT_MAX),
                // Nothing is decided by it.
                claimed_at: time(document, CLAIMED_AT).unwrap_or_default(),
                lease_until: until,
            }))
        }
        COMPLETED => Some(Record::Completed(Completed {
            fingerprint,
            token,
            completed_at: time(document, COMPLETED_AT).unwrap_or(until),
            expires_at: until,
            outcome: decode_outcome(document)?,
        })),
        _ => None,
    }
}

fn decode_outcome(document: &Document) -> Option<Outcome> {
    let of: fn(StoredResult) -> Outcome = match optional(document, OUTCOME) {
        None => Outcome::Result,
        Some(Bson::String(outcome)) => match outcome.as_str() {
            "result" => Outcome::Result,
            "error" => Outcome::Error,
            "unavailable" => return Some(Outcome::Unavailable),
            _ => return None,
        },
        Some(_) => return None,
    };
    let status = u16::try_from(as_i64(document.get(RESPONSE_STATUS)?)?).ok()?;
    let body = match optional(document, RESPONSE_BODY) {
        None => Bytes::new(),
        Some(Bson::Binary(body)) => Bytes::copy_from_slice(&body.bytes),
        Some(_) => return None,
    };
    let mut stored = StoredResult::new(status, body);
    match optional(document, RESPONSE_HEADERS) {
        None => {}
        Some(Bson::Document(headers)) => stored.headers = decode_headers(headers)?,
        Some(_) => return None,
    }
    Some(of(stored))
}

fn decode_headers(stored: &Document) -> Option<Headers> {
    let bytes = |value: &Bson| -> Option<Vec<u8>> {
        value.as_str()?.chars().map(|code_point| u8::try_from(u32::from(code_point)).ok()).collect()
    };
    let mut headers = Headers::default();
    for (name, values) in stored {
        let name = decode_name(name);
        match values {
            Bson::Array(values) => {
                for value in values {
                    headers.append(&name, bytes(value)?);
                }
            }
            value => headers.append(&name, bytes(value)?),
        }
    }
    Some(headers)
}

fn time(document: &Document, name: &str) -> Option<Timestamp> {
    let millis = document.get_datetime(name).ok()?.timestamp_millis();
    Some(Timestamp::from_millis(u64::try_from(millis).unwrap_or_default()))
}

/// A whole number of any of the server's types.
pub(crate) fn as_i64(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some((*number).into()),
        Bson::Int64(number) => Some(*number),
        Bson::Double(number) if number.fract() == 0.0 && number.abs() < 9e15 => Some(*number as i64),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn completed(outcome: &Outcome) -> Document {
        let mut document = doc! {
            STATE: COMPLETED,
            FINGERPRINT: "0".repeat(64),
            FINGERPRINT_VERSION: 1,
            CLAIM_TOKEN: "0".repeat(32),
            COMPLETED_AT: DateTime::from_millis(5),
            LEASE_UNTIL: DateTime::from_millis(7),
        };
        document.extend(encode_outcome(outcome));
        document
    }

    #[test]
    fn an_outcome_comes_back_as_it_was() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        let result = StoredResult::new(u16::MAX, all_bytes.clone())
            .with_header("set", all_bytes)
            .with_header("set", "")
            .with_header("$a.b\0c", "$$ROOT");
        for outcome in [Outcome::Result(result.clone()), Outcome::Error(result), Outcome::Unavailable] {
            match decode(&completed(&outcome)) {
                Record::Completed(completed) => assert_eq!(completed.outcome, outcome),
                other => panic!("{other:?}"),
            }
        }
    }

    #[rstest]
    #[case::of_http("content-type", "content-type")]
    #[case::odd("$a.b\0", "\u{10024}a\u{1002e}b\u{10000}")]
    #[case::twice("..", "\u{1002e}\u{1002e}")]
    #[case::a_stand_in("\u{1002e}", "\u{1002e}$")]
    #[case::a_stand_in_and_a_dollar("\u{10024}$", "\u{10024}$\u{10024}")]
    #[case::beyond("\u{2002e}\u{10001}", "\u{2002e}\u{10001}")]
    fn a_name_comes_back_as_it_was(#[case] name: &str, #[case] stored: &str) {
        assert_eq!((encode_name(name).as_str(), decode_name(stored).as_str()), (stored, name));
    }

    #[rstest]
    #[case::another_state(STATE, Some(Bson::from("DONE")), Record::Garbage)]
    #[case::no_time(LEASE_UNTIL, None, Record::Garbage)]
    #[case::a_time_that_is_none(LEASE_UNTIL, Some(Bson::from("soon")), Record::Garbage)]
    #[case::a_status_that_is_none(RESPONSE_STATUS, Some(Bson::from("200")), Record::Garbage)]
    #[case::a_body_that_is_text(RESPONSE_BODY, Some(Bson::from("x")), Record::Garbage)]
    #[case::headers_that_are_a_list(RESPONSE_HEADERS, Some(Bson::Array(vec![])), Record::Garbage)]
    #[case::a_header_beyond_bytes(RESPONSE_HEADERS, Some(Bson::from(doc! { "a": "\u{100}" })), Record::Garbage)]
    #[case::another_outcome(OUTCOME, Some(Bson::from("maybe")), Record::Garbage)]
    #[case::a_schema_that_is_none(SCHEMA_VERSION, Some(Bson::from("x")), Record::Garbage)]
    #[case::a_newer_schema(SCHEMA_VERSION, Some(Bson::from(2.0)), Record::Newer)]
    #[case::an_unknown_encoding(BODY_ENCODING, Some(Bson::from("br")), Record::Newer)]
    fn what_does_not_decode(#[case] field: &str, #[case] value: Option<Bson>, #[case] expected: Record) {
        let mut document = completed(&Outcome::Result(StoredResult::new(200, "body")));
        document.remove(field);
        if let Some(value) = value {
            document.insert(field, value);
        }
        assert_eq!(decode(&document), expected);
    }
}

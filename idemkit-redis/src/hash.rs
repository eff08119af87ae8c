//! The record as the fields of a hash: both directions.

use std::collections::HashMap;

use bytes::Bytes;
use idemkit_core::{
    ATTEMPT_MAX, ClaimToken, Claimed, Completed, Fingerprint, Headers, Outcome, Record, StoredResult, Timestamp,
};
use serde_json::{Map, Value};

use crate::scripts::Arg;

/// Fields by name, as the server has them.
pub(crate) type Fields = HashMap<String, Vec<u8>>;

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
pub(crate) const OUTCOME: &str = "outcome";
pub(crate) const RESPONSE_STATUS: &str = "response_status";
pub(crate) const RESPONSE_HEADERS: &str = "response_headers";
pub(crate) const RESPONSE_BODY: &str = "response_body";
pub(crate) const BODY_ENCODING: &str = "body_encoding";
pub(crate) const SCHEMA_VERSION: &str = "schema_version";

pub(crate) const CLAIMED: &str = "CLAIMED";
pub(crate) const COMPLETED: &str = "COMPLETED";

/// The record as fields and their values, in the order in which a script takes them.
pub(crate) fn encode(record: &Record) -> Vec<Arg<'_>> {
    match record {
        Record::Claimed(claimed) => vec![
            Arg::Text(STATE),
            Arg::Text(CLAIMED),
            Arg::Text(FINGERPRINT),
            Arg::Owned(claimed.fingerprint.to_hex()),
            Arg::Text(FINGERPRINT_VERSION),
            Arg::Number(claimed.fingerprint.version().into()),
            Arg::Text(CLAIM_TOKEN),
            Arg::Owned(claimed.token.to_string()),
            Arg::Text(ATTEMPT),
            Arg::Number(claimed.attempt.into()),
            Arg::Text(CLAIMED_AT),
            Arg::Number(claimed.claimed_at.as_millis()),
            Arg::Text(LEASE_UNTIL),
            Arg::Number(claimed.lease_until.as_millis()),
        ],
        Record::Completed(completed) => {
            let mut fields = vec![
                Arg::Text(STATE),
                Arg::Text(COMPLETED),
                Arg::Text(FINGERPRINT),
                Arg::Owned(completed.fingerprint.to_hex()),
                Arg::Text(FINGERPRINT_VERSION),
                Arg::Number(completed.fingerprint.version().into()),
                Arg::Text(CLAIM_TOKEN),
                Arg::Owned(completed.token.to_string()),
                Arg::Text(COMPLETED_AT),
                Arg::Number(completed.completed_at.as_millis()),
                Arg::Text(LEASE_UNTIL),
                Arg::Number(completed.expires_at.as_millis()),
            ];
            fields.extend(encode_outcome(&completed.outcome));
            fields
        }
        // Never written.
        Record::Garbage | Record::Newer => vec![],
    }
}

/// The fields of an outcome. One that is absent means: a result, without headers.
pub(crate) fn encode_outcome(outcome: &Outcome) -> Vec<Arg<'_>> {
    let mut fields = match outcome {
        Outcome::Result(_) => vec![],
        Outcome::Error(_) => vec![Arg::Text(OUTCOME), Arg::Text("error")],
        Outcome::Unavailable => vec![Arg::Text(OUTCOME), Arg::Text("unavailable")],
    };
    if let Some(stored) = outcome.stored() {
        fields.extend([Arg::Text(RESPONSE_STATUS), Arg::Number(stored.status.into())]);
        if !stored.headers.is_empty() {
            fields.extend([Arg::Text(RESPONSE_HEADERS), Arg::Owned(encode_headers(&stored.headers))]);
        }
        fields.extend([Arg::Text(RESPONSE_BODY), Arg::Bytes(&stored.body)]);
    }
    fields
}

/// An object from name to value, or to a list where a name repeats. Each byte of a value is the code point of that number.
fn encode_headers(headers: &Headers) -> String {
    let value = |value: &Bytes| Value::String(value.iter().map(|byte| char::from(*byte)).collect());
    let by_name = headers.iter().map(|(name, values)| {
        let encoded = match values {
            [one] => value(one),
            several => Value::Array(several.iter().map(value).collect()),
        };
        (name.to_owned(), encoded)
    });
    Value::Object(by_name.collect::<Map<_, _>>()).to_string()
}

/// What the fields hold.
pub(crate) fn decode(mut fields: Fields) -> Record {
    match fields.get(SCHEMA_VERSION).map(|version| as_u64(version)) {
        None | Some(Some(SCHEMA)) => {}
        Some(Some(version)) if version > SCHEMA => return Record::Newer,
        Some(_) => return Record::Garbage,
    }
    // Every encoding but plain, which is none, is unknown to this version.
    if fields.contains_key(BODY_ENCODING) {
        return Record::Newer;
    }
    decode_known(&mut fields).unwrap_or(Record::Garbage)
}

/// A record of this schema; nothing where it does not decode.
fn decode_known(fields: &mut Fields) -> Option<Record> {
    let fingerprint_version = u32::try_from(number(fields, FINGERPRINT_VERSION)?).ok()?;
    let fingerprint = Fingerprint::from_stored_hex(fingerprint_version, text(fields, FINGERPRINT)?).ok()?;
    let token: ClaimToken = text(fields, CLAIM_TOKEN)?.parse().ok()?;
    let until = Timestamp::from_millis(number(fields, LEASE_UNTIL)?);
    match text(fields, STATE)? {
        CLAIMED => {
            let attempt = match fields.get(ATTEMPT) {
                None => 1,
                Some(attempt) => as_u64(attempt).filter(|attempt| *attempt > 0)?,
            };
            Some(Record::Claimed(Claimed {
                fingerprint,
                token,
                attempt: u32::try_from(attempt).unwrap_or(ATTEMPT_MAX).min(ATTEMPT_MAX),
                // Nothing is decided by it.
                claimed_at: Timestamp::from_millis(number(fields, CLAIMED_AT).unwrap_or_default()),
                lease_until: until,
            }))
        }
        COMPLETED => Some(Record::Completed(Completed {
            fingerprint,
            token,
            completed_at: number(fields, COMPLETED_AT).map_or(until, Timestamp::from_millis),
            expires_at: until,
            outcome: decode_outcome(fields)?,
        })),
        _ => None,
    }
}

fn decode_outcome(fields: &mut Fields) -> Option<Outcome> {
    let of: fn(StoredResult) -> Outcome = match fields.get(OUTCOME).map(Vec::as_slice) {
        None | Some(b"result") => Outcome::Result,
        Some(b"error") => Outcome::Error,
        Some(b"unavailable") => return Some(Outcome::Unavailable),
        Some(_) => return None,
    };
    let status = u16::try_from(number(fields, RESPONSE_STATUS)?).ok()?;
    // Taken out, so that no body is copied.
    let mut stored = StoredResult::new(status, fields.remove(RESPONSE_BODY).unwrap_or_default());
    if let Some(headers) = fields.get(RESPONSE_HEADERS) {
        stored.headers = decode_headers(headers)?;
    }
    Some(of(stored))
}

fn decode_headers(stored: &[u8]) -> Option<Headers> {
    let bytes = |value: &Value| -> Option<Vec<u8>> {
        value.as_str()?.chars().map(|code_point| u8::try_from(u32::from(code_point)).ok()).collect()
    };
    let object: Map<String, Value> = serde_json::from_slice(stored).ok()?;
    let mut headers = Headers::default();
    for (name, values) in &object {
        match values {
            Value::Array(values) => {
                for value in values {
                    headers.append(name, bytes(value)?);
                }
            }
            value => headers.append(name, bytes(value)?),
        }
    }
    Some(headers)
}

fn text<'f>(fields: &'f Fields, name: &str) -> Option<&'f str> {
    std::str::from_utf8(fields.get(name)?).ok()
}

fn number(fields: &Fields, name: &str) -> Option<u64> {
    as_u64(fields.get(name)?)
}

fn as_u64(value: &[u8]) -> Option<u64> {
    let digits = !value.is_empty() && value.iter().all(u8::is_ascii_digit);
    digits.then(|| std::str::from_utf8(value).ok()?.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn fields(args: &[Arg<'_>]) -> Fields {
        let bytes = |arg: &Arg<'_>| match arg {
            Arg::Text(text) => text.as_bytes().to_vec(),
            Arg::Owned(text) => text.clone().into_bytes(),
            Arg::Number(number) => number.to_string().into_bytes(),
            Arg::Bytes(bytes) => bytes.to_vec(),
        };
        args.chunks(2).map(|pair| (String::from_utf8(bytes(&pair[0])).unwrap(), bytes(&pair[1]))).collect()
    }

    fn completed(outcome: Outcome) -> Record {
        Record::Completed(Completed {
            fingerprint: Fingerprint::of_payload("x"),
            token: ClaimToken::from_bytes([7; 16]),
            completed_at: Timestamp::from_millis(5),
            expires_at: Timestamp::from_millis(u64::MAX),
            outcome,
        })
    }

    #[test]
    fn a_record_comes_back_as_it_was() {
        let all_bytes: Vec<u8> = (0..=255).collect();
        let result = StoredResult::new(u16::MAX, all_bytes.clone())
            .with_header("set", all_bytes.clone())
            .with_header("set", "")
            .with_header("quote\"name", "\u{1}");
        let claimed = Record::Claimed(Claimed {
            fingerprint: Fingerprint::from_stored(u32::MAX, [9; 32]),
            token: ClaimToken::from_bytes([7; 16]),
            attempt: ATTEMPT_MAX,
            claimed_at: Timestamp::from_millis(1),
            lease_until: Timestamp::from_millis(2),
        });
        for record in [
            claimed,
            completed(Outcome::Result(result.clone())),
            completed(Outcome::Error(result)),
            completed(Outcome::Unavailable),
            completed(Outcome::Result(StoredResult::new(0, ""))),
        ] {
            assert_eq!(decode(fields(&encode(&record))), record);
        }
    }

    #[rstest]
    #[case::no_state(STATE, None, Record::Garbage)]
    #[case::another_state(STATE, Some("DONE"), Record::Garbage)]
    #[case::a_time_that_is_none(LEASE_UNTIL, Some("soon"), Record::Garbage)]
    #[case::a_signed_time(LEASE_UNTIL, Some("+5"), Record::Garbage)]
    #[case::a_token_of_another_length(CLAIM_TOKEN, Some("00"), Record::Garbage)]
    #[case::a_status_too_large(RESPONSE_STATUS, Some("65536"), Record::Garbage)]
    #[case::headers_that_are_no_object(RESPONSE_HEADERS, Some("[]"), Record::Garbage)]
    #[case::a_header_that_is_no_text(RESPONSE_HEADERS, Some("{\"a\":1}"), Record::Garbage)]
    #[case::a_header_beyond_bytes(RESPONSE_HEADERS, Some("{\"a\":\"\u{100}\"}"), Record::Garbage)]
    #[case::another_outcome(OUTCOME, Some("maybe"), Record::Garbage)]
    #[case::a_schema_that_is_none(SCHEMA_VERSION, Some("x"), Record::Garbage)]
    #[case::a_newer_schema(SCHEMA_VERSION, Some("2"), Record::Newer)]
    #[case::an_unknown_encoding(BODY_ENCODING, Some("br"), Record::Newer)]
    fn what_does_not_decode(#[case] field: &str, #[case] value: Option<&str>, #[case] expected: Record) {
        let record = completed(Outcome::Result(StoredResult::new(200, "body")));
        let mut stored = fields(&encode(&record));
        stored.remove(field);
        if let Some(value) = value {
            stored.insert(field.to_owned(), value.as_bytes().to_vec());
        }
        assert_eq!(decode(stored), expected);
    }

    #[test]
    fn what_other_languages_leave_out_reads_as_the_default() {
        let mut stored = fields(&encode(&completed(Outcome::Result(StoredResult::new(200, "")))));
        stored.remove(RESPONSE_BODY);
        stored.insert("extra".to_owned(), b"ignored".to_vec());
        stored.insert(SCHEMA_VERSION.to_owned(), b"1".to_vec());
        stored.insert(OUTCOME.to_owned(), b"result".to_vec());
        assert_eq!(decode(stored), completed(Outcome::Result(StoredResult::new(200, ""))));
    }
}

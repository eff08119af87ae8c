//! The record as a row: both directions.

use bytes::Bytes;
use idemkit_core::{ClaimToken, Claimed, Completed, Fingerprint, Headers, Outcome, Record, StoredResult, Timestamp};
use serde_json::{Map, Value};
use sqlx::{Row as _, postgres::PgRow};

/// The schema that this build writes: an absent `schema_version` means it.
const SCHEMA: i32 = 1;
/// JSON of PostgreSQL's cannot hold U+0000. Each other byte is the code point of its number.
const NUL_STAND_IN: char = '\u{100}';
/// Before a character of a name that is not to be read as something else: names may have the stand-in itself.
const AS_IT_IS: char = '\u{101}';

/// What a statement has returned.
pub(crate) struct Told {
    /// How it was done; nothing where nothing was.
    pub(crate) how: Option<String>,
    pub(crate) attempt: u32,
    /// A time that the statement has written.
    pub(crate) until: Timestamp,
    /// By the server's clock.
    pub(crate) now: Timestamp,
    /// Whether another transaction has the row.
    pub(crate) locked: bool,
    /// What was there, where nothing was done.
    pub(crate) seen: Option<Seen>,
}

/// A row as it was seen.
pub(crate) struct Seen {
    pub(crate) record: Record,
    /// Which version of the row it was.
    pub(crate) xmin: String,
    pub(crate) ctid: String,
}

impl Told {
    pub(crate) fn of(row: &PgRow) -> Result<Self, sqlx::Error> {
        let attempt: Option<i32> = row.try_get("done_attempt")?;
        let until: Option<i64> = row.try_get("done_ms")?;
        Ok(Self {
            how: row.try_get("how")?,
            attempt: attempt.and_then(|attempt| u32::try_from(attempt).ok()).unwrap_or_default(),
            until: timestamp(until.unwrap_or_default()),
            now: timestamp(row.try_get("now_ms")?),
            locked: row.try_get("locked")?,
            seen: Seen::of(row)?,
        })
    }
}

impl Seen {
    fn of(row: &PgRow) -> Result<Option<Self>, sqlx::Error> {
        let (Some(xmin), Some(ctid)) = (row.try_get("row_xmin")?, row.try_get("row_ctid")?) else { return Ok(None) };
        Ok(Some(Self { record: decode(row)?, xmin, ctid }))
    }
}

fn timestamp(millis: i64) -> Timestamp {
    Timestamp::from_millis(u64::try_from(millis).unwrap_or_default())
}

/// The version as the column has it. One beyond it is one that nobody knows, as its largest number is.
pub(crate) fn fingerprint_version(fingerprint: &Fingerprint) -> i32 {
    i32::try_from(fingerprint.version()).unwrap_or(i32::MAX)
}

/// The columns of an outcome.
pub(crate) struct OutcomeColumns<'a> {
    pub(crate) status: Option<i32>,
    pub(crate) headers: Option<String>,
    pub(crate) body: Option<&'a [u8]>,
    pub(crate) outcome: Option<&'static str>,
}

pub(crate) fn encode_outcome(outcome: &Outcome) -> OutcomeColumns<'_> {
    let stored = outcome.stored();
    OutcomeColumns {
        status: stored.map(|stored| stored.status.into()),
        headers: stored.filter(|stored| !stored.headers.is_empty()).map(|stored| encode_headers(&stored.headers)),
        body: stored.map(|stored| stored.body.as_ref()),
        outcome: match outcome {
            Outcome::Result(_) => None,
            Outcome::Error(_) => Some("error"),
            Outcome::Unavailable => Some("unavailable"),
        },
    }
}

fn encode_headers(headers: &Headers) -> String {
    let character = |byte: &u8| if *byte == 0 { NUL_STAND_IN } else { char::from(*byte) };
    let value = |value: &Bytes| Value::String(value.iter().map(character).collect());
    let by_name = headers.iter().map(|(name, values)| {
        let encoded = match values {
            [one] => value(one),
            several => Value::Array(several.iter().map(value).collect()),
        };
        (encode_name(name), encoded)
    });
    Value::Object(by_name.collect::<Map<_, _>>()).to_string()
}

fn encode_name(name: &str) -> String {
    let mut encoded = String::with_capacity(name.len());
    for character in name.chars() {
        match character {
            '\0' => encoded.push(NUL_STAND_IN),
            NUL_STAND_IN | AS_IT_IS => encoded.extend([AS_IT_IS, character]),
            other => encoded.push(other),
        }
    }
    encoded
}

fn decode_name(encoded: &str) -> String {
    let mut characters = encoded.chars();
    let mut name = String::with_capacity(encoded.len());
    while let Some(character) = characters.next() {
        match character {
            NUL_STAND_IN => name.push('\0'),
            AS_IT_IS => name.extend(characters.next()),
            other => name.push(other),
        }
    }
    name
}

/// What the row holds.
fn decode(row: &PgRow) -> Result<Record, sqlx::Error> {
    match row.try_get::<Option<i32>, _>("schema_version")? {
        None | Some(SCHEMA) => {}
        Some(version) if version > SCHEMA => return Ok(Record::Newer),
        Some(_) => return Ok(Record::Garbage),
    }
    // Every encoding but plain, which is none, is unknown to this version.
    if row.try_get::<Option<&str>, _>("body_encoding")?.is_some() {
        return Ok(Record::Newer);
    }
    Ok(decode_known(row)?.unwrap_or(Record::Garbage))
}

/// A record of this schema; nothing where it does not decode.
fn decode_known(row: &PgRow) -> Result<Option<Record>, sqlx::Error> {
    let version = u32::try_from(row.try_get::<i32, _>("fingerprint_version")?).ok();
    let fingerprint =
        version.map(|version| Fingerprint::from_stored_hex(version, row.try_get("fingerprint").unwrap_or_default()));
    let token: Option<ClaimToken> = row.try_get::<&str, _>("claim_token")?.parse().ok();
    let until: Option<i64> = row.try_get("until_ms")?;
    let (Some(Ok(fingerprint)), Some(token), Some(until)) = (fingerprint, token, until) else { return Ok(None) };
    let until = timestamp(until);
    Ok(match row.try_get("state")? {
        "CLAIMED" => {
            u32::try_from(row.try_get::<i32, _>("attempt")?).ok().filter(|attempt| *attempt > 0).map(|attempt| {
                let claimed: Option<i64> = row.try_get("claimed_ms").unwrap_or_default();
                // Nothing is decided by when it was claimed.
                let claimed_at = timestamp(claimed.unwrap_or_default());
                Record::Claimed(Claimed { fingerprint, token, attempt, claimed_at, lease_until: until })
            })
        }
        "COMPLETED" => {
            let completed: Option<i64> = row.try_get("completed_ms")?;
            let completed_at = completed.map_or(until, timestamp);
            decode_outcome(row)?.map(|outcome| {
                Record::Completed(Completed { fingerprint, token, completed_at, expires_at: until, outcome })
            })
        }
        _ => None,
    })
}

fn decode_outcome(row: &PgRow) -> Result<Option<Outcome>, sqlx::Error> {
    let of: fn(StoredResult) -> Outcome = match row.try_get("outcome")? {
        None | Some("result") => Outcome::Result,
        Some("error") => Outcome::Error,
        Some("unavailable") => return Ok(Some(Outcome::Unavailable)),
        Some(_) => return Ok(None),
    };
    let status: Option<i32> = row.try_get("response_status")?;
    let body: Option<Vec<u8>> = row.try_get("response_body")?;
    let Some(status) = status.and_then(|status| u16::try_from(status).ok()) else { return Ok(None) };
    let mut stored = StoredResult::new(status, body.unwrap_or_default());
    if let Some(headers) = row.try_get::<Option<&str>, _>("response_headers")? {
        let Some(headers) = decode_headers(headers) else { return Ok(None) };
        stored.headers = headers;
    }
    Ok(Some(of(stored)))
}

fn decode_headers(stored: &str) -> Option<Headers> {
    let byte = |character: char| match character {
        NUL_STAND_IN => Some(0),
        other => u8::try_from(u32::from(other)).ok(),
    };
    let bytes = |value: &Value| -> Option<Vec<u8>> { value.as_str()?.chars().map(byte).collect() };
    // Other languages write `null` where there are none.
    let object: Option<Map<String, Value>> = serde_json::from_str(stored).ok()?;
    let mut headers = Headers::default();
    for (name, values) in &object.unwrap_or_default() {
        let name = decode_name(name);
        match values {
            Value::Array(values) => {
                for value in values {
                    headers.append(&name, bytes(value)?);
                }
            }
            value => headers.append(&name, bytes(value)?),
        }
    }
    Some(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_hold_nothing_that_the_server_refuses() {
        let all: Vec<u8> = (0..=255).collect();
        let mut headers = Headers::default();
        headers.append("set", all.clone());
        headers.append("set", "");
        headers.append("quote\"name", "\\");
        for name in ["nul\0name", "\u{100}", "\u{101}\u{100}\0", "\u{101}\u{101}"] {
            headers.append(name, "x");
        }
        let stored = encode_headers(&headers);
        assert!(!stored.contains('\0') && !stored.contains("\\u0000"));
        assert_eq!(decode_headers(&stored), Some(headers));
    }

    #[test]
    fn headers_of_null_are_none() {
        assert_eq!(decode_headers("null"), Some(Headers::default()));
    }

    #[test]
    fn headers_that_are_none_are_garbage() {
        for stored in ["[]", "1", "{\"a\":1}", "{\"a\":[[]]}", "{\"a\":\"\u{101}\"}"] {
            assert_eq!(decode_headers(stored), None, "{stored}");
        }
    }
}

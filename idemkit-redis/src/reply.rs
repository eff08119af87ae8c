//! What scripts reply.

use idemkit_core::{Applied, Fingerprint, Record, StoreError, StoreErrorKind, Timestamp};
use redis::Value;

use crate::{
    NAME,
    hash::{self, COMPLETED, Fields, STATE},
};

/// The fields of a completed record, in the order in which the scripts reply them.
const COMPLETED_FIELDS: [&str; 9] = [
    hash::FINGERPRINT,
    hash::FINGERPRINT_VERSION,
    hash::CLAIM_TOKEN,
    hash::COMPLETED_AT,
    hash::LEASE_UNTIL,
    hash::OUTCOME,
    hash::RESPONSE_STATUS,
    hash::RESPONSE_HEADERS,
    hash::RESPONSE_BODY,
];

/// A reply: its name, and what comes with it.
pub(crate) struct Reply {
    pub(crate) name: String,
    rest: std::vec::IntoIter<Value>,
}

/// All that is under a key, where no script could decide.
pub(crate) struct Seen {
    /// By the server's clock.
    pub(crate) now: Timestamp,
    /// What a write must still find; nothing where there is nothing.
    pub(crate) digest: Option<Vec<u8>>,
    pub(crate) record: Option<Record>,
}

impl Reply {
    pub(crate) fn of(value: Value) -> Result<Self, StoreError> {
        let Value::Array(items) = value else { return Err(strange("not an array")) };
        let mut rest = items.into_iter();
        let name = rest.next().and_then(into_bytes).and_then(|name| String::from_utf8(name).ok());
        Ok(Self { name: name.ok_or_else(|| strange("without a name"))?, rest })
    }

    pub(crate) fn bytes(&mut self) -> Result<Vec<u8>, StoreError> {
        self.rest.next().and_then(into_bytes).ok_or_else(|| strange("without a text"))
    }

    pub(crate) fn text(&mut self) -> Result<String, StoreError> {
        String::from_utf8(self.bytes()?).map_err(|error| strange("with a text that is none").with_source(error))
    }

    pub(crate) fn number(&mut self) -> Result<u64, StoreError> {
        match self.rest.next() {
            Some(Value::Int(number)) => u64::try_from(number).map_err(|error| strange("below zero").with_source(error)),
            _ => Err(strange("without a number")),
        }
    }

    pub(crate) fn attempt(&mut self) -> Result<u32, StoreError> {
        u32::try_from(self.number()?).map_err(|error| strange("with an attempt that is none").with_source(error))
    }

    pub(crate) fn millis(&mut self) -> Result<std::time::Duration, StoreError> {
        self.number().map(std::time::Duration::from_millis)
    }

    /// The hash and its version, as they were checked by the script.
    pub(crate) fn fingerprint(&mut self) -> Result<Fingerprint, StoreError> {
        let (hex, version) = (self.text()?, self.text()?);
        // A version beyond 32 bits is one that nobody knows: it equals nothing, as the largest does.
        let version = version.parse().unwrap_or(u32::MAX);
        Fingerprint::from_stored_hex(version, &hex)
            .map_err(|error| strange("with a fingerprint that is none").with_source(error))
    }

    /// The time, and the completed record as far as it decodes.
    pub(crate) fn completed(mut self) -> Result<(Timestamp, Record), StoreError> {
        let now = Timestamp::from_millis(self.number()?);
        let Some(Value::Array(values)) = self.rest.next() else { return Err(strange("without fields")) };
        let named = COMPLETED_FIELDS.into_iter().zip(values);
        let mut fields: Fields =
            named.filter_map(|(name, value)| Some((name.to_owned(), into_bytes(value)?))).collect();
        fields.insert(STATE.to_owned(), COMPLETED.as_bytes().to_vec());
        Ok((now, hash::decode(fields)))
    }

    /// The time, and all that is there.
    pub(crate) fn odd(mut self) -> Result<Seen, StoreError> {
        let now = Timestamp::from_millis(self.number()?);
        let digest = self.rest.next().and_then(into_bytes);
        let record = match self.rest.next() {
            Some(Value::Array(pairs)) => {
                let mut pairs = pairs.into_iter();
                let mut fields = Fields::new();
                while let (Some(name), Some(value)) = (pairs.next(), pairs.next()) {
                    if let (Some(name), Some(value)) = (into_bytes(name), into_bytes(value)) {
                        // A name that is no text is none of ours.
                        fields.insert(String::from_utf8_lossy(&name).into_owned(), value);
                    }
                }
                Some(hash::decode(fields))
            }
            // Something that is no hash.
            _ => digest.as_ref().map(|_| Record::Garbage),
        };
        Ok(Seen { now, digest, record })
    }
}

fn into_bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        Value::SimpleString(text) => Some(text.into_bytes()),
        _ => None,
    }
}

/// A reply that no script of ours makes.
pub(crate) fn strange(what: &'static str) -> StoreError {
    StoreError::new(NAME, StoreErrorKind::Other, Applied::Unknown).with_detail(format!("a script's reply {what}"))
}

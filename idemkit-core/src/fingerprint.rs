//! Fingerprints: telling a repeated request from another one that came under the same key.

mod request;

use std::fmt;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;

pub use self::request::HttpRequest;
use crate::canonical;
use crate::hash;
use crate::hex::{self, ParseHexError};

/// A hash of what an operation was asked to do, with the version of the rules that it was made by.
///
/// A duplicate is given the recorded result only if its fingerprint [`matches`](Self::matches) the recorded one.
///
/// The functions here make fingerprints of version 1, which anybody can compute. Where the request is guessable, as an
/// amount or a card number is, whoever reads the store can find it by trying: use a [`Fingerprinter::keyed`].
///
/// ```
/// use idemkit_core::Fingerprint;
///
/// let recorded = Fingerprint::of_payload(b"100 USD");
/// assert!(recorded.matches(&Fingerprint::of_payload(b"100 USD")));
/// assert!(!recorded.matches(&Fingerprint::of_payload(b"999 USD")));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    version: u32,
    hash: [u8; 32],
}

impl Fingerprint {
    /// Version of fingerprints that need no secret.
    pub const VERSION_PLAIN: u32 = 1;

    /// Version of fingerprints made with a secret: HMAC-SHA-256 over what version 1 hashes.
    pub const VERSION_KEYED: u32 = 2;

    /// The fingerprint of an HTTP request, the same for each way of writing the same request: see [`HttpRequest`].
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, HttpRequest};
    ///
    /// let request = HttpRequest::new("POST", "/charge").content_type("application/json");
    /// let one = Fingerprint::http(&request.body(br#"{"amount":100,"currency":"USD"}"#));
    /// let other = Fingerprint::http(&request.body(br#"{ "currency": "USD", "amount": 100 }"#));
    /// assert!(one.matches(&other));
    /// ```
    #[must_use]
    pub fn http(request: &HttpRequest<'_>) -> Self {
        Fingerprinter::plain().http(request)
    }

    /// The fingerprint of a list of parts, such as the arguments of a function. Parts are not normalised; where one
    /// ends and the next begins counts.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert!(!Fingerprint::of_parts(["a", "bc"]).matches(&Fingerprint::of_parts(["ab", "c"])));
    /// ```
    #[must_use]
    pub fn of_parts(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Fingerprinter::plain().of_parts(parts)
    }

    /// The fingerprint of one payload, such as a message of a queue, byte for byte.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::of_payload(b"hello"), Fingerprint::of_parts([b"hello"]));
    /// ```
    #[must_use]
    pub fn of_payload(payload: impl AsRef<[u8]>) -> Self {
        Self::of_parts([payload])
    }

    /// The fingerprint of one JSON payload, such as a message of a queue: by what it says, not by how it is written.
    /// The order of members, white space and escapes do not matter, numbers are exact. What does not parse as JSON is
    /// taken byte for byte.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::of_json(r#"{"a": 1, "b": 2}"#), Fingerprint::of_json(r#"{"b":2,"a":1}"#));
    /// assert_ne!(Fingerprint::of_json("18446744073709551616"), Fingerprint::of_json("18446744073709551617"));
    /// assert_eq!(Fingerprint::of_json("not JSON"), Fingerprint::of_payload("not JSON"));
    /// ```
    #[must_use]
    pub fn of_json(payload: impl AsRef<[u8]>) -> Self {
        Fingerprinter::plain().of_json(payload)
    }

    /// The fingerprint that a record holds, for authors of stores. Any version is taken, since records written by later
    /// releases must be readable; one that this release does not know matches nothing.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// let made = Fingerprint::of_payload(b"hello");
    /// assert_eq!(Fingerprint::from_stored(made.version(), *made.hash()), made);
    /// ```
    #[must_use]
    pub const fn from_stored(version: u32, hash: [u8; 32]) -> Self {
        Self { version, hash }
    }

    /// As [`from_stored`](Self::from_stored), for stores that hold the hash as text.
    ///
    /// # Errors
    ///
    /// [`ParseHexError`] unless `hash` is exactly 64 lower-case hex digits.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// let made = Fingerprint::of_payload(b"hello");
    /// assert_eq!(Fingerprint::from_stored_hex(made.version(), &made.to_hex()), Ok(made));
    /// assert!(Fingerprint::from_stored_hex(1, "garbage").is_err());
    /// ```
    pub fn from_stored_hex(version: u32, hash: &str) -> Result<Self, ParseHexError> {
        hex::decode(hash).map(|hash| Self { version, hash })
    }

    /// The version of the rules that the hash was made by.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::of_payload(b"hello").version(), Fingerprint::VERSION_PLAIN);
    /// ```
    #[must_use]
    pub const fn version(&self) -> u32 {
        self.version
    }

    /// The 32 bytes of the hash.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::from_stored(1, [7; 32]).hash(), &[7; 32]);
    /// ```
    #[must_use]
    pub const fn hash(&self) -> &[u8; 32] {
        &self.hash
    }

    /// The hash as it is stored where text is: 64 lower-case hex digits. The version is not part of it.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// assert_eq!(Fingerprint::from_stored(1, [0xAB; 32]).to_hex(), "ab".repeat(32));
    /// ```
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(&self.hash)
    }

    /// Whether both are fingerprints of the same request. This, and not `==`, decides whether a result may be replayed.
    ///
    /// Equal hashes of equal versions match, if this release knows the version. One that it does not know never
    /// matches, not even itself: what such a hash covers is unknown here (it may leave out what makes two requests
    /// different), and to refuse is safe where to replay is not. `==` only compares the data, as collections and tests
    /// need it.
    ///
    /// ```
    /// use idemkit_core::Fingerprint;
    ///
    /// let later = Fingerprint::from_stored(99, [7; 32]);
    /// assert!(later == later);
    /// assert!(!later.matches(&later));
    /// ```
    #[must_use]
    pub fn matches(&self, other: &Self) -> bool {
        matches!(self.version, Self::VERSION_PLAIN | Self::VERSION_KEYED) && self == other
    }
}

impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hash = self.to_hex();
        f.debug_struct("Fingerprint").field("version", &self.version).field("hash", &format_args!("{hash}")).finish()
    }
}

/// Makes the fingerprints of a service, with or without a secret.
///
/// # Changing the secret
///
/// A request that was recorded under another secret, or without one, does not match its own repetition any more: until
/// its record expires (24 hours after completion by default) a repetition is refused as a mismatch. That is safe, since
/// nothing runs twice, and it is all that happens. To live with it:
///
/// * change it when few retries are expected, and tell clients that a mismatch of a request that they did not change
///   means "look up what became of it";
/// * change it in all instances within the shortest time possible: while some have the former secret and some the new
///   one, a repetition that reaches the other kind is refused;
/// * never change the scope, the namespace or the table along with it in order to avoid the refusals: the keys would be
///   new ones, and what has been done would be done again.
///
/// ```
/// use idemkit_core::{Fingerprint, Fingerprinter};
///
/// # fn main() -> Result<(), idemkit_core::InvalidSecret> {
/// let fingerprinter = Fingerprinter::keyed("at least 32 random bytes from the configuration")?;
/// let card = fingerprinter.of_payload("4111111111111111");
/// assert_eq!(card.version(), Fingerprint::VERSION_KEYED);
/// assert!(!card.matches(&Fingerprint::of_payload("4111111111111111")));
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Default)]
pub struct Fingerprinter {
    /// The state of an HMAC that has taken the secret, and nothing else yet.
    keyed: Option<Hmac<Sha256>>,
}

impl Fingerprinter {
    /// Fingerprints without a secret: the same as those of [`Fingerprint`]'s own functions, version 1.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, Fingerprinter};
    ///
    /// assert_eq!(Fingerprinter::plain().of_payload(b"hello"), Fingerprint::of_payload(b"hello"));
    /// ```
    #[must_use]
    pub const fn plain() -> Self {
        Self { keyed: None }
    }

    /// Fingerprints keyed with a secret, version 2: without the secret nobody can tell from a stored fingerprint what
    /// the request was. Take 32 or more random bytes, the same in all instances of the service.
    ///
    /// # Errors
    ///
    /// [`InvalidSecret`] if the secret is empty or has zero bytes only.
    ///
    /// ```
    /// use idemkit_core::Fingerprinter;
    ///
    /// assert!(Fingerprinter::keyed([0x5A; 32]).is_ok());
    /// assert!(Fingerprinter::keyed("").is_err());
    /// ```
    pub fn keyed(secret: impl AsRef<[u8]>) -> Result<Self, InvalidSecret> {
        let secret = secret.as_ref();
        if secret.iter().all(|byte| *byte == 0) {
            return Err(InvalidSecret);
        }
        // HMAC takes a key of any length, though its trait allows for those that do not.
        let keyed = Hmac::new_from_slice(secret).map_err(|_| InvalidSecret)?;
        Ok(Self { keyed: Some(keyed) })
    }

    /// As [`Fingerprint::http`], with the secret if there is one.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, Fingerprinter, HttpRequest};
    ///
    /// let request = HttpRequest::new("POST", "/charge").body(b"100");
    /// assert_eq!(Fingerprinter::plain().http(&request), Fingerprint::http(&request));
    /// ```
    #[must_use]
    pub fn http(&self, request: &HttpRequest<'_>) -> Fingerprint {
        request.with_canonical_parts(|parts| self.of_parts(parts))
    }

    /// As [`Fingerprint::of_parts`], with the secret if there is one.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, Fingerprinter};
    ///
    /// assert_eq!(Fingerprinter::plain().of_parts(["a", "b"]), Fingerprint::of_parts(["a", "b"]));
    /// ```
    #[must_use]
    pub fn of_parts(&self, parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Fingerprint {
        match &self.keyed {
            None => Fingerprint { version: Fingerprint::VERSION_PLAIN, hash: hash::hash(parts) },
            Some(keyed) => {
                let mut keyed = keyed.clone();
                hash::absorb(&mut keyed, parts);
                Fingerprint { version: Fingerprint::VERSION_KEYED, hash: keyed.finalize().into_bytes().into() }
            }
        }
    }

    /// As [`Fingerprint::of_payload`], with the secret if there is one.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, Fingerprinter};
    ///
    /// assert_eq!(Fingerprinter::plain().of_payload("a"), Fingerprint::of_payload("a"));
    /// ```
    #[must_use]
    pub fn of_payload(&self, payload: impl AsRef<[u8]>) -> Fingerprint {
        self.of_parts([payload])
    }

    /// As [`Fingerprint::of_json`], with the secret if there is one.
    ///
    /// ```
    /// use idemkit_core::{Fingerprint, Fingerprinter};
    ///
    /// assert_eq!(Fingerprinter::plain().of_json("[1]"), Fingerprint::of_json(" [ 1 ]"));
    /// ```
    #[must_use]
    pub fn of_json(&self, payload: impl AsRef<[u8]>) -> Fingerprint {
        self.of_payload(canonical::json(payload.as_ref()))
    }
}

/// Says whether there is a secret, and never which.
impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.keyed.is_some() { "Fingerprinter::keyed(..)" } else { "Fingerprinter::plain()" })
    }
}

/// The secret for keyed fingerprints is empty, or consists of zero bytes, which HMAC cannot tell from empty. Either way
/// it is most likely a setting that was never made.
///
/// ```
/// use idemkit_core::{Fingerprinter, InvalidSecret};
///
/// assert_eq!(Fingerprinter::keyed([0; 32]).unwrap_err(), InvalidSecret);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the secret for keyed fingerprints is empty or has zero bytes only")]
pub struct InvalidSecret;

#[cfg(test)]
mod tests;

//! Effective keys: what a store knows an operation by, and what the next system gets to know of it.

use std::fmt;
use std::str::FromStr;

use crate::hex::{self, ParseHexError};
use crate::{canonical, hash};

/// The scope of an HTTP operation in a service that has one tenant only: all callers share one space of idempotency
/// keys.
///
/// ```
/// use idemkit_core::{ANONYMOUS_SCOPE, EffectiveKey};
///
/// let key = EffectiveKey::http("k1", ANONYMOUS_SCOPE, "POST", "/charge");
/// assert_eq!(key, EffectiveKey::from_parts(["k1", "_idemkit_anonymous", "POST", "/charge"]));
/// ```
pub const ANONYMOUS_SCOPE: &str = "_idemkit_anonymous";

/// First part of each downstream key, so that it differs from every key that is composed for a store.
const DOWNSTREAM_DOMAIN: &[u8] = b"idemkit/downstream";

/// The key of an operation as stores and events see it: 32 bytes, the SHA-256 of all that tells the operation from
/// others.
///
/// What it was made from cannot be read back from it, so it may be stored and logged where the caller's own key may
/// not. Each part goes into the hash after its length: parts that only look alike when joined, as `"a", "bc"` and
/// `"ab", "c"`, give different keys.
///
/// It is shown, parsed and stored as 64 lower-case hex digits.
///
/// ```
/// use idemkit_core::EffectiveKey;
///
/// let key = EffectiveKey::http("k1", "user-1", "POST", "/charge");
/// assert_eq!(key.to_string(), "c836cb266da9ee8cc52b257710e37345b0434aa34db2cafa4bd8f24762b7b54f");
/// assert_eq!(key.to_string().parse(), Ok(key));
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EffectiveKey([u8; 32]);

impl EffectiveKey {
    /// The key of an operation that none of the other constructors describes: all parts that tell it from others, in a
    /// fixed order.
    ///
    /// Text counts as its UTF-8 bytes. Begin with a part that names the kind of operation, if the store is shared by
    /// several kinds.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let nightly = EffectiveKey::from_parts(["nightly-report", "2026-03-01", "tenant-7"]);
    /// assert_ne!(nightly, EffectiveKey::from_parts(["nightly-report", "2026-03-01tenant-7"]));
    /// ```
    #[must_use]
    pub fn from_parts(parts: impl IntoIterator<Item = impl AsRef<[u8]>>) -> Self {
        Self(hash::hash(parts))
    }

    /// The key of an HTTP operation: the same idempotency key of another caller, method or path is another operation.
    ///
    /// * `idempotency_key`: the value that the client sent, without the quotes of the header.
    /// * `scope`: who calls, in the service's own terms; [`ANONYMOUS_SCOPE`] where there is one tenant only. It is
    ///   taken as it is: whether an empty scope is acceptable is for the caller to decide.
    /// * `method`: in any case, counts in upper case.
    /// * `path`: the path as requested, without the query. Repeated slashes and one trailing slash do not count, nor
    ///   does the case of percent escapes; escapes are not decoded.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let key = EffectiveKey::http("k1", "user-1", "POST", "/charge");
    /// assert_eq!(key, EffectiveKey::http("k1", "user-1", "post", "//charge/"));
    /// assert_ne!(key, EffectiveKey::http("k1", "user-2", "POST", "/charge"));
    /// ```
    #[must_use]
    pub fn http(idempotency_key: impl AsRef<[u8]>, scope: impl AsRef<[u8]>, method: &str, path: &str) -> Self {
        let (method, path) = (canonical::method(method), canonical::path(path));
        Self::from_parts([idempotency_key.as_ref(), scope.as_ref(), method.as_bytes(), path.as_bytes()])
    }

    /// The key of handling one message of a queue: each consumer group handles the message once.
    ///
    /// `message_id` must be the same at each delivery of the message: an id that the producer gave it, not one that the
    /// broker makes anew when the producer sends again.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let billing = EffectiveKey::message("msg-1", "orders", "billing");
    /// assert_ne!(billing, EffectiveKey::message("msg-1", "orders", "shipping"));
    /// ```
    #[must_use]
    pub fn message(message_id: impl AsRef<[u8]>, queue: impl AsRef<[u8]>, consumer_group: impl AsRef<[u8]>) -> Self {
        Self::from_parts([message_id.as_ref(), queue.as_ref(), consumer_group.as_ref()])
    }

    /// The key of a function call.
    ///
    /// * `function`, `version`: which code is called. A new version makes every call a new operation.
    /// * `argument_hash`: what it is called with, for example the hex text of a [`Fingerprint`](crate::Fingerprint) of
    ///   the arguments.
    /// * `scope`: for whom, or within which session, the call happens once.
    ///
    /// ```
    /// use idemkit_core::{EffectiveKey, Fingerprint};
    ///
    /// let arguments = Fingerprint::of_parts(["order-9", "1250"]).to_hex();
    /// let call = EffectiveKey::function("refund", "1", &arguments, "session-9");
    /// assert_ne!(call, EffectiveKey::function("refund", "2", &arguments, "session-9"));
    /// ```
    #[must_use]
    pub fn function(
        function: impl AsRef<[u8]>,
        version: impl AsRef<[u8]>,
        argument_hash: impl AsRef<[u8]>,
        scope: impl AsRef<[u8]>,
    ) -> Self {
        Self::from_parts([function.as_ref(), version.as_ref(), argument_hash.as_ref(), scope.as_ref()])
    }

    /// The key with exactly these bytes, as [`as_bytes`](Self::as_bytes) returned them. Nothing is hashed: a raw
    /// idempotency key must never come this way.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let key = EffectiveKey::from_parts(["a"]);
    /// assert_eq!(EffectiveKey::from_bytes(*key.as_bytes()), key);
    /// ```
    #[must_use]
    pub const fn from_bytes(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// The 32 bytes of the key.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// assert_eq!(EffectiveKey::from_bytes([7; 32]).as_bytes(), &[7; 32]);
    /// ```
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// The idempotency key to hand to the next system, where the operation calls one system once: the
    /// [`downstream_step`](Self::downstream_step) with the empty name.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let key = EffectiveKey::http("k1", "user-1", "POST", "/charge");
    /// let header = key.downstream().to_string();
    /// assert_eq!(header, key.downstream().to_string(), "the same at each attempt");
    /// assert_ne!(header, key.to_string(), "and not the key in the store");
    /// ```
    #[must_use]
    pub fn downstream(&self) -> DownstreamKey {
        self.downstream_step("")
    }

    /// The idempotency key to hand to the next system for one of several calls that the operation makes. `step` names
    /// the call, and is chosen by the code that makes it: `"reserve"`, `"charge"`, `"item-3"`.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let key = EffectiveKey::message("msg-1", "orders", "billing");
    /// assert_ne!(key.downstream_step("reserve"), key.downstream_step("charge"));
    /// ```
    #[must_use]
    pub fn downstream_step(&self, step: &str) -> DownstreamKey {
        DownstreamKey(hash::hash([DOWNSTREAM_DOMAIN, &self.0, step.as_bytes()]))
    }
}

impl fmt::Display for EffectiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(&self.0))
    }
}

impl fmt::Debug for EffectiveKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Reads exactly the text that `Display` writes, 64 lower-case hex digits. Anything else is a [`ParseHexError`].
impl FromStr for EffectiveKey {
    type Err = ParseHexError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        hex::decode(text).map(Self)
    }
}

/// An idempotency key for the next system, derived from an [`EffectiveKey`] and a step: 32 bytes, sent as 64 lower-case
/// hex digits.
///
/// It is the same at each attempt of the operation, so the next system can tell a repeated call, and it does not tell
/// the next system the key under which this operation is stored.
///
/// ```
/// use idemkit_core::EffectiveKey;
///
/// let key = EffectiveKey::from_parts(["a"]).downstream_step("charge");
/// assert_eq!(key.to_string().len(), 64);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct DownstreamKey([u8; 32]);

impl DownstreamKey {
    /// The 32 bytes of the key, for a next system that takes bytes or a shorter text: any 16 of them are unique enough.
    ///
    /// ```
    /// use idemkit_core::EffectiveKey;
    ///
    /// let key = EffectiveKey::from_parts(["a"]).downstream();
    /// let short: u128 = key.as_bytes()[..16].iter().fold(0, |id, byte| id << 8 | u128::from(*byte));
    /// assert_eq!(format!("{short:032x}"), key.to_string()[..32]);
    /// ```
    #[must_use]
    pub const fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl fmt::Display for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&hex::encode(&self.0))
    }
}

impl fmt::Debug for DownstreamKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_scope_part_tells_operations_apart() {
        let keys: HashSet<_> = [
            EffectiveKey::http("k", "s", "POST", "/p"),
            EffectiveKey::http("k2", "s", "POST", "/p"),
            EffectiveKey::http("k", "s2", "POST", "/p"),
            EffectiveKey::http("k", "s", "PATCH", "/p"),
            EffectiveKey::http("k", "s", "POST", "/p2"),
            EffectiveKey::http("k", "s", "POST", "/P"),
            EffectiveKey::http("ks", "", "POST", "/p"),
            EffectiveKey::http("", "ks", "POST", "/p"),
            EffectiveKey::message("k", "s", "POST"),
        ]
        .into();
        assert_eq!(keys.len(), 9);
    }

    #[test]
    fn constructors_are_lists_of_parts() {
        assert_eq!(EffectiveKey::message("m", "q", "g"), EffectiveKey::from_parts(["m", "q", "g"]));
        assert_eq!(
            EffectiveKey::function("f", "1", [0xFF], "s"),
            EffectiveKey::from_parts([&b"f"[..], b"1", &[0xFF], b"s"])
        );
        assert_eq!(
            EffectiveKey::http("k", "s", "pöst", "/a%2f/"),
            EffectiveKey::from_parts(["k", "s", "PöST", "/a%2F"])
        );
    }

    #[test]
    fn both_texts_are_the_hex_digits_and_nothing_else() {
        let key = EffectiveKey::from_parts(["raw-key"]);
        let text = key.to_string();
        assert_eq!(text.len(), 64);
        assert_eq!(text, format!("{key:?}"));
        assert_eq!(format!("{key:>70}"), format!("      {text}"));
        assert_eq!(text.parse(), Ok(key));
        assert!(text.to_uppercase().parse::<EffectiveKey>().is_err());
        assert_eq!(format!("{:?}", key.downstream()), key.downstream().to_string());
    }

    #[test]
    fn order_is_that_of_the_text() {
        let (one, other) = (EffectiveKey::from_parts(["1"]), EffectiveKey::from_parts(["2"]));
        assert_eq!(one.cmp(&other), one.to_string().cmp(&other.to_string()));
    }

    /// Fixed for ever: a changed downstream key would charge twice across a deployment.
    #[test]
    fn downstream_keys_are_pinned() {
        let key = EffectiveKey::from_bytes([0; 32]);
        let composed = EffectiveKey::from_parts([DOWNSTREAM_DOMAIN, &[0; 32], b"charge"]);
        assert_eq!(key.downstream_step("charge").as_bytes(), composed.as_bytes());
        assert_eq!(key.downstream(), key.downstream_step(""));
        assert_eq!(key.downstream().to_string(), "cba5ceba82dab41a3971fea5d8bfc06e9c2ec0ba2209f24d439242c9152f7349");
        assert_eq!(
            key.downstream_step("charge").to_string(),
            "4aa024888e18dac12e70548938ff5741d56eef13e671219ae772219289c0311a"
        );
    }

    #[test]
    fn neither_the_key_nor_an_error_tells_the_raw_key() {
        let raw = "sk_live_0123456789abcdef0123456789abcdef0123456789abcdef01234567";
        assert_eq!(raw.len(), 64);
        let error = raw.parse::<EffectiveKey>().expect_err("not hex digits");
        assert!(!format!("{error} {error:?}").contains("live"));
        let key = EffectiveKey::http(raw, "s", "POST", "/");
        assert!(!format!("{key} {key:?} {}", key.downstream()).contains("live"));
    }
}

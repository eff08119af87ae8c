//! The driver's errors, sorted by what a caller can do.

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use mongodb::error::{Error, ErrorKind, WriteFailure};

use crate::NAME;

/// What a failed command means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The answer is lost, or the primary went away: what became of a write is not known, and it may be sent again.
    Lost,
    /// Nothing was sent, and it may be sent again.
    NotReached,
    /// Two writers met; nothing was applied, and the same may succeed at once.
    Contended,
    /// Its time was up, on the server: what became of a write is not known, since a router's time may be up after the write. What
    /// took so long is not sent again at once.
    TimeUp,
    /// The server refused: nothing was applied.
    Refused(StoreErrorKind, &'static str),
}

const ROLE: &str = "this user needs find, insert, update, remove and, for notices, changeStream on the collection";
const REPLICA_SET: &str = "transactions need a replica set or a sharded cluster";

pub(crate) fn meaning(error: &Error) -> Meaning {
    use StoreErrorKind::{Misconfigured, Other};
    match error.kind.as_ref() {
        ErrorKind::Io(_) | ErrorKind::ConnectionPoolCleared { .. } | ErrorKind::InvalidResponse { .. } => Meaning::Lost,
        ErrorKind::ServerSelection { .. } | ErrorKind::DnsResolve { .. } | ErrorKind::Shutdown => Meaning::NotReached,
        ErrorKind::Authentication { .. } => {
            Meaning::Refused(Misconfigured, "the server refuses this user and password")
        }
        ErrorKind::InvalidTlsConfig { .. } => Meaning::Refused(Misconfigured, "TLS: look at the certificates"),
        ErrorKind::InvalidArgument { .. } => Meaning::Refused(Misconfigured, "the client's settings cannot work"),
        // The driver's own, before anything is sent: a deployment that has no transactions.
        ErrorKind::SessionsNotSupported | ErrorKind::Transaction { .. } => Meaning::Refused(Misconfigured, REPLICA_SET),
        ErrorKind::IncompatibleServer { .. } => {
            Meaning::Refused(Misconfigured, "the server is too old, or not MongoDB")
        }
        ErrorKind::Command(command) => of_code(command.code, error),
        ErrorKind::Write(WriteFailure::WriteError(write)) => of_code(write.code, error),
        // It may be applied on the primary, and be rolled back.
        ErrorKind::Write(WriteFailure::WriteConcernError(_)) => Meaning::Lost,
        // What no command of ours makes.
        _ if error.contains_label("RetryableWriteError") => Meaning::Lost,
        _ => Meaning::Refused(Other, ""),
    }
}

fn of_code(code: i32, error: &Error) -> Meaning {
    use StoreErrorKind::{Misconfigured, Other, Unavailable};
    match code {
        // Duplicate key, as concurrent upserts have it; write conflict.
        11000 | 112 => Meaning::Contended,
        // Interrupted, at shutdown or by a change of the replica set; not primary, or not primary any more; recovering;
        // network time-outs; host unreachable or not found; socket exception; a write concern that cannot be met; as routers
        // have it, a time limit between them and a shard, no primary of one, or none whose majority is known.
        11600 | 11602 | 91 | 189 | 10107 | 13435 | 13436 | 10058 | 89 | 6 | 7 | 9001 | 262 | 63 | 13388 | 64 | 100
        | 202 | 133 | 134 => Meaning::Lost,
        // Unauthorized, authentication failed.
        13 | 18 => Meaning::Refused(Misconfigured, ROLE),
        // Transactions that are none here, or not in this form.
        20 | 263 => Meaning::Refused(Misconfigured, REPLICA_SET),
        50 => Meaning::TimeUp,
        // Too many open cursors or sessions; out of disk.
        24 | 14031 => Meaning::Refused(Unavailable, ""),
        // The index has other options.
        85 | 86 => Meaning::Refused(Misconfigured, "an index of this name has other options"),
        // Document validation.
        121 => Meaning::Refused(Misconfigured, "the collection's validator refuses records"),
        _ if error.contains_label("RetryableWriteError") || error.contains_label("TransientTransactionError") => {
            Meaning::Lost
        }
        _ => Meaning::Refused(Other, ""),
    }
}

/// The error as the store's contract has it.
pub(crate) fn classify(error: Error, applied: Applied) -> StoreError {
    let (kind, mends) = match meaning(&error) {
        Meaning::Lost => (StoreErrorKind::Unavailable, "the connection broke, or the primary changed"),
        Meaning::NotReached => (StoreErrorKind::Unavailable, "no primary could be reached"),
        Meaning::Contended => (StoreErrorKind::Unavailable, "others wrote the same document, again and again"),
        Meaning::TimeUp => (StoreErrorKind::Unavailable, "the server's time for it was up"),
        Meaning::Refused(kind, mends) => (kind, mends),
    };
    let mut failed = StoreError::new(NAME, kind, applied);
    if !mends.is_empty() {
        failed = failed.with_detail(mends);
    }
    failed.with_source(error)
}

#[cfg(test)]
pub(crate) mod tests {
    use mongodb::bson::{deserialize_from_document, doc};
    use rstest::rstest;

    use super::*;

    /// What a server says that refuses a command.
    pub(crate) fn said(code: i32) -> Error {
        ErrorKind::Command(deserialize_from_document(doc! { "code": code }).unwrap()).into()
    }

    #[rstest]
    #[case::network_interface_exceeded_time_limit(202, Meaning::Lost)]
    #[case::failed_to_satisfy_read_preference(133, Meaning::Lost)]
    #[case::majority_not_available_yet(134, Meaning::Lost)]
    #[case::max_time_expired(50, Meaning::TimeUp)]
    fn what_routers_say(#[case] code: i32, #[case] expected: Meaning) {
        assert_eq!(meaning(&said(code)), expected);
    }
}

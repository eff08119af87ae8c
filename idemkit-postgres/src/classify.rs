//! The driver's errors, sorted by what a caller can do.

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use sqlx::Error;

use crate::NAME;

/// What a failed statement means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Meaning {
    /// The connection is of no more use, and what became of a write is not known.
    Lost,
    /// No connection was to be had: nothing was sent.
    NotReached,
    /// Two transactions met. Nothing was applied, and the same may succeed at once.
    Contended,
    /// The server refused: nothing was applied.
    Refused(StoreErrorKind, &'static str),
}

const RUN_MIGRATE: &str = "the table is missing or of another shape: call PostgresStore::migrate, or apply the SQL of \
                           PostgresStore::schema_sql";
const GRANT: &str = "this role needs GRANT SELECT, INSERT, UPDATE, DELETE on the table, GRANT SELECT on its _schema table, and \
                     GRANT USAGE on their schema";
const POOLER: &str = "the pooler keeps no prepared statements: build the store with Builder::pooler";

pub(crate) fn meaning(error: &Error) -> Meaning {
    match error {
        Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => Meaning::NotReached,
        Error::PoolTimedOut | Error::PoolClosed => Meaning::NotReached,
        Error::Io(_) | Error::Protocol(_) | Error::WorkerCrashed | Error::BeginFailed => Meaning::Lost,
        Error::Tls(_) => Meaning::Refused(StoreErrorKind::Misconfigured, "TLS: look at sslmode and the certificates"),
        Error::Configuration(_) => {
            Meaning::Refused(StoreErrorKind::Misconfigured, "the connection's settings cannot work")
        }
        Error::Database(database) => of_code(database.code().as_deref().unwrap_or_default()),
        // What no statement of ours makes.
        _ => Meaning::Refused(StoreErrorKind::Other, ""),
    }
}

/// Whether the connection is of no more use: it broke, or leads to a server that has become a standby.
pub(crate) fn ends_connection(error: &Error) -> bool {
    let is_standby = || error.as_database_error().and_then(|error| error.code()).is_some_and(|code| code == STANDBY);
    meaning(error) == Meaning::Lost || is_standby()
}

/// A read-only transaction.
const STANDBY: &str = "25006";

fn of_code(code: &str) -> Meaning {
    use StoreErrorKind::{Misconfigured, Other, Unavailable};
    match code {
        // Serialization failure, deadlock; another made the same row, table or type at the same moment.
        "40001" | "40P01" | "23505" | "42P07" | "42710" => Meaning::Contended,
        // The server ends this connection, for one reason or another.
        "57P01" | "57P02" | "57P05" | "25P03" | "25P04" => Meaning::Lost,
        "57P03" => Meaning::NotReached,
        STANDBY => Meaning::Refused(
            Unavailable,
            "the server is a standby: is a failover under way, or is this the wrong address?",
        ),
        // A statement that was cancelled or waited for a lock for too long; no room for another connection; no memory, no disk.
        "57014" | "55P03" | "53000" | "53100" | "53200" | "53300" | "53400" => Meaning::Refused(Unavailable, ""),
        // A transaction that is aborted: by the statement before.
        "25P02" => Meaning::Refused(Other, "the transaction is aborted"),
        // No such table, schema, or column.
        "42P01" | "3F000" | "42703" => Meaning::Refused(Misconfigured, RUN_MIGRATE),
        "42501" => Meaning::Refused(Misconfigured, GRANT),
        "3D000" => Meaning::Refused(Misconfigured, "there is no such database"),
        // Prepared statements that another session has, or has not.
        "26000" | "42P05" => Meaning::Refused(Misconfigured, POOLER),
        _ if code.starts_with("28") => Meaning::Refused(Misconfigured, "the server refuses this role and password"),
        _ if code.starts_with("08") => Meaning::Lost,
        _ if code.starts_with("53") || code.starts_with("57") || code.starts_with("58") => {
            Meaning::Refused(Unavailable, "")
        }
        _ => Meaning::Refused(Other, ""),
    }
}

/// The error as the store's contract has it.
pub(crate) fn classify(error: Error, applied: Applied) -> StoreError {
    let (kind, mends) = match meaning(&error) {
        Meaning::Lost => (StoreErrorKind::Unavailable, "the connection broke"),
        Meaning::NotReached => (StoreErrorKind::Unavailable, "no connection to the server, or none free in the pool"),
        Meaning::Contended => (StoreErrorKind::Unavailable, "other transactions were at the same row, again and again"),
        Meaning::Refused(kind, mends) => (kind, mends),
    };
    let mut failed = StoreError::new(NAME, kind, applied);
    if !mends.is_empty() {
        failed = failed.with_detail(mends);
    }
    failed.with_source(error)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("40001", Meaning::Contended)]
    #[case("40P01", Meaning::Contended)]
    #[case("57P01", Meaning::Lost)]
    #[case("08006", Meaning::Lost)]
    #[case("57P03", Meaning::NotReached)]
    fn a_code_means(#[case] code: &str, #[case] meaning: Meaning) {
        assert_eq!(of_code(code), meaning);
    }

    #[rstest]
    #[case("25006", StoreErrorKind::Unavailable, "standby")]
    #[case("53300", StoreErrorKind::Unavailable, "")]
    #[case("42P01", StoreErrorKind::Misconfigured, "PostgresStore::migrate")]
    #[case("42501", StoreErrorKind::Misconfigured, "GRANT")]
    #[case("28P01", StoreErrorKind::Misconfigured, "password")]
    #[case("26000", StoreErrorKind::Misconfigured, "Builder::pooler")]
    #[case("22012", StoreErrorKind::Other, "")]
    fn a_refusal_says_what_mends_it(#[case] code: &str, #[case] kind: StoreErrorKind, #[case] mends: &str) {
        let Meaning::Refused(seen, said) = of_code(code) else { panic!("{code}") };
        assert_eq!(seen, kind);
        assert!(said.contains(mends), "{said}");
    }

    #[test]
    fn a_connection_that_broke_is_lost_and_one_that_was_refused_was_not_reached() {
        let of = |kind: std::io::ErrorKind| meaning(&Error::Io(kind.into()));
        assert_eq!(of(std::io::ErrorKind::ConnectionReset), Meaning::Lost);
        assert_eq!(of(std::io::ErrorKind::ConnectionRefused), Meaning::NotReached);
        assert_eq!(meaning(&Error::PoolTimedOut), Meaning::NotReached);
    }
}

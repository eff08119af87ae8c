//! The driver's errors, sorted by what a caller can do.

use idemkit_core::{Applied, StoreError, StoreErrorKind};
use redis::{ErrorKind, RedisError, ServerErrorKind};

use crate::NAME;

/// What a failed call means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Meaning {
    pub(crate) kind: StoreErrorKind,
    /// What became of a write.
    pub(crate) applied: Applied,
    /// What is to be done about it.
    pub(crate) mends: &'static str,
    /// Whether the same call may succeed in a moment, on this connection or another one.
    pub(crate) retry: bool,
    /// Whether the connection is of no more use.
    pub(crate) reconnect: bool,
}

/// What the error means. Everything that the server says was said instead of running the script, or by its first write.
pub(crate) fn meaning(error: &RedisError) -> Meaning {
    let no = |kind, mends| Meaning { kind, applied: Applied::No, mends, retry: false, reconnect: false };
    let lost = |mends| Meaning {
        kind: StoreErrorKind::Unavailable,
        applied: Applied::Unknown,
        mends,
        retry: true,
        reconnect: true,
    };
    match error.kind() {
        ErrorKind::Io if error.is_connection_refusal() => Meaning { applied: Applied::No, ..lost("refused") },
        ErrorKind::Io => lost(if error.is_timeout() { "no answer in time" } else { "the connection broke" }),
        ErrorKind::Parse => lost("an answer that is none: is this a Redis server?"),
        ErrorKind::ClusterConnectionNotFound
        | ErrorKind::MasterNameNotFoundBySentinel
        | ErrorKind::NoValidReplicasFoundBySentinel => Meaning { applied: Applied::No, ..lost("no primary is known") },
        ErrorKind::AuthenticationFailed => no(
            StoreErrorKind::Misconfigured,
            "the server refuses this user and password: see the rules for an ACL in idemkit-redis's documentation",
        ),
        ErrorKind::InvalidClientConfig | ErrorKind::EmptySentinelList | ErrorKind::RESP3NotSupported => {
            no(StoreErrorKind::Misconfigured, "the connection's settings do not fit the server")
        }
        ErrorKind::Server(kind) => of_server(kind, error),
        ErrorKind::Extension => of_code(error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
        ErrorKind::Client | ErrorKind::UnexpectedReturnType => {
            Meaning { applied: Applied::Unknown, ..no(StoreErrorKind::Other, "") }
        }
        // The driver may grow.
        _ => Meaning { applied: Applied::Unknown, ..no(StoreErrorKind::Other, "") },
    }
}

fn of_server(kind: ServerErrorKind, error: &RedisError) -> Meaning {
    match kind {
        // Anything can be an ERR: only its text tells. Redis 6 wraps what a script's command failed with.
        ServerErrorKind::ResponseError => of_code("", error.detail().unwrap_or_default()),
        other => of_code(known(other), error.detail().unwrap_or_default()),
    }
}

fn known(kind: ServerErrorKind) -> &'static str {
    match kind {
        ServerErrorKind::BusyLoading => "LOADING",
        ServerErrorKind::Moved => "MOVED",
        ServerErrorKind::Ask => "ASK",
        ServerErrorKind::TryAgain => "TRYAGAIN",
        ServerErrorKind::ClusterDown => "CLUSTERDOWN",
        ServerErrorKind::MasterDown => "MASTERDOWN",
        ServerErrorKind::ReadOnly => "READONLY",
        ServerErrorKind::NoPerm => "NOPERM",
        _ => "",
    }
}

/// The codes that mean something here; also looked for inside a text, where a script's command failed with one.
const CODES: [&str; 18] = [
    "LOADING",
    "READONLY",
    "MASTERDOWN",
    "CLUSTERDOWN",
    "MOVED",
    "ASK",
    "TRYAGAIN",
    "OOM",
    "BUSY",
    "MISCONF",
    "NOREPLICAS",
    "UNBLOCKED",
    "NOAUTH",
    "WRONGPASS",
    "NOPERM",
    "NOPROTO",
    "WRONGTYPE",
    "DENIED",
];

fn of_code(code: &str, text: &str) -> Meaning {
    // By the rules for a user, inside a script: in the words of Redis 7.0, and of 7.2 and Valkey. What the script wrote before stays.
    if text.contains("user executing the script") || text.contains("ACL failure in script") {
        return Meaning { applied: Applied::Unknown, ..of_code("NOPERM", "") };
    }
    let inside =
        || CODES.into_iter().find(|code| text.contains(&format!("-{code} ")) || text.starts_with(&format!("{code} ")));
    let code = if CODES.contains(&code) { code } else { inside().unwrap_or_default() };
    let refused = |kind, mends| Meaning { kind, applied: Applied::No, mends, retry: false, reconnect: false };
    let soon = |mends, reconnect| Meaning { retry: true, reconnect, ..refused(StoreErrorKind::Unavailable, mends) };
    match code {
        "LOADING" => soon("the server loads its data", false),
        // The primary that this connection reached is none any more.
        "READONLY" => soon("the server is a replica: is a failover under way, or is this the wrong address?", true),
        "MASTERDOWN" | "CLUSTERDOWN" => soon("the cluster or its primary is down", false),
        "MOVED" | "ASK" | "TRYAGAIN" => {
            soon("the key is on another node: for a cluster, build the store with Builder::cluster", false)
        }
        "BUSY" => soon("the server is busy with a script", false),
        "OOM" => refused(StoreErrorKind::Unavailable, "the server's maxmemory is reached"),
        "MISCONF" => refused(StoreErrorKind::Unavailable, "the server does not take writes, since it cannot save them"),
        "NOREPLICAS" => refused(StoreErrorKind::Unavailable, "the server has too few replicas to take writes"),
        "NOAUTH" | "WRONGPASS" | "NOPROTO" | "DENIED" => refused(
            StoreErrorKind::Misconfigured,
            "the server refuses this user and password: see the rules for an ACL in idemkit-redis's documentation",
        ),
        "NOPERM" => refused(
            StoreErrorKind::Misconfigured,
            "this user may not do what the store does: see the rules for an ACL in idemkit-redis's documentation",
        ),
        // The scripts look at the type first: another client changed it in between, and nothing of ours was written.
        "WRONGTYPE" => refused(StoreErrorKind::CorruptRecord, "the key holds something that is no hash"),
        _ => Meaning { applied: Applied::Unknown, ..refused(StoreErrorKind::Other, "") },
    }
}

/// The error as the store's contract has it. A URL or an address is in none of the driver's texts that are kept.
pub(crate) fn classify(error: RedisError, applied: Applied) -> StoreError {
    let Meaning { kind, mends, .. } = meaning(&error);
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
    #[case("-LOADING Redis is loading the dataset in memory", StoreErrorKind::Unavailable, true)]
    #[case("-READONLY You can't write against a read only replica.", StoreErrorKind::Unavailable, true)]
    #[case("-MASTERDOWN Link with MASTER is down", StoreErrorKind::Unavailable, true)]
    #[case("-CLUSTERDOWN The cluster is down", StoreErrorKind::Unavailable, true)]
    #[case("-MOVED 3999 127.0.0.1:6381", StoreErrorKind::Unavailable, true)]
    #[case("-TRYAGAIN Multiple keys request during rehashing", StoreErrorKind::Unavailable, true)]
    #[case("-BUSY Redis is busy running a script", StoreErrorKind::Unavailable, true)]
    #[case("-OOM command not allowed when used memory > 'maxmemory'.", StoreErrorKind::Unavailable, false)]
    #[case("-MISCONF Redis is configured to save RDB snapshots", StoreErrorKind::Unavailable, false)]
    #[case("-NOREPLICAS Not enough good replicas to write.", StoreErrorKind::Unavailable, false)]
    #[case("-NOAUTH Authentication required.", StoreErrorKind::Misconfigured, false)]
    #[case("-WRONGPASS invalid username-password pair", StoreErrorKind::Misconfigured, false)]
    #[case("-NOPERM this user has no permissions", StoreErrorKind::Misconfigured, false)]
    #[case("-NOPROTO unsupported protocol version", StoreErrorKind::Misconfigured, false)]
    #[case("-WRONGTYPE Operation against a key", StoreErrorKind::CorruptRecord, false)]
    #[case(
        "-ERR Error running script (call to f_1): @user_script:9: -OOM command not allowed",
        StoreErrorKind::Unavailable,
        false
    )]
    #[case(
        "-ERR The user executing the script can't run this command or subcommand",
        StoreErrorKind::Misconfigured,
        false
    )]
    #[case("-ERR ACL failure in script: User app has no permissions", StoreErrorKind::Misconfigured, false)]
    #[case("-ERR unknown command", StoreErrorKind::Other, false)]
    fn a_server_that_says(#[case] line: &str, #[case] kind: StoreErrorKind, #[case] retry: bool) {
        let said = redis::parse_redis_value(format!("{line}\r\n").as_bytes()).unwrap();
        let error = said.extract_error().unwrap_err();
        let meaning = meaning(&error);
        assert_eq!((meaning.kind, meaning.retry), (kind, retry), "{error}");
    }

    #[test]
    fn a_broken_connection_leaves_a_write_unknown_and_a_refused_one_does_not() {
        let of = |kind: std::io::ErrorKind| meaning(&RedisError::from(std::io::Error::from(kind)));
        for kind in [std::io::ErrorKind::ConnectionReset, std::io::ErrorKind::TimedOut, std::io::ErrorKind::BrokenPipe]
        {
            let seen = of(kind);
            assert_eq!((seen.kind, seen.applied, seen.retry), (StoreErrorKind::Unavailable, Applied::Unknown, true));
        }
        assert_eq!(of(std::io::ErrorKind::ConnectionRefused).applied, Applied::No);
    }
}

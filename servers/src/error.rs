//! What can go wrong with a server of our own.

use crate::Kind;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// Why a server could not be started or ended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No program for it is on this machine.
    #[error(
        "{kind}: no program to start: looked for {looked_for}; install it with: cargo xtask servers install --programs"
    )]
    NotInstalled {
        /// The store.
        kind: Kind,
        /// The programs that would do, and where they were looked for.
        looked_for: String,
    },
    /// PostgreSQL refuses to run as root, and there is no user to run it as.
    #[error("postgres does not run as root, and /etc/passwd has no user `postgres` to run it as")]
    NoPostgresUser,
    /// A program could not be started.
    #[error("could not start {}: {source}", program.display())]
    Start {
        /// The program.
        program: PathBuf,
        /// What the operating system said.
        source: io::Error,
    },
    /// A program ended before it answered.
    #[error("{kind} ended before it answered ({status}):\n{log}")]
    Ended {
        /// The store.
        kind: Kind,
        /// How it ended.
        status: String,
        /// The end of what it wrote.
        log: String,
    },
    /// A server did not answer its own protocol in time.
    #[error("{what} did not answer within {} s: {last}", within.as_secs())]
    NotReady {
        /// Which one.
        what: String,
        /// How long it was waited for.
        within: Duration,
        /// What the last attempt saw, and the end of the server's log where there is one.
        last: String,
    },
    /// A process did not end, even when killed.
    #[error("{kind} (process {pid}) did not end")]
    NotEnded {
        /// The store.
        kind: Kind,
        /// Its process.
        pid: u32,
    },
    /// A file, folder, port or process could not be had.
    #[error("{what}: {source}")]
    System {
        /// What was tried.
        what: String,
        /// What the operating system said.
        source: io::Error,
    },
}

impl Error {
    /// To map an I/O error with.
    pub(crate) fn system(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what: what.into(), source }
    }
}

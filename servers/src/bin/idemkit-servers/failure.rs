//! What can go wrong, each with what a reader needs in order to go on.

use idemkit_servers::{Error, Kind, MissingServer};
use std::io;
use std::process::ExitStatus;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error(transparent)]
    Server(#[from] Error),
    #[error(transparent)]
    Missing(#[from] MissingServer),
    /// Somebody asked for this very image: another server in its place would not be what they test.
    #[error("{kind}: the image `{image}`, named by {}, does not serve: {reason}", kind.image_variable())]
    Image { kind: Kind, image: String, reason: String },
    #[error("could not start ({source}): {line}")]
    Start { line: String, source: io::Error },
    #[error("failed ({status}): {line}")]
    Command { line: String, status: ExitStatus },
    #[error("ended after {} s: {line}", within.as_secs())]
    Late { line: String, within: Duration },
    #[error("{what}: {source}")]
    File { what: String, source: io::Error },
    #[error("{0}")]
    Refused(String),
}

impl Failure {
    /// To map an I/O error with.
    pub(crate) fn file(what: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::File { what: what.into(), source }
    }
}

//! What can go wrong, each with what a reader needs in order to go on.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;

/// Why a task stopped.
#[derive(Debug)]
pub(crate) enum Failure {
    /// A command ran and said no. Its own output was above.
    Command { line: String, status: ExitStatus },
    /// A command could not be started.
    Start { line: String, source: io::Error },
    /// A file could not be read or written.
    File { path: PathBuf, source: io::Error },
    /// A check of our own said no, in a whole sentence.
    Refused(String),
    /// A step of `verify` stopped, and the command that may mend it.
    Step { name: &'static str, mend: Option<&'static str>, source: Box<Failure> },
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command { line, status } => write!(f, "failed ({status}): {line}"),
            Self::Start { line, source } => write!(f, "could not start ({source}): {line}"),
            Self::File { path, source } => write!(f, "{}: {source}", path.display()),
            Self::Refused(reason) => f.write_str(reason),
            Self::Step { name, mend, source } => {
                write!(f, "verify stopped at `{name}`: {source}")?;
                match mend {
                    Some(command) => write!(f, "\nxtask: what can be mended by itself: {command}"),
                    None => Ok(()),
                }
            }
        }
    }
}

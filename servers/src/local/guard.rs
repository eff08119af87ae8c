//! What ends a server when its owner ends without doing so.
//!
//! A destructor does not run when a test process is killed, aborts, or exits with a server in a `static`. What the
//! kernel does in each case is to close its files. So a shell sleeps at the other end of a pipe: when that closes
//! without a word, it ends the server and removes its folder.

use crate::Error;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

/// Signals meant for the test must not end its guard first: it is to outlive the test by a moment.
const SCRIPT: &str = r#"trap '' HUP INT TERM; read -r _ && exit; kill -s KILL -- "-$1" 2>/dev/null; rm -rf -- "$2""#;

#[derive(Debug)]
pub(super) struct Guard {
    shell: Child,
    pipe: ChildStdin,
}

impl Guard {
    /// Over a process group and the folder that it uses.
    pub(super) fn over(group: u32, folder: &Path) -> Result<Self, Error> {
        let failed = Error::system("could not start a guard for a server");
        let mut command = Command::new("sh");
        command.args(["-c", SCRIPT, "idemkit-guard", &group.to_string()]).arg(folder);
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).process_group(0);
        // Not in the server's folder nor anywhere else that somebody may want to remove.
        command.current_dir("/");
        let mut shell = command.spawn().map_err(failed)?;
        match shell.stdin.take() {
            Some(pipe) => Ok(Self { shell, pipe }),
            None => Err(Error::system("a guard has no pipe")(std::io::ErrorKind::BrokenPipe.into())),
        }
    }

    /// There is nothing left to guard: the server has ended, and its number may soon be another's.
    pub(super) fn release(mut self) {
        let told = self.pipe.write_all(b"done\n");
        if told.is_err() {
            // Without the word it would act when the pipe closes.
            let _ = self.shell.kill();
        }
        drop(self.pipe);
        let _ = self.shell.wait();
    }
}

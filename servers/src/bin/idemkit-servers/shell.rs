//! Commands with a deadline, shown as a line to paste into a shell.

use crate::failure::Failure;
use std::ffi::OsStr;
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

/// Runs a command, its output going where ours goes.
pub(crate) async fn run(command: &mut Command, within: Duration) -> Result<(), Failure> {
    let shown = shown(command);
    eprintln!("servers: {shown}");
    command.stdin(Stdio::null()).kill_on_drop(true);
    let status = match timeout(within, command.status()).await {
        Ok(status) => status.map_err(|source| Failure::Start { line: shown.clone(), source })?,
        Err(_) => return Err(Failure::Late { line: shown, within }),
    };
    if status.success() { Ok(()) } else { Err(Failure::Command { line: shown, status }) }
}

/// Runs a command, and gives what it wrote to standard output.
pub(crate) async fn read(command: &mut Command, within: Duration) -> Result<String, Failure> {
    let shown = shown(command);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let Output { status, stdout, stderr } = match timeout(within, command.output()).await {
        Ok(output) => output.map_err(|source| Failure::Start { line: shown.clone(), source })?,
        Err(_) => return Err(Failure::Late { line: shown, within }),
    };
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    eprint!("{}", String::from_utf8_lossy(&stderr));
    Err(Failure::Command { line: shown, status })
}

fn shown(command: &Command) -> String {
    let command = command.as_std();
    line(std::iter::once(command.get_program()).chain(command.get_args()))
}

/// As a POSIX shell would read it.
pub(crate) fn line<'a>(words: impl IntoIterator<Item = &'a OsStr>) -> String {
    words.into_iter().map(quoted).collect::<Vec<_>>().join(" ")
}

fn quoted(word: &OsStr) -> String {
    let word = word.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=,+@".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.into_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_shown_as_a_shell_would_take_it() {
        assert_eq!(line(["sh", "-c", "it's", ""].map(OsStr::new)), r"sh -c 'it'\''s' ''");
    }
}

//! A command that can be run and, when it fails, shown as a line to paste into a shell.

use crate::failure::Failure;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};

/// A program with its arguments and what is set in its environment.
#[derive(Debug)]
pub(crate) struct Cmd {
    program: OsString,
    args: Vec<OsString>,
    env: Vec<(&'static str, OsString)>,
    /// Whether it may read what is typed.
    input: bool,
}

impl Cmd {
    /// `program` with `args`, which are split at blanks: written here, they never hold one.
    pub(crate) fn new(program: impl Into<OsString>, args: &str) -> Self {
        Self {
            program: program.into(),
            args: args.split_whitespace().map(OsString::from).collect(),
            env: vec![],
            input: false,
        }
    }

    /// A cargo command line: of the toolchain that this program was started by.
    pub(crate) fn cargo(args: &str) -> Self {
        Self::new("cargo", args)
    }

    /// With one more argument, taken as it stands.
    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// With more arguments, each taken as it stands.
    pub(crate) fn args(mut self, args: &[OsString]) -> Self {
        self.args.extend_from_slice(args);
        self
    }

    /// With a variable of the environment.
    pub(crate) fn env(mut self, name: &'static str, value: impl Into<OsString>) -> Self {
        self.env.push((name, value.into()));
        self
    }

    /// With our standard input.
    pub(crate) fn with_input(mut self) -> Self {
        self.input = true;
        self
    }

    /// Runs in the workspace's root, its output going where ours goes.
    pub(crate) fn run(&self, root: &Path) -> Result<(), Failure> {
        let status = self.prepared(root).status().map_err(|source| self.not_started(source))?;
        self.check(status)
    }

    /// Runs in the workspace's root, and gives what it wrote to standard output.
    pub(crate) fn read(&self, root: &Path) -> Result<String, Failure> {
        let Output { status, stdout, .. } =
            self.prepared(root).stderr(Stdio::inherit()).output().map_err(|source| self.not_started(source))?;
        self.check(status)?;
        Ok(String::from_utf8_lossy(&stdout).into_owned())
    }

    /// What it writes to standard output when it can be started and succeeds; what it complains of is not shown.
    pub(crate) fn probe(&self, root: &Path) -> Option<String> {
        let output = self.prepared(root).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }

    fn prepared(&self, root: &Path) -> Command {
        let mut command = match std::env::var_os("CARGO") {
            Some(running) if self.program == "cargo" => Command::new(running),
            _ => Command::new(&self.program),
        };
        // No input: a command that asks something would wait for ever where nobody sits.
        let input = if self.input { Stdio::inherit() } else { Stdio::null() };
        command
            .args(&self.args)
            .current_dir(root)
            .stdin(input)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        // `cargo run` tells this program about the package xtask. Handed on, build scripts that watch these variables
        // (ring's does) would run again at each change between `cargo xtask test` and a plain `cargo test`.
        for (name, _) in std::env::vars_os() {
            if name.to_str().is_some_and(|name| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_")) {
                command.env_remove(name);
            }
        }
        command
    }

    fn check(&self, status: ExitStatus) -> Result<(), Failure> {
        if status.success() { Ok(()) } else { Err(Failure::Command { line: self.to_string(), status }) }
    }

    fn not_started(&self, source: std::io::Error) -> Failure {
        Failure::Start { line: self.to_string(), source }
    }
}

/// As a POSIX shell would read it.
impl fmt::Display for Cmd {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in &self.env {
            write!(f, "{name}={} ", quoted(value))?;
        }
        f.write_str(&quoted(&self.program))?;
        self.args.iter().try_for_each(|arg| write!(f, " {}", quoted(arg)))
    }
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
        let doc = Cmd::cargo("doc --no-deps").env("RUSTDOCFLAGS", "-D warnings").arg("it's");
        assert_eq!(doc.to_string(), r"RUSTDOCFLAGS='-D warnings' cargo doc --no-deps 'it'\''s'");
    }
}

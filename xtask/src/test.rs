//! `cargo xtask test`: the README's test command.

use crate::command::Cmd;
use crate::failure::Failure;
use std::ffi::OsString;
use std::path::Path;

/// Runs the tests of the workspace: unit tests, integration tests, doc tests; examples are built. `extra` goes to
/// `cargo test`.
pub(crate) fn run(root: &Path, extra: &[OsString]) -> Result<(), Failure> {
    Cmd::cargo("test --workspace --all-features").args(extra).run(root)
}

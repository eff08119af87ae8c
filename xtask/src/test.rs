//! `cargo xtask test`: the README's test command.

use crate::failure::Failure;
use crate::servers;
use std::ffi::OsString;
use std::path::Path;

/// Runs the tests of the workspace: unit tests, integration tests, doc tests; examples are built. `extra` goes to
/// `cargo test`. Servers that are missing are installed before, started for the tests, and ended after them.
pub(crate) fn run(root: &Path, extra: &[OsString]) -> Result<(), Failure> {
    let program = servers::built(root)?;
    servers::command(root, &program, "install").run(root)?;
    // The cargo that runs this, which need not be the one on PATH.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tests = ["test", "--workspace", "--all-features"].map(OsString::from);
    servers::command(root, &program, "with --").arg(cargo).args(&tests).args(extra).run(root)
}

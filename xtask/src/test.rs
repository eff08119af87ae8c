//! `cargo xtask test`: the README's test command.

use crate::failure::Failure;
use crate::servers;
use std::ffi::OsString;
use std::path::Path;

/// How many tests of a program run at once. More than there are cores: most of them wait, for servers and for leases.
const THREADS: &str = "RUST_TEST_THREADS";
const AT_ONCE: &str = "8";

/// Runs the tests of the workspace: unit tests, integration tests, doc tests; examples are built. `extra` goes to
/// `cargo test`. Servers that are missing are installed before, started for the tests, and ended after them.
pub(crate) fn run(root: &Path, extra: &[OsString]) -> Result<(), Failure> {
    let program = servers::built(root)?;
    servers::command(root, &program, "install").run(root)?;
    // The cargo that runs this, which need not be the one on PATH.
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let tests = ["test", "--workspace", "--all-features"].map(OsString::from);
    let with = servers::command(root, &program, "with --").arg(cargo).args(&tests).args(extra);
    let threads = std::env::var_os(THREADS).unwrap_or_else(|| AT_ONCE.into());
    with.env(THREADS, threads).run(root)
}

//! `cargo xtask servers`: hands over to the program `idemkit-servers`, which may have the dependencies that this one
//! has not.

use crate::command::Cmd;
use crate::failure::Failure;
use crate::tools;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Runs the program with these words.
pub(crate) fn run(root: &Path, words: &[OsString]) -> Result<(), Failure> {
    let program = built(root)?;
    command(root, &program, "").args(words).with_input().run(root)
}

/// A command line of the program.
pub(crate) fn command(root: &Path, program: &Path, args: &str) -> Cmd {
    // As an absolute path: each test runs in the folder of its own package.
    Cmd::new(program, args).env(tools::FOLDER_VARIABLE, tools::folder(root))
}

/// Builds the program, and says where it is.
///
/// As a part of what `cargo test --workspace --all-features` builds: that chooses the features of all dependencies at
/// once, and with `cargo run --package` half of them would be compiled twice. One test of the package is named so that
/// the features which only tests ask for are counted in.
pub(crate) fn built(root: &Path) -> Result<PathBuf, Failure> {
    Cmd::cargo("build --quiet --workspace --all-features --bin idemkit-servers --test reached").run(root)?;
    // This program was built into the same folder, with the same profile.
    let running = std::env::current_exe().map_err(|source| Failure::File { path: "xtask".into(), source })?;
    Ok(running.with_file_name(format!("idemkit-servers{}", std::env::consts::EXE_SUFFIX)))
}

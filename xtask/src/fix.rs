//! `cargo xtask fix`: mends what a machine can mend.

use crate::command::Cmd;
use crate::failure::Failure;
use std::path::Path;

/// Applies clippy's suggestions, then formats, since a suggestion may leave a line that is not. Formats as well where
/// clippy found something that it could not mend.
pub(crate) fn run(root: &Path) -> Result<(), Failure> {
    let clippy =
        Cmd::cargo("clippy --fix --allow-dirty --allow-staged --workspace --all-targets --all-features").run(root);
    Cmd::cargo("fmt --all").run(root)?;
    clippy
}

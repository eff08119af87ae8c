//! The folder that programs are built into: the rule that `cargo xtask tools` follows too (xtask/src/tools.rs).

use std::path::{Path, PathBuf};

/// `IDEMKIT_TOOLS_DIR`, or `.tools` in the workspace. Programs are in its `bin`.
///
/// `cargo xtask` hands the variable on as an absolute path. Tests that cargo runs alone find the workspace by its
/// `Cargo.lock`.
pub fn tools_folder() -> PathBuf {
    let here = std::env::var_os("CARGO_MANIFEST_DIR")
        .map(PathBuf::from)
        .or_else(|| std::env::current_dir().ok())
        .unwrap_or_default();
    let named = std::env::var_os("IDEMKIT_TOOLS_DIR").filter(|name| !name.is_empty());
    workspace_above(&here).join(named.unwrap_or_else(|| ".tools".into()))
}

/// The nearest folder with a `Cargo.lock`, from this one upwards.
fn workspace_above(folder: &Path) -> &Path {
    folder.ancestors().find(|folder| folder.join("Cargo.lock").is_file()).unwrap_or(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_is_found_from_inside() {
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        assert_eq!(workspace_above(&package.join("src")), package.parent().unwrap());
        assert!(tools_folder().is_absolute());
    }
}

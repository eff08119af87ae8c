//! Whether the stated oldest compiler really builds the workspace.

use crate::command::Cmd;
use crate::failure::Failure;
use crate::version::Version;
use std::cmp::Ordering;
use std::path::Path;

/// The workspace's `rust-version`, which this package inherits as all others do.
pub(crate) const STATED: &str = env!("CARGO_PKG_RUST_VERSION");

/// Checks with the stated compiler where there is one, and says how it went.
///
/// In CI a claim that cannot be checked is an error; a contributor with a newer compiler alone is told and may go on.
pub(crate) fn check(root: &Path) -> Result<String, Failure> {
    let rustc = Cmd::new("rustc", "--version").read(root)?;
    let (stated, running) = Version::parse(STATED)
        .zip(Version::of_rustc(&rustc))
        .ok_or_else(|| Failure::Refused(format!("cannot compare rust-version {STATED} with {}", rustc.trim())))?;
    match running.against(stated) {
        Ordering::Equal => return Ok(format!("{STATED} is the running compiler: the steps above have checked it")),
        Ordering::Less => {
            return Err(Failure::Refused(format!(
                "rust-version is {STATED}, the running compiler is {}",
                rustc.trim()
            )));
        }
        Ordering::Greater => {}
    }
    let installed = Cmd::new("rustup", "toolchain list").probe(root).unwrap_or_default();
    match toolchain(stated, &installed) {
        // Through `rustup run`: `+toolchain` is read by rustup's cargo alone, and inside `cargo run` that is not the
        // one on top.
        Some(name) => Cmd::new("rustup", "run")
            .arg(name)
            .args(&["cargo", "check", "--workspace", "--all-features", "--locked"].map(Into::into))
            .run(root)
            .map(|()| format!("{STATED} checked by {name}")),
        None => {
            let missing = format!(
                "rust-version {STATED} was NOT checked: it is not installed \
                 (rustup toolchain install {STATED} --profile minimal)"
            );
            if in_ci() { Err(Failure::Refused(missing)) } else { Ok(missing) }
        }
    }
}

fn in_ci() -> bool {
    std::env::var_os("CI").is_some_and(|value| !value.is_empty())
}

/// The installed toolchain that is the stated release, from what `rustup toolchain list` prints.
fn toolchain(stated: Version, installed: &str) -> Option<&str> {
    installed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .find(|name| Version::of_toolchain(name).is_some_and(|version| version.against(stated) == Ordering::Equal))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_stated_version_can_be_read() {
        assert!(Version::parse(STATED).is_some());
    }

    #[test]
    fn the_stated_release_is_found_among_toolchains_by_its_number() {
        let installed = "stable-x86_64-unknown-linux-gnu (active, default)\n\
                         1.95.0-beta.2-x86_64-unknown-linux-gnu\n\
                         1.9.5-x86_64-unknown-linux-gnu\n\
                         1.95.0-x86_64-unknown-linux-gnu\n";
        let stated = Version::parse("1.95").unwrap();
        assert_eq!(toolchain(stated, installed), Some("1.95.0-x86_64-unknown-linux-gnu"));
        assert_eq!(toolchain(stated, "no installed toolchains\n"), None);
    }
}

//! The cargo subcommands that `verify` uses, pinned, so that a gate does not change its mind from one day to the next.

use crate::command::Cmd;
use crate::failure::Failure;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// A cargo subcommand at an exact version.
#[derive(Debug)]
pub(crate) struct Tool {
    /// The package and its program; the subcommand is what follows `cargo-`.
    package: &'static str,
    version: &'static str,
}

/// Builds the features in all their combinations.
pub(crate) const HACK: Tool = Tool { package: "cargo-hack", version: "0.6.46" };
/// Licences, banned and doubled crates, sources.
pub(crate) const DENY: Tool = Tool { package: "cargo-deny", version: "0.20.2" };

/// Names the folder that the tools are in, instead of `.tools` in the workspace: for CI, to reuse one from run to run.
pub(crate) const FOLDER_VARIABLE: &str = "IDEMKIT_TOOLS_DIR";

/// Installs what is not there yet in the right version.
pub(crate) fn install(root: &Path) -> Result<(), Failure> {
    let folder = folder(root);
    for tool in [HACK, DENY] {
        if let Some(program) = tool.find(root) {
            println!("tools: {} {} is there: {}", tool.package, tool.version, program.display());
            continue;
        }
        // Forced: we get here too when cargo's list of what is installed says yes but the program does not run.
        Cmd::cargo("install --locked --force --version")
            .arg(format!("={}", tool.version))
            .arg("--root")
            .arg(&folder)
            .arg(tool.package)
            .run(root)?;
    }
    Ok(())
}

/// Tests look for servers' programs there as well, by the same rule (servers/src/tools.rs).
pub(crate) fn folder(root: &Path) -> PathBuf {
    root.join(std::env::var_os(FOLDER_VARIABLE).unwrap_or_else(|| ".tools".into()))
}

impl Tool {
    /// The subcommand with `args`. A missing tool is an error that names the command to install it.
    pub(crate) fn command(&self, root: &Path, args: &str) -> Result<Cmd, Failure> {
        let program = self.find(root).ok_or_else(|| {
            Failure::Refused(format!(
                "{} {} is neither in {} nor on PATH; install it with: cargo xtask tools",
                self.package,
                self.version,
                folder(root).display()
            ))
        })?;
        Ok(Cmd::new(program, &format!("{} {args}", self.subcommand())))
    }

    /// In the tools folder or on PATH, where it runs and is of the right version.
    fn find(&self, root: &Path) -> Option<OsString> {
        let in_folder = folder(root).join("bin").join(self.package).into_os_string();
        [in_folder, self.package.into()].into_iter().find(|program| {
            let said = Cmd::new(program, &format!("{} --version", self.subcommand())).probe(root);
            said.is_some_and(|said| self.is_named_by(&said))
        })
    }

    fn subcommand(&self) -> &'static str {
        self.package.trim_start_matches("cargo-")
    }

    /// Whether a program that says this of itself is the tool in the right version.
    fn is_named_by(&self, said: &str) -> bool {
        let mut words = said.split_whitespace();
        words.next() == Some(self.package) && words.next() == Some(self.version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_counts() {
        assert!(HACK.is_named_by("cargo-hack 0.6.46\n"));
        assert!(DENY.is_named_by("cargo-deny 0.20.2"));
        for said in ["cargo-hack 0.6.4", "cargo-hack 0.6.461", "cargo-deny 0.6.46", "cargo-hack", ""] {
            assert!(!HACK.is_named_by(said), "{said}");
        }
    }
}

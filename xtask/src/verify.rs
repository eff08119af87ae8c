//! `cargo xtask verify`: the completion gate. It reads the tree and never writes to it.

use crate::arguments::VerifyOptions;
use crate::command::Cmd;
use crate::failure::Failure;
use crate::{rust_version, test, tools};
use std::path::Path;
use std::time::Instant;

/// The one command that mends: named where it may help.
const FIX: Option<&str> = Some("cargo xtask fix");

/// A command that has to succeed.
struct Step {
    name: &'static str,
    mend: Option<&'static str>,
    command: Cmd,
}

/// Runs all steps, from the quickest to the slowest, and stops at the first that fails.
pub(crate) fn run(root: &Path, options: &VerifyOptions) -> Result<(), Failure> {
    let started = Instant::now();
    let before = tree(root)?;
    // All commands are made before the first is run: a missing tool shows at once, not after minutes.
    let steps = steps(root, options)?;
    for Step { name, mend, command } in &steps {
        timed(name, *mend, || command.run(root))?;
    }
    let rust_version = timed("rust-version", None, || rust_version::check(root))?;
    if !options.no_tests {
        timed("tests", None, || test::run(root, &[]))?;
    }
    timed("tree unchanged", None, || same_tree(&before, &tree(root)?))?;
    let tests = if options.no_tests { "without the tests" } else { "tests and all" };
    println!("verify: passed, {tests}, in {:.1} s; {rust_version}", started.elapsed().as_secs_f64());
    Ok(())
}

/// Every cargo command is `--locked`: without it, cargo would write a Cargo.lock that does not fit.
fn steps(root: &Path, options: &VerifyOptions) -> Result<Vec<Step>, Failure> {
    let checks = if options.advisories { "advisories bans licenses sources" } else { "bans licenses sources" };
    let docs = "doc --workspace --no-deps --all-features --locked";
    Ok(vec![
        Step { name: "format", mend: FIX, command: Cmd::cargo("fmt --all --check") },
        Step {
            name: "dependencies",
            mend: None,
            command: tools::DENY.command(root, &format!("--workspace --all-features --locked check {checks}"))?,
        },
        Step {
            name: "clippy",
            mend: FIX,
            command: Cmd::cargo("clippy --workspace --all-targets --all-features --locked -- -D warnings"),
        },
        // `--no-dev-deps` and `--no-private` would make cargo-hack rewrite manifests while it runs; `--lib` alone
        // leaves development dependencies out of the build. Packages that are not published have no features to
        // combine. Two at a time: features are additive. The facade's one at a time: it has re-exports and no code that
        // two of them could disagree about, and its pairs would compile the drivers again and again for five minutes.
        Step {
            name: "feature combinations",
            mend: FIX,
            command: tools::HACK.command(
                root,
                "clippy --workspace --exclude idemkit --ignore-private --feature-powerset --depth 2 --lib --locked \
                 -- -D warnings",
            )?,
        },
        Step {
            name: "features of the facade",
            mend: FIX,
            command: tools::HACK
                .command(root, "clippy --package idemkit --each-feature --lib --locked -- -D warnings")?,
        },
        // Twice: links from public to private items show only where private items are left out, and broken links among
        // private items only where they are not.
        Step { name: "docs", mend: None, command: Cmd::cargo(docs).env("RUSTDOCFLAGS", "-D warnings") },
        Step {
            name: "docs of private items",
            mend: None,
            command: Cmd::cargo(docs).arg("--document-private-items").env("RUSTDOCFLAGS", "-D warnings"),
        },
        // That each crate could be published: manifest, readme, included files. The packages land in the target folder.
        // Not built from there, which would compile the workspace and its dependencies once more. `--allow-dirty`
        // because a gate is for use before the commit; `--offline` because the steps above have fetched all that it
        // needs.
        Step {
            name: "packages",
            mend: None,
            command: Cmd::cargo("package --workspace --exclude xtask --no-verify --allow-dirty --locked --offline"),
        },
    ])
}

/// Runs one step and prints what it took.
fn timed<T>(
    name: &'static str,
    mend: Option<&'static str>,
    step: impl FnOnce() -> Result<T, Failure>,
) -> Result<T, Failure> {
    let started = Instant::now();
    let result = step();
    let outcome = if result.is_ok() { "ok" } else { "FAILED" };
    println!("verify: {name} {outcome} ({:.1} s)", started.elapsed().as_secs_f64());
    result.map_err(|source| Failure::Step { name, mend, source: Box::new(source) })
}

/// What git knows of the tree: the names of what is changed or untracked, and the changes. Needed both: a file that was
/// changed before and is changed further keeps its line in the first.
fn tree(root: &Path) -> Result<[String; 2], Failure> {
    // Trusted whoever owns it: CI may run as another user than the owner of the clone, which git refuses unless told
    // otherwise. No optional locks: `git status` would write to the index what it found.
    let git = |args| Cmd::new("git", &format!("--no-optional-locks -c safe.directory=* {args}")).read(root);
    Ok([git("status --porcelain --untracked-files=all")?, git("diff --binary HEAD")?])
}

fn same_tree(before: &[String; 2], after: &[String; 2]) -> Result<(), Failure> {
    if before == after {
        return Ok(());
    }
    Err(Failure::Refused(format!("a step wrote to the tree.\nbefore:\n{}after:\n{}", before[0], after[0])))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_the_same_only_in_names_and_contents() {
        let before = [" M a\n".to_owned(), "+1\n".to_owned()];
        assert!(same_tree(&before, &before.clone()).is_ok());
        assert!(same_tree(&before, &[before[0].clone(), "+2\n".to_owned()]).is_err());
        assert!(same_tree(&before, &[String::new(), before[1].clone()]).is_err());
    }
}

//! The project's own commands: `cargo xtask help` lists them.
//!
//! No dependency on purpose: the README's test command goes through this program, so it has to build in a second or
//! two.

mod arguments;
mod command;
mod failure;
mod fix;
mod rust_version;
mod sample;
mod servers;
mod test;
mod tools;
mod verify;
mod version;

use arguments::{Task, USAGE};
use failure::Failure;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The command line was not understood; the same code as most command-line programs use for it.
const EXIT_USAGE: u8 = 2;

fn main() -> ExitCode {
    let task = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(problem) => {
            eprintln!("xtask: {problem}\n\n{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    match workspace_root().and_then(|root| perform(&task, &root)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            eprintln!("xtask: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn perform(task: &Task, root: &Path) -> Result<(), Failure> {
    match task {
        Task::Help => {
            println!("{USAGE}");
            Ok(())
        }
        Task::Test(extra) => test::run(root, extra),
        Task::Servers(words) => servers::run(root, words),
        Task::Verify(options) => verify::run(root, options),
        Task::Fix => fix::run(root),
        Task::Tools => tools::install(root),
        Task::SampleWebhooks => sample::write(root),
    }
}

/// Where the workspace lies now. Asked of cargo at run time: a path compiled in would still name the old folder after
/// the workspace was moved, or another checkout's where two share a target folder.
fn workspace_root() -> Result<PathBuf, Failure> {
    std::env::var_os("CARGO_MANIFEST_DIR")
        .as_deref()
        .and_then(|manifest_dir| Path::new(manifest_dir).parent())
        .map(Path::to_path_buf)
        .ok_or_else(|| Failure::Refused("start me through cargo: cargo xtask help".into()))
}

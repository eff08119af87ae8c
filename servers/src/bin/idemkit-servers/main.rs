//! Brings up the servers that the tests run on, and installs what that takes. Started by `cargo xtask servers`,
//! `images` and `test`.

mod arguments;
mod container;
mod failure;
mod images;
mod install;
mod provide;
mod run;
mod shell;
mod way;

use arguments::{Task, USAGE};
use failure::Failure;
use std::process::ExitCode;
use std::time::Duration;

/// The command line was not understood; the same code as most command-line programs use for it.
const EXIT_USAGE: u8 = 2;
/// For what was under way when a signal came: a server that is still starting is ended by its guard.
const SHUTDOWN_WITHIN: Duration = Duration::from_secs(1);

fn main() -> ExitCode {
    let task = match arguments::parse(std::env::args_os().skip(1)) {
        Ok(task) => task,
        Err(problem) => {
            eprintln!("idemkit-servers: {problem}\n\n{USAGE}");
            return ExitCode::from(EXIT_USAGE);
        }
    };
    let runtime = match tokio::runtime::Runtime::new() {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("idemkit-servers: no runtime: {error}");
            return ExitCode::FAILURE;
        }
    };
    let result = runtime.block_on(perform(task));
    runtime.shutdown_timeout(SHUTDOWN_WITHIN);
    result.unwrap_or_else(|failure| {
        eprintln!("servers: {failure}");
        ExitCode::FAILURE
    })
}

async fn perform(task: Task) -> Result<ExitCode, Failure> {
    match task {
        Task::Help => println!("{USAGE}"),
        Task::Up => run::up().await?,
        Task::With(command) => return run::with(&command).await,
        Task::Install(scope) => install::run(scope).await?,
        Task::Images => images::run().await?,
    }
    Ok(ExitCode::SUCCESS)
}

//! Keeping servers up: for one command, or until somebody has had enough.

use crate::failure::Failure;
use crate::provide::{self, Provided};
use crate::shell::line;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::process::{ExitCode, ExitStatus};
use std::time::Duration;
use tokio::io::AsyncReadExt;
use tokio::process::{Child, Command};
use tokio::signal::unix::{self, SignalKind};
use tokio::task::JoinHandle;
use tokio::time::timeout;

/// From the wish to end to SIGKILL, for a command that was interrupted.
const ENDED_WITHIN: Duration = Duration::from_secs(10);
/// What a shell reports of a command that SIGINT ended.
const EXIT_INTERRUPTED: u8 = 130;

/// Prints where the servers are, and keeps them.
pub(crate) async fn up() -> Result<(), Failure> {
    let mut signals = Signals::new()?;
    let Some(servers) = bring_up(&mut signals).await? else { return Ok(()) };
    for server in &servers {
        if let Some(url) = server.url() {
            println!("{}={url}", server.kind.url_variable());
        }
    }
    eprintln!("servers: up; Ctrl-C, or the end of standard input, ends them");
    tokio::select! {
        () = signals.next() => {}
        () = end_of_input() => {}
    }
    provide::end_all(servers).await;
    Ok(())
}

/// Runs a command with the servers' URLs in its environment. Its exit code is ours.
pub(crate) async fn with(words: &[OsString]) -> Result<ExitCode, Failure> {
    let mut signals = Signals::new()?;
    let Some(servers) = bring_up(&mut signals).await? else { return Ok(ExitCode::from(EXIT_INTERRUPTED)) };
    let result = run(words, &servers, &mut signals).await;
    provide::end_all(servers).await;
    result
}

/// The servers, each announced by one line. None where a signal came first.
async fn bring_up(signals: &mut Signals) -> Result<Option<Vec<Provided>>, Failure> {
    let mut starting = tokio::spawn(provide::all());
    let started = tokio::select! {
        started = &mut starting => started,
        () = signals.next() => {
            give_up(starting, signals).await;
            return Ok(None);
        }
    };
    let servers = started.map_err(|error| Failure::Refused(format!("the start was broken off: {error}")))??;
    for server in &servers {
        eprintln!("servers: {}", server.describe());
    }
    Ok(Some(servers))
}

/// Lets a start come to its end, and undoes it. Dropped half-way, it would leave a container that Docker was about to
/// make when nobody looked for it any more. A start that takes longer waits for an image, and has made nothing yet.
async fn give_up(mut starting: JoinHandle<Result<Vec<Provided>, Failure>>, signals: &mut Signals) {
    tokio::select! {
        started = timeout(ENDED_WITHIN, &mut starting) => {
            if let Ok(Ok(Ok(servers))) = started {
                return provide::end_all(servers).await;
            }
        }
        () = signals.next() => {}
    }
    starting.abort();
    provide::sweep_all().await;
}

async fn run(words: &[OsString], servers: &[Provided], signals: &mut Signals) -> Result<ExitCode, Failure> {
    let Some((program, args)) = words.split_first() else {
        return Err(Failure::Refused("there is no command to run".into()));
    };
    let mut command = Command::new(program);
    // A group of its own, so that what it starts can be ended with it, whether a Ctrl-C came from the terminal or a
    // signal came to us alone. And gone with us if we are killed ourselves.
    command.args(args).process_group(0).kill_on_drop(true);
    for server in servers {
        if let Some(url) = server.url() {
            command.env(server.kind.url_variable(), url);
        }
    }
    let mut child = command
        .spawn()
        .map_err(|source| Failure::Start { line: line(words.iter().map(OsString::as_os_str)), source })?;
    let status = tokio::select! {
        status = child.wait() => status,
        () = signals.next() => {
            end(&mut child, signals).await;
            return Ok(ExitCode::from(EXIT_INTERRUPTED));
        }
    };
    status.map(exit_code).map_err(Failure::file("could not wait for the command"))
}

/// As it would be interrupted at a terminal, and killed where that takes too long or somebody insists.
async fn end(child: &mut Child, signals: &mut Signals) {
    let group = child.id().and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    let Some(group) = group else { return };
    let _ = kill_process_group(group, Signal::INT);
    tokio::select! {
        _ = timeout(ENDED_WITHIN, child.wait()) => {}
        () = signals.next() => {}
    }
    // What is left of the group, be it that the command itself has ended.
    let _ = kill_process_group(group, Signal::KILL);
    let _ = timeout(ENDED_WITHIN, child.wait()).await;
}

fn exit_code(status: ExitStatus) -> ExitCode {
    use std::os::unix::process::ExitStatusExt;
    // A command that a signal ended has no code; shells say 128 and the signal's number.
    let code = status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(1);
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}

async fn end_of_input() {
    let mut input = tokio::io::stdin();
    let mut ignored = [0; 64];
    while input.read(&mut ignored).await.is_ok_and(|bytes| bytes > 0) {}
}

/// The signals that mean: come to an end.
struct Signals([unix::Signal; 3]);

impl Signals {
    fn new() -> Result<Self, Failure> {
        let listen = |kind| unix::signal(kind).map_err(Failure::file("could not listen for signals"));
        Ok(Self([listen(SignalKind::interrupt())?, listen(SignalKind::terminate())?, listen(SignalKind::hangup())?]))
    }

    async fn next(&mut self) {
        let Self([interrupt, terminate, hangup]) = self;
        tokio::select! {
            _ = interrupt.recv() => {}
            _ = terminate.recv() => {}
            _ = hangup.recv() => {}
        }
    }
}

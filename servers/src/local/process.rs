//! A process that serves, in a process group of its own.

use super::folder::Folder;
use super::guard::Guard;
use crate::{Error, Kind};
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// From the wish to end to SIGKILL.
const STOPPED_WITHIN: Duration = Duration::from_secs(15);
/// From SIGKILL to giving up.
const KILLED_WITHIN: Duration = Duration::from_secs(10);
/// For the helpers of a killed server to vanish. They have ended before; where the machine's first process does not
/// collect orphans, as in some containers, their numbers stay taken for ever.
const COLLECTED_WITHIN: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

#[derive(Debug)]
pub(super) struct Process {
    kind: Kind,
    child: Child,
    /// None once it has ended.
    guard: Option<Guard>,
}

impl Process {
    /// In a group of its own, so that a Ctrl-C at the terminal reaches only the program that owns it, and so that all
    /// that it started can be ended with it.
    pub(super) fn spawn(kind: Kind, mut command: Command, program: &Path, folder: &Folder) -> Result<Self, Error> {
        let log = folder.log()?;
        let errors = log.try_clone().map_err(Error::system("could not share the log"))?;
        command.stdin(Stdio::null()).stdout(log).stderr(errors).process_group(0);
        let mut child = command.spawn().map_err(|source| Error::Start { program: program.to_owned(), source })?;
        match Guard::over(child.id(), folder.path()) {
            Ok(guard) => Ok(Self { kind, child, guard: Some(guard) }),
            Err(error) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(error)
            }
        }
    }

    pub(super) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// An error where it has ended.
    pub(super) fn check(&mut self, folder: &Folder) -> Result<(), Error> {
        match self.child.try_wait().map_err(Error::system("could not look after a server"))? {
            None => Ok(()),
            Some(status) => Err(Error::Ended { kind: self.kind, status: status.to_string(), log: folder.log_tail() }),
        }
    }

    pub(super) fn stop(mut self, signal: Signal) -> Result<(), Error> {
        self.signal(signal);
        wait(&mut self.child, STOPPED_WITHIN)?;
        self.end()
    }

    pub(super) fn kill(mut self) -> Result<(), Error> {
        self.end()
    }

    /// Waits for one that ends by itself: None where it has to be killed at the deadline.
    pub(super) fn finish(mut self, within: Duration) -> Result<Option<ExitStatus>, Error> {
        let ended = wait(&mut self.child, within)?;
        self.end()?;
        Ok(ended)
    }

    /// Kills what is left of the group, and waits until nothing is: a helper that lives on would keep the data folder
    /// locked.
    fn end(&mut self) -> Result<(), Error> {
        self.signal(Signal::KILL);
        if wait(&mut self.child, KILLED_WITHIN)?.is_none() {
            return Err(Error::NotEnded { kind: self.kind, pid: self.pid() });
        }
        let started = Instant::now();
        while started.elapsed() < COLLECTED_WITHIN
            && self.group().is_some_and(|group| test_kill_process_group(group).is_ok())
        {
            std::thread::sleep(PAUSE);
        }
        if let Some(guard) = self.guard.take() {
            guard.release();
        }
        Ok(())
    }

    /// A process that is gone already is as good as one that ends.
    fn signal(&self, signal: Signal) {
        if let Some(group) = self.group() {
            let _ = kill_process_group(group, signal);
        }
    }

    fn group(&self) -> Option<Pid> {
        i32::try_from(self.pid()).ok().and_then(Pid::from_raw)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if self.guard.is_some() {
            // Where even this fails, the guard's pipe closes with this process, and the guard tries once more.
            let _ = self.end();
        }
    }
}

/// Waits for a child's end, up to a deadline: None when it has passed.
fn wait(child: &mut Child, within: Duration) -> Result<Option<ExitStatus>, Error> {
    let started = Instant::now();
    loop {
        match child.try_wait().map_err(Error::system("could not wait for a process"))? {
            None if started.elapsed() < within => std::thread::sleep(PAUSE),
            ended => return Ok(ended),
        }
    }
}

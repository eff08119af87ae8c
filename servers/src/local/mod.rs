//! A server of a test's own: a process, a port, a folder.

mod command;
mod folder;
mod guard;
mod process;
mod user;

use crate::program::{Program, find_program, find_program_called};
use crate::{Error, Kind, Place, wait_until_ready};
use folder::Folder;
use process::Process;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::Duration;
use user::User;

/// Far beyond what a start takes: a machine that is busy with other tests must not fail this one.
const READY_WITHIN: Duration = Duration::from_secs(60);
/// A server that lost the race for its port to another process ends at once; another server may have answered in its
/// place.
const SETTLED_AFTER: Duration = Duration::from_millis(50);
/// Ports are picked by the kernel at random; somebody else getting the same one in the meantime is rare, twice in a row
/// no accident.
const PORTS_TRIED: u32 = 3;

/// How a server of one's own is started.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Whether data survives [`Local::kill`]. Without it, servers that can do so keep their data in memory, which is
    /// quicker.
    pub durable: bool,
    /// Arguments for the program, behind ours, which they may override.
    pub args: Vec<String>,
    /// The program, by its name, where a store has several; the first that is there where this says nothing.
    pub program: Option<&'static str>,
}

impl Options {
    /// Data survives the server's end.
    pub fn durable() -> Self {
        Self { durable: true, ..Self::default() }
    }
}

/// A server in a process of its own, on a free port of the loopback interface, with its own folder.
///
/// Its methods block, for seconds at most: in async tests that is no matter, elsewhere use `spawn_blocking`.
#[derive(Debug)]
pub struct Local {
    kind: Kind,
    program: Program,
    path: PathBuf,
    user: User,
    options: Options,
    port: u16,
    // Before the folder, so that it is dropped first: nobody writes into a folder that is being removed.
    process: Option<Process>,
    folder: Folder,
}

impl Local {
    /// Starts one whose data survives [`Local::kill`], and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`] where the machine has no program for it; others say why it did not start.
    pub fn start(kind: Kind) -> Result<Self, Error> {
        Self::start_with(kind, Options::durable())
    }

    /// As [`Local::start`], with other options.
    ///
    /// # Errors
    ///
    /// As those of [`Local::start`].
    pub fn start_with(kind: Kind, options: Options) -> Result<Self, Error> {
        let (path, program) = match options.program {
            Some(name) => find_program_called(kind, name)?,
            None => find_program(kind)?,
        };
        let user = User::for_program(program)?;
        let folder = Folder::new(kind, &user)?;
        match program {
            Program::Postgres => command::initdb(&path, &folder, &user)?,
            // The one that does not make its own.
            Program::Mongod => folder.make_data()?,
            Program::Dynoxide | Program::Redis | Program::Secantus => {}
        }
        let mut server = Self { kind, program, path, user, options, port: 0, process: None, folder };
        let mut tried = 1;
        loop {
            server.port = free_port()?;
            match server.spawn() {
                Err(Error::Ended { .. }) if tried < PORTS_TRIED => tried += 1,
                result => return result.map(|()| server),
            }
        }
    }

    /// The store.
    pub fn kind(&self) -> Kind {
        self.kind
    }

    /// The program that runs.
    pub fn program(&self) -> &Path {
        &self.path
    }

    /// Where it is reached; the same after each restart.
    pub fn url(&self) -> String {
        self.kind.url_at(self.port)
    }

    /// Its port on 127.0.0.1; the same after each restart.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Its process, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Process::pid)
    }

    /// Its folder: data and log. Removed when this is dropped.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Asks it to end, as its supervisor would, and waits for that. Nothing happens where it has ended.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnded`] where it does not even end when killed.
    pub fn stop(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(process) => process.stop(command::stop_signal(self.program)),
            None => Ok(()),
        }
    }

    /// Ends it as a crash would: SIGKILL, to its helper processes too.
    ///
    /// # Errors
    ///
    /// [`Error::NotEnded`] where it does not end.
    pub fn kill(&mut self) -> Result<(), Error> {
        match self.process.take() {
            Some(process) => process.kill(),
            None => Ok(()),
        }
    }

    /// Starts it again, on the same port, with the same data. A server that still runs is stopped before.
    ///
    /// # Errors
    ///
    /// As those of [`Local::start`].
    pub fn restart(&mut self) -> Result<(), Error> {
        self.stop()?;
        self.spawn()
    }

    /// The end of what it wrote.
    pub fn log(&self) -> String {
        self.folder.log_tail()
    }

    fn spawn(&mut self) -> Result<(), Error> {
        let mut command = command::serve(self.program, &self.path, &self.folder, self.port, &self.options);
        self.user.apply(&mut command);
        let mut process = Process::spawn(self.kind, command, &self.path, &self.folder)?;
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let place = Place { address, own_port: self.port };
        wait_until_ready(self.kind, place, READY_WITHIN, || process.check(&self.folder)).map_err(
            |error| match error {
                Error::NotReady { what, within, last } => {
                    Error::NotReady { what, within, last: format!("{last}\n{}", self.folder.log_tail()) }
                }
                other => other,
            },
        )?;
        std::thread::sleep(SETTLED_AFTER);
        process.check(&self.folder)?;
        self.process = Some(process);
        Ok(())
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // A test fails, and with this folder goes what the server had to say about it.
            eprintln!("the log of {} at port {} ends:\n{}", self.kind, self.port, self.log());
        }
        // No need to be gentle: the data goes too. An error would have nowhere to go, and the guard tries once more.
        let _ = self.kill();
    }
}

fn free_port() -> Result<u16, Error> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .and_then(|listener| listener.local_addr())
        .map(|address| address.port())
        .map_err(Error::system("no free port on 127.0.0.1"))
}

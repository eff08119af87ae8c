//! How each program is started.

use super::Options;
use super::folder::Folder;
use super::process::Process;
use super::user::User;
use crate::program::Program;
use crate::{Error, Kind};
use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// It writes some 40 MB.
const INITDB_WITHIN: Duration = Duration::from_secs(120);

/// The server in the foreground, on a port of the loopback interface.
pub(super) fn serve(program: Program, path: &Path, folder: &Folder, port: u16, options: &Options) -> Command {
    let mut command = Command::new(path);
    let port = port.to_string();
    match program {
        Program::Dynoxide => {
            command.args(["serve", "--host", "127.0.0.1", "--port", &port]);
            if options.durable {
                command.arg("--db-path").arg(folder.data());
            }
        }
        Program::Redis => {
            let log = if options.durable { "yes" } else { "no" };
            // Written before the reply but never forced to the disk: enough to outlive the process, and these machines
            // need not crash.
            command.args(["--port", &port, "--bind", "127.0.0.1", "--save", "", "--appendfsync", "no"]);
            command.args(["--appendonly", log]).arg("--dir").arg(folder.path());
        }
        Program::Postgres => {
            command.arg("-D").arg(folder.data()).args(["-p", &port]);
            // No socket: its folder would be one more thing to choose. Not forced to the disk: see Redis.
            let settings = [
                "listen_addresses=127.0.0.1",
                "unix_socket_directories=",
                "fsync=off",
                "max_connections=300",
                // For those who follow its changes.
                "wal_level=logical",
            ];
            for setting in settings {
                command.args(["-c", setting]);
            }
        }
        Program::Mongod => {
            command.args(["--bind_ip", "127.0.0.1", "--port", &port, "--replSet", "rs0"]);
            command.arg("--dbpath").arg(folder.data());
        }
        Program::Secantus => {
            command.args(["--host", "127.0.0.1", "--port", &port, "--cache-size", "1G"]);
            command.arg("--storage-path").arg(folder.data());
        }
    }
    command.args(&options.args).current_dir(folder.path());
    command
}

/// What each takes for the wish to end soon and in order.
pub(super) const fn stop_signal(program: Program) -> Signal {
    match program {
        // SIGTERM would wait until each client has gone by itself.
        Program::Postgres => Signal::INT,
        Program::Dynoxide | Program::Redis | Program::Mongod | Program::Secantus => Signal::TERM,
    }
}

/// Makes the data folder that PostgreSQL wants to find.
pub(super) fn initdb(postgres: &Path, folder: &Folder, user: &User) -> Result<(), Error> {
    let initdb = postgres.with_file_name("initdb");
    let mut command = Command::new(&initdb);
    command.arg("-D").arg(folder.data()).args(["-U", "postgres", "--auth=trust", "--no-sync"]);
    // The same wherever it runs, and there without locales being installed.
    command.args(["--locale=C", "--encoding=UTF8"]);
    command.current_dir(folder.path());
    user.apply(&mut command);
    // Under a guard, as the server will be: who is interrupted here leaves nothing behind either.
    match Process::spawn(Kind::Postgres, command, &initdb, folder)?.finish(INITDB_WITHIN)? {
        Some(status) if status.success() => Ok(()),
        ended => {
            let status = ended.map_or_else(|| "initdb took too long".to_owned(), |status| format!("initdb: {status}"));
            Err(Error::Ended { kind: Kind::Postgres, status, log: folder.log_tail() })
        }
    }
}

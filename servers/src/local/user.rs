//! Whom a server runs as: PostgreSQL refuses root, and CI is root.

use crate::Error;
use crate::program::Program;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// The user, where it is not the one that we are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct User(Option<(u32, u32)>);

impl User {
    pub(super) fn for_program(program: Program) -> Result<Self, Error> {
        if program != Program::Postgres || !rustix::process::geteuid().is_root() {
            return Ok(Self(None));
        }
        let users = std::fs::read_to_string("/etc/passwd").map_err(Error::system("could not read /etc/passwd"))?;
        find("postgres", &users).map(|ids| Self(Some(ids))).ok_or(Error::NoPostgresUser)
    }

    /// Lets a command run as this user. The standard library drops root's other groups too.
    pub(super) fn apply(self, command: &mut Command) {
        if let Self(Some((user, group))) = self {
            command.uid(user).gid(group);
        }
    }

    pub(super) fn own(self, path: &Path) -> io::Result<()> {
        match self {
            Self(Some((user, group))) => std::os::unix::fs::chown(path, Some(user), Some(group)),
            Self(None) => Ok(()),
        }
    }
}

/// A user's and its group's number, from lines such as `postgres:x:106:113:…`.
fn find(name: &str, users: &str) -> Option<(u32, u32)> {
    users.lines().find_map(|line| {
        let mut fields = line.split(':');
        if fields.next()? != name {
            return None;
        }
        let mut numbers = fields.skip(1);
        Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_user_is_found_by_its_whole_name() {
        let users =
            "root:x:0:0:root:/root:/bin/sh\npostgres2:x:1:2::/:\npostgres:x:106:113::/var/lib/postgresql:/bin/sh\n";
        assert_eq!(find("postgres", users), Some((106, 113)));
        assert_eq!(find("mongo", users), None);
        assert_eq!(find("x", "x:x:word:1:"), None);
    }

    #[test]
    fn only_postgres_minds_who_runs_it() {
        assert_eq!(User::for_program(Program::Redis).unwrap(), User(None));
    }
}

//! Programs that serve, and where they may be.

use crate::{Error, Kind, tools_folder};
use std::path::{Path, PathBuf};

/// A server program that this crate knows how to start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    /// `dynoxide`, from the crate dynoxide-rs.
    Dynoxide,
    /// `redis-server`, or `valkey-server`, which takes the same arguments.
    Redis,
    /// `postgres`, with `initdb` beside it.
    Postgres,
    /// `mongod`.
    Mongod,
    /// `secantusd-rs`, from the crate secantus-mdb.
    Secantus,
}

impl Program {
    /// PostgreSQL's other programs lie beside it, and not beside a link to it. Others are left as they are found:
    /// Debian's `redis-server` is a link to a program that goes by the name it is called.
    fn itself(self, path: PathBuf) -> PathBuf {
        match self {
            Self::Postgres => path.canonicalize().unwrap_or(path),
            Self::Dynoxide | Self::Redis | Self::Mongod | Self::Secantus => path,
        }
    }
}

/// What serves each store, the best first: MongoDB's own server before what stands in for it.
const fn candidates(kind: Kind) -> &'static [(&'static str, Program)] {
    match kind {
        Kind::DynamoDb => &[("dynoxide", Program::Dynoxide)],
        Kind::Redis => &[("redis-server", Program::Redis), ("valkey-server", Program::Redis)],
        Kind::Postgres => &[("postgres", Program::Postgres)],
        Kind::Mongo => &[("mongod", Program::Mongod), ("secantusd-rs", Program::Secantus)],
    }
}

/// The program for a store: in the tools folder, on PATH, or where Debian puts PostgreSQL's.
///
/// # Errors
///
/// [`Error::NotInstalled`] where there is none.
pub fn find_program(kind: Kind) -> Result<(PathBuf, Program), Error> {
    find_among(kind, candidates(kind))
}

/// As [`find_program`], for the one of the store's programs that has this name.
///
/// # Errors
///
/// [`Error::NotInstalled`] where it is not there.
pub fn find_program_called(kind: Kind, name: &str) -> Result<(PathBuf, Program), Error> {
    let called: Vec<_> = candidates(kind).iter().copied().filter(|(candidate, _)| *candidate == name).collect();
    find_among(kind, &called)
}

fn find_among(kind: Kind, candidates: &[(&'static str, Program)]) -> Result<(PathBuf, Program), Error> {
    let folders = folders();
    candidates
        .iter()
        .find_map(|(name, program)| find_in(&folders, name).map(|path| (program.itself(path), *program)))
        .ok_or_else(|| {
            let names: Vec<&str> = candidates.iter().map(|(name, _)| *name).collect();
            Error::NotInstalled {
                kind,
                looked_for: format!(
                    "{} on PATH{} and in {}",
                    names.join(" or "),
                    if kind == Kind::Postgres { ", in /usr/lib/postgresql/*/bin" } else { "" },
                    tools_folder().join("bin").display()
                ),
            }
        })
}

/// A program by its name, on PATH alone.
pub fn on_path(name: &str) -> Option<PathBuf> {
    find_in(&path_folders(), name)
}

fn folders() -> Vec<PathBuf> {
    let mut folders = vec![tools_folder().join("bin")];
    folders.extend(path_folders());
    // Debian keeps one PostgreSQL beside another, and none of them on PATH.
    folders.extend(newest_first(versions_in(Path::new("/usr/lib/postgresql"))));
    folders
}

fn path_folders() -> Vec<PathBuf> {
    std::env::var_os("PATH").map(|path| std::env::split_paths(&path).collect()).unwrap_or_default()
}

fn versions_in(folder: &Path) -> Vec<(u32, PathBuf)> {
    let Ok(entries) = std::fs::read_dir(folder) else { return vec![] };
    entries
        .flatten()
        .filter_map(|entry| Some((entry.file_name().to_str()?.parse().ok()?, entry.path().join("bin"))))
        .collect()
}

fn newest_first(mut versions: Vec<(u32, PathBuf)>) -> impl Iterator<Item = PathBuf> {
    versions.sort_by_key(|(version, _)| std::cmp::Reverse(*version));
    versions.into_iter().map(|(_, folder)| folder)
}

fn find_in(folders: &[PathBuf], name: &str) -> Option<PathBuf> {
    folders.iter().map(|folder| folder.join(name)).find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_comes_first_by_number() {
        let versions = [9, 15, 10].map(|version| (version, PathBuf::from(version.to_string())));
        let sorted: Vec<PathBuf> = newest_first(versions.to_vec()).collect();
        assert_eq!(sorted, ["15", "10", "9"].map(PathBuf::from));
    }

    #[test]
    fn only_what_can_be_run_is_a_program() {
        assert!(on_path("sh").is_some());
        assert_eq!(find_in(&[PathBuf::from("/etc")], "passwd"), None);
        assert_eq!(find_in(&[PathBuf::from("/")], "tmp"), None);
    }
}

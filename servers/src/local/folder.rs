//! A folder for one server's data and log.

use super::user::User;
use crate::{Error, Kind};
use std::fs::{DirBuilder, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// Enough for the reason why a server did not start.
const LOG_TAIL_BYTES: u64 = 4 * 1024;

/// Room enough for the servers of all tests that run at once.
const ROOM_BYTES: u64 = 4 * 1024 * 1024 * 1024;

/// Tells the folders of one process apart.
static NEXT: AtomicU32 = AtomicU32::new(0);

/// Removed when it is dropped.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// A new one that only `user` may look into.
    pub(super) fn new(kind: Kind, user: &User) -> Result<Self, Error> {
        let (process, number) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        // The time, because a process that was killed together with its guards may have had our number before.
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default().as_nanos();
        let path = parent(kind).join(format!("idemkit-{kind}-{process}-{number}-{now:x}"));
        let failed = |path: &Path| Error::system(format!("could not make the folder {}", path.display()));
        DirBuilder::new().mode(0o700).create(&path).map_err(failed(&path))?;
        let folder = Self(path);
        user.own(&folder.0).map_err(failed(&folder.0))?;
        Ok(folder)
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn data(&self) -> PathBuf {
        self.0.join("data")
    }

    pub(super) fn make_data(&self) -> Result<(), Error> {
        let path = self.data();
        std::fs::create_dir(&path).map_err(Error::system(format!("could not make the folder {}", path.display())))
    }

    /// Opened to be written on: each start of the server adds to it.
    pub(super) fn log(&self) -> Result<File, Error> {
        let path = self.0.join("log");
        File::options()
            .create(true)
            .append(true)
            .open(&path)
            .map_err(Error::system(format!("could not open {}", path.display())))
    }

    pub(super) fn log_tail(&self) -> String {
        let mut tail = vec![];
        let read = File::open(self.0.join("log")).and_then(|mut log| {
            let length = log.metadata()?.len();
            log.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            log.take(LOG_TAIL_BYTES).read_to_end(&mut tail)
        });
        match read {
            Ok(_) => String::from_utf8_lossy(&tail).into_owned(),
            Err(error) => format!("(its log cannot be read: {error})"),
        }
    }
}

/// In memory, where there is room, for what forces each write to the disk and cannot be told not to: it would wait there for
/// whatever else the machine writes, for seconds while something is being built. Whoever names a folder gets that.
fn parent(kind: Kind) -> PathBuf {
    let in_memory = Path::new("/dev/shm");
    let has_room =
        || rustix::fs::statvfs(in_memory).is_ok_and(|held| held.f_bavail.saturating_mul(held.f_frsize) >= ROOM_BYTES);
    if kind == Kind::Mongo && std::env::var_os("TMPDIR").is_none() && has_room() {
        return in_memory.to_owned();
    }
    std::env::temp_dir()
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed lies in the system's folder for what may be removed.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

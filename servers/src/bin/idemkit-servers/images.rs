//! Docker images of the programs on this machine, for where Docker runs and no image can be pulled.
//!
//! An image is a program, the shared libraries that it says it needs, and its data: tens of megabytes, made in a
//! second, without a network, and sure to run since it is this machine's own C library. They take the official images'
//! arguments.

use crate::failure::Failure;
use crate::shell;
use idemkit_servers::{Kind, Program, find_program, on_path};
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::process::Command;
use tokio::time::timeout;

const TAR_WITHIN: Duration = Duration::from_secs(120);
const ASKED_WITHIN: Duration = Duration::from_secs(20);
const INITDB_WITHIN: Duration = Duration::from_secs(120);

/// Makes all four, and prints how to have them used.
pub(crate) async fn run() -> Result<(), Failure> {
    if on_path("docker").is_none() {
        return Err(Failure::Refused("making images takes the program `docker` on PATH".into()));
    }
    for kind in Kind::ALL {
        let tree = Tree::new(kind)?;
        let entry = tree.fill(kind).await?;
        let image = format!("idemkit-test/{kind}:local");
        tree.import(&entry, &image, kind).await?;
        println!("{}={image}", kind.image_variable());
    }
    Ok(())
}

/// How the image is started.
struct Entry {
    words: Vec<String>,
    user: Option<u32>,
}

/// The files of an image, in a folder that is removed when this is dropped.
struct Tree(PathBuf);

impl Tree {
    fn new(kind: Kind) -> Result<Self, Failure> {
        let path = std::env::temp_dir().join(format!("idemkit-image-{kind}-{}", std::process::id()));
        fs::create_dir(&path).map_err(Failure::file(format!("could not make {}", path.display())))?;
        let tree = Self(path);
        for folder in ["tmp", "data", "etc"] {
            tree.folder(folder)?;
        }
        tree.open_to_all("tmp")?;
        // initdb, among others, wants to know its user's name.
        tree.write("etc/passwd", "root:x:0:0::/:/bin/sh\n")?;
        Ok(tree)
    }

    async fn fill(&self, kind: Kind) -> Result<Entry, Failure> {
        let (path, program) = find_program(kind)?;
        self.program(&path, &path).await?;
        let at = path.display();
        match program {
            Program::Redis => {
                let words = [&at.to_string(), "--bind", "0.0.0.0", "--protected-mode", "no", "--dir", "/data"];
                Ok(Entry { words: words.map(str::to_owned).to_vec(), user: None })
            }
            // The real thing takes the real arguments.
            Program::Mongod => {
                self.folder("data/db")?;
                Ok(Entry { words: [&at.to_string(), "--dbpath", "/data/db"].map(str::to_owned).to_vec(), user: None })
            }
            Program::Dynoxide => self.shell(&format!("exec {at} serve --host 0.0.0.0 --port 8000")).await,
            Program::Secantus => {
                self.shell(&format!("exec {at} --host 0.0.0.0 --port 27017 --storage-path /data/db --cache-size 1G"))
                    .await
            }
            Program::Postgres => self.postgres(&path).await,
        }
    }

    /// Started by a shell, which does not look at further arguments: those that the official image is given mean
    /// nothing to programs that stand in for it.
    async fn shell(&self, script: &str) -> Result<Entry, Failure> {
        let sh = on_path("sh").ok_or_else(|| Failure::Refused("no `sh` on PATH".into()))?;
        self.program(&sh, Path::new("/bin/sh")).await?;
        Ok(Entry { words: ["/bin/sh", "-c", script].map(str::to_owned).to_vec(), user: None })
    }

    /// With its extensions and the data folder made beforehand: no shell and no `initdb` in the image, and a quicker
    /// start.
    async fn postgres(&self, postgres: &Path) -> Result<Entry, Failure> {
        let config = postgres.with_file_name("pg_config");
        let ask = async |what: &str| {
            let said = shell::read(Command::new(&config).arg(what), ASKED_WITHIN).await?;
            Ok::<_, Failure>(PathBuf::from(said.trim()))
        };
        let (library, share) = (ask("--pkglibdir").await?, ask("--sharedir").await?);
        // Compiled queries bring a hundred megabytes of LLVM along, and our queries are short.
        self.copy_folder(&library, &|name| !(name.starts_with("llvmjit") || name == "bitcode"))?;
        self.copy_folder(&share, &|_| true)?;
        let zones = Path::new("/usr/share/zoneinfo");
        if zones.is_dir() {
            self.copy_folder(zones, &|_| true)?;
        }
        let mut libraries = BTreeSet::new();
        for file in fs::read_dir(&library).map_err(Failure::file("could not list PostgreSQL's extensions"))?.flatten() {
            let path = file.path();
            let name = file.file_name().to_string_lossy().into_owned();
            if name.ends_with(".so") && !name.starts_with("llvmjit") {
                libraries.extend(needed(&path).await?);
            }
        }
        for library in libraries {
            self.file(&library, &library)?;
        }

        let user = self.postgres_data(postgres).await?;
        self.write("etc/passwd", &format!("root:x:0:0::/:/bin/sh\npostgres:x:{user}:{user}::/:/bin/sh\n"))?;
        let words = [
            &postgres.display().to_string(),
            "-D",
            "/data/db",
            "-c",
            "listen_addresses=*",
            "-c",
            "unix_socket_directories=",
        ];
        Ok(Entry { words: words.map(str::to_owned).to_vec(), user: Some(user) })
    }

    /// Made by a server of our own, which knows how to become the user that it takes. Gives that user's number.
    async fn postgres_data(&self, postgres: &Path) -> Result<u32, Failure> {
        use std::os::unix::fs::MetadataExt;
        let server = tokio::task::spawn_blocking(|| idemkit_servers::Local::start(Kind::Postgres)).await;
        let mut server = server.map_err(|error| Failure::Refused(error.to_string()))??;
        server.stop()?;
        let data = server.folder().join("data");
        let user = fs::metadata(&data).map_err(Failure::file(format!("no data of {}", postgres.display())))?.uid();
        shell::read(Command::new("cp").arg("-a").arg(&data).arg(self.0.join("data/db")), INITDB_WITHIN).await?;
        let access = self.0.join("data/db/pg_hba.conf");
        fs::write(&access, "local all all trust\nhost all all all trust\nhost replication all all trust\n")
            .map_err(Failure::file(format!("could not write {}", access.display())))?;
        Ok(user)
    }

    /// A program, and the libraries that it needs.
    async fn program(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        self.file(from, to)?;
        for library in needed(from).await? {
            self.file(&library, &library)?;
        }
        Ok(())
    }

    /// Links are followed: what is needed is the file.
    fn file(&self, from: &Path, to: &Path) -> Result<(), Failure> {
        let to = self.inside(to);
        let copied = to.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::copy(from, &to));
        copied.map(drop).map_err(Failure::file(format!("could not copy {} to {}", from.display(), to.display())))
    }

    fn copy_folder(&self, from: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<(), Failure> {
        let failed = || Failure::file(format!("could not copy {}", from.display()));
        fs::create_dir_all(self.inside(from)).map_err(failed())?;
        for entry in fs::read_dir(from).map_err(failed())? {
            let entry = entry.map_err(failed())?;
            if !wanted(&entry.file_name().to_string_lossy()) {
                continue;
            }
            let path = entry.path();
            match fs::metadata(&path) {
                Ok(found) if found.is_dir() => self.copy_folder(&path, wanted)?,
                Ok(_) => self.file(&path, &path)?,
                // A link to what is not installed.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(failed()(error)),
            }
        }
        Ok(())
    }

    fn folder(&self, name: &str) -> Result<(), Failure> {
        fs::create_dir(self.0.join(name)).map_err(Failure::file(format!("could not make the folder {name}")))
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Failure> {
        fs::write(self.0.join(name), text).map_err(Failure::file(format!("could not write {name}")))
    }

    fn open_to_all(&self, name: &str) -> Result<(), Failure> {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(self.0.join(name), fs::Permissions::from_mode(0o1777))
            .map_err(Failure::file(format!("could not open {name} to all")))
    }

    fn inside(&self, path: &Path) -> PathBuf {
        self.0.join(path.strip_prefix("/").unwrap_or(path))
    }

    async fn import(&self, entry: &Entry, image: &str, kind: Kind) -> Result<(), Failure> {
        // What bears the name now would stay behind without one.
        let mut inspect = Command::new("docker");
        inspect.args(["image", "inspect", "--format", "{{.Id}}", image]).kill_on_drop(true);
        let former = match timeout(ASKED_WITHIN, inspect.output()).await {
            Ok(Ok(output)) if output.status.success() => String::from_utf8_lossy(&output.stdout).trim().to_owned(),
            _ => String::new(),
        };
        let archive = self.0.with_extension("tar");
        let packed = async {
            let mut tar = Command::new("tar");
            tar.arg("-C").arg(&self.0).args(["--numeric-owner", "-cf"]).arg(&archive).arg(".");
            shell::read(&mut tar, TAR_WITHIN).await?;
            let mut import = Command::new("docker");
            import.args(["import", "--change", &format!("ENTRYPOINT {}", json(&entry.words))]);
            import.args(["--change", &format!("EXPOSE {}", kind.usual_port()), "--change", "WORKDIR /data"]);
            if let Some(user) = entry.user {
                import.args(["--change", &format!("USER {user}:{user}")]);
            }
            shell::read(import.arg(&archive).arg(image), TAR_WITHIN).await
        };
        let result = packed.await;
        let _ = fs::remove_file(&archive);
        let made = result?;
        if !former.is_empty() && former != made.trim() {
            // In use by a container of somebody else's run: then it stays, and is theirs to remove.
            let mut remove = Command::new("docker");
            remove.args(["image", "rm", &former]).kill_on_drop(true);
            let _ = timeout(ASKED_WITHIN, remove.output()).await;
        }
        Ok(())
    }
}

impl Drop for Tree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// The shared libraries that a program is loaded with, the loader among them.
async fn needed(program: &Path) -> Result<Vec<PathBuf>, Failure> {
    shell::read(Command::new("ldd").arg(program), ASKED_WITHIN).await.map(|said| libraries(&said))
}

/// From lines such as `libz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007f…)` and `/lib64/ld-linux-x86-64.so.2
/// (0x…)`.
fn libraries(said: &str) -> Vec<PathBuf> {
    said.lines()
        .filter_map(|line| {
            let path = line.split_once("=>").map_or(line, |(_, path)| path).trim().split(' ').next()?;
            path.starts_with('/').then(|| path.into())
        })
        .collect()
}

/// Words as Docker wants them. None that we make has a control character.
fn json(words: &[String]) -> String {
    let quoted: Vec<String> =
        words.iter().map(|word| format!("\"{}\"", word.replace('\\', "\\\\").replace('"', "\\\""))).collect();
    format!("[{}]", quoted.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_read_from_ldd() {
        let said = "\tlinux-vdso.so.1 (0x00007fdf8d269000)\n\
            \tlibz.so.1 => /lib/x86_64-linux-gnu/libz.so.1 (0x00007fdf8d239000)\n\
            \tlibgone.so => not found\n\
            \t/lib64/ld-linux-x86-64.so.2 (0x00007fdf8d26b000)\n";
        assert_eq!(
            libraries(said),
            ["/lib/x86_64-linux-gnu/libz.so.1", "/lib64/ld-linux-x86-64.so.2"].map(PathBuf::from)
        );
        assert!(libraries("\tstatically linked\n").is_empty());
    }

    #[test]
    fn words_are_quoted_for_docker() {
        assert_eq!(json(&["sh".into(), r#"a "b" \"#.into()]), r#"["sh","a \"b\" \\"]"#);
    }
}

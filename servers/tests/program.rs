//! The program `idemkit-servers`: servers for one command, and what it says when there are none. Of the four, three are
//! said to be elsewhere, so that it need not start them.

#![cfg(feature = "containers")]
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use idemkit_servers::{Kind, find_program};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

const SECRET: &str = "s3cret";

/// With everything elsewhere but Redis, for which Docker is not to be used.
fn servers(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_idemkit-servers"));
    command.args(args).stdin(Stdio::null());
    for kind in Kind::ALL {
        command.env(kind.url_variable(), format!("elsewhere://user:{SECRET}@{kind}")).env_remove(kind.image_variable());
    }
    command.env_remove(Kind::Redis.url_variable()).env(Kind::Redis.image_variable(), "none");
    command
}

/// Where Redis comes from elsewhere, this machine need not have it, and then there is nothing to start here.
fn no_redis() -> bool {
    find_program(Kind::Redis).is_err() && idemkit_servers::url(Kind::Redis).is_ok()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_command_gets_urls_and_gives_its_exit_code() {
    if no_redis() {
        return;
    }
    let script = "printf '%s\n' \"$IDEMKIT_TEST_REDIS_URL\" \"$IDEMKIT_TEST_MONGO_URL\"; exit 7";
    let Output { status, stdout, stderr } = servers(&["with", "--", "sh", "-c", script]).output().unwrap();
    let (said, told) = (text(&stderr), text(&stdout));
    assert_eq!(status.code(), Some(7), "{said}");
    assert!(told.starts_with("redis://127.0.0.1:"), "{told}");
    assert!(told.ends_with(&format!("elsewhere://user:{SECRET}@mongo\n")), "{told}");

    // One line each says which way it came, and no URL of the user's.
    for kind in Kind::ALL {
        assert!(said.contains(&format!("servers: {kind}: ")), "{said}");
    }
    assert!(said.contains("the URL in IDEMKIT_TEST_MONGO_URL") && said.contains("redis: program "), "{said}");
    assert!(!said.contains(SECRET), "{said}");

    let port: u16 = told.lines().next().unwrap().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the server is still there");
}

#[test]
fn a_missing_server_is_an_error_that_names_the_three_ways() {
    let mut command = servers(&["with", "--", "true"]);
    command.env("PATH", "/nowhere").env("IDEMKIT_TOOLS_DIR", "/nowhere");
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    for way in [Kind::Redis.url_variable(), Kind::Redis.image_variable(), "cargo xtask servers install"] {
        assert!(said.contains(way), "{way} is not in: {said}");
    }
}

#[test]
fn an_image_that_was_named_is_not_replaced_by_a_program() {
    let mut command = servers(&["with", "--", "true"]);
    // Nobody listens at port 1, and no engine is asked: the same where Docker runs and where it does not.
    command.env("DOCKER_HOST", "tcp://127.0.0.1:1").env(Kind::Redis.image_variable(), "redis:of-mine");
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert_eq!(status.code(), Some(1), "{said}");
    assert!(said.contains("`redis:of-mine`, named by IDEMKIT_TEST_REDIS_IMAGE"), "{said}");
}

#[test]
fn without_an_engine_a_program_serves_and_the_reason_is_said() {
    if no_redis() {
        return;
    }
    let mut command = servers(&["with", "--", "true"]);
    command.env("DOCKER_HOST", "tcp://127.0.0.1:1").env_remove(Kind::Redis.image_variable());
    let Output { status, stderr, .. } = command.output().unwrap();
    let said = text(&stderr);
    assert!(status.success(), "{said}");
    let line = said.lines().find(|line| line.starts_with("servers: redis: ")).unwrap();
    assert!(line.contains("program ") && line.contains("not Docker: no Docker engine"), "{said}");
}

#[test]
fn an_interrupt_ends_the_command_and_the_servers() {
    if no_redis() {
        return;
    }
    let script = "echo \"$IDEMKIT_TEST_REDIS_URL\"; sleep 600";
    let mut running = servers(&["with", "--", "sh", "-c", script]).stdout(Stdio::piped()).spawn().unwrap();
    let mut url = String::new();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(running.stdout.take().unwrap()), &mut url).unwrap();
    let port: u16 = url.trim().rsplit_once(':').unwrap().1.parse().unwrap();
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_ok());

    let interrupted = Command::new("sh").args(["-c", "kill -s INT \"$1\"", "sh", &running.id().to_string()]).status();
    assert!(interrupted.unwrap().success());
    let started = Instant::now();
    let status = loop {
        match running.try_wait().unwrap() {
            Some(status) => break status,
            None if started.elapsed() > Duration::from_secs(100) => {
                running.kill().unwrap();
                panic!("it was told to end and did not");
            }
            None => std::thread::sleep(Duration::from_millis(20)),
        }
    };
    assert_eq!(status.code(), Some(130));
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "the server is still there");
}

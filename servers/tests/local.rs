//! Servers that a test owns: killed, started again, and gone without a trace.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use idemkit_servers::{Error, Kind, Local, Options, Place, find_program, probe};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn answers(server: &Local) -> bool {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, server.port()));
    probe(server.kind(), Place { address, own_port: server.port() }).is_ok()
}

fn runs(pid: u32) -> bool {
    // A zombie has ended.
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

/// Until something holds, for a while that no machine needs.
fn soon(what: &str, holds: impl Fn() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < Duration::from_secs(60), "not within a minute: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// One command of Redis, its reply to the end of the line.
fn redis(server: &Local, command: &str) -> String {
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, server.port())).unwrap();
    stream.write_all(format!("{command}\r\nQUIT\r\n").as_bytes()).unwrap();
    let mut reply = String::new();
    stream.read_to_string(&mut reply).unwrap();
    reply
}

/// Where the shared server of a kind comes from elsewhere (a URL, Docker), its program may be missing on this machine,
/// and then the error is what is tested. Where it does not, the program has to be there.
fn is_missing(kind: Kind) -> bool {
    let missing = matches!(find_program(kind), Err(Error::NotInstalled { .. })) && idemkit_servers::url(kind).is_ok();
    if missing {
        let error = Local::start(kind).unwrap_err();
        println!("{error}");
        assert!(error.to_string().contains("cargo xtask servers install"), "{error}");
    }
    missing
}

fn lifecycle(kind: Kind) {
    if is_missing(kind) {
        return;
    }
    let mut server = Local::start(kind).unwrap();
    let (first, port, folder) = (server.pid().unwrap(), server.port(), server.folder().to_owned());
    soon("it answers", || answers(&server));
    assert!(runs(first) && folder.is_dir());
    assert!(server.url().contains(&format!("127.0.0.1:{port}")));

    server.kill().unwrap();
    assert!(!answers(&server) && !runs(first) && server.pid().is_none());
    server.kill().unwrap();

    server.restart().unwrap();
    let second = server.pid().unwrap();
    soon("it answers again", || answers(&server));
    assert_ne!(second, first);
    assert_eq!(server.port(), port);

    server.stop().unwrap();
    assert!(!answers(&server) && !runs(second));
    server.restart().unwrap();
    let third = server.pid().unwrap();
    soon("it answers after a stop", || answers(&server));

    drop(server);
    assert!(!runs(third));
    assert!(!folder.exists());
}

#[test]
fn dynamodb_lives_and_dies() {
    lifecycle(Kind::DynamoDb);
}

#[test]
fn redis_lives_and_dies() {
    lifecycle(Kind::Redis);
}

#[test]
fn postgres_lives_and_dies() {
    lifecycle(Kind::Postgres);
}

#[test]
fn mongo_lives_and_dies() {
    lifecycle(Kind::Mongo);
}

#[test]
fn data_survives_a_kill_where_it_is_to() {
    if is_missing(Kind::Redis) {
        return;
    }
    for (options, kept) in [(Options::durable(), true), (Options::default(), false)] {
        let mut server = Local::start_with(Kind::Redis, options).unwrap();
        assert!(redis(&server, "SET key value").starts_with("+OK"));
        server.kill().unwrap();
        server.restart().unwrap();
        assert_eq!(redis(&server, "GET key").starts_with("$5\r\nvalue"), kept);
    }
}

#[test]
fn arguments_of_the_test_come_last() {
    if is_missing(Kind::Redis) {
        return;
    }
    let args = ["--maxmemory", "5mb"].map(str::to_owned).to_vec();
    let server = Local::start_with(Kind::Redis, Options { args, ..Options::default() }).unwrap();
    assert!(redis(&server, "CONFIG GET maxmemory").contains("5242880"));

    let args = ["--no-such-setting", "1"].map(str::to_owned).to_vec();
    let error = Local::start_with(Kind::Redis, Options { args, ..Options::default() }).unwrap_err();
    assert!(matches!(error, Error::Ended { .. }), "{error}");
    assert!(error.to_string().contains("no-such-setting"), "the server's own reason is not in: {error}");
}

/// Run by the next test in a process of its own: starts a server, says where, and waits to be killed.
#[test]
#[ignore = "a part of a_server_ends_with_its_owner"]
fn owner() {
    let server = Local::start(Kind::Redis).unwrap();
    println!("\nowner: {} {}", server.pid().unwrap(), server.folder().display());
    std::thread::sleep(Duration::from_secs(300));
}

#[test]
fn a_server_ends_with_its_owner() {
    if is_missing(Kind::Redis) {
        return;
    }
    let mut owner = Command::new(std::env::current_exe().unwrap())
        .args(["owner", "--exact", "--ignored", "--nocapture"])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = std::io::BufRead::lines(std::io::BufReader::new(owner.stdout.take().unwrap())).map(Result::unwrap);
    let said = lines.find_map(|line| line.strip_prefix("owner: ").map(str::to_owned)).unwrap();
    let (pid, folder) = said.split_once(' ').unwrap();
    let pid: u32 = pid.parse().unwrap();
    assert!(runs(pid) && Path::new(folder).is_dir());

    // No destructor runs.
    owner.kill().unwrap();
    owner.wait().unwrap();
    soon("the server has ended", || !runs(pid));
    soon("its folder is gone", || !Path::new(folder).exists());
}

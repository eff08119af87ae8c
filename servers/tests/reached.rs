//! Each of the four servers, reached at its URL, answers in its own protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use idemkit_servers::{Kind, Place, url, wait_until_ready};
use std::net::{SocketAddr, ToSocketAddrs};
use std::time::Duration;

/// Servers are ready when tests begin; one of the user's own may be waking up.
const WITHIN: Duration = Duration::from_secs(20);

/// From `scheme://[user[:password]@]host[:port][/…]`; of several hosts, the first.
fn address(kind: Kind, url: &str) -> SocketAddr {
    let (_, rest) = url.split_once("://").expect("a URL has a scheme");
    let authority = rest.split(['/', '?']).next().unwrap_or_default();
    let hosts = authority.rsplit_once('@').map_or(authority, |(_, hosts)| hosts);
    let host = hosts.split(',').next().unwrap_or_default();
    let with_port = match host.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => host.to_owned(),
        _ => format!("{host}:{}", kind.usual_port()),
    };
    with_port.to_socket_addrs().expect("the host is known").next().expect("the host has an address")
}

fn answers(kind: Kind) {
    let url = url(kind).unwrap_or_else(|missing| panic!("{missing}"));
    let place = Place { address: address(kind, &url), own_port: kind.usual_port() };
    wait_until_ready(kind, place, WITHIN, || Ok(())).unwrap();
}

#[test]
fn dynamodb_answers() {
    answers(Kind::DynamoDb);
}

#[test]
fn redis_answers() {
    answers(Kind::Redis);
}

#[test]
fn postgres_answers() {
    answers(Kind::Postgres);
}

#[test]
fn mongo_answers() {
    answers(Kind::Mongo);
}

#[test]
fn addresses_are_read_from_urls() {
    for (kind, url, port) in [
        (Kind::Redis, "redis://127.0.0.1", 6379),
        (Kind::Redis, "redis://:secret@127.0.0.1:7000/2", 7000),
        (Kind::Postgres, "postgres://u:p:q@127.0.0.1/db", 5432),
        (Kind::Mongo, "mongodb://127.0.0.1:1,127.0.0.2:2/?directConnection=true", 1),
    ] {
        assert_eq!(address(kind, url), SocketAddr::from(([127, 0, 0, 1], port)), "{url}");
    }
}

//! Each of the four servers, reached at its URL, answers in its own protocol.

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use idemkit_servers::{Kind, Place, address, url, wait_until_ready};
use std::time::Duration;

/// Servers are ready when tests begin; one of the user's own may be waking up.
const WITHIN: Duration = Duration::from_secs(60);

fn answers(kind: Kind) {
    let url = url(kind).unwrap_or_else(|missing| panic!("{missing}"));
    let place = Place { address: address(kind, &url).unwrap(), own_port: kind.usual_port() };
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

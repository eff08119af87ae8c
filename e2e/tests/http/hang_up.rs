//! Field report 18 on real sockets: the client closes half-way, asks again, and gets the first answer. The effect ran once.

use std::time::Duration;

use idemkit_servers::Kind;
use rstest::rstest;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, process::Command, time::sleep};

use crate::support::{Charged, On, Server, WORK, charges, engine, single};

/// Asks, and closes the socket while the handler works.
async fn by_socket(server: &Server) {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let request = "POST /charges HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 5\r\n\r\n5 EUR";
    socket.write_all(request.as_bytes()).await.unwrap();
    sleep(WORK / 5).await;
    // With a reset, as where a process is killed.
    socket.set_zero_linger().unwrap();
}

async fn by_reqwest(server: &Server) {
    let client = reqwest::Client::builder().timeout(WORK / 5).build().unwrap();
    let asked = client.post(server.url("/charges")).header("Idempotency-Key", "k").body("5 EUR").send().await;
    assert!(asked.unwrap_err().is_timeout());
}

async fn by_curl(server: &Server) {
    let ended = curl(server, &["--max-time", "0.1"]).await;
    assert_eq!(ended.status.code(), Some(28), "curl's own code for a time-out");
}

async fn curl(server: &Server, args: &[&str]) -> std::process::Output {
    Command::new("curl")
        .args(["-sS", "-i", "-X", "POST", "-H", "Idempotency-Key: k", "-d", "5 EUR"])
        // Not as a form, which is compared as one: what the other clients send has no type.
        .args(["-H", "Content-Type:"])
        .args(args)
        .arg(server.url("/charges"))
        .output()
        .await
        .expect("curl is needed for this test: apt-get install curl")
}

#[derive(Clone, Copy, Debug)]
enum By {
    Socket,
    Reqwest,
    Curl,
}

#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_handler_ends_and_the_retry_gets_its_answer(
    #[values(On::Memory, On::DynamoDb, On::Redis, On::Postgres, On::Mongo)] on: On,
    #[values(By::Socket, By::Reqwest, By::Curl)] by: By,
) {
    let charged = Charged::default();
    let server = Server::start(single(engine(on).await), charges(&charged)).await;
    match by {
        By::Socket => by_socket(&server).await,
        By::Reqwest => by_reqwest(&server).await,
        By::Curl => by_curl(&server).await,
    }
    assert_eq!(charged.times(), 0, "the client has gone before the effect");
    let again = curl(&server, &[]).await;
    let again = String::from_utf8(again.stdout).unwrap();
    assert!(again.starts_with("HTTP/1.1 201 Created\r\n") && again.ends_with("\r\n\r\ncharged: 5 EUR"), "{again}");
    assert!(again.contains("idempotency-replayed: true\r\n") && again.contains("location: /charges/1\r\n"), "{again}");
    assert_eq!(charged.times(), 1);
}

/// A server that ends: it lets the handlers end whose clients have gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_waits_for_a_handler_without_a_client() {
    let charged = Charged::default();
    let server = Server::start(single(engine(On::Memory).await), charges(&charged)).await;
    by_socket(&server).await;
    assert_eq!(server.layer.running(), 1);
    tokio::time::timeout(Duration::from_secs(20), server.layer.drain()).await.unwrap();
    assert_eq!((charged.times(), server.layer.running()), (1, 0));
}

/// A store that is away for the client's whole patience: the retry gets what is recorded once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_is_lost_on_the_way_to_the_store_charges_nobody_twice() {
    let proxy = idemkit_servers::Proxy::before(Kind::Redis, &crate::support::url(Kind::Redis)).unwrap();
    let store = idemkit::redis::RedisStore::builder().url(proxy.url()).namespace(crate::support::unique());
    let charged = Charged::default();
    let engine = idemkit::Engine::new(store.build().unwrap());
    let server = Server::start(single(engine), charges(&charged)).await;
    let asked = tokio::spawn({
        let client = reqwest::Client::new().post(server.url("/charges"));
        client.header("Idempotency-Key", "k").body("5 EUR").send()
    });
    sleep(WORK / 2).await;
    // The next is the completion.
    proxy.lose_reply_to(b"", idemkit_servers::Lost::ByReset);
    let first = asked.await.unwrap().unwrap();
    assert!(first.status() == 201 && !first.headers().contains_key("idempotency-replay-unavailable"), "{first:?}");
    by_curl_again(&server).await;
    assert_eq!(charged.times(), 1);
}

async fn by_curl_again(server: &Server) {
    let again = String::from_utf8(curl(server, &[]).await.stdout).unwrap();
    assert!(again.contains("idempotency-replayed: true"), "{again}");
}

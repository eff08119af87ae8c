//! Field report 18 on real sockets: the client closes half-way, asks again, and gets the first answer. The effect ran once.

use std::time::Duration;

use idemkit_servers::Kind;
use rstest::rstest;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, process::Command, time::sleep};

use crate::support::{Charged, On, PATIENCE, Server, charges, engine, patient, single};

/// Asks, and closes the socket while the handler works.
async fn by_socket(server: &Server, charged: &Charged) {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let request = "POST /charges HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: 5\r\n\r\n5 EUR";
    socket.write_all(request.as_bytes()).await.unwrap();
    charged.begun().await;
    // With a reset, as where a process is killed.
    socket.set_zero_linger().unwrap();
}

/// What its time-out does: the request is dropped.
async fn by_reqwest(server: &Server, charged: &Charged) {
    let client = reqwest::Client::new();
    let asked = client.post(server.url("/charges")).header("Idempotency-Key", "k").body("5 EUR").send();
    tokio::select! {
        answer = asked => panic!("{answer:?}"),
        () = charged.begun() => {}
    }
}

async fn by_curl(server: &Server, charged: &Charged) {
    let mut asking = curl(server).spawn().unwrap();
    charged.begun().await;
    asking.kill().await.unwrap();
}

fn curl(server: &Server) -> Command {
    let mut curl = Command::new("curl");
    curl.args(["-sS", "-i", "-X", "POST", "-H", "Idempotency-Key: k", "-d", "5 EUR"])
        // Not as a form, which is compared as one: what the other clients send has no type.
        .args(["-H", "Content-Type:"])
        .arg(server.url("/charges"));
    curl
}

/// What curl prints of the answer to the same request.
async fn again(server: &Server) -> String {
    let again = curl(server).output().await.expect("curl is needed for this test: apt-get install curl");
    String::from_utf8(again.stdout).unwrap()
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
    let charged = Charged::held_up();
    let server = Server::start(single(engine(on).await), charges(&charged)).await;
    match by {
        By::Socket => by_socket(&server, &charged).await,
        By::Reqwest => by_reqwest(&server, &charged).await,
        By::Curl => by_curl(&server, &charged).await,
    }
    assert_eq!(charged.times(), 0, "the client has gone before the effect");
    // Long enough for the server to see that it has gone.
    sleep(Duration::from_millis(200)).await;
    charged.go_on();
    let again = again(&server).await;
    assert!(again.starts_with("HTTP/1.1 201 Created\r\n") && again.ends_with("\r\n\r\ncharged: 5 EUR"), "{again}");
    assert!(again.contains("idempotency-replayed: true\r\n") && again.contains("location: /charges/1\r\n"), "{again}");
    assert_eq!(charged.times(), 1);
}

/// A server that ends: it lets the handlers end whose clients have gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn draining_waits_for_a_handler_without_a_client() {
    let charged = Charged::held_up();
    let server = Server::start(single(engine(On::Memory).await), charges(&charged)).await;
    by_socket(&server, &charged).await;
    assert_eq!(server.layer.running(), 1);
    let drained = tokio::time::timeout(Duration::from_millis(200), server.layer.drain()).await;
    assert!(drained.is_err(), "it is at work");
    charged.go_on();
    tokio::time::timeout(PATIENCE, server.layer.drain()).await.unwrap();
    assert_eq!((charged.times(), server.layer.running()), (1, 0));
}

/// A store that is away for the client's whole patience: the retry gets what is recorded once it is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acknowledgement_that_is_lost_on_the_way_to_the_store_charges_nobody_twice() {
    let proxy = idemkit_servers::Proxy::before(Kind::Redis, &crate::support::url(Kind::Redis)).unwrap();
    let store = idemkit::redis::RedisStore::builder().url(proxy.url()).namespace(crate::support::unique());
    let charged = Charged::held_up();
    let engine = patient(store.deadline(PATIENCE).build().unwrap());
    let server = Server::start(single(engine), charges(&charged)).await;
    let asked = tokio::spawn({
        let client = reqwest::Client::new().post(server.url("/charges"));
        client.header("Idempotency-Key", "k").body("5 EUR").send()
    });
    charged.begun().await;
    // The next is the completion.
    proxy.lose_reply_to(b"", idemkit_servers::Lost::ByReset);
    charged.go_on();
    let first = asked.await.unwrap().unwrap();
    assert!(first.status() == 201 && !first.headers().contains_key("idempotency-replay-unavailable"), "{first:?}");
    let again = again(&server).await;
    assert!(again.contains("idempotency-replayed: true"), "{again}");
    assert_eq!((charged.times(), proxy.lost()), (1, 1));
}

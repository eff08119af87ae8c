//! Clients that are slow, on real sockets.

use std::time::{Duration, Instant};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::{sleep, timeout},
};

use crate::support::{Charged, On, PATIENCE, Server, charges, engine, single};

async fn head(server: &Server, length: usize) -> TcpStream {
    let mut socket = TcpStream::connect(server.address).await.unwrap();
    let head = format!("POST /charges HTTP/1.1\r\nhost: x\r\nidempotency-key: k\r\ncontent-length: {length}\r\n\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    socket
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_a_byte_at_a_time_is_given_up() {
    let charged = Charged::default();
    let layer = single(engine(On::Memory).await).request_within(Duration::from_secs(1));
    let server = Server::start(layer, charges(&charged)).await;
    let began = Instant::now();
    let (mut reads, mut writes) = head(&server, 1_000).await.into_split();
    let trickle = tokio::spawn(async move {
        while writes.write_all(b"x").await.is_ok() {
            sleep(Duration::from_millis(100)).await;
        }
    });
    let mut told = [0; 12];
    timeout(PATIENCE, reads.read_exact(&mut told)).await.unwrap().unwrap();
    assert_eq!(&told, b"HTTP/1.1 408");
    assert!(began.elapsed() >= Duration::from_secs(1));
    trickle.abort();
    assert_eq!(charged.times(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_goes_in_the_middle_of_its_request_claims_nothing() {
    let charged = Charged::default();
    let server = Server::start(single(engine(On::Memory).await), charges(&charged)).await;
    let mut socket = head(&server, 5).await;
    socket.write_all(b"5 E").await.unwrap();
    drop(socket);
    let asked = reqwest::Client::new().post(server.url("/charges")).header("Idempotency-Key", "k").body("5 EUR");
    assert_eq!((asked.send().await.unwrap().status().as_u16(), charged.times()), (201, 1));
}

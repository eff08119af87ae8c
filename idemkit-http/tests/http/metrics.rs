//! Metrics, as a real exporter serves them.

use std::{net::SocketAddr, time::Duration};

use metrics_exporter_prometheus::PrometheusBuilder;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
};

use crate::support::{ask, builder, charges, post};

async fn scrape(exporter: SocketAddr) -> String {
    let mut text = String::new();
    let mut socket = TcpStream::connect(exporter).await.unwrap();
    socket.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").await.unwrap();
    socket.read_to_string(&mut text).await.unwrap();
    text
}

/// The one test of this process that installs a recorder.
#[tokio::test(flavor = "multi_thread")]
async fn a_real_exporter_serves_the_metrics() {
    let mut tries = 0;
    let free = loop {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let exporter = PrometheusBuilder::new().with_http_listener(free).set_buckets(&[0.01, 0.1, 1.0]).unwrap();
        match exporter.install() {
            Ok(()) => break free,
            // Another process may have been faster to take the port.
            Err(error) => assert!(tries < 2, "{error}"),
        }
        tries += 1;
    };
    let (service, _) = charges(&builder().require_key(true).build().unwrap(), 201);
    // Beside those of other tests, which share the recorder.
    let before = |text: &str, line: &str| -> f64 {
        let found = text.lines().find(|of| of.starts_with(line));
        found.and_then(|of| of.rsplit(' ').next()).map_or(0.0, |value| value.parse().unwrap())
    };
    let counter = |decision: &str| {
        format!("idemkit_operations_total{{decision=\"{decision}\",store=\"memory\",surface=\"http\"}}")
    };
    let mut earlier = String::new();
    for _ in 0..3_000 {
        earlier = scrape(free).await;
        if earlier.starts_with("HTTP/1.1 200") {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for (key, body) in [("scraped", "5"), ("scraped", "5"), ("scraped", "6"), ("\"", "5")] {
        ask(&service, post(key, body)).await;
    }
    let text = scrape(free).await;
    for decision in ["new", "replayed", "payload_mismatch", "invalid_key"] {
        let line = counter(decision);
        assert!(before(&text, &line) >= before(&earlier, &line) + 1.0, "{line} is missing in\n{text}");
    }
    for histogram in ["idemkit_wait_seconds", "idemkit_operation_duration_seconds"] {
        let line = format!("{histogram}_bucket{{store=\"memory\",surface=\"http\",le=\"+Inf\"}}");
        assert!(before(&text, &line) >= 3.0, "{line} is missing in\n{text}");
    }
    assert!(text.contains("# HELP idemkit_operations_total "), "{text}");
}

//! The emulator in this very process: as a service's own tests may have it, without any server.

use std::time::Duration;

use dynoxide::Database;
use idemkit_dynamodb::ClockMode;

use crate::conformance::conforms;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_suite_passes_in_process() {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = tokio::task::JoinSet::new();
    serving.spawn(dynoxide::server::serve_on(listener, Database::memory().unwrap()));
    conforms(url, |builder| builder.clock(ClockMode::Local { skew_bound: Duration::from_secs(5) })).await;
}

//! Payments over HTTP. A client that asks twice under one `Idempotency-Key` pays once, and gets the same answer twice.
//!
//! ```sh
//! cargo run --example axum_payments --features axum,postgres
//! ```
//!
//! and in another terminal, twice:
//!
//! ```sh
//! curl -i localhost:3000/payments -H 'Idempotency-Key: "order-7"' -H 'Content-Type: application/json' -d '{"cents":500}'
//! ```
//!
//! With `--postgres URL` the payment and the record that it was made are one transaction: for it the result is exactly once.
//! `--listen ADDRESS` is where else to listen. Ctrl-C ends it: no new connection is taken, and the payments that are under way,
//! those whose client has hung up among them, are made.

use std::{error::Error, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Json, Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::post,
};
use idemkit::{
    Engine, MemoryStore, StoredResult,
    http::{IdempotencyLayer, RequestClaim, Scope},
    postgres::{
        PostgresStore,
        sqlx::{self, Executor as _},
    },
};
use serde::{Deserialize, Serialize};
use tokio::{net::TcpListener, sync::Mutex, time::timeout};

/// How long payments that are under way may take to end, once the server is to.
const DRAINS_WITHIN: Duration = Duration::from_secs(30);

#[derive(Deserialize)]
struct Order {
    cents: i64,
}

#[derive(Serialize)]
struct Payment {
    payment: String,
    cents: i64,
}

/// Where payments are made.
#[derive(Clone)]
enum Till {
    /// A system of its own, as a bank is: it is asked under a key that is the same at each attempt.
    Bank(Arc<Mutex<Vec<String>>>),
    /// A table beside the records.
    Ledger(PostgresStore),
}

async fn pay(State(till): State<Till>, claim: RequestClaim, Json(order): Json<Order>) -> Response {
    let payment = Payment { payment: claim.downstream_key().to_string()[..8].to_owned(), cents: order.cents };
    match till {
        Till::Bank(bank) => {
            let mut made = bank.lock().await;
            if claim.is_retry() && made.contains(&payment.payment) {
                // An earlier attempt has made it, and died before that was recorded.
            } else {
                made.push(payment.payment.clone());
            }
            // What is answered is recorded by the layer, and then sent.
            (StatusCode::CREATED, Json(payment)).into_response()
        }
        Till::Ledger(store) => match book(&store, &claim, &payment).await {
            Ok(answer) => answer,
            Err(error) => {
                eprintln!("not paid: {error}");
                StatusCode::INTERNAL_SERVER_ERROR.into_response()
            }
        },
    }
}

/// Makes the payment and records its answer in one transaction: the layer then records nothing.
async fn book(store: &PostgresStore, claim: &RequestClaim, payment: &Payment) -> Result<Response, Box<dyn Error>> {
    let mut answer = StoredResult::new(201, serde_json::to_vec(payment)?);
    answer.headers.append("content-type", "application/json");
    let done = store
        .transact(claim.hand_over(), async |mut tx| {
            let insert = sqlx::query("INSERT INTO payments (payment, cents) VALUES ($1, $2)");
            insert.bind(&payment.payment).bind(payment.cents).execute(&mut *tx).await?;
            Ok::<_, sqlx::Error>(tx.complete(answer.clone()))
        })
        .await?;
    Ok(claim.answer(&done, &answer).into_response())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let (mut postgres, mut listen) = (None, SocketAddr::from(([127, 0, 0, 1], 3000)));
    while let Some(arg) = args.next() {
        let value = args.next().ok_or_else(|| format!("{arg} wants a value"))?;
        match arg.as_str() {
            "--postgres" => postgres = Some(value),
            "--listen" => listen = value.parse()?,
            _ => return Err(format!("unknown argument {arg}; there are --postgres URL and --listen ADDRESS").into()),
        }
    }
    let (engine, till) = match postgres {
        None => (Engine::builder(MemoryStore::new()), Till::Bank(Arc::default())),
        Some(url) => {
            let store = PostgresStore::new(&url)?;
            store.migrate().await?;
            let table = "CREATE TABLE IF NOT EXISTS payments (payment text PRIMARY KEY, cents bigint NOT NULL)";
            sqlx::PgPool::connect(&url).await?.execute(table).await?;
            (Engine::builder(store.clone()), Till::Ledger(store))
        }
    };
    // Whose key it is. A service has it from its authentication, never from what the client may choose.
    let caller = |request: &axum::http::request::Parts| {
        let account = request.headers.get("x-account").map_or(Some("demo"), |account| account.to_str().ok());
        Scope::from(account.map(str::to_owned))
    };
    let layer = IdempotencyLayer::builder(engine.surface("http").build()).scope(caller).require_key(true).build()?;
    let router = Router::new().route("/payments", post(pay)).layer(layer.clone()).with_state(till);
    let listener = TcpListener::bind(listen).await?;
    println!("listening on http://{}", listener.local_addr()?);
    let stop = async {
        if tokio::signal::ctrl_c().await.is_err() {
            std::future::pending::<()>().await;
        }
        println!("ending: payments that are under way are made first");
    };
    axum::serve(listener, router).with_graceful_shutdown(stop).await?;
    timeout(DRAINS_WITHIN, layer.drain()).await.map_err(|_| "payments were still under way, and their claims lapse")?;
    println!("ended");
    Ok(())
}

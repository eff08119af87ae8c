//! A ledger on PostgreSQL: a transfer is booked, and its operation recorded as done, in one transaction. Either both are, or
//! neither is, whatever crashes in between: for such writes the result is exactly once.
//!
//! On a server that this starts:
//!
//! ```sh
//! cargo xtask servers with -- cargo run --example postgres_ledger --features postgres
//! ```
//!
//! or on any other one: `cargo run --example postgres_ledger --features postgres -- postgres://localhost/test`
//!
//! It checks what it tells: where the story does not come out as told, it ends with an error.

use std::{error::Error, time::Duration};

use idemkit::{
    Begin, EffectiveKey, Engine, Fingerprint, HeldClaim, Policy, StoredResult, Transacted,
    postgres::{
        PostgresStore,
        sqlx::{self, AssertSqlSafe, Executor as _, PgPool},
    },
};

type Told<T = ()> = Result<T, Box<dyn Error>>;

/// What a broker delivers: at least once.
struct Transfer {
    id: &'static str,
    cents: i64,
}

#[derive(Debug, PartialEq)]
enum Handled {
    /// It is booked, by this delivery.
    Booked,
    /// It was booked before: here is what was recorded then.
    Replayed(String),
    /// Another one has taken this operation over; nothing was booked here.
    Fenced,
    /// It cannot be answered now: let the broker deliver it again.
    Later,
}

struct Bank {
    store: PostgresStore,
    engine: Engine,
    /// The service's own connections. The store has some of its own.
    pool: PgPool,
    /// A table of this run's own. A service has a fixed one.
    ledger: String,
}

impl Bank {
    /// The handler of a service.
    async fn on_message(&self, transfer: &Transfer) -> Told<Handled> {
        let key = EffectiveKey::message(transfer.id, "transfers", "bank");
        Ok(match self.engine.begin(key, Fingerprint::of_payload(transfer.cents.to_string())).await {
            Begin::Proceed(guard) => self.book(guard.hand_over(), transfer).await?,
            Begin::Replay(replay) => Handled::Replayed(String::from_utf8_lossy(&replay.result.body).into_owned()),
            // Done, another request under the same key, under way elsewhere, or the store is away: nothing is run.
            _ => Handled::Later,
        })
    }

    /// The part that must not happen twice: in one transaction with the record that it has happened.
    async fn book(&self, claim: HeldClaim, transfer: &Transfer) -> Told<Handled> {
        let sql = format!("INSERT INTO {} (transfer, cents) VALUES ($1, $2)", self.ledger);
        let done = self
            .store
            .transact(claim, async |mut tx| {
                sqlx::query(AssertSqlSafe(sql)).bind(transfer.id).bind(transfer.cents).execute(&mut *tx).await?;
                Ok::<_, sqlx::Error>(tx.complete(StoredResult::new(201, format!("{} booked", transfer.id))))
            })
            .await?;
        Ok(match done {
            Transacted::Committed(()) => Handled::Booked,
            Transacted::AlreadyCompleted(record) => {
                let body = record.outcome.stored().map(|result| result.body.clone()).unwrap_or_default();
                Handled::Replayed(String::from_utf8_lossy(&body).into_owned())
            }
            Transacted::Fenced => Handled::Fenced,
        })
    }

    async fn sum(&self) -> Told<(i64, i64)> {
        let sql = format!("SELECT count(*), coalesce(sum(cents), 0)::bigint FROM {}", self.ledger);
        Ok(sqlx::query_as(AssertSqlSafe(sql)).fetch_one(&self.pool).await?)
    }
}

#[tokio::main]
async fn main() -> Told {
    let url = std::env::args().nth(1).or_else(|| std::env::var("IDEMKIT_TEST_POSTGRES_URL").ok());
    let url = url.ok_or("say where the server is, or run this with `cargo xtask servers with -- …`")?;
    // Names of its own, so that it can be run again, and beside itself.
    let (records, ledger) =
        (format!("ledger_{}_records", std::process::id()), format!("ledger_{}", std::process::id()));
    let pool = PgPool::connect(&url).await?;
    let store = PostgresStore::builder().pool(&pool).table(&records).build()?;
    // Once, in a deployment: it is safe to call again, and from many processes at once.
    store.migrate().await?;
    let make = format!("CREATE TABLE {ledger} (transfer text, cents bigint)");
    pool.execute(AssertSqlSafe(make)).await?;
    // A lease of 30 s is the default: a short one shows a crash sooner.
    let policy = Policy::builder().lease(Duration::from_secs(1)).build()?;
    let engine = Engine::builder(store.clone()).policy(policy).build();
    let bank = Bank { store, engine, pool, ledger };

    let first = Transfer { id: "tr-1", cents: 500 };
    let booked = bank.on_message(&first).await?;
    println!("delivered:        {booked:?}");
    expect(booked == Handled::Booked, "the first delivery books it")?;
    let again = bank.on_message(&first).await?;
    println!("delivered again:  {again:?}");
    expect(again == Handled::Replayed("tr-1 booked".to_owned()), "the second is a replay")?;

    // A worker claims, and stalls before its transaction for longer than its lease.
    let second = Transfer { id: "tr-2", cents: 700 };
    let key = EffectiveKey::message(second.id, "transfers", "bank");
    let Begin::Proceed(stalled) = bank.engine.begin(key, Fingerprint::of_payload(second.cents.to_string())).await
    else {
        return Err("a fresh key is free".into());
    };
    let zombie = stalled.hand_over(); // What it holds, and no heartbeat any more.
    let taken_over = bank.on_message(&second).await?;
    println!("after a stall:    {taken_over:?}");
    expect(taken_over == Handled::Booked, "another takes it over, and books it")?;
    let late = bank.book(zombie, &second).await?;
    println!("the zombie wakes: {late:?}");
    expect(late == Handled::Replayed("tr-2 booked".to_owned()), "it is handed what was recorded, and books nothing")?;

    let (lines, cents) = bank.sum().await?;
    println!("the ledger:       {lines} lines, {cents} cents");
    expect((lines, cents) == (2, 1_200), "each transfer is booked once")?;

    let clean_up = format!("DROP TABLE {}, {records}, {records}_schema", bank.ledger);
    bank.pool.execute(AssertSqlSafe(clean_up)).await?;
    println!("\nEach transfer was booked once, together with the record that it was.");
    Ok(())
}

fn expect(came_out: bool, as_told: &str) -> Told {
    if came_out { Ok(()) } else { Err(format!("it was told otherwise: {as_told}").into()) }
}

//! Orders on DynamoDB: an order is written, and its operation recorded as done, in one transaction. Either both are, or
//! neither is, whatever crashes in between: for such writes the result is exactly once.
//!
//! On a local emulator, which this starts:
//!
//! ```sh
//! cargo xtask servers with -- cargo run --example dynamodb_orders --features dynamodb
//! ```
//!
//! or on any other one: `cargo run --example dynamodb_orders --features dynamodb -- http://localhost:8000`
//!
//! It checks what it tells: where the story does not come out as told, it ends with an error.

use std::{collections::HashMap, error::Error, time::Duration};

use idemkit::{
    Begin, EffectiveKey, Engine, Fingerprint, Guard, Outcome, Policy, StoredResult, Transacted, Ttl,
    dynamodb::{
        DynamoDbStore,
        aws_sdk_dynamodb::types::{
            AttributeDefinition, AttributeValue, BillingMode, KeySchemaElement, KeyType, Put, ScalarAttributeType,
            TransactWriteItem,
        },
    },
};

type Told<T = ()> = Result<T, Box<dyn Error>>;

const DAY: Duration = Duration::from_secs(86_400);

/// What a broker delivers: at least once.
struct Message {
    id: &'static str,
    payload: &'static str,
}

/// How the handling of a delivery ended.
#[derive(Debug, PartialEq)]
enum Handled {
    /// The order is written, by this delivery.
    Placed(String),
    /// It was written before: here is what was recorded then.
    Replayed(String),
    /// Another one has taken this operation over; nothing was written here.
    Fenced,
    /// It cannot be answered now: let the broker deliver it again.
    Later,
}

struct Shop {
    store: DynamoDbStore,
    engine: Engine,
    orders: String,
}

impl Shop {
    /// The handler of a service: a claim, the order, and the completion with the order in one transaction.
    async fn on_message(&self, message: &Message) -> Told<Handled> {
        let key = EffectiveKey::message(message.id, "orders", "shop");
        Ok(match self.engine.begin(key, Fingerprint::of_payload(message.payload)).await {
            Begin::Proceed(guard) => self.place(guard, message).await?,
            Begin::Replay(replay) => Handled::Replayed(String::from_utf8_lossy(&replay.result.body).into_owned()),
            // Done, another request under the same key, under way elsewhere, or the store is away: nothing is run.
            _ => Handled::Later,
        })
    }

    /// The part that must not happen twice.
    async fn place(&self, guard: Guard, message: &Message) -> Told<Handled> {
        let order = format!("order {} of attempt {}", message.id, guard.context().attempt());
        let put = Put::builder()
            .table_name(&self.orders)
            .item("id", AttributeValue::S(format!("{} by attempt {}", message.id, guard.context().attempt())))
            .item("what", AttributeValue::S(message.payload.to_owned()));
        let items = vec![TransactWriteItem::builder().put(put.build()?).build()];
        let outcome = Outcome::Result(StoredResult::new(201, order.clone()));
        let done = self.store.transact(guard.hand_over(), outcome, Ttl::new(DAY)?, items).await?;
        Ok(match done {
            Transacted::Committed(()) => Handled::Placed(order),
            Transacted::AlreadyCompleted(record) => {
                let body = record.outcome.stored().map(|result| result.body.clone()).unwrap_or_default();
                Handled::Replayed(String::from_utf8_lossy(&body).into_owned())
            }
            Transacted::Fenced => Handled::Fenced,
        })
    }

    async fn orders_written(&self) -> Told<Vec<String>> {
        let scan = self.store.client().scan().table_name(&self.orders).consistent_read(true).send().await?;
        let id = |item: &HashMap<String, AttributeValue>| item.get("id").and_then(|id| id.as_s().ok().cloned());
        Ok(scan.items().iter().filter_map(id).collect())
    }
}

#[tokio::main]
async fn main() -> Told {
    let url = std::env::args().nth(1).or_else(|| std::env::var("IDEMKIT_TEST_DYNAMODB_URL").ok());
    let url = url.ok_or("say where the emulator is, or run this with `cargo xtask servers with -- …`")?;
    // Names of its own, so that it can be run again, and beside itself. A service has fixed ones.
    let run = std::process::id();
    let store = DynamoDbStore::builder()
        .emulator(url) // On AWS nothing of the kind: region and credentials come from the environment.
        .table(format!("shop_idemkit_records_{run}"))
        .create_table(true)
        .build()
        .await?;
    // A lease of 30 s is the default: a short one shows a crash sooner.
    let policy = Policy::builder().lease(Duration::from_secs(1)).build()?;
    let engine = Engine::builder(store.clone()).policy(policy).build();
    let shop = Shop { store, engine, orders: format!("shop_orders_{run}") };
    make_table(&shop).await?;

    let first = Message { id: "msg-1", payload: "two coffees" };
    let placed = shop.on_message(&first).await?;
    println!("delivered:        {placed:?}");
    expect(matches!(placed, Handled::Placed(_)), "the first delivery places the order")?;
    let again = shop.on_message(&first).await?;
    println!("delivered again:  {again:?}");
    expect(matches!(again, Handled::Replayed(_)), "the second is a replay")?;

    // A worker claims, and stalls before its transaction for longer than its lease.
    let second = Message { id: "msg-2", payload: "one tea" };
    let key = EffectiveKey::message(second.id, "orders", "shop");
    let Begin::Proceed(stalled) = shop.engine.begin(key, Fingerprint::of_payload(second.payload)).await else {
        return Err("a fresh key is free".into());
    };
    let zombie = stalled.hand_over(); // What it holds, and no heartbeat any more.
    let taken_over = shop.on_message(&second).await?;
    println!("after a stall:    {taken_over:?}");
    expect(taken_over == Handled::Placed("order msg-2 of attempt 2".to_owned()), "it is taken over, and known so")?;

    // The stalled worker wakes up, and sends its own order.
    let put = Put::builder().table_name(&shop.orders).item("id", AttributeValue::S("msg-2 by a zombie".to_owned()));
    let items = vec![TransactWriteItem::builder().put(put.build()?).build()];
    let outcome = Outcome::Result(StoredResult::new(201, "order msg-2 of attempt 1"));
    let late = shop.store.transact(zombie, outcome, Ttl::new(DAY)?, items).await?;
    println!("the zombie wakes: {late:?}");
    expect(matches!(late, Transacted::AlreadyCompleted(_)), "its whole transaction is refused")?;

    let mut written = shop.orders_written().await?;
    written.sort();
    println!("orders written:   {written:?}");
    expect(written == ["msg-1 by attempt 1", "msg-2 by attempt 2"], "each order is there once")?;

    for table in [&format!("shop_idemkit_records_{run}"), &shop.orders] {
        shop.store.client().delete_table().table_name(table).send().await?;
    }
    println!("\nEach order was written once, together with the record that it was.");
    Ok(())
}

async fn make_table(shop: &Shop) -> Told {
    let key = KeySchemaElement::builder().attribute_name("id").key_type(KeyType::Hash).build()?;
    let id = AttributeDefinition::builder().attribute_name("id").attribute_type(ScalarAttributeType::S).build()?;
    let table = shop.store.client().create_table().table_name(&shop.orders).billing_mode(BillingMode::PayPerRequest);
    table.key_schema(key).attribute_definitions(id).send().await?;
    Ok(())
}

fn expect(came_out: bool, as_told: &str) -> Told {
    if came_out { Ok(()) } else { Err(format!("it was told otherwise: {as_told}").into()) }
}

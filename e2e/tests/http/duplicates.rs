//! Duplicates at one instant, each on a socket of its own.

use rstest::rstest;
use tokio::task::JoinSet;

use crate::support::{Charged, On, Server, charges, engine, single};

#[rstest]
#[case(On::Memory)]
#[case(On::DynamoDb)]
#[case(On::Redis)]
#[case(On::Postgres)]
#[case(On::Mongo)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn of_fifty_one_runs_and_all_get_its_answer(#[case] on: On) {
    let charged = Charged::default();
    let server = Server::start(single(engine(on).await), charges(&charged)).await;
    let mut clients = JoinSet::new();
    for _ in 0..50 {
        let url = server.url("/charges");
        clients.spawn(async move {
            // Each with connections of its own.
            let client = reqwest::Client::new();
            let answer = client.post(url).header("Idempotency-Key", "\"order-7\"").body("5 EUR").send().await.unwrap();
            let replayed = answer.headers().contains_key("idempotency-replayed");
            let (status, location) = (answer.status().as_u16(), answer.headers()["location"].clone());
            (replayed, status, location, answer.text().await.unwrap())
        });
    }
    let answers = clients.join_all().await;
    assert_eq!(charged.times(), 1);
    for (_, status, location, body) in &answers {
        assert_eq!((*status, location.to_str().unwrap(), body.as_str()), (201, "/charges/1", "charged: 5 EUR"));
    }
    assert_eq!(answers.iter().filter(|(replayed, ..)| *replayed).count(), 49);

    let other = reqwest::Client::new().post(server.url("/charges")).header("Idempotency-Key", "order-7");
    let refused = other.body("6 EUR").send().await.unwrap();
    assert_eq!((refused.status().as_u16(), charged.times()), (422, 1));
    assert_eq!(refused.headers()["content-type"], "application/problem+json");
}

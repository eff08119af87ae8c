//! What each operation costs, counted by an interceptor of the SDK's own: each is one request.

use std::sync::{Arc, Mutex};

use aws_sdk_dynamodb::{
    config::{
        ConfigBag, Intercept, RuntimeComponents, SharedInterceptor, interceptors::BeforeTransmitInterceptorContextRef,
    },
    error::BoxError,
};
use idemkit_core::{Claim, ClaimOutcome, ClaimToken, Fingerprint, Release, Renew, Store};
use idemkit_dynamodb::{Builder, ClockMode, DynamoDbStore};

use crate::{
    stub::Stub,
    support::{Table, acquired, claim, claimed_for_a_second, completion, config, key, secs},
};

/// The targets of the requests that were sent, the SDK's own retries among them.
#[derive(Clone, Debug, Default)]
struct Requests(Arc<Mutex<Vec<String>>>);

impl Requests {
    /// Those since this was last asked.
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl Intercept for Requests {
    fn name(&self) -> &'static str {
        "requests"
    }

    fn read_before_transmit(
        &self,
        context: &BeforeTransmitInterceptorContextRef<'_>,
        _: &RuntimeComponents,
        _: &mut ConfigBag,
    ) -> Result<(), BoxError> {
        let target = context.request().headers().get("x-amz-target").unwrap_or_default();
        let name = target.rsplit('.').next().unwrap_or_default().to_owned();
        self.0.lock().unwrap().push(name);
        Ok(())
    }
}

async fn counted(table: &Table, set: impl FnOnce(Builder) -> Builder) -> (DynamoDbStore, Requests) {
    let requests = Requests::default();
    let config = config(&table.url).to_builder().interceptor(SharedInterceptor::new(requests.clone())).build();
    let store = set(table.store().config(config)).build().await.unwrap();
    (store, requests)
}

#[tokio::test]
async fn each_operation_is_one_request() {
    let table = Table::make("requests").await;
    let (store, requests) = counted(&table, |builder| builder).await;
    let (one, other) = (claim(secs(60)), claim(secs(60)));

    acquired(store.claim(&key("first"), &claim(secs(30))).await.unwrap());
    assert_eq!(requests.take(), ["GetItem", "UpdateItem"], "the first of all calibrates the clock by a read");
    let lapses = claimed_for_a_second(&store).await.key;
    requests.take();

    let order = key("order");
    store.claim(&order, &one).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "fresh");
    store.claim(&order, &one).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "acquired again");
    store.claim(&order, &other).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "in flight");
    store.renew(&order, &Renew::new(one.token, secs(120))).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "renewed");
    store.renew(&order, &Renew::new(one.token, secs(30))).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "a shorter renewal");
    store.complete(&order, &completion(other.token, "x")).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "fenced");
    store.release(&order, &Release::new(other.token)).await.unwrap();
    assert_eq!(requests.take(), ["DeleteItem"], "not held");
    store.complete(&order, &completion(one.token, "x")).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "completed");
    store.claim(&order, &other).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "a replay: the refusal brings the record");
    store.renew(&order, &Renew::new(one.token, secs(60))).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "a renewal of what is completed");

    // It lapses after a second and the width of the calibration, which is that of the slowest request.
    let (taken, began) = (claim(secs(60)), std::time::Instant::now());
    loop {
        let met = store.claim(&lapses, &taken).await.unwrap();
        assert_eq!(requests.take(), ["UpdateItem"], "in flight, or reclaimed");
        if matches!(met, ClaimOutcome::Acquired(_)) {
            break;
        }
        assert!(began.elapsed() < std::time::Duration::from_secs(60), "{met:?}");
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
    let elsewhere = Claim::new(ClaimToken::random().unwrap(), Fingerprint::of_payload("another"), secs(30));
    store.claim(&lapses, &elsewhere).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "another request's");
    store.release(&lapses, &Release::new(taken.token)).await.unwrap();
    assert_eq!(requests.take(), ["DeleteItem"], "released");
    table.delete().await.unwrap();
}

/// A response that contradicts what was known leaves it wide: one read makes sure, and then it is one request again.
#[tokio::test]
async fn what_is_known_of_the_clock_is_read_anew_where_it_is_stale() {
    let table = Table::make("requests").await;
    let stub = Stub::before(&table.url).await;
    let requests = Requests::default();
    let config = config(&stub.url()).to_builder().interceptor(SharedInterceptor::new(requests.clone())).build();
    let store = table.store().config(config).build().await.unwrap();
    let (order, one) = (key("order"), claim(secs(30)));
    acquired(store.claim(&order, &one).await.unwrap());
    requests.take();

    stub.step_clock(600);
    store.complete(&order, &completion(one.token, "x")).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "the first response of the new clock");
    store.release(&order, &Release::new(one.token)).await.unwrap();
    assert_eq!(requests.take(), ["GetItem", "DeleteItem"], "stale");
    store.release(&order, &Release::new(one.token)).await.unwrap();
    assert_eq!(requests.take(), ["DeleteItem"], "sure again");
    let local = ClockMode::Local { skew_bound: std::time::Duration::ZERO };
    let (local, requests) = counted(&table, |builder| builder.clock(local)).await;
    local.release(&order, &Release::new(one.token)).await.unwrap();
    assert_eq!(requests.take(), ["DeleteItem"], "the host's own clock is never stale");
    table.delete().await.unwrap();
}

#[tokio::test]
async fn reading_first_spares_a_replay_its_write() {
    let table = Table::make("requests").await;
    let (store, requests) = counted(&table, |builder| builder.read_first(true)).await;
    acquired(store.claim(&key("first"), &claim(secs(30))).await.unwrap());
    requests.take();

    let (order, one) = (key("order"), claim(secs(30)));
    store.claim(&order, &one).await.unwrap();
    assert_eq!(requests.take(), ["GetItem", "UpdateItem"], "fresh");
    store.claim(&order, &claim(secs(30))).await.unwrap();
    assert_eq!(requests.take(), ["GetItem"], "in flight");
    store.complete(&order, &completion(one.token, "x")).await.unwrap();
    assert_eq!(requests.take(), ["UpdateItem"], "completed");
    store.claim(&order, &claim(secs(30))).await.unwrap();
    assert_eq!(requests.take(), ["GetItem"], "a replay");
    table.delete().await.unwrap();
}

#[tokio::test]
async fn a_thousand_waiters_of_a_key_poll_as_one() {
    let table = Table::make("requests").await;
    let (store, requests) = counted(&table, |builder| builder).await;
    let (order, one) = (key("order"), claim(secs(300)));
    acquired(store.claim(&order, &one).await.unwrap());
    requests.take();
    let began = std::time::Instant::now();
    let mut waiters = tokio::task::JoinSet::new();
    for _ in 0..1_000 {
        let store = store.clone();
        waiters.spawn(async move { store.wait(&order, secs(120)).await });
    }
    tokio::time::sleep(std::time::Duration::from_secs(2)).await;
    store.complete(&order, &completion(one.token, "x")).await.unwrap();
    while let Some(waited) = waiters.join_next().await {
        assert!(matches!(waited.unwrap().unwrap(), idemkit_core::WaitOutcome::Completed(_)));
    }
    let polls = requests.take().iter().filter(|name| *name == "GetItem").count();
    // 50 ms, doubling to a second: some seven in three seconds, and on a busy machine one or two a second from there.
    let most = 40 + 2 * usize::try_from(began.elapsed().as_secs()).unwrap();
    assert!((1..most).contains(&polls), "{polls} polls");
    table.delete().await.unwrap();
}

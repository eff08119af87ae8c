//! Waiters: woken by a change stream, and by the poll where there is none. And what reaps.

use std::time::{Duration, Instant};

use idemkit_core::{ClaimOutcome, Store, WaitOutcome};
use idemkit_mongo::{
    MongoStore,
    mongodb::{
        IndexModel,
        bson::{Document, doc},
        options::IndexOptions,
    },
};
use idemkit_servers::{Kind, Local, Proxy};
use tokio::task::JoinSet;

use crate::support::{Database, PATIENCE, acquired, builder, claim, completion, held, key, own, secs};

const CROWD: usize = 200;

/// A crowd in another process's place: a store of its own.
fn waiters(store: &MongoStore) -> JoinSet<(WaitOutcome, Instant)> {
    let mut waiters = JoinSet::new();
    for _ in 0..CROWD {
        let store = store.clone();
        waiters.spawn(async move { (store.wait(&key("order"), secs(180)).await.unwrap(), Instant::now()) });
    }
    waiters
}

async fn all_completed(mut crowd: JoinSet<(WaitOutcome, Instant)>) {
    let since = Instant::now();
    let mut ended = 0;
    while let Some(waited) = crowd.join_next().await {
        let (outcome, at) = waited.unwrap();
        assert!(matches!(outcome, WaitOutcome::Completed(_)), "{outcome:?}");
        assert!(at.duration_since(since) < PATIENCE, "it waited on");
        ended += 1;
    }
    assert_eq!(ended, CROWD);
}

/// The stream's connection is cut, again and again: it is resumed, and every waiter looks again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stream_that_is_killed_under_two_hundred_waiters_is_made_anew() {
    let database = Database::make().await;
    let proxy = Proxy::before(Kind::Mongo, &database.url).unwrap();
    let here = database.store().build().await.unwrap();
    let there = builder().url(proxy.url()).database(&database.name).build().await.unwrap();
    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let crowd = waiters(&there);
    for _ in 0..3 {
        tokio::time::sleep(Duration::from_secs(1)).await;
        let began = Instant::now();
        while proxy.cut() == 0 {
            assert!(began.elapsed() < PATIENCE, "nothing is connected");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    all_completed(crowd).await;
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mongo_that_restarts_under_two_hundred_waiters_ends_them_all_and_runs_nothing_twice() {
    let mut server = Local::start(Kind::Mongo).unwrap();
    let database = Database::at(server.url()).await;
    let (here, there) = (database.store().build().await.unwrap(), database.store().build().await.unwrap());
    let request = claim(secs(600));
    acquired(here.claim(&key("order"), &request).await.unwrap());
    let crowd = waiters(&there);
    tokio::time::sleep(Duration::from_secs(2)).await;
    server.stop().unwrap();
    tokio::time::sleep(Duration::from_millis(700)).await;
    server.restart().unwrap();
    // Its lease lives, and it was written down: nobody else gets the key.
    let began = Instant::now();
    let other = loop {
        match there.claim(&key("order"), &claim(secs(300))).await {
            Ok(other) => break other,
            Err(error) => assert!(began.elapsed() < PATIENCE, "{error}"),
        }
    };
    assert!(matches!(other, ClaimOutcome::InFlight(_)), "{other:?}");
    here.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    all_completed(crowd).await;
}

/// Field report 17: found out once, and then the poll is all there is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_standalone_server_has_no_stream_and_waiters_poll() {
    let server = own(&["--standalone"]);
    let database = Database::at(server.url()).await;
    let store = database.store().build().await.unwrap();
    let request = claim(secs(600));
    acquired(store.claim(&key("order"), &request).await.unwrap());
    let other = database.store().build().await.unwrap();
    let crowd = waiters(&other);
    tokio::time::sleep(Duration::from_secs(2)).await;
    store.complete(&key("order"), &completion(request.token, "done")).await.unwrap();
    all_completed(crowd).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_index_reaps_each_document_at_its_own_time() {
    let database = Database::make().await;
    let store = database.store().grace(Duration::from_secs(1)).build().await.unwrap();
    let short = held(&store, key("short"), secs(300)).await;
    let mut done = completion(short.token, "x");
    done.expires_after = idemkit_core::Ttl::MIN;
    store.complete(&short.key, &done).await.unwrap();
    let long = held(&store, key("long"), secs(300)).await;
    store.complete(&long.key, &completion(long.token, "x")).await.unwrap();
    held(&store, key("live"), secs(600)).await;
    let began = Instant::now();
    while database.records().count_documents(doc! {}).await.unwrap() > 2 {
        // The server looks once a minute.
        assert!(began.elapsed() < 5 * PATIENCE, "it is not reaped");
        tokio::time::sleep(Duration::from_secs(1)).await;
    }
    let mut left = database.records().distinct("_id", doc! {}).await.unwrap();
    left.sort_by_key(ToString::to_string);
    let mut expected = [key("long").to_string(), key("live").to_string()].map(idemkit_mongo::mongodb::bson::Bson::from);
    expected.sort_by_key(ToString::to_string);
    assert_eq!(left, expected);
    database.drop().await;
}

/// Field report 30: said once, and everything goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_with_other_options_does_not_stop_the_store() {
    let database = Database::make().await;
    let options = IndexOptions::builder().expire_after(Duration::from_secs(7_200)).build();
    let index = IndexModel::builder().keys(doc! { "expire_at": 1 }).options(options).build();
    database.records().create_index(index).await.unwrap();
    let store = database.store().build().await.unwrap();
    acquired(store.claim(&key("order"), &claim(secs(300))).await.unwrap());
    let indexes: Vec<IndexModel> =
        futures_util::TryStreamExt::try_collect(database.records().list_indexes().await.unwrap()).await.unwrap();
    let of_ttl: Vec<&IndexModel> = indexes.iter().filter(|index| index.keys == doc! { "expire_at": 1 }).collect();
    assert_eq!(of_ttl.len(), 1, "it is as it was");
    database.drop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn twenty_stores_make_the_index_at_once_and_none_where_that_is_off() {
    let database = Database::make().await;
    let mut stores = JoinSet::new();
    for n in 0..20 {
        let builder = database.store();
        stores.spawn(async move {
            let store = builder.build().await.unwrap();
            acquired(store.claim(&key(&format!("order {n}")), &claim(secs(300))).await.unwrap());
        });
    }
    while let Some(done) = stores.join_next().await {
        done.unwrap();
    }
    assert_eq!(database.records().list_index_names().await.unwrap().len(), 2);
    let off = database.store().collection("bare").create_index(false).build().await.unwrap();
    acquired(off.claim(&key("order"), &claim(secs(300))).await.unwrap());
    let bare = database.collection("bare");
    assert_eq!(bare.list_index_names().await.unwrap().len(), 1);
    let record: Document = bare.find_one(doc! {}).await.unwrap().unwrap();
    assert!(record.get_datetime("expire_at").is_ok() && record.len() == 9, "no scratch field is left: {record}");
    database.drop().await;
}

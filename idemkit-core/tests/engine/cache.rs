//! The local cache of completed results.

use std::time::Duration;

use idemkit_core::{EffectiveKey, Engine, LocalCache, Record, RunError, StoredResult};
use tokio::time::advance;

use crate::support::{Call, Declined, Scripted, key, other_request, request, result};

const MIB: u64 = 1024 * 1024;

fn engine(store: &Scripted, cache: LocalCache) -> Engine {
    Engine::builder(store.clone()).local_cache(cache).build()
}

async fn run(engine: &Engine, key: EffectiveKey, body: &'static str) -> StoredResult {
    let operation = engine.operation(key, request()).expires_after(Duration::from_secs(100));
    operation.run(async move |_| Ok::<_, Declined>(result(body))).await.unwrap().value
}

#[tokio::test(start_paused = true)]
async fn a_busy_duplicate_costs_no_round_trip_and_is_still_compared() {
    let store = Scripted::new();
    let engine = engine(&store, LocalCache::new(MIB));
    assert_eq!(run(&engine, key(), "first").await, result("first"));
    let claims = store.calls(Call::Claim);
    assert_eq!(run(&engine, key(), "second").await, result("first"));
    let other = engine.run(key(), other_request(), async |_| Ok::<_, Declined>(result("other"))).await;
    assert!(matches!(other, Err(RunError::Mismatch)), "{other:?}");
    assert_eq!(store.calls(Call::Claim), claims);
}

#[tokio::test(start_paused = true)]
async fn a_replayed_record_is_cached_for_what_is_left_of_it() {
    let store = Scripted::new();
    run(&Engine::new(store.clone()), key(), "first").await;
    advance(Duration::from_secs(70)).await;
    let engine = engine(&store, LocalCache::new(MIB).max_age(Duration::from_secs(3600)));
    assert_eq!(run(&engine, key(), "second").await, result("first"));
    advance(Duration::from_millis(29_999)).await;
    assert_eq!(run(&engine, key(), "third").await, result("first"));
    advance(Duration::from_millis(1)).await;
    assert_eq!(run(&engine, key(), "fourth").await, result("fourth"), "the cache outlived the record");
}

#[tokio::test(start_paused = true)]
async fn a_record_that_is_gone_from_the_store_is_replayed_no_longer_than_the_caches_own_age() {
    let store = Scripted::new();
    // Long beside what a busy machine may take: the wall clock counts too, and does not stand still.
    let engine = engine(&store, LocalCache::new(MIB).max_age(Duration::from_secs(60)));
    run(&engine, key(), "first").await;
    store.memory.plant(key(), Record::Garbage);
    advance(Duration::from_millis(59_999)).await;
    assert_eq!(run(&engine, key(), "second").await, result("first"));
    advance(Duration::from_millis(1)).await;
    assert_eq!(run(&engine, key(), "third").await, result("third"));
}

#[tokio::test(start_paused = true)]
async fn what_failed_or_was_fenced_is_not_cached() {
    let store = Scripted::new();
    let engine = engine(&store, LocalCache::new(MIB));
    engine.run(key(), request(), async |_| Err::<StoredResult, _>(Declined(1))).await.unwrap_err();
    assert_eq!(run(&engine, key(), "second").await, result("second"));
}

#[tokio::test(start_paused = true)]
async fn it_is_bounded_in_bytes() {
    let store = Scripted::new();
    let engine = engine(&store, LocalCache::new(MIB));
    let keys: Vec<_> = (0..100).map(|n| EffectiveKey::message(format!("msg-{n}"), "orders", "billing")).collect();
    for key in &keys {
        let run = engine.run(*key, request(), async |_| Ok::<_, Declined>(StoredResult::new(200, vec![7; 64 * 1024])));
        run.await.unwrap();
    }
    let before = store.calls(Call::Claim);
    for key in keys {
        engine.run(key, request(), async |_| Ok::<_, Declined>(result("again"))).await.unwrap();
    }
    let cached = 100 - (store.calls(Call::Claim) - before);
    assert!(cached <= 16, "{cached} results of 64 KiB in a cache of 1 MiB");
}

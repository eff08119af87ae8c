//! `run` against the bare store: what the engine adds to an operation, and to a replay.
//!
//! Goals: at most 3 µs an operation; a replay of a 64 KiB result copies no body.

use std::{
    convert::Infallible,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use idemkit_bench::{Candidate, compare, key};
use idemkit_core::{
    Claim, ClaimToken, Complete, EffectiveKey, Engine, Fingerprint, LocalCache, MemoryStore, Outcome, Policy, Store,
    StoredResult, Ttl,
};
use tokio::runtime::{Builder, Runtime};

const KIB_64: usize = 64 * 1024;

fn fingerprint() -> Fingerprint {
    Fingerprint::from_stored(Fingerprint::VERSION_PLAIN, [7; 32])
}

fn ttl(secs: u64) -> Ttl {
    Ttl::new(Duration::from_secs(secs)).unwrap_or(Ttl::MIN)
}

fn store() -> MemoryStore {
    MemoryStore::builder().capacity(100_000_000).build()
}

/// Claim and complete, and no engine.
fn bare(store: &MemoryStore, key: &EffectiveKey, result: StoredResult) {
    let token = ClaimToken::random().unwrap_or(ClaimToken::from_bytes([0; 16]));
    let _ = store.claim(key, &Claim::new(token, fingerprint(), ttl(30))).now_or_never();
    let _ = store.complete(key, &Complete::new(token, Outcome::Result(result), ttl(1))).now_or_never();
}

/// `n` runs of the engine, in a task of the runtime, as in a service.
fn runs(
    runtime: &Runtime,
    engine: &Engine,
    n: u64,
    key: impl Fn() -> EffectiveKey + Send + 'static,
    result: &StoredResult,
) -> Duration {
    let (engine, result) = (engine.clone(), result.clone());
    let task = runtime.spawn(async move {
        let began = Instant::now();
        for _ in 0..n {
            let result = result.clone();
            let operation = engine.operation(key(), fingerprint());
            let _ = std::hint::black_box(operation.run(async move |_| Ok::<_, Infallible>(result)).await);
        }
        began.elapsed()
    });
    runtime.block_on(task).unwrap_or_default()
}

fn main() {
    let (Ok(current), Ok(multi)) = (
        Builder::new_current_thread().enable_time().build(),
        Builder::new_multi_thread().worker_threads(2).enable_time().build(),
    ) else {
        return eprintln!("no runtime");
    };
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let fresh = || key(NEXT.fetch_add(1, Ordering::Relaxed));
    let small = StoredResult::new(200, "receipt");

    // Records that live for a second: as many are swept as are added.
    let Ok(policy) = Policy::builder().expires_after(Duration::from_secs(1)).build() else { return };
    let (bare_store, engine) = (store(), Engine::builder(store()).policy(policy).build());
    let medians = compare(
        "one operation under a fresh key",
        vec![
            Candidate::each("bare store: claim + complete", || bare(&bare_store, &fresh(), small.clone())),
            Candidate::timed("engine: run, current-thread runtime", |n| runs(&current, &engine, n, fresh, &small)),
            Candidate::timed("engine: run, multi-thread runtime", |n| runs(&multi, &engine, n, fresh, &small)),
        ],
    );
    println!(
        "  engine overhead: {:.0} ns (current-thread), {:.0} ns (multi-thread)",
        medians[1] - medians[0],
        medians[2] - medians[0]
    );

    let sizes = [0, KIB_64, 16 * KIB_64];
    let engines = sizes.map(|size| {
        let engine = Engine::new(store());
        let result = StoredResult::new(200, vec![7; size]);
        runs(&current, &engine, 1, || key(0), &result);
        engine
    });
    let cached = Engine::builder(store()).local_cache(LocalCache::new(64 * 1024 * 1024)).build();
    runs(&current, &cached, 1, || key(0), &small);
    let mut replays: Vec<_> = engines
        .iter()
        .zip(sizes)
        .map(|(engine, size)| {
            Candidate::timed(format!("replay of {size} bytes"), |n| runs(&current, engine, n, || key(0), &small))
        })
        .collect();
    replays.push(Candidate::timed("replay from the local cache", |n| runs(&current, &cached, n, || key(0), &small)));
    compare("one replay: the same for any size, since no body is copied", replays);
}

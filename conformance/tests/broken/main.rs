//! The suite must be able to fail: memory stores that are broken on purpose, each caught by the vector named for its
//! fault, every time.

mod fault;
mod store;
#[path = "../support/mod.rs"]
mod support;

use std::{collections::HashMap, sync::Arc, time::Duration};

use fault::{FAULTS, Fault};
use idemkit_conformance::{Opening, Report, Suite, Verdict};
use idemkit_core::{DecidingClock, MemoryStore};
use parking_lot::Mutex;
use rstest::rstest;
use store::{BOUND, Broken, Shared};
use support::Memory;

/// So often each fault is caught, and the sound store passes.
const RUNS: usize = 20;

/// A factory of stores with this fault.
fn broken(fault: Fault) -> Memory {
    stores(fault, move |store, shared, opening| Broken::new(store, shared, fault, opening))
}

/// A factory of stores that declare this clock, and go by it.
fn declaring(clock: DecidingClock) -> Memory {
    stores(Fault::None, move |store, shared, opening| Broken::sound(store, shared, clock, opening))
}

fn stores(fault: Fault, handle: impl Fn(MemoryStore, Shared, &Opening) -> Broken + Send + Sync + 'static) -> Memory {
    // One a namespace: what the handles of one share beside the records.
    let shared: Mutex<HashMap<String, Shared>> = Mutex::default();
    let one = Shared::default();
    let one_store = MemoryStore::builder().clock(one.clock.clone()).build();
    let clock = one.clock.clone();
    Memory::wrapped(
        move || MemoryStore::builder().clock(clock.clone()).build(),
        move |store, opening| {
            let namespace = opening.namespace().to_owned();
            let fresh = || Shared { clock: one.clock.clone(), ..Shared::default() };
            let shared = shared.lock().entry(namespace).or_insert_with(fresh).clone();
            let store = if fault == Fault::OneNamespace { one_store.clone() } else { store };
            Arc::new(handle(store, shared, opening))
        },
    )
}

/// On a paused clock: in `RUNS` runs nothing is left to the machine's speed.
fn paused<T>(future: impl Future<Output = T>) -> std::io::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(future))
}

fn failed(report: &Report, vector: &str) -> bool {
    report.failures().any(|failure| failure.vector == vector)
}

#[test]
fn every_fault_is_caught_by_its_vector_every_time() {
    let mut missed = vec![];
    for (fault, vector) in FAULTS {
        let caught = (0..RUNS)
            .filter(|_| failed(&paused(Suite::new(broken(*fault)).only([*vector]).run()).unwrap(), vector))
            .count();
        if caught < RUNS {
            missed.push(format!("{fault:?}: {vector} caught it in {caught} of {RUNS} runs"));
        }
    }
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[test]
fn the_sound_store_passes_every_time() {
    for _ in 0..RUNS {
        paused(Suite::new(Memory::sound()).run()).unwrap().assert_passed();
    }
}

#[test]
fn the_wrapper_is_sound_where_nothing_is_broken() {
    paused(Suite::new(broken(Fault::None)).run()).unwrap().assert_passed();
}

/// Every clock that a store can declare, by stores that go by it.
#[rstest]
#[case::server(DecidingClock::Server, &["skew_within_the_bound"])]
#[case::calibrated(DecidingClock::Calibrated, &["skew_within_the_bound"])]
#[case::clients(DecidingClock::Client { skew_bound: Duration::ZERO }, &["an_hour_ahead", "an_hour_behind", "skew_within_the_bound"])]
#[case::clients_with_a_bound(DecidingClock::Client { skew_bound: BOUND }, &["an_hour_ahead", "an_hour_behind"])]
fn a_sound_store_of_each_clock_passes(#[case] clock: DecidingClock, #[case] not_applicable: &[&str]) {
    let report = paused(Suite::new(declaring(clock)).run()).unwrap();
    report.assert_passed();
    let skipped = |vector: &&idemkit_conformance::VectorReport| matches!(vector.verdict, Verdict::NotApplicable { .. });
    assert_eq!(report.vectors.iter().filter(skipped).map(|vector| vector.vector).collect::<Vec<_>>(), not_applicable);
}

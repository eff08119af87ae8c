//! The memory store, through the same entry as every other store.

mod support;

use std::time::Duration;

use idemkit_conformance::{Suite, conformance_tests, vector_names};
use idemkit_core::MemoryStore;
use rstest::rstest;
use support::Memory;

mod default {
    use super::*;

    conformance_tests!(Memory::sound());
}

#[tokio::test(start_paused = true)]
async fn all_vectors_in_one_report() {
    let report = idemkit_conformance::run(Memory::sound()).await;
    report.assert_passed();
    assert_eq!(
        report.vectors.iter().map(|vector| vector.vector).collect::<Vec<_>>(),
        vector_names().collect::<Vec<_>>()
    );
    println!("{report}");
}

#[tokio::test(start_paused = true)]
async fn with_a_take_over_margin() {
    let with_margin = || MemoryStore::builder().take_over_margin(Duration::from_millis(1_500)).build();
    Suite::new(Memory::made_by(with_margin)).run().await.assert_passed();
}

/// Also such as a result just meets, and its headers do not.
#[rstest]
#[case(200 * 1024)]
#[case(300 * 1024)]
#[case(1024 * 1024)]
#[case(1024 * 1024 + 35)]
#[tokio::test(start_paused = true)]
async fn with_a_small_limit(#[case] bytes: u64) {
    let small = move || MemoryStore::builder().result_bytes_max(bytes).build();
    Suite::new(Memory::made_by(small)).run().await.assert_passed();
}

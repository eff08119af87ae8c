//! What a run tells, of stores that pass, fail, cannot be opened, or cannot be spoiled.

mod support;

use std::sync::Arc;

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Report, Spoil, Spoiled, Suite, Verdict};
use idemkit_core::{EffectiveKey, MemoryStore, Store};
use support::Memory;

/// A store that a factory cannot spoil, or cannot even open.
struct Bare {
    opens: bool,
}

#[async_trait]
impl Factory for Bare {
    async fn open(&self, _: &Opening) -> Result<Arc<dyn Store>, BoxError> {
        if self.opens { Ok(Arc::new(MemoryStore::new())) } else { Err("no server listens".into()) }
    }

    async fn spoil(&self, _: &str, _: &EffectiveKey, _: Spoil) -> Result<Spoiled, BoxError> {
        Ok(Spoiled::Impossible("it holds no bytes"))
    }

    async fn clean_up(&self, _: &str) -> Result<(), BoxError> {
        Ok(())
    }
}

async fn one(factory: impl Factory, vector: &str) -> Report {
    Suite::new(factory).only([vector]).run().await
}

#[tokio::test]
async fn the_report_for_machines_says_what_the_one_for_people_says() {
    let report = Suite::new(Memory::sound()).only(["claim_absent", "skew_within_the_bound"]).run().await;
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["store"], "memory");
    assert_eq!(json["clock"], "Process");
    let [passed, skipped] = [&json["vectors"][0], &json["vectors"][1]];
    assert_eq!(
        (&passed["vector"], &passed["verdict"], &passed["rules"]),
        (&"claim_absent".into(), &"passed".into(), &"C1".into())
    );
    assert!(passed["took_ms"].is_u64() && passed["checks"].is_string());
    assert_eq!(
        (&skipped["verdict"], &skipped["reason"]),
        (&"not_applicable".into(), &"the client's clock does not decide".into())
    );
    let text = report.to_string();
    for said in [
        "store memory, clock Process",
        "claim_absent",
        "because the client's clock does not decide",
        "1 passed, 0 failed, 1 not applicable",
    ] {
        assert!(text.contains(said), "{said} in:\n{text}");
    }
}

#[tokio::test]
async fn a_failure_names_the_rule_what_was_seen_and_the_steps() {
    // Each handle has records of its own: the second claim is fresh.
    let report = one(Bare { opens: true }, "claim_live_other").await;
    assert!(!report.passed());
    let text = report.to_string();
    for said in [
        "FAILED",
        "claim_live_other",
        "[C3]",
        "expected Claim(InFlight",
        "saw Claim(Acquired",
        "steps before it, in namespace ct_",
        "a Claim {",
    ] {
        assert!(text.contains(said), "{said} in:\n{text}");
    }
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["vectors"][0]["verdict"], "failed");
    assert_eq!(json["vectors"][0]["steps"].as_array().map(Vec::len), Some(2));
}

#[tokio::test]
async fn what_a_factory_cannot_do_is_in_the_report_with_its_reason() {
    let report = one(Bare { opens: true }, "claim_garbage").await;
    assert_eq!(report.vectors[0].verdict, Verdict::NotApplicable { reason: "it holds no bytes".into() });
    assert!(!report.passed(), "a run in which nothing passed shows nothing");
}

#[tokio::test]
async fn a_store_that_cannot_be_opened_fails_and_says_why() {
    let report = one(Bare { opens: false }, "claim_absent").await;
    assert_eq!(report.failures().count(), 1);
    assert!(report.to_string().contains("the factory failed: no server listens"), "{report}");
}

#[tokio::test]
async fn an_empty_choice_and_an_unknown_name_do_not_pass() {
    let empty = Suite::new(Memory::sound()).only(Vec::<String>::new()).run().await;
    assert!(!empty.passed() && empty.to_string().contains("no vector was selected"), "{empty}");
    let unknown = one(Memory::sound(), "clam_absent").await;
    assert!(!unknown.passed() && unknown.to_string().contains("there is no vector `clam_absent`"), "{unknown}");
}

#[tokio::test]
#[should_panic(expected = "there is no vector")]
async fn a_test_of_an_unknown_vector_fails() {
    idemkit_conformance::run_vector("clam_absent", Memory::sound()).await;
}

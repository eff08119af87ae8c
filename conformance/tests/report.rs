//! What a run tells, of stores that pass, fail, cannot be opened, or cannot be spoiled.

mod support;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering::Relaxed},
    },
    time::Duration,
};

use async_trait::async_trait;
use idemkit_conformance::{BoxError, Factory, Opening, Report, Spoil, Spoiled, Suite, Verdict};
use idemkit_core::{
    Applied, Capabilities, Claim, ClaimOutcome, Complete, CompleteOutcome, EffectiveKey, MemoryStore, Release,
    ReleaseOutcome, Renew, RenewOutcome, Store, StoreError, StoreErrorKind, Ttl, WaitOutcome,
};
use rstest::rstest;
use support::Memory;
use tokio::time::sleep;

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

/// A store on a server that keeps some claims waiting for as long as their leases, and then fails or answers.
#[derive(Debug)]
struct Stalls {
    inner: MemoryStore,
    which: Range<u32>,
    answers: bool,
    asked: Arc<AtomicU32>,
}

#[async_trait]
impl Store for Stalls {
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn claim(&self, key: &EffectiveKey, request: &Claim) -> Result<ClaimOutcome, StoreError> {
        if self.which.contains(&self.asked.fetch_add(1, Relaxed)) {
            sleep(request.lease.as_duration().min(Duration::from_secs(10))).await;
            if !self.answers {
                return Err(StoreError::new("stalling", StoreErrorKind::Unavailable, Applied::Unknown));
            }
        }
        self.inner.claim(key, request).await
    }

    async fn complete(&self, key: &EffectiveKey, request: &Complete) -> Result<CompleteOutcome, StoreError> {
        self.inner.complete(key, request).await
    }

    async fn renew(&self, key: &EffectiveKey, request: &Renew) -> Result<RenewOutcome, StoreError> {
        self.inner.renew(key, request).await
    }

    async fn release(&self, key: &EffectiveKey, request: &Release) -> Result<ReleaseOutcome, StoreError> {
        self.inner.release(key, request).await
    }

    async fn wait(&self, key: &EffectiveKey, timeout: Ttl) -> Result<WaitOutcome, StoreError> {
        self.inner.wait(key, timeout).await
    }
}

/// The runs of these vectors on a store that keeps these claims waiting.
async fn stalling(which: Range<u32>, answers: bool, vectors: &[&str]) -> Report {
    let asked = Arc::new(AtomicU32::new(0));
    let wrap = move |inner, _: &Opening| {
        Arc::new(Stalls { inner, which: which.clone(), answers, asked: Arc::clone(&asked) }) as Arc<dyn Store>
    };
    Suite::new(Memory::wrapped(MemoryStore::new, wrap)).only(vectors.iter().copied()).concurrency(1).run().await
}

#[rstest]
#[case::no_answer(0..1, false)]
// The third meets a lease of a second.
#[case::an_answer_that_is_late(2..3, true)]
#[tokio::test(start_paused = true)]
async fn a_server_that_stalls_makes_a_vector_run_anew_and_the_report_tells_so(
    #[case] which: Range<u32>,
    #[case] answers: bool,
) {
    let report = stalling(which, answers, &["attempts_count_take_overs", "claim_absent"]).await;
    report.assert_passed();
    let [anew, at_once] = &report.vectors[..] else { panic!("two vectors: {report}") };
    assert_eq!((anew.stalls.len(), at_once.stalls.len()), (1, 0), "{report}");
    assert!(report.to_string().contains("run anew, since the server stalled: "), "{report}");
    let json: serde_json::Value = serde_json::from_str(&report.to_json()).unwrap();
    assert_eq!(json["vectors"][0]["stalls"].as_array().map(Vec::len), Some(1));
}

#[rstest]
#[case::no_answer_again_and_again(0..200, false, "attempts_count_take_overs", "Unavailable")]
#[case::late_answers_again_and_again(0..1_000, true, "attempts_count_take_overs", "InFlight")]
#[case::no_answer_in_a_race(0..1, false, "fresh_key_has_one_winner", "Unavailable")]
#[tokio::test(start_paused = true)]
async fn a_store_that_hangs_is_no_server_that_stalls(
    #[case] which: Range<u32>,
    #[case] answers: bool,
    #[case] vector: &str,
    #[case] told: &str,
) {
    let report = stalling(which, answers, &[vector]).await;
    assert_eq!(report.failures().count(), 1, "{report}");
    assert!(report.to_string().contains(told), "{report}");
}

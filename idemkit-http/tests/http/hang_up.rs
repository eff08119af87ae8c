//! Field report 18: a client that hangs up does not stop its handler, and its retry gets the answer.

use std::time::Duration;

use http::Response;
use idemkit_core::{
    ANONYMOUS_SCOPE, Claim, ClaimOutcome, ClaimToken, EffectiveKey, Engine, Fingerprint, HttpRequest, MemoryStore,
    Policy, Store as _, Ttl,
};
use idemkit_http::{Body, IdempotencyLayer, OnHangUp};
use rstest::rstest;
use tokio::time::{sleep, timeout};
use tower::ServiceExt as _;

use crate::support::{Ran, WORK, ask, before, builder, charges, post};

#[tokio::test(start_paused = true)]
async fn a_client_that_hangs_up_at_any_moment_does_not_stop_its_handler() {
    for after in (0..80).map(Duration::from_millis) {
        let layer = builder().build().unwrap();
        let (service, ran) = charges(&layer, 201);
        let asked = timeout(after, service.clone().oneshot(post("k", "5"))).await;
        assert!(asked.is_err() || after >= WORK, "{after:?}");
        let again = ask(&service, post("k", "5")).await;
        assert_eq!((again.status, &again.body[..], ran.times()), (201, &b"charged: 5"[..], 1), "{after:?}");
        assert!(layer.running() == 0);
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_may_stop_with_its_client_and_its_retry_waits_for_the_lease() {
    let (service, ran) = charges(&builder().no_wait().on_hang_up(OnHangUp::Stop).build().unwrap(), 201);
    timeout(WORK / 2, service.clone().oneshot(post("k", "5"))).await.unwrap_err();
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (409, 0));
    sleep(Duration::from_secs(30)).await;
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (201, 1));
}

/// A duplicate that waits for another's answer, and whose client has gone, does not wait on.
#[tokio::test(start_paused = true)]
async fn whoever_waits_for_nobody_gives_up() {
    let layer = builder().wait(Duration::from_secs(600)).build().unwrap();
    let service = before(&layer, |_| async {
        sleep(Duration::from_secs(500)).await;
        Response::new(Body::default())
    });
    let first = tokio::spawn(service.clone().oneshot(post("k", "5")));
    sleep(Duration::from_secs(1)).await;
    for _ in 0..100 {
        timeout(Duration::from_millis(10), service.clone().oneshot(post("k", "5"))).await.unwrap_err();
    }
    assert!(layer.running() > 1);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(layer.running(), 1, "the first one's handler");
    assert_eq!(first.await.unwrap().unwrap().status(), 200);
}

#[tokio::test(start_paused = true)]
async fn a_server_that_ends_waits_for_the_handlers_whose_clients_have_gone() {
    let layer = builder().build().unwrap();
    let (service, ran) = charges(&layer, 201);
    for n in 0..10 {
        timeout(WORK / 2, service.clone().oneshot(post(&format!("k{n}"), "5"))).await.unwrap_err();
    }
    drop(service);
    assert!(layer.running() > 0);
    timeout(WORK * 2, layer.drain()).await.unwrap();
    assert_eq!((ran.times(), layer.running()), (10, 0));
}

#[tokio::test(start_paused = true)]
async fn a_panic_of_the_handler_is_its_servers_to_catch_and_its_claim_lapses() {
    let ran = Ran::default();
    let counts = ran.clone();
    let service = before(&builder().no_wait().build().unwrap(), move |_| {
        let counts = counts.clone();
        async move {
            assert!(counts.once_more() > 1, "the first panics");
            Response::new(Body::default())
        }
    });
    let panicked = tokio::spawn(service.clone().oneshot(post("k", "5"))).await.unwrap_err();
    assert!(panicked.is_panic());
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (409, 1), "its effect may have happened");
    sleep(Duration::from_secs(30)).await;
    assert_eq!((ask(&service, post("k", "5")).await.status, ran.times()), (200, 2));
}

/// The holder stalls, another takes over: what the first one's client is told is that, and not an answer that is not recorded.
#[rstest]
#[case::taken_over(None)]
#[case::too_long(Some(Duration::from_secs(3)))]
#[tokio::test(start_paused = true)]
async fn a_handler_that_loses_its_claim_or_takes_too_long_is_dropped(#[case] max_execution: Option<Duration>) {
    let store = MemoryStore::new();
    let policy = Policy::builder().lease(Duration::from_secs(30)).no_wait();
    let policy =
        max_execution.map_or(policy, |limit| Policy::builder().no_wait().max_execution(limit)).build().unwrap();
    let layer = IdempotencyLayer::builder(Engine::builder(store.clone()).policy(policy).build());
    let (service, ran) = {
        let ran = Ran::default();
        let counts = ran.clone();
        let service = before(&layer.single_tenant().build().unwrap(), move |_| {
            let counts = counts.clone();
            async move {
                sleep(Duration::from_secs(120)).await;
                counts.once_more();
                Response::new(Body::default())
            }
        });
        (service, ran)
    };
    let first = tokio::spawn(async move { ask(&service, post("k", "5")).await });
    sleep(Duration::from_secs(1)).await;
    if max_execution.is_none() {
        // As where the holder's process was stopped for longer than its lease.
        let key = EffectiveKey::http("k", ANONYMOUS_SCOPE, "POST", "/charges");
        let idemkit_core::Record::Claimed(mut held) = store.record(&key).unwrap() else { panic!("it is claimed") };
        held.lease_until = held.claimed_at;
        store.plant(key, idemkit_core::Record::Claimed(held));
        let fingerprint = Fingerprint::http(&HttpRequest::new("POST", "/charges").body(b"5"));
        let other = Claim::new(ClaimToken::random().unwrap(), fingerprint, Ttl::new(Duration::from_secs(300)).unwrap());
        let taken = store.claim(&key, &other).await.unwrap();
        assert!(matches!(taken, ClaimOutcome::Acquired(ref acquired) if acquired.attempt == 2), "{taken:?}");
    }
    let told = first.await.unwrap();
    assert_eq!((told.status, told.problem().as_str(), ran.times()), (409, "in-progress", 0));
}

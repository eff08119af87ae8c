//! Clients whose clocks are wrong, for real: processes under `faketime`, ten minutes ahead or behind.

use std::{
    process::Stdio,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use idemkit_core::{Claim, ClaimOutcome, CompleteOutcome, Renew, RenewOutcome, Store, StoreErrorKind};
use idemkit_dynamodb::{ClockMode, ClockReading, DynamoDbStore};
use rstest::rstest;
use tokio::process::Command;

use crate::{
    stub::{Answer, Stub},
    support::{Table, acquired, claim, completion, config, key, secs, store},
};

/// What a client under another clock is told by the environment.
const TABLE: &str = "IDEMKIT_CLOCK_TEST_TABLE";
const URL: &str = "IDEMKIT_CLOCK_TEST_URL";
const MODE: &str = "IDEMKIT_CLOCK_TEST_MODE";

/// Far longer than a test takes, and shorter than the skew.
const LEASE_SECS: u64 = 120;
const BOUND: Duration = Duration::from_secs(11 * 60);

fn mode(name: &str) -> ClockMode {
    match name {
        "local" => ClockMode::Local { skew_bound: Duration::ZERO },
        "bound" => ClockMode::Local { skew_bound: BOUND },
        _ => ClockMode::default(),
    }
}

/// What a store knows of the clock, read at one moment: a busy machine may hold this thread up between the host's clock
/// and the monotonic one.
fn reading(store: &DynamoDbStore) -> Option<ClockReading> {
    loop {
        let (began, reading) = (Instant::now(), store.clock_reading());
        if began.elapsed() < Duration::from_millis(50) {
            return reading;
        }
    }
}

/// Whether it is the clock that is so far ahead, by a reading that is no wider than requests since then were slow.
fn holds(reading: &ClockReading, ahead_secs: f64, began: Instant) -> bool {
    let width = reading.width.as_secs_f64();
    (reading.offset_secs - ahead_secs).abs() < width / 2.0 + 0.1 && width < 3.0 + began.elapsed().as_secs_f64()
}

/// Claims once, and says what it was told. Run by the tests below, in a process of its own and under another clock.
#[tokio::test]
#[ignore = "a part of the tests of this file, which run it under faketime"]
async fn client() {
    let variable = |name| std::env::var(name).unwrap();
    let builder = store(&variable(URL), &variable(TABLE)).create_table(false).clock(mode(&variable(MODE)));
    let store = builder.build().await.unwrap();
    let outcome = store.claim(&key("order"), &claim(secs(LEASE_SECS))).await.unwrap();
    let name = format!("{outcome:?}");
    let reading = reading(&store);
    let width = reading.map_or(0.0, |reading| reading.width.as_secs_f64());
    println!("\nclient: {} {reading:?} width_secs: {width}", name.split(['(', ' ']).next().unwrap());
}

/// What a client whose clock is wrong by `skew` is told.
async fn claimed_elsewhere(table: &Table, mode: &str, skew: &str) -> String {
    let output = Command::new("faketime")
        .args(["-m", "--exclude-monotonic", "-f", skew])
        .arg(std::env::current_exe().unwrap())
        .args(["clock::client", "--exact", "--ignored", "--nocapture"])
        .env(URL, &table.url)
        .env(TABLE, &table.name)
        .env(MODE, mode)
        .stderr(Stdio::inherit())
        .kill_on_drop(true)
        .output()
        .await
        .expect("faketime, which `cargo xtask servers install` installs");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{said}");
    said.lines().find_map(|line| line.strip_prefix("client: ")).unwrap_or_else(|| panic!("{said}")).to_owned()
}

#[rstest]
// The caveat, as it is documented: a host that is ahead by more than the lease takes a live claim.
#[case::local("local", "Acquired")]
#[case::within_its_bound("bound", "InFlight")]
#[case::calibrated("calibrated", "InFlight")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_ten_minutes_ahead_meets_a_live_claim(#[case] mode_name: &str, #[case] told: &str) {
    let table = Table::make("ahead").await;
    let here = table.store().clock(mode(mode_name)).build().await.unwrap();
    let held = claim(secs(LEASE_SECS));
    acquired(here.claim(&key("order"), &held).await.unwrap());
    let said = claimed_elsewhere(&table, mode_name, "+10m").await;
    assert_eq!(said.split(' ').next(), Some(told), "{said}");
    // Fencing holds whatever clocks do: of two who hold the claim one completes, and it is who took it over.
    let expected = if told == "Acquired" { CompleteOutcome::Fenced } else { CompleteOutcome::Applied };
    assert_eq!(here.complete(&key("order"), &completion(held.token, "done")).await.unwrap(), expected);
    table.delete().await.unwrap();
}

#[rstest]
#[case::local("local", "Acquired")]
#[case::within_its_bound("bound", "InFlight")]
#[case::calibrated("calibrated", "InFlight")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_live_claim_of_a_client_ten_minutes_behind_is_met(#[case] mode_name: &str, #[case] told: &str) {
    let table = Table::make("behind").await;
    let said = claimed_elsewhere(&table, mode_name, "-10m").await;
    assert!(said.starts_with("Acquired"), "{said}");
    let here = table.store().clock(mode(mode_name)).build().await.unwrap();
    let outcome = format!("{:?}", here.claim(&key("order"), &claim(secs(LEASE_SECS))).await.unwrap());
    assert_eq!(outcome.split(['(', ' ']).next(), Some(told), "{outcome}");
    table.delete().await.unwrap();
}

/// The offset that a calibrated client finds is that of its own clock, to within the width.
#[rstest]
#[case::ahead("+10m", -600.0)]
#[case::behind("-10m", 600.0)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_calibrated_client_knows_how_wrong_its_clock_is(#[case] skew: &str, #[case] offset: f64) {
    let (table, began) = (Table::make("offset").await, Instant::now());
    let said = claimed_elsewhere(&table, "calibrated", skew).await;
    let field = |name: &str| said.split_once(name).unwrap().1.split([',', ' ', '}']).next().unwrap().to_owned();
    let [seen, width] = ["offset_secs: ", "width_secs: "].map(|name| field(name).parse::<f64>().unwrap());
    assert!((seen - offset).abs() < width / 2.0 + 0.1, "{said}");
    assert!(width < 3.0 + began.elapsed().as_secs_f64(), "{said}");
    assert_eq!(field("restarts: "), "0", "{said}");
    table.delete().await.unwrap();
}

/// What is written with a time that its own response contradicts would be lapsed when the operation starts.
#[rstest]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_whose_own_response_contradicts_its_clock_is_renewed_before_it_is_told(#[values(600, -600)] step: i64) {
    let table = Table::make("step").await;
    let stub = Stub::before(&table.url).await;
    let builder = table.store().config(config(&stub.url()));
    let (store, began) = (builder.clone().build().await.unwrap(), Instant::now());
    acquired(store.claim(&key("calibrates"), &claim(secs(30))).await.unwrap());
    let before = reading(&store).unwrap();
    assert!(holds(&before, 0.0, began) && before.restarts == 0, "{before:?}");

    stub.step_clock(step);
    let held = claim(secs(LEASE_SECS));
    let won = acquired(store.claim(&key("order"), &held).await.unwrap());
    assert!(won.lease_left > Duration::from_secs(LEASE_SECS / 2), "{won:?}");
    let after = reading(&store).unwrap();
    assert!(holds(&after, step as f64, began) && after.restarts == 1, "{after:?}");

    // One that has known the stepped clock from the first meets a live claim.
    let other = builder.build().await.unwrap();
    let met = other.claim(&key("order"), &claim(secs(LEASE_SECS))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
    assert_eq!(store.complete(&key("order"), &completion(held.token, "done")).await.unwrap(), CompleteOutcome::Applied);
    table.delete().await.unwrap();
}

/// A response whose date is ten minutes ahead must not end what others hold.
#[rstest]
#[case::a_proxys(false, 0)]
#[case::dynamodbs(true, 1)]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_date_that_is_wrong_takes_over_nothing(#[case] by_dynamodb: bool, #[case] restarts: u64) {
    let table = Table::make("stray").await;
    let stub = Stub::before(&table.url).await;
    let store = table.store().config(config(&stub.url())).attempts(1).build().await.unwrap();
    let began = Instant::now();
    acquired(store.claim(&key("order"), &claim(secs(LEASE_SECS))).await.unwrap());

    let busy = Answer::error("UpdateItem", 503, "ServiceUnavailable", "as told");
    stub.will_answer([busy.dated(600, by_dynamodb)]);
    store.claim(&key("another"), &claim(secs(LEASE_SECS))).await.unwrap_err();
    assert_eq!(store.clock_reading().unwrap().restarts, restarts);
    // Sooner than anything that narrows it again.
    let met = store.claim(&key("order"), &claim(secs(LEASE_SECS))).await.unwrap();
    assert!(matches!(met, ClaimOutcome::InFlight(_)), "{met:?}");
    let after = reading(&store).unwrap();
    assert!(holds(&after, 0.0, began), "{after:?}");
    table.delete().await.unwrap();
}

/// A store behind a front end, with a claim that it holds.
async fn holding(table: &Table, read_first: bool) -> (DynamoDbStore, Stub, Claim) {
    let stub = Stub::before(&table.url).await;
    let builder = table.store().config(config(&stub.url())).attempts(1).read_first(read_first);
    let store = builder.build().await.unwrap();
    let held = claim(secs(LEASE_SECS));
    acquired(store.claim(&key("order"), &held).await.unwrap());
    (store, stub, held)
}

/// A claim or a renewal that was applied, and whose repair, as its response contradicted its clock, then fails.
#[rstest]
#[tokio::test]
async fn an_error_after_a_write_that_was_applied_is_unknown(
    #[values(true, false)] renews: bool,
    #[values("GetItem", "UpdateItem")] fails: &'static str,
) {
    let table = Table::make("repair").await;
    let (store, stub, held) = holding(&table, false).await;
    stub.step_clock(600);
    let denied = Answer::error(fails, 400, "AccessDeniedException", "as told");
    // The first update is the write itself.
    stub.will_answer_after(if fails == "UpdateItem" { 1 } else { 0 }, denied);
    let error = if renews {
        // For longer than what is left, so that it writes.
        store.renew(&key("order"), &Renew::new(held.token, secs(2 * LEASE_SECS))).await.unwrap_err()
    } else {
        store.claim(&key("another"), &claim(secs(LEASE_SECS))).await.unwrap_err()
    };
    assert_eq!((error.kind(), error.may_be_applied()), (StoreErrorKind::Misconfigured, true), "{error}");
    assert_eq!(stub.left(), 0);
    table.delete().await.unwrap();
}

/// How much is left of a lease that is there already is not told by a clock that the same response contradicts.
#[rstest]
#[case::a_renewal(true, false)]
#[case::a_claim(false, false)]
#[case::a_claim_that_reads_first(false, true)]
#[tokio::test]
async fn what_is_left_of_a_longer_lease_is_told_by_the_new_clock(#[case] renews: bool, #[case] read_first: bool) {
    let table = Table::make("longer").await;
    let (store, stub, held) = holding(&table, read_first).await;
    // Most of the lease is gone by the clock that it is judged by from now on.
    stub.step_clock(100);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap() + Duration::from_secs(100);
    let left = if renews {
        match store.renew(&key("order"), &Renew::new(held.token, secs(10))).await.unwrap() {
            RenewOutcome::Renewed { lease_left } => lease_left,
            other => panic!("{other:?}"),
        }
    } else {
        acquired(store.claim(&key("order"), &held).await.unwrap()).lease_left
    };
    let item = table.item(&key("order")).await.unwrap();
    let lease_until: f64 = item["lease_until"].as_n().unwrap().parse().unwrap();
    let truly = Duration::from_secs_f64(lease_until).saturating_sub(now);
    assert!(left <= truly + Duration::from_millis(300), "{left:?} was told, and {truly:?} is left");
    table.delete().await.unwrap();
}

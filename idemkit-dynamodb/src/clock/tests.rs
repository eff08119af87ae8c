//! The calibration on a simulated network: what it says must hold the truth, whatever the delays.

use std::time::Duration;

use rstest::rstest;

use super::calibration::{Calibration, Edges, Observation};

const ALLOWANCE: Duration = Duration::from_millis(100);
/// The server's clock when the simulation begins.
const BEGIN: Duration = Duration::from_millis(1_700_000_000_437);

/// A server's clock, seen through a network.
struct Network {
    random: fastrand::Rng,
    /// How fast the server's clock goes against the monotonic one, in millionths too fast.
    drift_ppm: i64,
    /// How much it was stepped.
    stepped_ms: i64,
    now: Duration,
    calibration: Calibration,
}

impl Network {
    fn new(seed: u64, drift_ppm: i64) -> Self {
        let random = fastrand::Rng::with_seed(seed);
        Self { random, drift_ppm, stepped_ms: 0, now: Duration::from_secs(5), calibration: Calibration::new(ALLOWANCE) }
    }

    /// What the server's clock reads.
    fn truth(&self) -> Duration {
        let gone = i64::try_from(self.now.as_micros()).unwrap();
        let micros = gone + gone / 1_000_000 * self.drift_ppm + self.stepped_ms * 1_000;
        BEGIN.checked_add_signed_micros(micros)
    }

    /// A request with so long a way there and back; the front end that answers may differ by a little.
    fn request(&mut self, there: Duration, back: Duration, front_end_ms: i64) {
        let sent = self.now;
        self.now += there;
        let date = Duration::from_secs(self.truth().checked_add_signed_micros(front_end_ms * 1_000).as_secs());
        self.now += back;
        self.calibration.observe(Observation { sent, received: self.now, date });
    }

    fn edges(&self) -> Edges {
        self.calibration.edges(self.now).unwrap()
    }

    fn holds_the_truth(&self) -> bool {
        let (edges, truth) = (self.edges(), self.truth());
        edges.lower <= truth && truth <= edges.upper
    }

    fn up_to_ms(&mut self, millis: u64) -> Duration {
        Duration::from_micros(self.random.u64(..=millis * 1_000))
    }
}

trait SignedMicros {
    fn checked_add_signed_micros(self, micros: i64) -> Duration;
}

impl SignedMicros for Duration {
    fn checked_add_signed_micros(self, micros: i64) -> Duration {
        let amount = Duration::from_micros(micros.unsigned_abs());
        if micros < 0 { self - amount } else { self + amount }
    }
}

#[rstest]
#[case::fast(2, 2, 0)]
#[case::slow(400, 400, 0)]
#[case::slow_there(3_000, 1, 0)]
#[case::slow_back(1, 3_000, 0)]
#[case::server_fast(20, 20, 150)]
#[case::server_slow(20, 20, -150)]
fn the_truth_is_always_between_the_edges(#[case] there: u64, #[case] back: u64, #[case] drift_ppm: i64) {
    for seed in 0..50 {
        let mut network = Network::new(seed, drift_ppm);
        for _ in 0..200 {
            let (there, back, front_end) =
                (network.up_to_ms(there), network.up_to_ms(back), network.random.i64(-90..=90));
            network.request(there, back, front_end);
            assert!(network.holds_the_truth(), "seed {seed}: {:?} without {:?}", network.edges(), network.truth());
            let pause = network.up_to_ms(10_000);
            network.now += pause;
            assert!(
                network.holds_the_truth(),
                "seed {seed}, aged: {:?} without {:?}",
                network.edges(),
                network.truth()
            );
        }
        assert_eq!(network.calibration.restarts(), 0, "seed {seed}: nothing was contradicted");
    }
}

#[test]
fn many_fast_responses_narrow_it_to_the_allowance() {
    let mut network = Network::new(7, 0);
    network.request(Duration::from_millis(1), Duration::from_millis(1), 0);
    let width = |edges: Edges| edges.upper - edges.lower;
    assert!(width(network.edges()) >= Duration::from_secs(1), "one date tells a second");
    for _ in 0..2_000 {
        let pause = network.up_to_ms(10);
        network.now += pause;
        network.request(Duration::from_millis(1), Duration::from_millis(1), 0);
    }
    let narrow = width(network.edges());
    assert!(narrow < 2 * ALLOWANCE + Duration::from_millis(50), "{narrow:?}");
    // An hour without any response widens it by what clocks drift.
    network.now += Duration::from_secs(3_600);
    let aged = width(network.edges());
    assert!(aged >= narrow + Duration::from_millis(1_400) && aged <= narrow + Duration::from_millis(1_500), "{aged:?}");
}

#[rstest]
#[case::forward(60_000)]
#[case::backward(-60_000)]
#[case::a_pause_of_this_machine(5_000)]
fn a_step_of_some_clock_starts_anew(#[case] step_ms: i64) {
    let mut network = Network::new(3, 0);
    for _ in 0..20 {
        network.request(Duration::from_millis(5), Duration::from_millis(5), 0);
    }
    network.stepped_ms += step_ms;
    network.request(Duration::from_millis(5), Duration::from_millis(5), 0);
    assert_eq!(network.calibration.restarts(), 1);
    assert!(network.holds_the_truth());
}

/// A single response may be the one that is wrong: it neither ends a lease early nor makes one short.
#[rstest]
#[case::ahead(600_000)]
#[case::behind(-600_000)]
fn one_date_that_contradicts_is_doubted_until_a_second_agrees(#[case] wrong_ms: i64) {
    let millis = Duration::from_millis;
    let mut network = Network::new(3, 0);
    for _ in 0..20 {
        network.request(millis(5), millis(5), 0);
    }
    network.request(millis(5), millis(5), wrong_ms);
    assert_eq!(network.calibration.restarts(), 1);
    assert!(network.holds_the_truth(), "what was known before is still possible");
    assert!(network.calibration.is_stale(network.now), "another response is wanted");
    let doubted = network.edges();
    assert!(doubted.upper - doubted.lower > millis(599_000), "and so is what it says");

    // One that says what was known before contradicts nothing; two in a row decide.
    for doubted in [true, false] {
        network.request(millis(5), millis(5), 0);
        assert!(network.holds_the_truth());
        assert_eq!((network.calibration.restarts(), network.calibration.is_stale(network.now)), (1, doubted));
    }
    let sure = network.edges();
    assert!(sure.upper - sure.lower < millis(1_300), "{sure:?}");
}

/// As two front ends whose clocks differ by too much: both stay possible, and it is told once.
#[test]
fn dates_that_contradict_each_other_in_turn_restart_it_once() {
    let millis = Duration::from_millis;
    let mut network = Network::new(3, 0);
    for turn in 0..20 {
        network.request(millis(5), millis(5), if turn % 2 == 0 { 0 } else { 60_000 });
        assert!(network.holds_the_truth(), "turn {turn}");
    }
    assert_eq!(network.calibration.restarts(), 1);
}

#[test]
fn what_was_known_an_hour_ago_is_stale_before_its_edges_are_far_apart() {
    let millis = Duration::from_millis;
    let mut network = Network::new(3, 0);
    assert!(!network.calibration.is_stale(network.now), "nothing is known yet");
    network.request(millis(5), millis(5), 0);
    let mut silent = Duration::ZERO;
    while !network.calibration.is_stale(network.now) {
        let edges = network.edges();
        assert!(edges.upper - edges.lower < millis(2_500), "after {silent:?}: {edges:?}");
        network.now += Duration::from_secs(10);
        silent += Duration::from_secs(10);
    }
    assert!(silent > Duration::from_secs(2_400), "most operations are one request: {silent:?}");
    // Any response will do, a slow one too: or each operation would ask for another.
    network.request(Duration::from_secs(2), Duration::from_secs(2), 0);
    assert!(!network.calibration.is_stale(network.now));
}

#[test]
fn a_response_that_took_a_minute_narrows_nothing_and_contradicts_nothing() {
    let mut network = Network::new(9, 0);
    network.request(Duration::from_millis(1), Duration::from_millis(1), 0);
    let before = network.edges();
    network.request(Duration::from_secs(30), Duration::from_secs(30), 0);
    let after = network.edges();
    assert_eq!(network.calibration.restarts(), 0);
    let width = |edges: Edges| edges.upper - edges.lower;
    assert!(width(after) < width(before) + Duration::from_millis(30), "only by what a minute drifts");
    assert!(network.holds_the_truth());
}

#[test]
fn nothing_is_known_before_the_first_response() {
    assert_eq!(Calibration::new(ALLOWANCE).edges(Duration::from_secs(1)), None);
}

#[test]
fn dates_at_the_ends_of_time_do_not_overflow() {
    let mut calibration = Calibration::new(Duration::MAX);
    for date in [Duration::ZERO, Duration::from_secs(u64::MAX), Duration::ZERO] {
        calibration.observe(Observation { sent: Duration::ZERO, received: Duration::from_secs(1), date });
        assert!(calibration.edges(Duration::from_secs(u64::MAX)).is_some());
    }
}

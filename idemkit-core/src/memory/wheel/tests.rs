//! The wheel against a plain map of deadlines.

use std::collections::BTreeMap;

use proptest::{collection::vec, prelude::*};
use rstest::rstest;

use super::*;

const YEAR_MS: u64 = 365 * 24 * 60 * 60 * 1_000;

/// All that is due at `now_ms`, in the order in which it comes.
fn pop_all(wheel: &mut Wheel, now_ms: u64) -> Vec<u32> {
    let mut budget = usize::MAX;
    std::iter::from_fn(|| wheel.pop_due(now_ms, &mut budget)).collect()
}

/// Each list is linked both ways and listed where its links say, and the bits say which buckets hold something.
fn assert_sound(wheel: &Wheel) {
    let mut listed = 0;
    for (bucket, &head) in wheel.heads.iter().enumerate() {
        let (mut slot, mut prev) = (head, NONE);
        while slot != NONE {
            let link = wheel.links[slot as usize];
            assert_eq!((link.prev, link.bucket), (prev, bucket as u32), "slot {slot}");
            (prev, slot) = (slot, link.next);
            listed += 1;
            assert!(listed <= wheel.links.len(), "a list goes round");
        }
        if bucket != DUE {
            let occupied = wheel.occupied[bucket / BUCKETS_PER_LEVEL] >> (bucket % BUCKETS_PER_LEVEL) & 1 == 1;
            assert_eq!(occupied, head != NONE, "bucket {bucket}");
        }
    }
    assert_eq!(listed, wheel.links.iter().filter(|link| link.bucket != NONE).count());
}

#[rstest]
#[case::zero(0)]
#[case::one(1)]
#[case::last_of_the_first_level(63)]
#[case::first_of_the_second_level(64)]
#[case::last_of_the_second_level(4_095)]
#[case::first_of_the_third_level(4_096)]
#[case::a_year(YEAR_MS)]
#[case::first_of_the_last_level(1 << 60)]
#[case::last_of_the_level_before(1 << (60 - 1))]
#[case::half_of_time(u64::MAX / 2)]
#[case::the_end_but_one(u64::MAX - 1)]
#[case::the_end_of_time(u64::MAX)]
fn due_at_its_very_millisecond(#[case] deadline_ms: u64) {
    let mut wheel = Wheel::new();
    wheel.schedule(3, deadline_ms);
    if deadline_ms > 0 {
        assert_eq!(pop_all(&mut wheel, deadline_ms / 2), [0; 0]);
        assert_eq!(pop_all(&mut wheel, deadline_ms - 1), [0; 0], "a millisecond early");
    }
    assert_eq!(pop_all(&mut wheel, deadline_ms), [3]);
    assert_eq!(pop_all(&mut wheel, u64::MAX), [0; 0], "it comes once");
    assert_sound(&wheel);
}

#[test]
fn time_jumps_over_any_number_of_levels() {
    for now_ms in [0, 1, 63, 64, 65, 4_095, YEAR_MS, 40 * YEAR_MS, u64::MAX / 3, u64::MAX - 1] {
        let mut wheel = Wheel::new();
        wheel.schedule(0, now_ms);
        wheel.schedule(1, now_ms + 1);
        wheel.schedule(2, now_ms / 2);
        let mut due = pop_all(&mut wheel, now_ms);
        due.sort_unstable();
        assert_eq!(due, [0, 2], "at {now_ms}");
        assert_eq!(pop_all(&mut wheel, now_ms + 1), [1]);
    }
}

#[test]
fn scheduling_again_replaces_and_cancelling_forgets() {
    let mut wheel = Wheel::new();
    wheel.schedule(0, 10);
    wheel.schedule(0, 1_000);
    wheel.schedule(1, 1_000);
    wheel.schedule(1, 10);
    wheel.schedule(2, 10);
    wheel.cancel(2);
    wheel.cancel(2);
    wheel.cancel(99);
    assert_eq!(pop_all(&mut wheel, 999), [1]);
    assert_eq!(pop_all(&mut wheel, 1_000), [0]);
    assert_sound(&wheel);
}

/// A deadline that has passed when it is scheduled is due at once, and must not wait for the wheel to come round.
#[test]
fn the_overdue_is_due_at_once() {
    let mut wheel = Wheel::new();
    wheel.schedule(0, 40 * YEAR_MS);
    assert_eq!(pop_all(&mut wheel, 41 * YEAR_MS), [0]);
    for deadline_ms in [0, 1, YEAR_MS, 40 * YEAR_MS, 41 * YEAR_MS] {
        wheel.schedule(1, deadline_ms);
        assert_eq!(pop_all(&mut wheel, 41 * YEAR_MS), [1], "{deadline_ms}");
    }
}

#[test]
fn the_budget_is_kept_and_the_rest_comes_later() {
    let mut wheel = Wheel::new();
    for slot in 0..1_000 {
        wheel.schedule(slot, 5_000 + u64::from(slot % 7));
    }
    let mut budget = 0;
    assert_eq!((wheel.pop_due(u64::MAX, &mut budget), budget), (None, 0));
    let (mut popped, mut calls) = (0, 0);
    while popped < 1_000 {
        let mut budget = 16;
        let before = popped;
        while wheel.pop_due(10_000, &mut budget).is_some() {
            popped += 1;
        }
        assert!(popped - before <= 16);
        calls += 1;
        assert!(calls <= 1_000 * LEVELS / 16, "no headway");
        assert_sound(&wheel);
    }
    assert_eq!(pop_all(&mut wheel, u64::MAX), [0; 0]);
}

/// What makes a request O(1): however time goes, a slot is looked at once a level, and once when it is due.
#[test]
fn a_slot_is_looked_at_a_bounded_number_of_times() {
    const SLOTS: u32 = 2_000;
    let mut wheel = Wheel::new();
    for slot in 0..SLOTS {
        // All magnitudes, so that every level is used.
        wheel.schedule(slot, u64::from(slot).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> (slot % 64));
    }
    let (mut popped, mut looked_at) = (0, 0);
    for step in 0..=1_856_u32 {
        let now_ms = if step == 1_856 { u64::MAX } else { u64::from(step % 32 + 33) << (step / 32) };
        let mut budget = usize::MAX;
        while wheel.pop_due(now_ms, &mut budget).is_some() {
            popped += 1;
        }
        looked_at += usize::MAX - budget;
    }
    assert_eq!(popped, SLOTS);
    assert!(looked_at <= SLOTS as usize * (LEVELS + 1), "{looked_at}");
}

#[derive(Clone, Debug)]
enum Op {
    Schedule { slot: u32, deadline: Deadline },
    Cancel { slot: u32 },
    Pop { budget: usize },
    Forward(u64),
    Back(u64),
}

#[derive(Clone, Debug)]
enum Deadline {
    Ahead(u64),
    Behind(u64),
    At(u64),
}

impl Deadline {
    fn millis(&self, now_ms: u64) -> u64 {
        match *self {
            Self::Ahead(by_ms) => now_ms.saturating_add(by_ms),
            Self::Behind(by_ms) => now_ms.saturating_sub(by_ms),
            Self::At(millis) => millis,
        }
    }
}

/// Lengths of all magnitudes, and those around the edges of a level.
fn length() -> impl Strategy<Value = u64> {
    prop_oneof![
        4 => 0..200_u64,
        2 => 0..10_000_u64,
        1 => (0..64_u32, 0..3_u64).prop_map(|(bits, by)| (1_u64 << bits).saturating_add(by).saturating_sub(1)),
        1 => (0..100_u64).prop_map(|years| years * YEAR_MS),
    ]
}

fn deadline() -> impl Strategy<Value = Deadline> {
    prop_oneof![
        6 => length().prop_map(Deadline::Ahead),
        2 => length().prop_map(Deadline::Behind),
        1 => prop_oneof![Just(0), Just(u64::MAX), Just(u64::MAX - 1), any::<u64>()].prop_map(Deadline::At),
    ]
}

fn op(back: u32) -> impl Strategy<Value = Op> {
    let slot = || 0..24_u32;
    prop_oneof![
        8 => (slot(), deadline()).prop_map(|(slot, deadline)| Op::Schedule { slot, deadline }),
        2 => slot().prop_map(|slot| Op::Cancel { slot }),
        4 => prop_oneof![0..5_usize, Just(usize::MAX)].prop_map(|budget| Op::Pop { budget }),
        3 => length().prop_map(Op::Forward),
        back => length().prop_map(Op::Back),
    ]
}

/// Runs `ops` on the wheel and on a map, and compares.
fn compare(ops: Vec<Op>) -> Result<(), TestCaseError> {
    let (mut wheel, mut model) = (Wheel::new(), BTreeMap::new());
    let (mut now_ms, mut latest_ms) = (0_u64, 0);
    for op in ops {
        match op {
            Op::Schedule { slot, deadline } => {
                let deadline_ms = deadline.millis(now_ms);
                wheel.schedule(slot, deadline_ms);
                model.insert(slot, deadline_ms);
            }
            Op::Cancel { slot } => {
                wheel.cancel(slot);
                model.remove(&slot);
            }
            Op::Pop { budget } => {
                latest_ms = now_ms.max(latest_ms);
                let mut left = budget;
                let mut popped = 0;
                while let Some(slot) = wheel.pop_due(now_ms, &mut left) {
                    popped += 1;
                    let deadline_ms = model.remove(&slot);
                    prop_assert!(deadline_ms.is_some_and(|at| at <= now_ms), "{deadline_ms:?} came at {now_ms}");
                }
                prop_assert!(popped <= budget - left);
                // Where the clock was stepped back, the wheel may wait until it is where it was.
                if left > 0 && now_ms == latest_ms {
                    let due = model.iter().find(|(_, deadline_ms)| **deadline_ms <= now_ms);
                    prop_assert_eq!(due, None, "kept back at {}", now_ms);
                }
            }
            Op::Forward(by_ms) => now_ms = now_ms.saturating_add(by_ms),
            Op::Back(by_ms) => now_ms = now_ms.saturating_sub(by_ms),
        }
        assert_sound(&wheel);
    }
    let mut left: Vec<_> = pop_all(&mut wheel, u64::MAX);
    left.sort_unstable();
    prop_assert_eq!(left, model.into_keys().collect::<Vec<_>>(), "each comes in the end");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    #[test]
    fn it_agrees_with_a_map_of_deadlines(ops in vec(op(0), 1..200)) {
        compare(ops)?;
    }

    #[test]
    fn it_agrees_where_time_goes_backwards_too(ops in vec(op(2), 1..200)) {
        compare(ops)?;
    }
}

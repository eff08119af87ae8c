//! Measuring several things in one run, so that their ratios mean something on a machine that is never quite idle.

use std::{
    hint::black_box,
    time::{Duration, Instant},
};

use idemkit_core::EffectiveKey;

/// How often each candidate is measured. The median of the rounds counts.
const ROUNDS: usize = 15;
/// How long one candidate is measured in one round, roughly.
const ROUND_TIME: Duration = Duration::from_millis(60);

/// Something to be measured: does its operation `n` times and says how long that took.
pub struct Candidate<'a> {
    name: String,
    run: Box<dyn FnMut(u64) -> Duration + 'a>,
}

impl<'a> Candidate<'a> {
    /// A candidate whose `run` times `n` operations by itself.
    pub fn timed(name: impl Into<String>, run: impl FnMut(u64) -> Duration + 'a) -> Self {
        Self { name: name.into(), run: Box::new(run) }
    }

    /// A candidate that does one operation a call.
    pub fn each<T>(name: impl Into<String>, mut operation: impl FnMut() -> T + 'a) -> Self {
        Self::timed(name, move |n| {
            let began = Instant::now();
            for _ in 0..n {
                black_box(operation());
            }
            began.elapsed()
        })
    }
}

/// Measures all candidates turn by turn, prints a line for each with its ratio to the first, and returns nanoseconds an
/// operation.
pub fn compare(title: &str, mut candidates: Vec<Candidate<'_>>) -> Vec<f64> {
    let counts: Vec<u64> = candidates.iter_mut().map(|candidate| calibrate(&mut candidate.run)).collect();
    let mut rounds = vec![Vec::with_capacity(ROUNDS); candidates.len()];
    for _ in 0..ROUNDS {
        for ((candidate, n), times) in candidates.iter_mut().zip(&counts).zip(&mut rounds) {
            times.push((candidate.run)(*n).as_nanos() as f64 / *n as f64);
        }
    }
    let medians: Vec<f64> = rounds.iter_mut().map(|times| median(times)).collect();
    println!("\n{title}");
    for (candidate, nanos) in candidates.iter().zip(&medians) {
        println!("  {:<44} {:>10.0} ns/op   {:>6.2}x", candidate.name, nanos, nanos / medians[0]);
    }
    medians
}

/// How many operations fill a round.
fn calibrate(run: &mut dyn FnMut(u64) -> Duration) -> u64 {
    let mut n = 1_000;
    loop {
        let took = run(n);
        if took >= ROUND_TIME / 4 {
            return (n as f64 * ROUND_TIME.as_secs_f64() / took.as_secs_f64()).max(1.0) as u64;
        }
        n *= 4;
    }
}

fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// The `n`th of a sequence of keys that look random, as hashes do, and cost nothing to make.
#[must_use]
pub fn key(n: u64) -> EffectiveKey {
    let mut bytes = [0; 32];
    for (at, chunk) in bytes.chunks_exact_mut(8).enumerate() {
        // splitmix64
        let mut z = n.wrapping_mul(4).wrapping_add(at as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        z = (z ^ z >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ z >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        chunk.copy_from_slice(&(z ^ z >> 31).to_be_bytes());
    }
    EffectiveKey::from_bytes(bytes)
}

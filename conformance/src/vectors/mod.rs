//! The vectors: what the contract of [`Store`](idemkit_core::Store) says, one thing each.

mod attempts;
mod clock;
mod durations;
mod expiry;
mod fencing;
mod isolation;
mod lease;
mod list;
mod race;
mod results;
mod retransmission;
mod table;
mod unreadable;
mod waiting;

use std::{future::Future, pin::Pin};

pub(crate) use self::list::VECTORS;
use crate::case::{Case, Checked};

/// How often a race is run. A store that fails one round in ten is missed by all of them with a probability of 0.9^175,
/// less than one in 10^8.
pub(crate) const ROUNDS: usize = 175;

type Running<'c> = Pin<Box<dyn Future<Output = Checked> + Send + 'c>>;

/// One vector.
pub(crate) struct Vector {
    pub(crate) name: &'static str,
    pub(crate) rules: &'static str,
    pub(crate) checks: &'static str,
    /// Whether it sends so much at once that it runs alone.
    pub(crate) races: bool,
    pub(crate) run: for<'c> fn(&'c Case) -> Running<'c>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// The rules of the contract that no vector can check, since it takes a fault between the store and its server: the
    /// tests of each store do.
    const NEED_FAULTS: [&str; 3] = ["A6", "W5", "W6"];

    #[test]
    fn every_rule_of_the_contract_is_cited_and_no_other() {
        let contract = include_str!("../../../idemkit-core/src/store.rs");
        let written: BTreeSet<&str> = contract
            .lines()
            .filter_map(|line| line.trim().strip_prefix("/// - **"))
            .filter_map(|rule| rule.split([',', '.']).next())
            .collect();
        assert!(written.len() > 20, "the rules are found where they are written: {written:?}");
        let cited: BTreeSet<&str> = VECTORS.iter().flat_map(|vector| vector.rules.split(' ')).collect();
        assert_eq!(written, &cited | &NEED_FAULTS.into());
    }

    #[test]
    fn names_are_unique() {
        let names: BTreeSet<&str> = VECTORS.iter().map(|vector| vector.name).collect();
        assert_eq!(names.len(), VECTORS.len());
    }

    #[test]
    fn a_store_that_fails_one_round_in_ten_is_missed_less_than_once_in_a_hundred_million_runs() {
        assert!(0.9_f64.powi(i32::try_from(ROUNDS).unwrap()) < 1e-8);
    }
}

//! A small world, explored to its end: every order of requests of three actors, every pause, and every delayed repeat
//! of anything ever sent.
//!
//! What a property test finds by luck, this finds by looking everywhere; it is small, and knows nothing of what a
//! test's author thought of.

use std::{
    collections::{HashSet, VecDeque},
    time::Duration,
};

use super::{
    Write,
    properties::{Answer, Request, Transition, sound},
};
use crate::{
    Claim, ClaimOutcome, ClaimToken, Complete, CompleteOutcome, Fingerprint, Outcome, Record, Release, Renew,
    RenewOutcome, StoredResult, Timestamp, Ttl,
};

const ACTORS: usize = 3;
const LEASE_MS: u64 = 2;
const EXPIRY_MS: u64 = 3;
const END_MS: u64 = 7;

/// What an actor has been told, and so believes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Belief {
    /// It may execute until then, without asking anybody.
    holds_until: u64,
    /// Its completion was acknowledged, and duplicates get it until then.
    recorded_until: u64,
    /// It was acknowledged once, and so may send what a holder sends; delayed copies of that arrive at any time after.
    has_held: bool,
}

#[derive(Clone, Debug)]
struct World {
    record: Option<Record>,
    now: u64,
    beliefs: [Belief; ACTORS],
}

fn token(actor: usize) -> ClaimToken {
    ClaimToken::from_bytes([actor as u8 + 1; 16])
}

fn ttl(millis: u64) -> Ttl {
    Ttl::new(Duration::from_millis(millis)).unwrap()
}

/// The third actor is another request.
fn claim(actor: usize) -> Request {
    let fingerprint = Fingerprint::from_stored(1, [u8::from(actor == 2); 32]);
    Request::Claim(Claim::new(token(actor), fingerprint, ttl(LEASE_MS)))
}

fn complete(actor: usize) -> Request {
    let result = StoredResult::new(actor as u16, "");
    Request::Complete(Complete::new(token(actor), Outcome::Result(result), ttl(EXPIRY_MS)))
}

/// What may arrive next from `actor`. The network delivers at least once and at any time: whatever was ever sent may
/// arrive again.
fn arrivals(actor: usize, belief: Belief) -> Vec<Request> {
    let mut requests = vec![claim(actor)];
    if belief.has_held {
        requests.push(complete(actor));
        requests.push(Request::Renew(Renew::new(token(actor), ttl(LEASE_MS))));
        requests.push(Request::Release(Release::new(token(actor))));
    }
    requests
}

/// What `actor` believes after `answer`; each arrival may also be one whose answer is lost.
fn told(belief: Belief, answer: &Answer, record: Option<&Record>, now: u64) -> Belief {
    let mut belief = belief;
    match answer {
        Answer::Claim(ClaimOutcome::Acquired(acquired)) => {
            belief.has_held = true;
            belief.holds_until = now + acquired.lease_left.as_millis() as u64;
        }
        Answer::Renew(RenewOutcome::Renewed { lease_left }) => {
            belief.holds_until = belief.holds_until.max(now + lease_left.as_millis() as u64);
        }
        // Whichever copy of the completion took effect: the expiry is counted from that one.
        Answer::Complete(CompleteOutcome::Applied) => {
            belief.holds_until = 0;
            if let Some(Record::Completed(completed)) = record {
                belief.recorded_until = completed.expires_at.as_millis();
            }
        }
        // Told that it is over, or that another has it: it believes no longer.
        Answer::Complete(_) | Answer::Renew(_) | Answer::Release(_) | Answer::Claim(_) => belief.holds_until = 0,
        Answer::Unreadable => {}
    }
    belief
}

/// Explores every reachable world, and returns how many there are and every sort of answer that was given; or what went
/// wrong in one.
fn explore(transition: Transition) -> Result<(usize, HashSet<String>), String> {
    let first = World { record: None, now: 0, beliefs: [Belief::default(); ACTORS] };
    let (mut seen, mut answers) = (HashSet::new(), HashSet::new());
    let mut open = VecDeque::from([first]);
    while let Some(world) = open.pop_front() {
        if !seen.insert(format!("{world:?}")) {
            continue;
        }
        if world.now < END_MS {
            open.push_back(World { now: world.now + 1, ..world.clone() });
        }
        for actor in 0..ACTORS {
            for request in arrivals(actor, world.beliefs[actor]) {
                let (record, answer) = arrive(transition, &world, &request);
                // The names alone: what stands before the first field.
                answers.insert(format!("{answer:?}").split([' ', '{']).next().unwrap_or_default().to_owned());
                let mut lost = World { record, ..world.clone() };
                let mut heard = lost.clone();
                heard.beliefs[actor] = told(world.beliefs[actor], &answer, lost.record.as_ref(), world.now);
                if matches!(request, Request::Release(_)) {
                    // A released claim is never used again, by the contract: from here on only delayed copies arrive.
                    heard.beliefs[actor].holds_until = 0;
                    lost.beliefs[actor].holds_until = 0;
                }
                for next in [lost, heard] {
                    check(&world, &next, actor, &request, &answer)?;
                    open.push_back(next);
                }
            }
        }
    }
    Ok((seen.len(), answers))
}

fn arrive(transition: Transition, world: &World, request: &Request) -> (Option<Record>, Answer) {
    let (write, answer) = transition(world.record.as_ref(), request, Timestamp::from_millis(world.now));
    let record = match write {
        Write::Nothing => world.record.clone(),
        Write::Put(record) => Some(record),
        Write::Delete => None,
    };
    (record, answer)
}

fn check(before: &World, after: &World, actor: usize, request: &Request, answer: &Answer) -> Result<(), String> {
    let wrong = |what: &str| {
        Err(format!("{what}: actor {actor} sent {request:?}, was told {answer:?}, {before:?} -> {after:?}"))
    };
    let holders = after.beliefs.iter().filter(|belief| after.now < belief.holds_until).count();
    if holders > 1 {
        return wrong("two actors may execute at once");
    }
    for (of, belief) in before.beliefs.iter().enumerate() {
        if before.now >= belief.recorded_until {
            continue;
        }
        let recorded = |world: &World| {
            matches!(&world.record, Some(Record::Completed(completed)) if completed.token == token(of)
                && completed.outcome == Outcome::Result(StoredResult::new(of as u16, "")))
        };
        if !recorded(before) || !recorded(after) {
            return wrong("an acknowledged result is gone before its expiry");
        }
        if matches!(answer, Answer::Claim(outcome) if !matches!(outcome, ClaimOutcome::Completed(_))) {
            return wrong("a duplicate of an acknowledged result did not get it");
        }
    }
    Ok(())
}

#[test]
fn every_reachable_world_keeps_the_promise() {
    let (worlds, answers) = explore(sound).unwrap();
    assert!(worlds > 30_000, "only {worlds} worlds were reached");
    for answer in [
        "Claim(Acquired(Acquired",
        "Claim(InFlight(InFlight",
        "Claim(Mismatch)",
        "Claim(Completed(CompletedRecord",
        "Complete(Applied)",
        "Complete(Fenced)",
        "Renew(Renewed",
        "Renew(Completed)",
        "Renew(Fenced)",
        "Release(Applied)",
        "Release(NotHeld)",
    ] {
        assert!(answers.contains(answer), "nobody was ever told {answer}, only {answers:?}");
    }
}

#[test]
fn a_broken_world_is_found() {
    fn unfenced(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        match (record, request) {
            (Some(Record::Claimed(held)), Request::Complete(complete)) => {
                sound(record, &Request::Complete(Complete { token: held.token, ..complete.clone() }), now)
            }
            _ => sound(record, request, now),
        }
    }
    fn early(record: Option<&Record>, request: &Request, now: Timestamp) -> (Write, Answer) {
        sound(record, request, if matches!(request, Request::Claim(_)) { now.after(ttl(1)) } else { now })
    }
    for broken in [unfenced as Transition, early] {
        explore(broken).expect_err("these rules are broken, and no world shows it");
    }
}

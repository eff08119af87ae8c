//! `cargo xtask sample-webhooks`: the webhook deliveries that `examples/webhooks.rs` reads.
//!
//! They are what a payment provider that delivers at least once sends over some weeks: most events once, many again, at
//! once or hours later, some out of order, and a few ids used a second time for another event, which is the sender's
//! mistake. The same on each machine and at each run, so that the example's counts can be told beforehand.

use crate::failure::Failure;
use std::path::Path;

const FILE: &str = "examples/data/webhooks.jsonl";

/// Different ids.
const EVENTS: usize = 1_400;
/// Deliveries of an event that was delivered before.
const REPEATS: usize = 575;
/// Lines that use the id of an earlier event with other data; no id twice.
const REUSED: usize = 25;

/// Writes the file anew.
pub(crate) fn write(root: &Path) -> Result<(), Failure> {
    let path = root.join(FILE);
    std::fs::write(&path, text()).map_err(|source| Failure::File { path, source })?;
    println!("wrote {FILE}: {EVENTS} events, {REPEATS} repeats, {REUSED} ids used again with other data");
    Ok(())
}

/// All lines, in the order of their arrival.
fn text() -> String {
    let mut random = Random(0x1DE3_9071);
    let events = events(&mut random);
    let mut arrivals: Vec<Arrival> = Vec::with_capacity(EVENTS + REPEATS + REUSED);
    for (index, event) in events.iter().enumerate() {
        // Events overtake their neighbours by a few places.
        let place = index * 10 + random.below(40);
        arrivals.push(Arrival { place, index, attempt: 1, event: event.clone(), layout: Layout::PLAIN });
    }
    repeat(&mut arrivals, &mut random);
    reuse(&mut arrivals, &mut random);
    // The place alone may be shared by two events. The index then keeps the deliveries of each together, and the sort
    // is stable: a repeat at its event's own place follows it directly.
    arrivals.sort_by_key(|arrival| (arrival.place, arrival.index));
    arrivals.iter().map(Arrival::line).collect()
}

/// What happened, once each, in the order of their creation.
fn events(random: &mut Random) -> Vec<Event> {
    // 2026-11-02T06:00:00Z, counted from the first of the month. A mean gap of 25 minutes ends in the same month.
    let mut created_s = 86_400 + 6 * 3_600;
    (0..EVENTS)
        .map(|_| {
            created_s += 10 + random.below(2_981);
            Event {
                id: format!("evt_{}", random.letters(16)),
                kind: random.one_of(&[
                    "payment.captured",
                    "payment.captured",
                    "payment.captured",
                    "payment.authorized",
                    "payment.failed",
                    "payment.refunded",
                ]),
                created: november(created_s),
                amount_minor: 100 + random.below(50_000),
                currency: random.one_of(&["EUR", "EUR", "EUR", "USD", "GBP", "SEK", "JPY"]),
                customer: format!("cus_{}", random.letters(10)),
            }
        })
        .collect()
}

/// Adds the deliveries that came again: a third directly after, a third soon, a third hundreds of lines later.
fn repeat(arrivals: &mut Vec<Arrival>, random: &mut Random) {
    let mut attempts = [1; EVENTS];
    for number in 0..REPEATS {
        // Late ones are of early events, so that there are hundreds of lines left to be late by.
        let (index, later_by) = match number % 3 {
            0 => (random.below(EVENTS), 0),
            1 => (random.below(EVENTS), 20 + random.below(400)),
            _ => (random.below(EVENTS / 2), 2_000 + random.below(5_000)),
        };
        // One in four is a copy made on the way, with the attempt's number unchanged. The others count on; a later
        // attempt may still arrive before an earlier one.
        if !random.one_in(4) {
            attempts[index] += 1;
        }
        let (place, event) = (arrivals[index].place + later_by, arrivals[index].event.clone());
        arrivals.push(Arrival { place, index, attempt: attempts[index], event, layout: Layout::any(random) });
    }
}

/// Adds the lines that use an earlier id for something else, far enough behind its first line that a consumer of some
/// dozens at a time has handled that one: which of two payloads came first is no matter of luck.
fn reuse(arrivals: &mut Vec<Arrival>, random: &mut Random) {
    for number in 0..REUSED {
        let step = (EVENTS - 200) / REUSED;
        let index = number * step + random.below(step);
        let mut event = arrivals[index].event.clone();
        event.amount_minor += 1 + random.below(5_000);
        if random.one_in(3) {
            event.customer = format!("cus_{}", random.letters(10));
        }
        let place = arrivals[index].place + 1_500 + random.below(3_000);
        arrivals.push(Arrival { place, index, attempt: 1, event, layout: Layout::any(random) });
    }
}

/// One event, as all its deliveries tell it.
#[derive(Clone)]
struct Event {
    id: String,
    kind: &'static str,
    created: String,
    amount_minor: usize,
    currency: &'static str,
    customer: String,
}

/// One line of the file.
struct Arrival {
    /// Where it comes among all others.
    place: usize,
    /// Which event it is of.
    index: usize,
    /// The sender's count of deliveries: of the delivery, not of the event.
    attempt: usize,
    event: Event,
    layout: Layout,
}

impl Arrival {
    fn line(&self) -> String {
        let Event { id, kind, created, amount_minor, currency, customer } = &self.event;
        let data = self.layout.object([
            ("amount_minor", amount_minor.to_string()),
            ("currency", format!("\"{currency}\"")),
            ("customer", format!("\"{customer}\"")),
        ]);
        let line = self.layout.object([
            ("id", format!("\"{id}\"")),
            ("type", format!("\"{kind}\"")),
            ("created", format!("\"{created}\"")),
            ("attempt", self.attempt.to_string()),
            ("data", data),
        ]);
        line + "\n"
    }
}

/// How the same JSON value is written.
#[derive(Clone, Copy)]
struct Layout {
    /// By how many places the members are turned.
    turned_by: usize,
    after_colon: &'static str,
    after_comma: &'static str,
    inside_braces: &'static str,
}

impl Layout {
    const PLAIN: Self = Self { turned_by: 0, after_colon: "", after_comma: "", inside_braces: "" };

    /// As in the first delivery, half of the time.
    fn any(random: &mut Random) -> Self {
        if random.one_in(2) {
            return Self::PLAIN;
        }
        Self {
            turned_by: random.below(5),
            after_colon: random.one_of(&["", " "]),
            after_comma: random.one_of(&["", " ", "  "]),
            inside_braces: random.one_of(&["", " "]),
        }
    }

    fn object<const N: usize>(self, mut members: [(&str, String); N]) -> String {
        members.rotate_left(self.turned_by % N);
        let members = members.map(|(name, value)| format!("\"{name}\":{}{value}", self.after_colon));
        let between = format!(",{}", self.after_comma);
        format!("{{{space}{}{space}}}", members.join(&between), space = self.inside_braces)
    }
}

/// A moment of November 2026, from seconds since the first.
fn november(seconds: usize) -> String {
    let (day, second) = (seconds / 86_400 + 1, seconds % 86_400);
    format!("2026-11-{day:02}T{:02}:{:02}:{:02}Z", second / 3_600, second / 60 % 60, second % 60)
}

/// SplitMix64: a few lines that give the same numbers everywhere, where a crate may change its sequence between
/// versions.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`, which is small here: below a million.
    fn below(&mut self, bound: usize) -> usize {
        // The upper 32 bits alone, so that a `usize` of 32 bits computes the same.
        (self.next() >> 32) as usize % bound
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }

    fn one_of(&mut self, choices: &[&'static str]) -> &'static str {
        choices[self.below(choices.len())]
    }

    fn letters(&mut self, count: usize) -> String {
        const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
        (0..count).map(|_| char::from(ALPHABET[self.below(ALPHABET.len())])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::{HashMap, HashSet};

    fn committed(file: &str) -> String {
        std::fs::read_to_string(crate::workspace_root().unwrap().join(file)).unwrap()
    }

    /// What a line says apart from how it is written and which attempt it was, and its id: from the text alone, knowing
    /// nothing of the generator. No value in the file holds a blank, a comma or a brace.
    fn read(line: &str) -> (String, Vec<String>) {
        let dense: String = line.split_whitespace().collect();
        let mut members: Vec<String> = dense.split([',', '{', '}']).map(str::to_owned).collect();
        members.retain(|member| !member.is_empty() && !member.starts_with("\"attempt\":"));
        members.sort();
        let id = members.iter().find(|member| member.starts_with("\"id\":")).unwrap().clone();
        (id, members)
    }

    #[test]
    fn the_committed_file_is_what_the_generator_writes() {
        assert!(committed(FILE) == text(), "{FILE} differs: run cargo xtask sample-webhooks");
    }

    #[test]
    fn the_committed_file_has_the_counts_that_are_told() {
        let text = committed(FILE);
        let mut first: HashMap<String, Vec<String>> = HashMap::new();
        let (mut repeats, mut reused) = (0, HashSet::new());
        for line in text.lines() {
            let (id, members) = read(line);
            match first.get(&id) {
                None => drop(first.insert(id, members)),
                Some(told) if *told == members => repeats += 1,
                Some(_) => assert!(reused.insert(id), "used again more than once: {line}"),
            }
        }
        assert_eq!((first.len(), repeats, reused.len()), (EVENTS, REPEATS, REUSED));
        assert_eq!(text.lines().count(), 2_000);

        let readme = committed("examples/data/README.md");
        for row in ["| lines | 2,000 |", "| distinct ids | 1,400 |", "| repeats | 575 |", "| ids used again | 25 |"] {
            assert!(readme.contains(row), "examples/data/README.md lacks: {row}");
        }
    }

    #[test]
    fn repeats_come_directly_after_and_hundreds_of_lines_later_and_out_of_order() {
        let text = text();
        let mut last: HashMap<String, usize> = HashMap::new();
        let mut distances = vec![];
        for (number, line) in text.lines().enumerate() {
            if let Some(before) = last.insert(read(line).0, number) {
                distances.push(number - before);
            }
        }
        assert!(distances.iter().filter(|distance| **distance == 1).count() > 100);
        assert!(distances.iter().filter(|distance| **distance > 200).count() > 100);

        let created: Vec<String> =
            text.lines().map(|line| line.split("2026-11-").nth(1).unwrap()[..12].into()).collect();
        assert!(created.windows(2).filter(|pair| pair[0] > pair[1]).count() > 200);
    }

    #[test]
    fn an_id_is_used_again_only_long_after_its_first_line() {
        let text = text();
        let mut first: HashMap<String, (usize, Vec<String>)> = HashMap::new();
        let mut nearest = usize::MAX;
        for (number, line) in text.lines().enumerate() {
            let (id, event) = read(line);
            let (before, said) = first.entry(id).or_insert((number, event.clone()));
            if *said != event {
                nearest = nearest.min(number - *before);
            }
        }
        assert!((100..2_000).contains(&nearest), "{nearest} lines");
    }

    #[test]
    fn repeats_are_written_in_many_ways() {
        let lines = text();
        assert!(lines.lines().filter(|line| line.contains(": ")).count() > 50);
        assert!(lines.lines().filter(|line| !line.trim_start_matches(['{', ' ']).starts_with("\"id\"")).count() > 100);
        assert!(lines.lines().filter(|line| !line.replace(' ', "").contains("\"attempt\":1")).count() > 300);
    }
}

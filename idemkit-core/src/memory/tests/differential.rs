//! The store against the state machine, request by request.

use std::collections::HashMap;

use futures_util::FutureExt;
use proptest::{collection::vec, prelude::*};

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Claim { by: u64, fingerprint: Fingerprint, lease: u64 },
    Complete { by: u64, expires_after: u64 },
    Renew { by: u64, lease: u64 },
    Release { by: u64 },
    Look,
    Plant(Record),
    Advance(u64),
    Sweep,
}

fn op() -> impl Strategy<Value = Op> {
    let by = || 0..3_u64;
    let fingerprint = prop_oneof![
        6 => Just(FINGERPRINT),
        1 => Just(Fingerprint::from_stored(1, [8; 32])),
        1 => Just(Fingerprint::from_stored(99, [7; 32])),
    ];
    prop_oneof![
        8 => (by(), fingerprint, 1..60_u64).prop_map(|(by, fingerprint, lease)| Op::Claim { by, fingerprint, lease }),
        4 => (by(), 1..100_u64).prop_map(|(by, expires_after)| Op::Complete { by, expires_after }),
        3 => (by(), 1..60_u64).prop_map(|(by, lease)| Op::Renew { by, lease }),
        2 => by().prop_map(|by| Op::Release { by }),
        2 => Just(Op::Look),
        1 => prop_oneof![Just(Record::Garbage), Just(Record::Newer)].prop_map(Op::Plant),
        4 => (0..70_u64).prop_map(Op::Advance),
        1 => Just(Op::Sweep),
    ]
}

/// What the store must hold, by the rules alone.
struct Model {
    records: HashMap<u64, Record>,
    rules: Rules,
    grace_ms: u64,
}

impl Model {
    /// Written apart from the store's own: a record that may have been swept by `now`.
    fn may_be_gone(&self, number: u64, now: Timestamp) -> bool {
        self.records.get(&number).is_some_and(|record| match record {
            Record::Claimed(held) => {
                let kept_ms = self.grace_ms + self.rules.take_over_margin.as_millis() as u64;
                held.lease_until.as_millis() + kept_ms <= now.as_millis()
            }
            Record::Completed(done) => done.expires_at <= now,
            Record::Garbage | Record::Newer => false,
        })
    }

    fn apply<R: Request>(&mut self, number: u64, request: &R, now: Timestamp) -> Option<R::Answer> {
        let step = step(self.records.get(&number), request, now, self.rules);
        match step.write {
            Write::Nothing => {}
            Write::Put(record) => {
                self.records.insert(number, record);
            }
            Write::Delete => {
                self.records.remove(&number);
            }
        }
        step.answer.ok()
    }
}

/// `None` stands for a corrupt record; no other error may occur.
fn known<A>(answer: Result<A, StoreError>) -> Option<A> {
    answer.map_err(|error| assert_eq!(error.kind(), StoreErrorKind::CorruptRecord)).ok()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_store_does_what_the_rules_say(
        ops in vec((0..4_u64, op()), 1..120),
        grace_ms in prop_oneof![Just(0_u64), Just(40), Just(100_000)],
        margin_ms in prop_oneof![Just(0_u64), Just(15)],
        starts_ms in prop_oneof![Just(0_u64), Just(1_000_000_000_000), Just(u64::MAX / 2)],
    ) {
        let clock = ManualClock::default();
        clock.set(Timestamp::from_millis(starts_ms));
        let rules = Rules { take_over_margin: ms(margin_ms) };
        let builder = MemoryStore::builder().clock(clock.clone()).grace(ms(grace_ms));
        let memory = builder.take_over_margin(rules.take_over_margin).build();
        let store: Arc<dyn Store> = Arc::new(memory.clone());
        let mut model = Model { records: HashMap::new(), rules, grace_ms };

        for (number, op) in ops {
            let now = clock.now();
            let key = key(number);
            if memory.record(&key).is_none() && model.may_be_gone(number, now) {
                model.records.remove(&number);
            }
            match op {
                Op::Claim { by, fingerprint, lease } => {
                    let request = Claim::new(token(by), fingerprint, ttl(lease));
                    let answer = store.claim(&key, &request).now_or_never().unwrap();
                    prop_assert_eq!(known(answer), model.apply(number, &request, now));
                }
                Op::Complete { by, expires_after } => {
                    let result = Outcome::Result(StoredResult::new(by as u16, number.to_string()));
                    let request = Complete::new(token(by), result, ttl(expires_after));
                    let answer = store.complete(&key, &request).now_or_never().unwrap();
                    prop_assert_eq!(known(answer), model.apply(number, &request, now));
                }
                Op::Renew { by, lease } => {
                    let request = Renew::new(token(by), ttl(lease));
                    let answer = store.renew(&key, &request).now_or_never().unwrap();
                    prop_assert_eq!(known(answer), model.apply(number, &request, now));
                }
                Op::Release { by } => {
                    let request = Release::new(token(by));
                    let answer = store.release(&key, &request).now_or_never().unwrap();
                    prop_assert_eq!(known(answer), model.apply(number, &request, now));
                }
                Op::Look => {
                    prop_assert_eq!(known(memory.inner.step(&key, &Look)), model.apply(number, &Look, now));
                }
                Op::Plant(record) => {
                    memory.plant(key, record.clone());
                    model.records.insert(number, record);
                }
                Op::Advance(millis) => clock.advance(ms(millis)),
                Op::Sweep => {
                    memory.sweep();
                    model.records = std::mem::take(&mut model.records)
                        .into_iter()
                        .filter(|(number, record)| {
                            let alone = HashMap::from([(*number, record.clone())]);
                            !Model { records: alone, rules, grace_ms }.may_be_gone(*number, now)
                        })
                        .collect();
                    prop_assert_eq!(memory.len(), model.records.len(), "a sweep takes all that is due");
                }
            }
            let held = memory.record(&key);
            if held.is_some() || !model.may_be_gone(number, clock.now()) {
                prop_assert_eq!(held.as_ref(), model.records.get(&number));
            }
            let present = (0..4).filter(|number| memory.record(&self::key(*number)).is_some()).count();
            prop_assert_eq!(memory.len(), present);
        }
    }
}

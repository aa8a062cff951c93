//! The local store with more callers than its tables hold: it may refuse early, but no key ever gets more than the
//! definition says, and what is all or nothing stays so.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_limit::{Algorithm, Claim, Kind, Limit, Micros, Timestamp, Verdict, key};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};

use crate::algorithms::Pair;
use crate::invariants::limit;
use crate::oracle::Event;
use crate::random::{self, START};

#[test]
fn a_table_that_overflows_grants_no_caller_more_than_its_limit() {
    random::seeds(60, |rng| {
        let mut terms = Vec::new();
        while terms.len() < 3 {
            let kind = random::pick(
                rng,
                &[
                    Kind::TokenBucket,
                    Kind::Interval,
                    Kind::FixedWindow,
                    Kind::SlidingLog,
                ],
            );
            let candidate = random::terms(rng, kind);
            if Algorithm::new(&candidate).is_ok() {
                terms.push(candidate);
            }
        }
        let limits: Vec<Arc<Limit>> = terms
            .iter()
            .enumerate()
            .map(|(index, terms)| {
                let algorithm = Algorithm::new(terms).expect("just made");
                Arc::new(Limit {
                    memory: 2_048,
                    refundable: false,
                    ..limit(index, algorithm)
                })
            })
            .collect();
        let store = LocalStore::new(
            &limits,
            Clock::manual(Timestamp::from_micros(START)),
            ColdStart::Full,
        );
        let mut pairs: HashMap<(usize, u32), Pair> = HashMap::new();
        let mut now = Timestamp::from_micros(START);
        for _ in 0..1_500 {
            now = now.after(Micros(if rng.u8(..4) == 0 {
                rng.u64(0..=200_000)
            } else {
                0
            }));
            // A few callers who matter, and a flood.
            let caller = if rng.bool() {
                rng.u32(0..4)
            } else {
                rng.u32(0..2_000)
            };
            let key = key::identity([caller.to_be_bytes().as_slice()]);
            let chosen: Vec<_> = limits.iter().filter(|_| rng.u8(..3) > 0).collect();
            let claims: Vec<_> = chosen
                .iter()
                .map(|limit| Claim::new(limit, &key, rng.u64(1..=3)))
                .collect();
            let drawn = store.draw_at(&claims, now);
            for (claim, standing) in claims.iter().zip(&drawn.standings) {
                let pair = || Pair::new(terms[claim.limit.index].clone()).expect("just made");
                let pair = pairs
                    .entry((claim.limit.index, caller))
                    .or_insert_with(pair);
                match standing.verdict {
                    Verdict::Allow { wait } if drawn.granted => {
                        pair.oracle.record(Event::Grant {
                            due: now.after(wait).as_micros(),
                            cost: claim.cost,
                        });
                    }
                    Verdict::Allow { .. } => {}
                    Verdict::Deny { .. } => assert!(!drawn.granted),
                }
            }
        }
        for pair in pairs.values() {
            pair.check_bounds();
        }
    });
}

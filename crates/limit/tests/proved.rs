//! The cases of `prove/proofs.py`: what its formulas give, which are proved there, this crate gives too.

use tollgate_limit::bucket::Level;
use tollgate_limit::lease::{Leased, Request, Return, Slot, Terms};
use tollgate_limit::{Change, Micros, Quota, Rate, Timestamp, TokenBucket};

const NOW: u64 = 1_760_000_000_000_000;

/// One line: a step of a bucket, and what comes of it.
struct Case {
    step: String,
    bucket: TokenBucket,
    out: u64,
    level: Level,
    units: u64,
    granted: u64,
    wait: u64,
    after: i64,
}

impl Case {
    fn of(line: &str) -> Self {
        let (step, numbers) = line.split_once('\t').expect("a step and its numbers");
        let numbers: Vec<i64> = numbers
            .split('\t')
            .map(|number| number.parse().expect("a number"))
            .collect();
        let at = |place: usize| u64::try_from(numbers[place]).expect("not below zero");
        let quota = Quota::new(Rate::new(at(0), Micros(at(1))), at(2)).expect("representable");
        assert_eq!((quota.n, quota.p), (at(0), at(1)), "in lowest terms");
        Self {
            step: step.to_owned(),
            bucket: TokenBucket::new(quota, at(3), Micros::ZERO, false).expect("representable"),
            out: at(4),
            level: Level {
                level: numbers[5],
                at: Timestamp::from_micros(NOW - at(6)),
            },
            units: at(7),
            granted: at(8),
            wait: at(9),
            after: numbers[10],
        }
    }

    /// A step of a bucket without leases: the level after it, whether it was granted, and the wait.
    fn run(&self, now: Timestamp) -> (i64, u64, u64) {
        let (bucket, state) = (&self.bucket, Some(self.level));
        let settled = |change| {
            bucket
                .settle(state, change, now)
                .map_or(bucket.full(), |level| level.level)
        };
        match self.step.as_str() {
            "draw" => match bucket.judge(state, self.units, now) {
                Ok(granted) => (granted.next.level, 1, granted.wait.0),
                Err(refused) => (
                    bucket.level(state, now),
                    0,
                    refused.retry_after.expect("it is a matter of time").0,
                ),
            },
            "charge" => (settled(Change::Charge { more: self.units }), 1, 0),
            "refund" => (settled(Change::Refund { units: self.units }), 1, 0),
            _ => self.run_leased(now),
        }
    }

    fn run_leased(&self, now: Timestamp) -> (i64, u64, u64) {
        let bucket = &self.bucket;
        let (until, units) = (now.after(Micros(1)), self.out);
        let mut leased = Leased {
            level: self.level,
            ledger: vec![Slot { until, units }],
        };
        let granted = match self.step.as_str() {
            "lease_draw" => u64::from(leased.draw(bucket, self.units, now)),
            "lease" => {
                let terms = Terms {
                    most: 0,
                    life: Micros::ZERO,
                };
                let needed = self.units;
                leased.lease(bucket, &terms, Request { units: 0, needed }, now)
            }
            // Of the slot the whole is given back.
            "give_back" => {
                let left = self.units;
                u64::from(leased.give_back(bucket, Return { until, units, left }, now))
            }
            "lease_charge" | "lease_refund" => {
                let change = if self.step == "lease_charge" {
                    Change::Charge { more: self.units }
                } else {
                    Change::Refund { units: self.units }
                };
                leased.settle(bucket, change, now);
                1
            }
            other => panic!("no step is called {other}"),
        };
        (leased.level.level, granted, 0)
    }
}

#[test]
fn proved_formulas_give_what_the_crate_gives() {
    let lines: Vec<&str> = include_str!("proved.tsv").lines().skip(1).collect();
    assert!(lines.len() >= 400, "all cases are there");
    for line in lines {
        let case = Case::of(line);
        assert_eq!(
            case.run(Timestamp::from_micros(NOW)),
            (case.after, case.granted, case.wait),
            "{line}"
        );
    }
}

use std::sync::Arc;

use super::*;
use crate::sql::fields;
use crate::sql::mark::Mark;
use crate::wire_form::{HOLD, Names};
use tollgate_limit::{
    Align, Change, Claim, Corrects, Limit, Mode, OnFailover, Placement, Role, StoredBucket,
    WhenDown,
};

fn limit(amount: u64, burst: u64) -> Limit {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount,
        period: Micros::from_secs(1),
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    };
    Limit {
        name: "l".into(),
        index: 0,
        tier: None,
        role: Role::Live,
        algorithm: Algorithm::new(&terms).expect("a limit"),
        mode: Mode::Enforce,
        enforce_for: 10_000,
        placement: Placement::Shared,
        when_down: WhenDown::Refuse,
        on_failover: OnFailover::Keep,
        lease: true,
        memory: 1 << 20,
        refundable: false,
        resettable: false,
        penalty: None,
        currency: None,
        events: Vec::new(),
    }
}

fn batch(names: &Names, limit: &Limit) -> Batch {
    let wants = names.wants(&[Claim::new(limit, b"k", 1)]);
    Batch {
        buckets: vec![(wants[0].name, wants[0].shape.clone())],
        ..Batch::default()
    }
}

#[test]
fn sql_rows_keep_the_state_of_the_core() {
    let (names, mark) = (
        Names::new(b"a secret of sixteen"),
        Mark { print: 7, since: 0 },
    );
    let mut random = fastrand::Rng::with_seed(3);
    let mut most_slots = 0;
    for (amount, burst) in [(100, 100), (3_000, 1_000), (7, 40), (1_000_000, 1_000_000)] {
        let limit = limit(amount, burst);
        let Algorithm::TokenBucket(bucket) = &limit.algorithm else {
            unreachable!("a token bucket")
        };
        let terms = tollgate_limit::lease::Terms::of(&limit.algorithm).expect("it can be leased");
        let mut now = Timestamp::from_micros(1_760_000_000_000_000);
        let mut core = Leased::full(bucket, now);
        let mut row = None;
        for id in 1..300 {
            now = now.after(Micros(random.u64(..40_000)));
            let mut batch = batch(&names, &limit);
            let shape: Arc<WireForm> = batch.buckets[0].1.clone();
            core.refill(bucket, now);
            if random.bool() {
                let slot = core.ledger.first();
                let units = slot.map_or(5, |slot| random.u64(1..slot.units + 2));
                let back = tollgate_limit::lease::Return {
                    until: slot.map_or(now, |slot| slot.until),
                    units,
                    left: random.u64(..burst / 10),
                };
                batch.returns.push((0, back));
                core.give_back(bucket, back, now);
            }
            if random.bool() {
                let change = Change::Charge {
                    more: random.u64(..burst / 12),
                };
                let change = if random.bool() {
                    change
                } else {
                    Change::Refund {
                        units: random.u64(..burst / 12),
                    }
                };
                batch
                    .corrections
                    .push((0, Adjust::Change(change, Corrects::Any)));
                core.settle(bucket, change, now);
            }
            let (plain, mut parts) =
                Parts::open(row.take(), &batch, &batch.corrections, 0, mark, now)
                    .expect("it reads");
            let mut opened =
                fields::open(&shape, plain.as_deref(), now, HOLD, mark).expect("it reads");
            if !parts.corrected {
                for (_, adjust) in &batch.corrections {
                    let Adjust::Change(change, _) = adjust else {
                        unreachable!("no place is held")
                    };
                    opened.settle(&shape, *change, now);
                }
            }
            let mut state = parts.beside(
                &shape,
                opened.kept.under(shape.algorithm(), now).state().cloned(),
                now,
            );
            let full = State::Level(Leased::full(bucket, now).level);
            let found = bucket_level(state.as_ref().unwrap_or(&full));
            let level = (found.level + gained(bucket, found.at, now)).min(bucket.full());
            assert_eq!(level, core.level.level, "{id}: {amount}/s, {burst}");
            let request = Request {
                units: random.u64(..burst / 5),
                needed: random.u64(..burst / 15),
            };
            assert_eq!(
                parts.lease(&shape, request, &mut state, now),
                core.lease(bucket, &terms, request, now)
            );
            assert_eq!(parts.ledger, core.ledger);
            most_slots = most_slots.max(core.ledger.len());
            opened.kept = StoredBucket::from_parts(limit.algorithm.clone(), state, 0);
            row = fields::close(&shape, &opened, mark.print, now)
                .map(|(row, gone)| parts.close(row, gone))
                .map(|(row, gone)| {
                    let last = core
                        .ledger
                        .last()
                        .map_or(0, |slot| signed(slot.until.as_micros()));
                    assert!(gone >= last, "it goes when it is full, and no lease counts");
                    row
                });
            assert!(row.is_some() || core.ledger.is_empty());
        }
    }
    assert!(most_slots > 2, "{most_slots}");
}

fn bucket_level(state: &State) -> Level {
    let State::Level(level) = state else {
        unreachable!("a token bucket")
    };
    *level
}

fn gained(bucket: &TokenBucket, since: Timestamp, now: Timestamp) -> i64 {
    signed(now.since(since).0.min(1 << 40)).saturating_mul(signed(bucket.quota().n))
}

#[test]
fn leases_of_others_count_under_any_numbers_for_a_gateway_that_does_not_lease() {
    let (names, now) = (
        Names::new(b"a secret of sixteen"),
        Timestamp::from_micros(1_760_000_000_000_000),
    );
    let (large, small) = (
        limit(1000, 1000),
        Limit {
            lease: false,
            ..limit(10, 100)
        },
    );
    let mark = Mark { print: 7, since: 0 };
    let shape = batch(&names, &large).buckets[0].1.clone();
    let mut state = None;
    let mut parts = Parts::default();
    assert_eq!(
        parts.lease(
            &shape,
            Request {
                units: 80,
                needed: 0
            },
            &mut state,
            now
        ),
        80
    );
    let mut opened = fields::open(&shape, None, now, HOLD, mark).expect("no row");
    opened.kept = StoredBucket::from_parts(large.algorithm.clone(), state, 0);
    let closed = fields::close(&shape, &opened, mark.print, now);
    let (row, gone) = closed.expect("not full");
    let (row, _) = parts.close(row, gone);

    let batch = batch(&names, &small);
    let shape = &batch.buckets[0].1;
    let (plain, parts) =
        Parts::open(Some(row.clone()), &batch, &[], 0, mark, now).expect("it reads");
    let opened = fields::open(shape, plain.as_deref(), now, HOLD, mark).expect("it reads");
    let found = parts.beside(
        shape,
        opened.kept.under(shape.algorithm(), now).state().cloned(),
        now,
    );
    assert_eq!(
        shape.standing(found.as_ref(), 1, now).remaining(),
        20,
        "80 of 100 are leased"
    );
    // When it has ended, the bucket is a plain one again.
    let later = now.after(Micros::from_secs(10));
    let (plain, parts) = Parts::open(Some(row), &batch, &[], 0, mark, later).expect("it reads");
    assert_eq!(plain.map(|row| row[1]), Some(TOKEN_BUCKET));
    assert!(parts.ledger.is_empty());
    assert!(
        Parts::open(Some(vec![1, KIND, 7, 0]), &batch, &[], 0, mark, now).is_err(),
        "it never counts as none"
    );
}

/// A refusal writes nothing, so each call finds the row of before the fail-over.
#[test]
fn leased_row_of_before_a_fail_over_refills_from_the_fail_over_on() {
    let names = Names::new(b"a secret of sixteen");
    let drains = Limit {
        on_failover: OnFailover::Drain,
        ..limit(100, 100)
    };
    let (at, since) = (1_760_000_000_000_000, 1_760_000_000_100_000);
    let (full, level) = (1_000_000, 900_000);
    let row = vec![1, KIND, 7, 1, 10_000, full, level, at, 10, at + 300_000];
    let mark = Mark { print: 8, since };
    let batch = batch(&names, &drains);
    let shape = &batch.buckets[0].1;
    for (passed, units) in [(0, 0), (9_999, 0), (10_000, 1), (500_000, 50)] {
        let now = mark.since().after(Micros(passed));
        let (plain, _) =
            Parts::open(Some(row.clone()), &batch, &[], 0, mark, now).expect("it reads");
        let opened = fields::open(shape, plain.as_deref(), now, HOLD, mark).expect("it reads");
        let left = shape.standing(opened.kept.state(), 1, now).remaining();
        assert_eq!(left, units, "{passed} us after the fail-over");
    }
}

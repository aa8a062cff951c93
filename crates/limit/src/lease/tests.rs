use proptest::prelude::*;

use super::*;
use crate::{Algorithm, Align, Kind, Quota, Rate, Terms as LimitTerms};

const START: u64 = 1_760_000_000_000_000;

fn bucket(amount: u64, burst: u64) -> TokenBucket {
    let quota = Quota::new(Rate::new(amount, Micros::from_secs(1)), burst).expect("a rate");
    TokenBucket::new(quota, 0, Micros::ZERO, true).expect("a bucket")
}

fn at(micros: u64) -> Timestamp {
    Timestamp::from_micros(START + micros)
}

fn terms_of(change: impl FnOnce(&mut LimitTerms)) -> Result<Terms, NoLease> {
    let mut terms = LimitTerms {
        kind: Kind::TokenBucket,
        amount: 100,
        period: Micros::from_secs(1),
        burst: Some(100),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    };
    change(&mut terms);
    Terms::of(&Algorithm::new(&terms).expect("a limit"))
}

#[test]
fn a_tenth_of_the_burst_may_be_out_for_a_second_or_until_the_rest_has_refilled() {
    let life = Micros(900_000);
    assert_eq!(terms_of(|_| ()), Ok(Terms { most: 10, life }));
    let life = LIFE_MAX;
    let slow = terms_of(|terms| terms.amount = 10);
    assert_eq!(slow, Ok(Terms { most: 10, life }));
    // 90 units come back in 45 ms: no lease lives longer.
    assert_eq!(
        terms_of(|terms| terms.amount = 2000),
        Ok(Terms {
            most: 10,
            life: Micros(45_000)
        })
    );
}

#[test]
fn limit_that_cannot_be_divided_is_refused() {
    let field = |change: fn(&mut LimitTerms)| terms_of(change).expect_err("not leased").field;
    assert_eq!(field(|terms| terms.kind = Kind::FixedWindow), "algorithm");
    assert_eq!(field(|terms| terms.debt = 5), "debt");
    assert_eq!(
        field(|terms| terms.max_wait = Micros::from_secs(1)),
        "max_wait"
    );
    assert_eq!(field(|terms| terms.burst = Some(19)), "burst");
    assert_eq!(field(|terms| terms.amount = 100_000), "burst");
}

const TENTH: Terms = Terms {
    most: 10,
    life: Micros(100_000),
};

fn ahead(units: u64) -> Request {
    Request { units, needed: 0 }
}

#[test]
fn leased_units_hold_the_refilling_back_until_they_end_and_no_longer() {
    let bucket = bucket(100, 100);
    let mut store = Leased::full(&bucket, at(0));
    assert_eq!(store.lease(&bucket, &TENTH, ahead(50), at(0)), 10);
    assert!(store.draw(&bucket, 5, at(0)));
    // 85 left: full at 90 while the lease counts, which is after 50 ms; it ends after 300.
    store.refill(&bucket, at(299_999));
    assert_eq!(store.level.level, 90 * 10_000, "in units of 1/10000");
    // In one step or in two: 50 ms past the end give five more.
    store.refill(&bucket, at(350_000));
    let mut again = Leased::full(&bucket, at(0));
    again.lease(&bucket, &TENTH, ahead(50), at(0));
    assert!(again.draw(&bucket, 5, at(0)));
    again.refill(&bucket, at(350_000));
    assert_eq!((store.level.level, &store), (95 * 10_000, &again));
}

#[test]
fn a_return_is_taken_in_time_and_while_its_slot_holds_as_much() {
    let bucket = bucket(100, 100);
    let mut store = Leased::full(&bucket, at(0));
    assert_eq!(store.lease(&bucket, &TENTH, ahead(10), at(0)), 10);
    let nothing = store.lease(&bucket, &TENTH, ahead(10), at(0));
    assert_eq!(nothing, 0, "all that may be is out");
    let waiting = Request {
        units: 10,
        needed: 3,
    };
    let units = store.lease(&bucket, &TENTH, waiting, at(0));
    assert_eq!(units, 3, "but who waits is served");
    let until = TENTH.until(at(0));
    assert_eq!(store.ledger, [Slot { until, units: 13 }], "one sum");
    let back = |units, left| Return { until, units, left };
    assert!(store.give_back(&bucket, back(10, 4), at(10)));
    assert!(!store.give_back(&bucket, back(10, 4), at(10)), "it holds 3");
    let other = Return {
        until: until.after(SLOT),
        ..back(3, 3)
    };
    assert!(!store.give_back(&bucket, other, at(20)), "another slot");
    assert!(!store.give_back(&bucket, back(3, 3), until), "late");
    assert!(store.ledger.is_empty());
}

#[test]
fn ledger_has_few_slots_whatever_the_number_of_gateways() {
    let bucket = bucket(1_000_000, 100_000_000);
    let terms = Terms {
        most: 10_000_000,
        life: LIFE_MAX,
    };
    let mut store = Leased::full(&bucket, at(0));
    for millisecond in 0..3_000 {
        for _gateway in 0..10 {
            let now = at(1_000 * millisecond);
            assert_eq!(store.lease(&bucket, &terms, ahead(3), now), 3);
        }
        assert!(store.ledger.len() < SLOTS_MAX, "{}", store.ledger.len());
    }
    assert_eq!(store.ledger.len(), 13);
}

#[test]
fn units_that_count_far_ahead_of_a_clock_that_was_put_back_end_with_those_of_now() {
    let bucket = bucket(100, 100);
    let mut store = Leased::full(&bucket, at(10_000_000));
    assert_eq!(store.lease(&bucket, &TENTH, ahead(7), at(10_000_000)), 7);
    assert!(store.pull(at(0)));
    assert_eq!((store.out(), store.level.at), (7, at(0)));
    assert!(store.ledger[0].until <= at((LIFE_MAX.0 + GRACE.0) + SLOT.0));
    assert!(!store.pull(at(0)), "once is enough");
}

/// What grants may be at most, seen from outside: it fills by each grant and runs out at the limit's rate.
struct Meter {
    n: u64,
    held: u64,
    at: u64,
}

impl Meter {
    fn grant(&mut self, price: u64, now: u64) -> u64 {
        self.held = self.held.saturating_sub((now - self.at) * self.n) + price;
        self.at = now;
        self.held
    }
}

/// A lease as its gateway knows it.
struct Held {
    back: Return,
    deadline: u64,
}

proptest! {
    // Three gateways and direct draws on one bucket; calls take their time both ways; gateways crash with leases out,
    // and grant up to the last microsecond they may.
    #[test]
    fn all_together_never_grant_more_than_the_burst_and_the_rate(
        (amount, burst) in prop_oneof![Just((100, 100)), Just((1_000, 200)), Just((7, 40)), Just((3_000, 1_000))],
        steps in proptest::collection::vec((0usize..3, 0u8..9, 0u64..60_000, 0u64..30_000, 1u64..40), 1..200),
        drift in 0u64..2,
    ) {
        let bucket = bucket(amount, burst);
        let terms = terms_of(|terms| (terms.amount, terms.burst) = (amount, Some(burst))).expect("leased");
        let p = bucket.quota().p;
        let most = u64::try_from(bucket.full()).expect("positive");
        let mut meter = Meter { n: bucket.quota().n, held: 0, at: 0 };
        let mut store = Leased::full(&bucket, at(0));
        let mut gateways: [Vec<Held>; 3] = Default::default();
        // A gateway's clock that is slow by what is allowed reaches its deadline that much later.
        let slow = |span: u64| span + drift * (span / DRIFT_PER);
        let mut now = 0;
        for (gateway, what, pause, way, units) in steps {
            now += pause;
            match what {
                0 | 1 if store.draw(&bucket, units, at(now)) => {
                    prop_assert!(meter.grant(units * p, now) <= most, "a direct draw at {now}");
                }
                2..=4 => {
                    let sent = now;
                    now += way;
                    let request = Request { units, needed: if what == 4 { units } else { 0 } };
                    let left = store.lease(&bucket, &terms, request, at(now));
                    prop_assert!(left <= units);
                    let back = Return { until: terms.until(at(now)), units: left, left };
                    let life = terms.deadline(at(sent)).since(at(sent)).0;
                    let deadline = sent + slow(life);
                    prop_assert!(deadline < now + terms.counted().0);
                    gateways[gateway].push(Held { back, deadline });
                }
                5 if !gateways[gateway].is_empty() => {
                    let held = gateways[gateway].swap_remove(0);
                    // Zeroed before it leaves; it may come late.
                    now += way;
                    store.give_back(&bucket, held.back, at(now));
                }
                6 => gateways[gateway].clear(),
                _ => {}
            }
            if what >= 5 {
                // Everything that is still allowed is granted, at the last moment if that is near.
                for held in gateways.iter_mut().flatten() {
                    if held.deadline > now && held.back.left > 0 {
                        let units = if what == 8 { held.back.left } else { held.back.left.min(units) };
                        held.back.left -= units;
                        prop_assert!(meter.grant(units * p, now) <= most, "a lease's grant at {now}");
                    }
                }
            }
            store.refill(&bucket, at(now));
            let counted = u64::try_from(store.level.level).unwrap_or(0) + store.out() * p;
            prop_assert!(counted <= most, "{counted} of {most}");
        }
    }
}

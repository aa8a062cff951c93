mod shared;

use super::*;
use crate::{Cause, Decision, Limiter, Permit};
use tollgate_limit::{
    Algorithm, Claim, Kind, Micros, Rate, RateConditions, Terms, Timestamp, fixtures,
};
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// The limiter of a process that has taken over.
struct Taken(Limiter<Backend>);

impl Successor for Taken {
    fn settle(&self, settlement: &Settlement<'_>) {
        self.0.settle_for(*settlement);
    }
}

/// The process that takes the buckets of `old` over.
fn hand_over(old: &Limiter<Backend>, clock: &Clock) -> Limiter<Backend> {
    let new = copied(old, clock);
    old.hand_to(Arc::new(Taken(new.clone())));
    new
}

/// Begins a handover of the buckets of `old`.
fn copied(old: &Limiter<Backend>, clock: &Clock) -> Limiter<Backend> {
    old.begin_handover();
    let mut saved = Vec::new();
    old.save_for_handover(&mut saved).expect("saved");
    let saved = std::io::Cursor::new(saved);
    let backend = Arc::new(Backend::None);
    let restored = Limiter::restored(old.limits(), backend, clock.clone(), saved);
    restored.expect("restored").0
}

fn limiter(limit: &Arc<Limit>, clock: &Clock) -> Limiter<Backend> {
    let limits = [Arc::clone(limit)];
    Limiter::new(
        &limits,
        Arc::new(Backend::None),
        clock.clone(),
        ColdStart::Full,
    )
}

fn ten_a_minute() -> Arc<Limit> {
    let terms = fixtures::terms(Kind::TokenBucket, 10, Micros::from_secs(60));
    Arc::new(Limit {
        refundable: true,
        ..fixtures::limit("units", &terms)
    })
}

fn draw(limiter: &Limiter<Backend>, cost: u64, now: Timestamp) -> Option<Permit> {
    let claims = [Claim::new(&limiter.limits()[0], b"k", cost)];
    match limiter.decide(&claims, now).at_once() {
        Some(Decision::Allow(permit)) => Some(permit),
        _ => None,
    }
}

fn left(limiter: &Limiter<Backend>, now: Timestamp) -> u64 {
    let claims = [Claim::new(&limiter.limits()[0], b"k", 0)];
    limiter.local().peek_at(&claims, now)[0].remaining()
}

/// What both processes grant together while they are flooded: what the bucket held, twice, and its
/// rate, twice.
#[test]
fn handover_both_processes_flooded_grant_at_most_twice_what_the_bucket_held_and_twice_its_rate() {
    let clock = Clock::manual(START);
    let old = limiter(&ten_a_minute(), &clock);
    std::mem::forget(draw(&old, 3, START));
    let new = hand_over(&old, &clock);
    let mut now = START;
    let mut granted = 0;
    // Two minutes, in steps of five seconds.
    for _ in 0..=24 {
        for limiter in [&old, &new] {
            while let Some(mut permit) = draw(limiter, 1, now) {
                // No later refund of a forwarded request is due.
                permit.forwarded();
                granted += 1;
            }
        }
        now = now.after(Micros::from_secs(5));
        clock.advance(Micros::from_secs(5));
    }
    assert_eq!(granted, 2 * 7 + 2 * 20);
}

/// Requests of both processes that fail at their upstreams gain nothing beyond the same bound.
#[test]
fn handover_refunds_go_to_the_process_that_was_charged() {
    let clock = Clock::manual(START);
    let old = limiter(&ten_a_minute(), &clock);
    let mut before = draw(&old, 4, START).expect("it is full");
    let new = copied(&old, &clock);
    let during = draw(&old, 1, START).expect("five are left");
    // It waits until the copy is made.
    let credit = || Cause::Upstream.credit().expect("the upstream alone");
    before.refund("units", 1, credit());
    assert_eq!((left(&old, START), left(&new, START)), (5, 6));
    old.hand_to(Arc::new(Taken(new.clone())));
    assert_eq!((left(&old, START), left(&new, START)), (6, 7));
    let mut after = draw(&old, 2, START).expect("six are left");
    drop(before);
    assert_eq!(
        (left(&old, START), left(&new, START)),
        (7, 10),
        "drawn before"
    );
    drop(during);
    assert_eq!((left(&old, START), left(&new, START)), (8, 10));
    std::mem::forget(draw(&new, 5, START));
    after.refund("units", 2, credit());
    assert_eq!(
        (left(&old, START), left(&new, START)),
        (10, 5),
        "drawn later"
    );
}

/// No caller gains by a request that costs more than its estimate.
#[test]
fn handover_what_a_request_costs_more_is_charged_in_both_processes() {
    let clock = Clock::manual(START);
    let old = limiter(&ten_a_minute(), &clock);
    let mut before = draw(&old, 1, START).expect("it is full");
    let new = hand_over(&old, &clock);
    let mut after = draw(&old, 1, START).expect("nine are left");
    assert_eq!((left(&old, START), left(&new, START)), (8, 9));
    before.charge_more("units", 3);
    after.charge_more("units", 2);
    assert_eq!((left(&old, START), left(&new, START)), (3, 4));
    for permit in [&mut before, &mut after] {
        permit.forwarded();
    }
}

#[test]
fn handover_place_is_freed_in_both_processes_unless_its_request_began_later() {
    let clock = Clock::manual(START);
    let terms = fixtures::terms(Kind::InFlight, 3, Micros::from_secs(1));
    let old = limiter(&Arc::new(fixtures::limit("places", &terms)), &clock);
    let [first, second] = [(); 2].map(|()| draw(&old, 1, START).expect("a place"));
    let new = hand_over(&old, &clock);
    let third = draw(&old, 1, START).expect("a place");
    assert!(draw(&old, 1, START).is_none());
    drop(first);
    assert_eq!((left(&old, START), left(&new, START)), (1, 2));
    drop(third);
    assert_eq!((left(&old, START), left(&new, START)), (2, 2));
    drop(second);
    assert_eq!((left(&old, START), left(&new, START)), (3, 3));
}

#[test]
fn handover_refund_while_frozen_gives_back_its_grant() {
    let start = START;
    let terms = Terms {
        burst: Some(100),
        ..fixtures::terms(Kind::TokenBucket, 100, Micros::from_secs(60))
    };
    let limit = Arc::new(Limit {
        algorithm: Algorithm::new(&terms)
            .and_then(|rate| rate.following(Rate::new(10, Micros::from_secs(60))))
            .expect("within the rate"),
        ..fixtures::limit("gentle", &terms)
    });
    let limiter = Limiter::new(
        &[Arc::clone(&limit)],
        Arc::new(Backend::None),
        Clock::manual(start),
        ColdStart::Full,
    );
    // At half the rate a grant takes twice its cost.
    let halved = Conditions::Rate(RateConditions {
        factor: 512,
        ..RateConditions::AS_WRITTEN
    });
    let left = || {
        let looked = [Claim::new(&limit, b"k", 0)];
        limiter.local().peek_at(&looked, start)[0].remaining()
    };
    let claim = Claim {
        conditions: Some(&halved),
        ..Claim::new(&limit, b"k", 10)
    };
    assert!(limiter.local().draw_at(&[claim], start).granted);
    assert_eq!(left(), 80);
    limiter.begin_handover();
    let refund = Settlement {
        conditions: Some(&halved),
        ..Settlement::new(&limit, b"k", Change::Refund { units: 10 })
    };
    limiter.generation.settle_local(refund, DrawnFrom::Bucket);
    assert_eq!(left(), 80, "kept");
    limiter.abandon_handover();
    assert_eq!(left(), 100);
}

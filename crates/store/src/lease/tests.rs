mod hands;
mod slot;

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::held::Had;
use super::*;
use crate::batch::Wanted;
use crate::clock::Clock;
use crate::wire_form::Names;
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::fixtures::limit;
use tollgate_limit::lease::GRACE;
use tollgate_limit::{Align, Kind, Limit, Terms, Timestamp};

const START: Timestamp = Timestamp::from_micros(1_760_000_000_000_000);

fn leased(amount: u64, burst: u64) -> Limit {
    let terms = Terms {
        kind: Kind::TokenBucket,
        amount,
        period: Micros::from_secs(1),
        burst: Some(burst),
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        warm_up: Micros::ZERO,
        shared: true,
    };
    Limit {
        lease: true,
        ..limit("total", &terms)
    }
}

fn wanted(names: &Names, limit: &Limit) -> Wanted {
    Wanted {
        name: names.name(limit, b"k"),
        shape: names.shape(limit),
        cost: 1,
        enforced: true,
    }
}

/// A request on this limit alone.
fn ask(held: &Held, cost: u64, clock: &Clock) -> bool {
    held.count(cost, clock.boot());
    held.take(cost, clock)
}

#[test]
fn a_wish_is_as_large_as_the_demand_and_is_made_once() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, false);
    assert!(!ask(&held, 1, &clock));
    assert!(
        !held.is_low(clock.boot(), 2),
        "one request a life is not worth a lease"
    );
    for _ in 0..29 {
        assert!(!ask(&held, 1, &clock));
    }
    assert!(held.is_low(clock.boot(), 2));
    assert!(held.wish(&leases));
    assert!(!held.wish(&leases), "one is queued");
    let errands = leases.errands(10);
    assert!(matches!(errands.as_slice(), [Errand::Wish(_)]));
    let (wishing, used_up) = held.depart(&leases);
    assert_eq!(
        (wishing.wish().units, wishing.wish().needed, used_up.len()),
        (30, 0, 0)
    );
    assert!(!held.wish(&leases), "one is under way");
    wishing.answered(30, None, START, clock.boot());
    // Its quarter is left: time for the next.
    for taken in 1..=30 {
        assert!(ask(&held, 1, &clock));
        assert_eq!(held.is_low(clock.boot(), 2), taken >= 23, "{taken} taken");
    }
    let (_, used_up) = held.depart(&leases);
    assert_eq!(
        used_up.len(),
        1,
        "a lease that is used up makes room for the next"
    );
}

#[test]
fn lease_rest_goes_back_at_its_end_and_is_lost_when_late() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, false);
    let lease = |units| {
        let (wishing, _) = held.depart(&leases);
        let id = wishing.wish().id;
        wishing.answered(units, None, clock.now(), clock.boot());
        id
    };
    let id = lease(10);
    assert!(ask(&held, 3, &clock));
    clock.advance(Micros(99_000));
    assert!(leases.errands(10).is_empty(), "it has not ended");
    clock.advance(Micros(11_000));
    assert!(returned(&leases) == [(id, 7)]);
    assert!(!leases.any());
    lease(10);
    clock.advance(Micros::from_secs(1));
    assert!(leases.errands(10).is_empty(), "the store has forgotten it");
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 10);
    lease(10);
    leases.give_all_back();
    assert!(
        matches!(returned(&leases)[..], [(_, 10)]),
        "the gateway stops"
    );
    assert!(!ask(&held, 1, &clock));
    // One that was on its way then.
    let id = lease(10);
    assert!(returned(&leases) == [(id, 10)]);
}

#[test]
fn lease_return_that_comes_too_late_or_never_is_counted_as_forfeited() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    let lease_that_goes_back = |units| {
        let (wishing, _) = held.depart(&leases);
        wishing.answered(units, None, clock.now(), clock.boot());
        clock.advance(Micros(110_000));
        let errands = leases.errands(10);
        let [Errand::Return(returned)] = &errands[..] else {
            panic!("one lease goes back");
        };
        returned.clone()
    };
    let forfeited = || leases.counters.forfeited.load(Ordering::Relaxed);
    let returned = lease_that_goes_back(10);
    leases.returned([returned]);
    assert_eq!(forfeited(), 0, "the store counted it still");
    let returned = lease_that_goes_back(10);
    clock.advance(GRACE);
    leases.returned([returned]);
    assert_eq!(forfeited(), 10, "the answer came when it did no more");
    let returned = lease_that_goes_back(7);
    leases.again([returned]);
    leases.forfeit_untold();
    assert_eq!(forfeited(), 17, "the gateway has ended");
}

#[test]
fn lease_request_without_a_response_releases_the_next_and_wakes_waiters() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    let mut waits = held.wait(5, &leases);
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 5);
    assert_eq!(leases.errands(10).len(), 1);
    let mut comes_later = held.wait(2, &leases);
    assert!(leases.errands(10).is_empty());
    drop(wishing);
    let wishes = leases
        .errands(10)
        .into_iter()
        .filter(|errand| matches!(errand, Errand::Wish(_)));
    assert_eq!(wishes.count(), 1, "for who came later");
    assert!(
        waits
            .try_recv()
            .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Closed)
    );
    assert!(
        comes_later
            .try_recv()
            .is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty)
    );
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 2);
    wishing.answered(2, None, START, clock.boot());
    assert_eq!(comes_later.try_recv(), Ok(Had::Answer));
}

#[test]
fn lease_is_requested_for_waiters_that_remain() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    // The store hangs: caller after caller gives up, and one stays.
    for _ in 0..500 {
        drop(held.wait(1, &leases));
    }
    let stays = held.wait(3, &leases);
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 3);
    drop((wishing, stays));
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 0);
}

#[test]
fn lease_waiters_learn_of_units_without_a_lease() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    let answer = |level: Option<i64>| {
        let mut waits = held.wait(5, &leases);
        let (wishing, _) = held.depart(&leases);
        let state = level.map(|level| State::Level(Level { level, at: START }));
        wishing.answered(0, state.as_ref(), START, clock.boot());
        waits.try_recv()
    };
    assert_eq!(answer(None), Ok(Had::Nothing), "a full bucket");
    assert_eq!(answer(Some(0)), Ok(Had::Answer), "an empty one");
}

#[test]
fn lease_response_that_took_long_lasts_as_long_as_a_quick_one() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(1, 1000), &clock, false);
    assert!(held.wish(&leases));
    let (wishing, _) = held.depart(&leases);
    let sent = clock.boot();
    clock.advance(Micros(60_000));
    let empty = State::Level(Level {
        level: 0,
        at: START,
    });
    wishing.answered(0, Some(&empty), START, sent);
    assert!(held.is_known_empty(1, clock.boot()));
    clock.advance(Micros(49_999));
    assert!(held.is_known_empty(1, clock.boot()));
    clock.advance(Micros(1));
    assert!(
        !held.is_known_empty(1, clock.boot()),
        "others may have given units back"
    );
}

/// The place for leases of one bucket.
fn place_of(limit: Limit, clock: &Clock, is_cluster: bool) -> (Arc<Leases>, Arc<Held>) {
    let leases = Arc::new(Leases::new(clock.clone(), is_cluster));
    let held = leases.held(&wanted(&Names::new(b"secret"), &limit));
    (leases, held.expect("leased"))
}

/// A place for leases of a thousand units at a hundred a second, and what gives it one that was asked for just now.
fn place(clock: &Clock) -> (Arc<Leases>, Arc<Held>, impl Fn(u64, Option<u64>) -> u64) {
    let (leases, held) = place_of(leased(100, 1000), clock, false);
    let (of, by, clock) = (held.clone(), leases.clone(), clock.clone());
    let answer = move |units, level: Option<u64>| {
        let (wishing, _) = of.depart(&by);
        let id = wishing.wish().id;
        let state = level.map(|units| {
            State::Level(Level {
                level: of.shape().scaled(units),
                at: clock.now(),
            })
        });
        wishing.answered(units, state.as_ref(), clock.now(), clock.boot());
        id
    };
    (leases, held, answer)
}

/// What goes back: which leases, and what was left of them.
fn returned(leases: &Leases) -> Vec<(u64, u64)> {
    let errands = leases.errands(usize::MAX).into_iter();
    errands
        .filter_map(|errand| {
            if let Errand::Return(one) = errand {
                Some((one.id, one.units()))
            } else {
                None
            }
        })
        .collect()
}

#[test]
fn the_lease_that_ends_first_is_used_first_and_makes_room_for_a_third() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    let first = lease(2, None);
    clock.advance(Micros(1_000));
    let second = lease(5, None);
    assert!(ask(&held, 2, &clock), "of the first");
    clock.advance(Micros(1_000));
    // The first is used up and leaves its place to the third, which ends after the second.
    let third = lease(7, None);
    assert!(ask(&held, 1, &clock));
    assert!(returned(&leases).is_empty());
    // No place is free: what ends first goes back, with what is left of it.
    let fourth = lease(9, None);
    assert_eq!(returned(&leases), [(second, 4)]);
    assert_eq!(leases.counters.given_back.load(Ordering::Relaxed), 4);
    leases.give_all_back();
    let mut all = returned(&leases);
    all.sort_by_key(|(_, left)| *left);
    assert_eq!(all, [(third, 7), (fourth, 9)]);
    assert!(!leases.any() && first != second);
}

#[test]
fn leases_out_are_counted_as_they_come_and_make_room() {
    let clock = Clock::manual(START);
    let (leases, _held, lease) = place(&clock);
    for (turn, out) in [1, 2, 2, 2].into_iter().enumerate() {
        lease(5, None);
        assert_eq!(
            leases.counters.out.load(Ordering::Relaxed),
            out,
            "turn {turn}"
        );
    }
}

#[test]
fn a_lease_ends_by_when_it_was_asked_for_and_the_next_is_asked_for_before() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    for _ in 0..40 {
        assert!(!ask(&held, 1, &clock));
    }
    let (wishing, _) = held.depart(&leases);
    let sent = clock.boot();
    clock.advance(Micros(30_000));
    wishing.answered(40, None, clock.now(), sent);
    assert!(!held.is_low(clock.boot(), 2), "forty units for a while");
    clock.advance(Micros(44_000));
    assert!(!held.is_low(clock.boot(), 2));
    clock.advance(Micros(2_000));
    assert!(
        held.is_low(clock.boot(), 2),
        "its last quarter has begun: what it holds is as good as gone"
    );
    assert!(ask(&held, 1, &clock));
    clock.advance(Micros(24_000));
    assert!(
        !ask(&held, 1, &clock),
        "a life after it was asked for, whenever it came"
    );
}

#[test]
fn a_store_that_leased_nothing_is_left_alone_for_a_quarter_of_a_life() {
    let clock = Clock::manual(START);
    let (_leases, held, lease) = place(&clock);
    for _ in 0..40 {
        assert!(!ask(&held, 1, &clock));
    }
    assert!(held.is_low(clock.boot(), 2));
    lease(0, Some(0));
    assert!(!held.is_low(clock.boot(), 2));
    clock.advance(Micros(24_999));
    assert!(!held.is_low(clock.boot(), 2));
    clock.advance(Micros(1));
    assert!(held.is_low(clock.boot(), 2));
}

#[test]
fn lease_request_covers_the_demand_of_its_lifetime() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    for _ in 0..39 {
        assert!(!ask(&held, 1, &clock));
    }
    // Two lives of a hundred milliseconds.
    clock.advance(Micros(200_000));
    assert!(!ask(&held, 1, &clock));
    assert_eq!(held.depart(&leases).0.wish().units, 20);
    let waits = held.wait(300, &leases);
    assert_eq!(
        held.depart(&leases).0.wish().units,
        300,
        "and all that the waiting requests need"
    );
    drop(waits);
}

#[test]
fn lease_remaining_includes_units_of_the_store_and_held_ones() {
    let clock = Clock::manual(START);
    let (_leases, held, lease) = place(&clock);
    let told = || held.standing(1, true, clock.boot()).remaining;
    lease(10, Some(500));
    assert_eq!(told(), 500, "the lease is of these");
    assert!(ask(&held, 4, &clock));
    assert_eq!(told(), 496);
    clock.advance(Micros(50_000));
    assert_eq!(told(), 501, "five came since");
    lease(10, None);
    clock.advance(Micros(90_000));
    assert_eq!(told(), 1000, "never more than the burst");
}

#[test]
fn lease_refused_request_that_fits_alone_learns_there_is_no_lease() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    let mut waits = [900, 5].map(|cost| held.wait(cost, &leases));
    let (wishing, _) = held.depart(&leases);
    let state = State::Level(Level {
        level: held.shape().scaled(500),
        at: START,
    });
    wishing.answered(0, Some(&state), START, clock.boot());
    assert_eq!(
        waits.each_mut().map(|one| one.try_recv()),
        [Ok(Had::Nothing), Ok(Had::Nothing)]
    );
}

#[test]
fn lease_of_other_numbers_goes_back_when_they_change() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, false);
    let (wishing, _) = held.depart(&leases);
    let id = wishing.wish().id;
    wishing.answered(10, None, START, clock.boot());
    let names = Names::new(b"secret");
    let changed = leases.held(&wanted(&names, &leased(100, 2000)));
    let changed = changed.expect("leased");
    assert_eq!(returned(&leases), [(id, 10)]);
    assert!(!ask(&held, 1, &clock) && !ask(&changed, 1, &clock));
}

#[test]
fn a_full_table_leases_no_more_until_some_buckets_have_stood_idle() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (
        Arc::new(Leases::new(clock.clone(), false)),
        Names::new(b"secret"),
        leased(100, 1000),
    );
    let shape = names.shape(&total);
    let wanted = |key: usize| Wanted {
        name: names.name(&total, &key.to_be_bytes()),
        shape: shape.clone(),
        cost: 1,
        enforced: true,
    };
    let many = SHARDS * SHARD_MAX * 3 / 2;
    let kept = (0..many)
        .filter(|key| leases.held(&wanted(*key)).is_some())
        .count();
    assert_eq!(kept, SHARDS * SHARD_MAX);
    assert!(leases.held(&wanted(many)).is_none());
    clock.advance(Micros(1_000_000));
    assert!(
        leases.held(&wanted(many)).is_none(),
        "asked for within ten lives of a lease"
    );
    // One bucket holds a lease and one wishes for it: both stay.
    let shard = |key: usize| (wanted(key).name.hash as usize >> 7) % SHARDS;
    let beside: Vec<_> = (0..many)
        .filter(|key| shard(*key) == shard(many))
        .take(2)
        .collect();
    let [leasing, wishing] =
        [beside[0], beside[1]].map(|key| leases.held(&wanted(key)).expect("known"));
    assert!(wishing.wish(&leases));
    leasing
        .depart(&leases)
        .0
        .answered(5, None, START, clock.boot());
    clock.advance(Micros(1));
    assert!(leases.held(&wanted(many)).is_some());
    for (key, held) in beside.iter().zip([leasing, wishing]) {
        assert!(Arc::ptr_eq(
            &held,
            &leases.held(&wanted(*key)).expect("known")
        ));
    }
}

#[test]
fn lease_errands_beyond_one_call_wait_for_the_next() {
    let clock = Clock::manual(START);
    let (leases, _held, lease) = place(&clock);
    for _ in 0..5 {
        lease(5, None);
    }
    assert_eq!(leases.errands(2).len(), 2);
    assert_eq!((leases.errands(2).len(), leases.errands(2).len()), (1, 0));
}

#[test]
fn a_lease_that_requests_wait_for_is_theirs_when_the_gateway_stops() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    leases.give_all_back();
    let mut waits = held.wait(3, &leases);
    lease(3, None);
    assert_eq!(waits.try_recv(), Ok(Had::Answer));
    assert!(ask(&held, 3, &clock));
}

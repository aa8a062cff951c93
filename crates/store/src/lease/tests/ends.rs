//! The life of a lease: which one is used first, when it ends, and what goes back.

use super::*;
use tollgate_limit::lease::GRACE;

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
    assert!(leases.tasks(10).is_empty(), "it has not ended");
    clock.advance(Micros(11_000));
    assert!(returned(&leases) == [(id, 7)]);
    assert!(!leases.any());
    lease(10);
    clock.advance(Micros::from_secs(1));
    assert!(leases.tasks(10).is_empty(), "the store has forgotten it");
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
        let tasks = leases.tasks(10);
        let [Errand::Return(returned)] = &tasks[..] else {
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
fn a_lease_that_requests_wait_for_is_theirs_when_the_gateway_stops() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    leases.give_all_back();
    let mut waits = held.wait(3, &leases);
    lease(3, None);
    assert_eq!(waits.try_recv(), Ok(Had::Answer));
    assert!(ask(&held, 3, &clock));
}

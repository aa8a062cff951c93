//! The life of a lease: which one is used first, when it ends, and what goes back.

use super::*;
use tollgate_limit::lease::GRACE;

#[test]
fn lease_rest_goes_back_at_its_end_and_is_lost_when_late() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    lease(10, None);
    assert!(ask(&held, 3, &clock));
    clock.advance(Micros(990_000));
    assert!(leases.tasks_of(10, |_| true).is_empty(), "it has not ended");
    clock.advance(Micros(11_000));
    assert_eq!(returned(&leases), [(10, 7)]);
    assert!(returned(&leases).is_empty() && !leases.any(), "once");
    lease(10, None);
    clock.advance(Micros::from_secs(2));
    assert!(
        leases.tasks_of(10, |_| true).is_empty(),
        "the store has forgotten it"
    );
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 10);
    lease(10, None);
    leases.give_all_back();
    assert_eq!(returned(&leases), [(10, 10)], "the gateway stops");
    assert!(!ask(&held, 1, &clock));
    // One that was on its way then.
    lease(10, None);
    assert_eq!(returned(&leases), [(10, 10)]);
}

#[test]
fn lease_return_names_the_slot_in_which_the_store_counts_it() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    // The bucket was drawn from half a second ahead of the store's clock, which was put back.
    let at = START.after(Micros(500_000));
    let state = State::Level(Level { level: 0, at });
    let (pending, _) = held.depart(&leases);
    pending.answered(10, Some(&state), START, clock.boot());
    leases.give_all_back();
    let tasks = leases.tasks_of(10, |_| true);
    let [Errand::Return(returned)] = &tasks[..] else {
        panic!("one lease goes back")
    };
    assert_eq!(returned.back.until, held.terms.until(at));
}

#[test]
fn lease_return_that_comes_too_late_or_never_is_counted_as_forfeited() {
    let clock = Clock::manual(START);
    let (leases, _held, lease) = place(&clock);
    let lease_that_goes_back = |units| {
        lease(units, None);
        clock.advance(Micros(1_010_000));
        let tasks = leases.tasks_of(10, |_| true);
        let [Errand::Return(returned)] = &tasks[..] else {
            panic!("one lease goes back");
        };
        returned.clone()
    };
    let forfeited = || leases.counters.forfeited.load(Ordering::Relaxed);
    let back = lease_that_goes_back(10);
    leases.returned(back.back.left, back.in_time);
    assert_eq!(forfeited(), 0, "the store counted it still");
    let back = lease_that_goes_back(10);
    clock.advance(GRACE);
    leases.returned(back.back.left, back.in_time);
    assert_eq!(forfeited(), 10, "the answer came when it did no more");
    let back = lease_that_goes_back(7);
    leases.queue(Errand::Return(back));
    leases.forfeit_unsent();
    assert_eq!(forfeited(), 17, "the gateway has ended");
}

#[test]
fn the_lease_that_ends_first_is_used_first_and_makes_room_for_a_third() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    lease(2, None);
    clock.advance(Micros(1_000));
    lease(5, None);
    assert!(ask(&held, 2, &clock), "of the first");
    clock.advance(Micros(1_000));
    // The first is used up and leaves its place to the third, which ends after the second.
    lease(7, None);
    assert!(ask(&held, 1, &clock));
    assert!(returned(&leases).is_empty());
    // No place is free: what ends first goes back, with what is left of it.
    lease(9, None);
    assert_eq!(returned(&leases), [(5, 4)]);
    assert_eq!(leases.counters.given_back.load(Ordering::Relaxed), 4);
    leases.give_all_back();
    let mut all = returned(&leases);
    all.sort_by_key(|(_, left)| *left);
    assert_eq!(all, [(7, 7), (9, 9)]);
    assert!(!leases.any());
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
    let (pending, _) = held.depart(&leases);
    let sent = clock.boot();
    clock.advance(Micros(300_000));
    pending.answered(40, None, clock.now(), sent);
    assert!(!is_low(&leases, &held, 2), "forty units for a while");
    clock.advance(Micros(440_000));
    assert!(!is_low(&leases, &held, 2));
    clock.advance(Micros(20_000));
    assert!(
        is_low(&leases, &held, 2),
        "its last quarter has begun: what it holds is as good as gone"
    );
    assert!(ask(&held, 1, &clock));
    clock.advance(Micros(240_000));
    assert!(
        !ask(&held, 1, &clock),
        "a life after it was asked for, whenever it came"
    );
}

#[test]
fn lease_of_other_numbers_goes_back_when_they_change() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, false);
    let (pending, _) = held.depart(&leases);
    pending.answered(10, None, START, clock.boot());
    let names = Names::new(b"secret");
    let changed = leases.held(&wanted(&names, &leased(100, 2000)));
    let changed = changed.expect("leased");
    assert_eq!(returned(&leases), [(10, 10)]);
    assert!(!ask(&held, 1, &clock) && !ask(&changed, 1, &clock));
}

#[test]
fn a_lease_that_requests_wait_for_is_theirs_when_the_gateway_stops() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    leases.give_all_back();
    let mut waits = held.wait(3, &leases);
    lease(3, None);
    assert_eq!(waits.try_recv(), Ok(()));
    assert!(ask(&held, 3, &clock));
}

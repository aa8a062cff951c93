//! Requests for a lease: when one is made, how large it is, and what the waiting requests learn.

use super::*;

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
    let tasks = leases.tasks(10);
    assert!(matches!(tasks.as_slice(), [Errand::Wish(_)]));
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
fn lease_request_without_a_response_releases_the_next_and_wakes_waiters() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    let mut waits = held.wait(5, &leases);
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 5);
    assert_eq!(leases.tasks(10).len(), 1);
    let mut comes_later = held.wait(2, &leases);
    assert!(leases.tasks(10).is_empty());
    drop(wishing);
    let wishes = leases
        .tasks(10)
        .into_iter()
        .filter(|errand| matches!(errand, Errand::Wish(_)));
    assert_eq!(wishes.count(), 1, "for the request that came later");
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

#[test]
fn lease_errands_beyond_one_call_wait_for_the_next() {
    let clock = Clock::manual(START);
    let (leases, _held, lease) = place(&clock);
    for _ in 0..5 {
        lease(5, None);
    }
    assert_eq!(leases.tasks(2).len(), 2);
    assert_eq!((leases.tasks(2).len(), leases.tasks(2).len()), (1, 0));
}

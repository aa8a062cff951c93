//! Requests for a lease: when one is made, how large it is, and what the waiting requests learn.

use super::*;

#[test]
fn lease_request_is_as_large_as_the_demand_and_is_made_once() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, false);
    assert!(!ask(&held, 1, &clock));
    assert!(
        !is_low(&leases, &held, 2),
        "one request a life is not worth a lease"
    );
    for _ in 0..29 {
        assert!(!ask(&held, 1, &clock));
    }
    assert!(is_low(&leases, &held, 2));
    assert!(held.renew(&leases));
    assert!(!held.renew(&leases), "one is queued");
    let tasks = leases.tasks_of(10, |_| true);
    assert!(matches!(tasks.as_slice(), [Errand::Renew(_)]));
    let (pending, used_up) = held.depart(&leases);
    assert_eq!(
        (
            pending.request().units,
            pending.request().needed,
            used_up.len()
        ),
        (30, 0, 0)
    );
    assert!(!held.renew(&leases), "one is under way");
    pending.answered(30, None, START, clock.boot());
    // Its quarter is left: time for the next.
    for taken in 1..=30 {
        assert!(ask(&held, 1, &clock));
        assert_eq!(is_low(&leases, &held, 2), taken >= 23, "{taken} taken");
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
    // Two lives of a second.
    clock.advance(Micros(2_000_000));
    assert!(!ask(&held, 1, &clock));
    assert_eq!(held.depart(&leases).0.request().units, 20);
    let waits = held.wait(300, &leases);
    assert_eq!(
        held.depart(&leases).0.request().units,
        300,
        "and all that the waiting requests need"
    );
    drop(waits);
}

#[test]
fn a_store_that_leased_nothing_is_left_alone_for_four_lives() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    for _ in 0..40 {
        assert!(!ask(&held, 1, &clock));
    }
    assert!(is_low(&leases, &held, 2));
    lease(0, Some(0));
    assert!(!is_low(&leases, &held, 2));
    clock.advance(Micros(3_999_999));
    assert!(!is_low(&leases, &held, 2));
    clock.advance(Micros(1));
    assert!(is_low(&leases, &held, 2));
}

#[test]
fn lease_request_without_a_response_releases_the_next_and_wakes_waiters() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(100, 1000), &clock, true);
    let mut waits = held.wait(5, &leases);
    let (pending, _) = held.depart(&leases);
    assert_eq!(pending.request().needed, 5);
    assert_eq!(leases.tasks_of(10, |_| true).len(), 1);
    let mut comes_later = held.wait(2, &leases);
    assert!(leases.tasks_of(10, |_| true).is_empty());
    drop(pending);
    let requests = leases
        .tasks_of(10, |_| true)
        .into_iter()
        .filter(|errand| matches!(errand, Errand::Renew(_)));
    assert_eq!(requests.count(), 1, "for the request that came later");
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
    let (pending, _) = held.depart(&leases);
    assert_eq!(pending.request().needed, 2);
    pending.answered(2, None, START, clock.boot());
    assert_eq!(comes_later.try_recv(), Ok(()));
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
    let (pending, _) = held.depart(&leases);
    assert_eq!(pending.request().needed, 3);
    drop((pending, stays));
    let (pending, _) = held.depart(&leases);
    assert_eq!(pending.request().needed, 0);
}

/// A tenth of the burst is for all gateways, two leases for each.
#[test]
fn lease_request_is_no_larger_than_the_gateways_share() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    for _ in 0..90 {
        assert!(!ask(&held, 1, &clock));
    }
    for (gateways, units) in [(0, 50), (1, 50), (5, 10), (25, 2), (50, 2)] {
        leases.shared_by(gateways);
        assert_eq!(held.depart(&leases).0.request().units, units);
        assert!(is_low(&leases, &held, 2));
    }
    leases.shared_by(51);
    assert!(!is_low(&leases, &held, 2), "a single unit saves no call");
}

/// One call renews the leases of all buckets that are half used.
#[test]
fn lease_renewal_takes_those_along_that_are_half_used() {
    let clock = Clock::manual(START);
    let leases = Arc::new(Leases::new(clock.clone(), false));
    let (names, total) = (Names::new(b"secret"), leased(100, 1000));
    let shape = names.shape(&total);
    let held = [b"a", b"b", b"c"].map(|key| {
        let name = names.name(&total, key);
        let wanted = Wanted {
            name,
            shape: shape.clone(),
            cost: 1,
            enforced: true,
        };
        let held = leases.held(&wanted).expect("leased");
        for _ in 0..40 {
            assert!(!ask(&held, 1, &clock));
        }
        let (pending, _) = held.depart(&leases);
        pending.answered(40, None, START, clock.boot());
        held
    });
    for (held, taken) in held.iter().zip([30, 20, 19]) {
        for _ in 0..taken {
            assert!(ask(held, 1, &clock));
        }
    }
    clock.advance(SWEEP);
    assert!(
        leases.tasks_of(10, |_| true).is_empty(),
        "none is asked for"
    );
    clock.advance(SWEEP);
    assert!(is_low(&leases, &held[0], 2) && held[0].renew(&leases));
    let renewed: Vec<_> = leases
        .tasks_of(10, |_| true)
        .iter()
        .map(|one| *one.name())
        .collect();
    assert_eq!(renewed.len(), 2);
    assert!(renewed[0].hash == held[0].name.hash && renewed[1].hash == held[1].name.hash);
}

#[test]
fn lease_response_that_took_long_lasts_as_long_as_a_quick_one() {
    let clock = Clock::manual(START);
    let (leases, held) = place_of(leased(1, 1000), &clock, false);
    assert!(held.renew(&leases));
    let (pending, _) = held.depart(&leases);
    let sent = clock.boot();
    clock.advance(Micros(60_000));
    let empty = State::Level(Level {
        level: 0,
        at: START,
    });
    pending.answered(0, Some(&empty), START, sent);
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
    assert_eq!(leases.tasks_of(2, |_| true).len(), 2);
    assert_eq!(
        (
            leases.tasks_of(2, |_| true).len(),
            leases.tasks_of(2, |_| true).len()
        ),
        (1, 0)
    );
}

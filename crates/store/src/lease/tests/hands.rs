//! Units that requests hold while their leases come and go.

use super::*;

#[test]
fn units_in_hand_when_their_lease_is_returned_follow_it_if_they_are_not_granted() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    let in_hand = |cost| held.take_in_hand(cost, &clock).expect("units");
    lease(5, None);
    let (two, three) = (in_hand(2), in_hand(3));
    assert!(!held.decided(two, 2, false, &leases), "its lease is here");
    let two = in_hand(2);
    // Used up, as all of its units are in hand: the next lease takes its place.
    lease(7, None);
    assert!(!held.decided(three, 3, true, &leases), "granted");
    assert!(held.decided(two, 2, false, &leases));
    assert_eq!(returned(&leases), [(2, 2)], "the store counts them yet");
    // It has ended.
    let one = in_hand(1);
    clock.advance(Micros(1_000_000));
    assert_eq!(returned(&leases), [(6, 6)]);
    assert!(held.decided(one, 1, false, &leases));
    assert_eq!(returned(&leases), [(1, 1)]);
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 0);
    // A request that is decided when the store has forgotten its unit.
    lease(5, None);
    let one = in_hand(1);
    clock.advance(Micros(1_300_000));
    assert!(returned(&leases).is_empty());
    held.decided(one, 1, false, &leases);
    assert!(returned(&leases).is_empty());
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 5);
}

#[test]
fn threads_that_hold_units_while_leases_come_and_go_lose_none() {
    let clock = Clock::manual(START);
    let (leases, held, _) = place(&clock);
    let (granted, stop) = (AtomicU64::new(0), AtomicU64::new(0));
    let (mut leased, mut back) = (0, 0);
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (clock, leases, held, granted, stop) = (&clock, &leases, &held, &granted, &stop);
            scope.spawn(move || {
                let mut random = fastrand::Rng::with_seed(thread);
                let mut hands = Vec::new();
                loop {
                    let cost = random.u64(1..4);
                    if let Some(origin) = held.take_in_hand(cost, clock) {
                        hands.push((origin, cost));
                    } else {
                        std::thread::yield_now();
                    }
                    let stopped = stop.load(Ordering::Acquire) > 0;
                    while hands.len() > if stopped { 0 } else { 3 } {
                        let (origin, cost) = hands.swap_remove(random.usize(..hands.len()));
                        let is_granted = random.bool();
                        granted.fetch_add(if is_granted { cost } else { 0 }, Ordering::Relaxed);
                        held.decided(origin, cost, is_granted, leases);
                    }
                    if stopped {
                        return;
                    }
                }
            });
        }
        // On a busy machine the others may not have begun by the end of it.
        let mut turn = 0;
        while turn < 2_000 || (granted.load(Ordering::Relaxed) == 0 && turn < 1_000_000) {
            turn += 1;
            leased += 20;
            // One that is used up goes back with the request for the next, with units that were put back at that moment.
            let (pending, used_up) = held.depart(&leases);
            back += used_up.iter().map(|one| one.back.left).sum::<u64>();
            pending.answered(20, None, START, clock.boot());
            std::thread::yield_now();
        }
        stop.store(1, Ordering::Release);
    });
    clock.advance(Micros(1_000_000));
    back += returned(&leases).iter().map(|(_, left)| left).sum::<u64>();
    let granted = granted.into_inner();
    assert!(granted > 0);
    assert_eq!(granted + back, leased);
}

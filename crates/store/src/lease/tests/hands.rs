//! Units that requests hold while their leases come and go, and returns that are lost.

use super::*;

#[test]
fn units_in_hand_when_their_lease_leaves_go_back_with_it_once_they_are_decided() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    let in_hand = |cost| held.take_in_hand(cost, &clock).expect("units");
    // Used up, as all of its units are in hand: the next lease takes its place, and it waits.
    let id = lease(5, None);
    let (two, three) = (in_hand(2), in_hand(3));
    let next = lease(7, None);
    assert!(returned(&leases).is_empty());
    assert!(!held.decided(two, 2, &leases), "three are in hand yet");
    assert!(held.decided(three, 0, &leases));
    assert_eq!(
        returned(&leases),
        [(id, 2)],
        "three were granted and two not"
    );
    // It has ended.
    let one = in_hand(1);
    clock.advance(Micros(100_000));
    assert!(returned(&leases).is_empty() && leases.any());
    assert!(held.decided(one, 1, &leases));
    assert_eq!(returned(&leases), [(next, 7)]);
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 0);
}

#[test]
fn units_in_hand_for_too_long_are_forfeited_and_the_rest_of_their_lease_is_not() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    let id = lease(5, None);
    let two = held.take_in_hand(2, &clock).expect("units");
    clock.advance(Micros(199_000));
    assert!(returned(&leases).is_empty());
    clock.advance(Micros(10_000));
    assert_eq!(returned(&leases), [(id, 3)], "the store still counts it");
    assert!(!held.decided(two, 2, &leases));
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 2);
    // The gateway stops.
    let id = lease(5, None);
    let two = held.take_in_hand(2, &clock).expect("units");
    leases.give_all_back();
    assert_eq!(returned(&leases), [(id, 3)]);
    assert!(!held.decided(two, 0, &leases));
}

#[test]
fn lease_return_lost_is_sent_again_as_long_as_it_matters() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
    let id = lease(5, None);
    clock.advance(Micros(100_000));
    let lost = || {
        let returns = leases.tasks(10).into_iter().map(|errand| match errand {
            Errand::Return(one) => one,
            Errand::Wish(_) => unreachable!("nothing is wished for"),
        });
        let returns: Vec<_> = returns.collect();
        leases.again(returns.clone());
        returns.iter().map(|one| one.id).collect::<Vec<_>>()
    };
    assert_eq!(lost(), [id]);
    assert!(lost().is_empty() && leases.any(), "with the next sweep");
    clock.advance(Micros(10_000));
    assert_eq!(lost(), [id]);
    clock.advance(Micros(200_000));
    assert!(
        lost().is_empty() && !leases.any(),
        "the store has forgotten it"
    );
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 5);
    // A wish whose answer is lost: what it may have brought goes back whole.
    let (wishing, _) = held.depart(&leases);
    let id = wishing.wish().id;
    drop(wishing);
    clock.advance(Micros(10_000));
    assert_eq!(lost(), [id]);
}

#[test]
fn threads_that_hold_units_while_leases_come_and_go_lose_none() {
    let clock = Clock::manual(START);
    let (leases, held, lease) = place(&clock);
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
                        let back = if random.bool() { cost } else { 0 };
                        granted.fetch_add(cost - back, Ordering::Relaxed);
                        held.decided(origin, back, leases);
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
            // One that is used up goes back with the wish for the next, with units that were put back at that moment.
            let (wishing, used_up) = held.depart(&leases);
            back += used_up.iter().map(Return::units).sum::<u64>();
            wishing.answered(20, None, START, clock.boot());
            std::thread::yield_now();
        }
        stop.store(1, Ordering::Release);
    });
    clock.advance(Micros(100_000));
    back += returned(&leases).iter().map(|(_, left)| left).sum::<u64>();
    let granted = granted.into_inner();
    assert!(granted > 0);
    assert_eq!(granted + back, leased);
    drop(lease);
}

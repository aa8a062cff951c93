use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::held::Had;
use super::slot::Slot;
use super::*;
use crate::clock::Clock;
use crate::limit::bucket::{Level, State};
use crate::limit::fixtures::limit;
use crate::limit::{Align, Kind, Limit, Terms, Timestamp};
use crate::store::batch::Wanted;
use crate::store::shape::Names;

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
    Limit { lease: true, ..limit("total", &terms) }
}

fn wanted(names: &Names, limit: &Limit) -> Wanted {
    Wanted { name: names.name(limit, b"k"), shape: names.shape(limit), cost: 1, enforced: true }
}

#[test]
fn nothing_is_taken_at_the_deadline_or_after() {
    let (clock, slot) = (Clock::manual(START), Slot::default());
    assert_eq!(slot.take(0, &clock), None, "no lease");
    slot.fill(7, 2, START.after(Micros(100)));
    clock.advance(Micros(99));
    assert!(slot.take(1, &clock).is_some());
    clock.advance(Micros(1));
    assert_eq!(slot.take(1, &clock), None);
    assert_eq!(slot.empty(), Some((7, 1)), "what is left goes back");
    assert_eq!(slot.empty(), None, "once");
}

#[test]
fn units_put_back_after_the_lease_was_emptied_are_lost() {
    let (clock, slot) = (Clock::manual(START), Slot::default());
    slot.fill(7, 3, START.after(Micros(100)));
    let turn = slot.take(2, &clock).expect("two of three");
    assert_eq!(slot.empty(), Some((7, 1)));
    slot.put_back(turn, 2);
    assert_eq!(slot.left(), 0);
    slot.fill(8, 5, START.after(Micros(100)));
    slot.put_back(turn, 2);
    assert_eq!(slot.left(), 5, "nor do they come to the next one");
}

#[test]
fn threads_that_take_put_back_and_empty_never_make_a_unit() {
    let (clock, slot, gone) = (Clock::manual(START), Slot::default(), AtomicU64::new(0));
    const LEASES: u64 = 2_000;
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (clock, slot, gone) = (&clock, &slot, &gone);
            scope.spawn(move || {
                let mut turn = thread;
                while gone.load(Ordering::Relaxed) >> 63 == 0 {
                    turn += 1;
                    match slot.take(1 + turn % 3, clock) {
                        Some(taken) if turn.is_multiple_of(2) => slot.put_back(taken, 1 + turn % 3),
                        Some(_) => drop(gone.fetch_add(1 + turn % 3, Ordering::Relaxed)),
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
        let mut left = 0;
        for id in 1..=LEASES {
            slot.fill(id, 100, START.after(Micros(1)));
            std::thread::yield_now();
            left += slot.empty().expect("a lease").1;
        }
        let gone = gone.fetch_or(1 << 63, Ordering::Relaxed);
        assert!(gone + left <= LEASES * 100, "{gone} and {left}");
        assert!(gone > 0);
    });
}

#[test]
fn a_wish_is_as_large_as_the_demand_and_is_made_once() {
    let clock = Clock::manual(START);
    let (leases, names, total) =
        (Arc::new(Leases::new(clock.clone(), false)), Names::new(b"secret"), leased(100, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
    assert_eq!(held.take(1, &clock), None);
    assert!(!held.is_low(clock.boot(), 2), "one request a life is not worth a lease");
    for _ in 0..29 {
        assert_eq!(held.take(1, &clock), None);
    }
    assert!(held.is_low(clock.boot(), 2));
    assert!(held.wish(&leases));
    assert!(!held.wish(&leases), "one is queued");
    let errands = leases.errands(10);
    assert!(matches!(errands.as_slice(), [Errand::Wish(_)]));
    let (wishing, used_up) = held.depart(&leases);
    assert_eq!((wishing.wish().units, wishing.wish().needed, used_up.len()), (30, 0, 0));
    assert!(!held.wish(&leases), "one is under way");
    wishing.answered(30, None, START, clock.boot());
    // Its quarter is left: time for the next.
    for taken in 1..=30 {
        assert!(held.take(1, &clock).is_some());
        assert_eq!(held.is_low(clock.boot(), 2), taken >= 23, "{taken} taken");
    }
    let (_, used_up) = held.depart(&leases);
    assert_eq!(used_up.len(), 1, "a lease that is used up makes room for the next");
}

#[test]
fn what_is_left_goes_back_at_the_end_and_is_lost_when_that_is_late() {
    let clock = Clock::manual(START);
    let (leases, names, total) =
        (Arc::new(Leases::new(clock.clone(), false)), Names::new(b"secret"), leased(100, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
    let lease = |units| {
        let (wishing, _) = held.depart(&leases);
        let id = wishing.wish().id;
        wishing.answered(units, None, clock.now(), clock.boot());
        id
    };
    let id = lease(10);
    assert!(held.take(3, &clock).is_some());
    clock.advance(Micros(99_000));
    assert!(leases.errands(10).is_empty(), "it has not ended");
    clock.advance(Micros(11_000));
    assert!(matches!(leases.errands(10).as_slice(), [Errand::Return(_, back, 7)] if *back == id));
    assert!(!leases.any());
    lease(10);
    clock.advance(Micros::from_secs(1));
    assert!(leases.errands(10).is_empty(), "the store has forgotten it");
    assert_eq!(leases.counters.forfeited.load(Ordering::Relaxed), 10);
    lease(10);
    leases.give_all_back();
    assert!(matches!(leases.errands(10).as_slice(), [Errand::Return(_, _, 10)]), "the gateway stops");
    assert_eq!(held.take(1, &clock), None);
    // One that was on its way then.
    let id = lease(10);
    assert!(matches!(leases.errands(10).as_slice(), [Errand::Return(_, back, 10)] if *back == id));
}

#[test]
fn a_wish_that_is_not_answered_lets_the_next_one_go_and_tells_who_waits() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (Arc::new(Leases::new(clock.clone(), true)), Names::new(b"secret"), leased(100, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
    let mut waits = held.wait(5, &leases);
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 5);
    let mut comes_later = held.wait(2, &leases);
    drop(wishing);
    assert!(waits.try_recv().is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Closed));
    assert!(comes_later.try_recv().is_err_and(|error| error == tokio::sync::oneshot::error::TryRecvError::Empty));
    let (wishing, _) = held.depart(&leases);
    assert_eq!(wishing.wish().needed, 2);
    wishing.answered(2, None, START, clock.boot());
    assert_eq!(comes_later.try_recv(), Ok(Had::Answer));
}

#[test]
fn units_are_wished_for_those_who_still_wait() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (Arc::new(Leases::new(clock.clone(), true)), Names::new(b"secret"), leased(100, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
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
fn who_waits_is_told_when_there_are_units_and_no_lease_of_them() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (Arc::new(Leases::new(clock.clone(), true)), Names::new(b"secret"), leased(100, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
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
fn an_answer_that_took_long_is_believed_as_long_as_a_quick_one() {
    let clock = Clock::manual(START);
    let (leases, names, total) = (Arc::new(Leases::new(clock.clone(), false)), Names::new(b"secret"), leased(1, 1000));
    let held = leases.held(&wanted(&names, &total)).expect("leased");
    assert!(held.wish(&leases));
    let (wishing, _) = held.depart(&leases);
    let sent = clock.boot();
    clock.advance(Micros(60_000));
    let empty = State::Level(Level { level: 0, at: START });
    wishing.answered(0, Some(&empty), START, sent);
    assert!(held.is_known_empty(1, clock.boot()));
    clock.advance(Micros(49_999));
    assert!(held.is_known_empty(1, clock.boot()));
    clock.advance(Micros(1));
    assert!(!held.is_known_empty(1, clock.boot()), "others may have given units back");
}

//! The units of one lease, taken and put back by several threads.

use std::sync::atomic::{AtomicU64, Ordering};

use super::START;
use crate::clock::Clock;
use crate::lease::slot::{Slot, Turn};
use tollgate_limit::lease::Return;
use tollgate_limit::{Micros, Timestamp};

/// Until when the store counts a lease.
const END: Timestamp = Timestamp::from_micros(1_770_000_000_000_000);

fn take(slot: &Slot, cost: u64, clock: &Clock) -> Option<Turn> {
    slot.take_at(cost, || clock.boot().as_micros())
}

#[test]
fn lease_at_its_deadline_or_after_gives_nothing() {
    let (clock, slot) = (Clock::manual(START), <Slot>::default());
    assert_eq!(take(&slot, 0, &clock), None, "no lease");
    slot.fill(2, END, START.after(Micros(100)));
    clock.advance(Micros(99));
    assert!(take(&slot, 1, &clock).is_some());
    clock.advance(Micros(1));
    assert_eq!(take(&slot, 1, &clock), None);
    let back = |units, left| {
        let until = END;
        Some(Return { until, units, left })
    };
    assert_eq!(slot.empty(), back(2, 1), "what is left goes back");
    assert_eq!(slot.empty(), None, "once");
}

#[test]
fn lease_deadline_passed_while_a_thread_takes_gives_nothing() {
    let (slot, reads) = (<Slot>::default(), AtomicU64::new(0));
    slot.fill(2, END, Timestamp::from_micros(20));
    // In time at the first look at the clock, and no more at the next.
    let taken = slot.take_at(1, || 15 + 10 * reads.fetch_add(1, Ordering::Relaxed));
    assert_eq!((taken, slot.left()), (None, 2));
    assert!(
        slot.take_at(1, || 15).is_some(),
        "the units are still there for who is in time"
    );
}

#[test]
fn lease_emptied_units_put_back_later_are_lost() {
    let (clock, slot) = (Clock::manual(START), <Slot>::default());
    slot.fill(3, END, START.after(Micros(100)));
    let turn = take(&slot, 2, &clock).expect("two of three");
    assert_eq!(slot.empty().expect("a lease").left, 1);
    slot.put_back(turn, 2);
    assert_eq!(slot.left(), 0);
    assert_eq!(take(&slot, 0, &clock), None, "not even nothing");
    slot.fill(5, END, START.after(Micros(100)));
    slot.put_back(turn, 2);
    assert_eq!(slot.left(), 5, "nor do they come to the next one");
}

#[test]
fn lease_taken_put_back_and_emptied_by_threads_makes_no_unit() {
    let (clock, slot, gone) = (Clock::manual(START), <Slot>::default(), AtomicU64::new(0));
    const LEASES: u64 = 2_000;
    std::thread::scope(|scope| {
        for thread in 0..3_u64 {
            let (clock, slot, gone) = (&clock, &slot, &gone);
            scope.spawn(move || {
                let mut turn = thread;
                while gone.load(Ordering::Relaxed) >> 63 == 0 {
                    turn += 1;
                    match take(slot, 1 + turn % 3, clock) {
                        Some(taken) if turn.is_multiple_of(2) => slot.put_back(taken, 1 + turn % 3),
                        Some(_) => drop(gone.fetch_add(1 + turn % 3, Ordering::Relaxed)),
                        None => std::thread::yield_now(),
                    }
                }
            });
        }
        let (mut left, mut leases) = (0, 0);
        // On a busy machine the others may not have begun by the end of it.
        while leases < LEASES || (gone.load(Ordering::Relaxed) == 0 && leases < 1_000 * LEASES) {
            leases += 1;
            slot.fill(100, END, START.after(Micros(1)));
            std::thread::yield_now();
            left += slot.empty().expect("a lease").left;
        }
        let gone = gone.fetch_or(1 << 63, Ordering::Relaxed);
        assert!(gone + left <= leases * 100, "{gone} and {left}");
        assert!(gone > 0);
    });
}

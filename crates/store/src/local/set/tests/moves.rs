//! Sets that move to another table while keys draw from them.

use loom::sync::atomic::AtomicBool;

use super::*;

#[test]
fn where_it_has_moved_nothing_is_seen_without_the_lock() {
    explore(|| {
        let (old, new) = (empty(), empty());
        take(&old, 7);
        let (old_too, new_too) = (Arc::clone(&old), Arc::clone(&new));
        let mover = loom::thread::spawn(move || move_seven(&old_too, &new_too));
        let least = set(&old, 8).least();
        let (found, own) = Line::new(&old[0]).scan(7);
        assert!(least.is_none_or(|least| least == 0), "{least:?}");
        assert!(found && (own.is_moved() || own.arrival() == 1), "{own:?}");
        mover.join().expect("no panic");
        assert_eq!(set(&old, 8).least(), None);
        assert!(Line::new(&old[0]).scan(7).1.is_moved());
    });
}

#[test]
fn a_charge_during_a_move_is_made_before_it_or_at_the_successor() {
    // In slot 0, and beside others in slot 1.
    for others in [&[][..], &[5]] {
        explore(move || {
            let (old, new) = (empty(), empty());
            for tag in others {
                take(&old, *tag);
            }
            take(&old, 7);
            let (old_too, new_too) = (Arc::clone(&old), Arc::clone(&new));
            let mover = loom::thread::spawn(move || move_seven(&old_too, &new_too));
            if draw(&old, 7).is_none() {
                assert!(take(&new, 7).is_some());
            }
            mover.join().expect("no panic");
            assert_eq!(seen(&old, 7), None);
            assert_eq!(seen(&new, 7), Some(2));
            assert!(
                set(&old, 7).lock().is_none(),
                "no key draws where the bucket is gone"
            );
        });
    }
}

#[test]
fn a_newcomer_to_an_untouched_set_is_seen_by_the_mover_or_sees_it() {
    explore(|| {
        let (old, new) = (empty(), empty());
        let closing = Arc::new(AtomicBool::new(false));
        let (old_too, new_too, closing_too) =
            (Arc::clone(&old), Arc::clone(&new), Arc::clone(&closing));
        let mover = loom::thread::spawn(move || {
            closing_too.store(true, Ordering::SeqCst);
            if !set(&old_too, 7).is_untouched()
                && set(&old_too, 7)
                    .lock()
                    .is_some_and(|set| set.find(7).is_some())
            {
                move_seven(&old_too, &new_too);
            }
        });
        let entered = set(&old, 7)
            .enter(|| closing.load(Ordering::SeqCst))
            .map(|mut set| {
                let (slot, arrival) = set.hold_for_newcomer(0);
                set.write(slot, 7, arrival + 1);
            });
        if entered.is_none() {
            assert!(take(&new, 7).is_some());
        }
        mover.join().expect("no panic");
        // Afterwards every draw goes on where the charge is.
        let later = set(&old, 7)
            .enter(|| closing.load(Ordering::SeqCst))
            .is_none();
        assert!(later, "the old table gives out nothing any more");
        assert_eq!(
            seen(&new, 7),
            Some(1),
            "the charge is neither lost nor made twice"
        );
    });
}

/// Moves the bucket of 7 from one set to another as a reload does.
fn move_seven(old: &Words, new: &Words) {
    let mut set = set(old, 7).lock().expect("not moved yet");
    for slot in 0..SLOTS {
        set.hold(slot);
    }
    let arrival = set.arrival(set.find(7).expect("charged before"));
    let mut successor = Set::new(new, 0).lock().expect("never moves");
    successor.write(0, 7, arrival);
    drop(successor);
    set.mark_moved();
}

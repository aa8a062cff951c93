//! Readers without the lock, while others write: which debts they may see.

use super::*;

#[test]
fn where_debts_shrink_a_word_is_the_tags_own_even_if_it_is_locked() {
    for start in FULL {
        explore(move || {
            let words = start();
            let shared = Arc::clone(&words);
            let reader = loom::thread::spawn(move || seen(&shared, 9));
            // As with a floor of 0: 9 takes the slot of 1, which owed 1, and no key may be refused for that.
            let mut set = set(&words, 9).lock().expect("never moves");
            let (slot, arrival) = set.hold_for_newcomer(0);
            assert_eq!(arrival, 1);
            set.inherit(slot, 0);
            set.write(slot, 9, 2);
            drop(set);
            let newcomer = reader.join().expect("no panic");
            assert!(matches!(newcomer, None | Some(0 | 2)), "{newcomer:?}");
            assert_eq!(seen(&words, 9), Some(2));
            assert!(is_unlocked(&words));
        });
    }
}

#[test]
fn shrinking_debts_newcomer_after_the_read_gets_no_old_value() {
    explore(|| {
        let words = full_from_first();
        let shared = Arc::clone(&words);
        let reader = loom::thread::spawn(move || {
            let (found, seen) = Line::new(&shared[0]).scan(9);
            found.then(|| seen.arrival())
        });
        // As with a floor of 0: 9 takes the slot of 1, which is the one that is looked at where nothing is found.
        let mut set = set(&words, 9).lock().expect("never moves");
        let (slot, _) = set.hold_for_newcomer(0);
        set.inherit(slot, 0);
        set.write(slot, 9, 2);
        drop(set);
        let newcomer = reader.join().expect("no panic");
        assert!(matches!(newcomer, None | Some(0 | 2)), "{newcomer:?}");
    });
}

#[test]
fn shrinking_debts_forgotten_key_owes_its_own_or_the_inherited() {
    explore(|| {
        let words = full();
        let shared = Arc::clone(&words);
        let reader = loom::thread::spawn(move || seen(&shared, 1));
        // The floor is 2; 9 comes in the place of 1 and pays 3.
        let mut set = set(&words, 9).lock().expect("never moves");
        let (slot, _) = set.hold_for_newcomer(0);
        set.inherit(slot, 2);
        set.write(slot, 9, 5);
        drop(set);
        let own = reader.join().expect("no panic");
        assert!(matches!(own, None | Some(1 | 2)), "{own:?}");
    });
}

/// A new caller that is refused without a lock is refused by no more debt than it would inherit, also while other callers draw.
#[test]
fn a_newcomer_that_looks_without_the_lock_sees_no_more_debt_than_it_would_inherit() {
    for start in FULL {
        explore(move || {
            let words = start();
            let other = Arc::clone(&words);
            let reader = loom::thread::spawn(move || {
                let least = set(&other, 9).least();
                look(&other, 9).map_or(least, |(_, seen)| Some(seen.arrival()))
            });
            // 1 moves on to 2; 9 comes itself, in the place of one that owes 2.
            draw(&words, 1);
            let inherited = take(&words, 9).expect("never moves");
            let least = reader.join().expect("no panic").expect("never moves");
            assert!((1..=inherited).contains(&least), "{least} of {inherited}");
        });
    }
}

#[test]
fn a_look_at_every_slot_while_grants_go_on_shows_each_debt_as_it_was_or_is() {
    explore(|| {
        let words = full();
        let shared = Arc::clone(&words);
        let granting = loom::thread::spawn(move || draw(&shared, 1));
        let set = set(&words, 1).lock().expect("never moves");
        let shown = set.find(1).map(|slot| set.arrival(slot));
        drop(set);
        granting.join().expect("no panic");
        assert!(matches!(shown, Some(1 | 2)), "{shown:?}");
        assert_eq!(seen(&words, 1), Some(2));
    });
}

/// As several limits are drawn from: the slot is scanned for, not peeked at.
#[test]
fn local_scan_finds_the_same_as_a_peek() {
    explore(|| {
        let words = full();
        let shared = Arc::clone(&words);
        let newcomer = loom::thread::spawn(move || take(&shared, 9));
        let (found, mine) = Line::new(&words[0]).scan(1);
        if found && Line::new(&words[0]).hold(1, mine) {
            assert_eq!(mine.arrival(), 1, "its own debt");
            Line::new(&words[0]).release(mine, 2);
        }
        let (other, theirs) = Line::new(&words[0]).scan(9);
        // At least what it inherits, at most what it then owes.
        assert!(!other || matches!(theirs.arrival(), 1..=3), "{theirs:?}");
        newcomer.join().expect("no panic");
        assert!(is_unlocked(&words));
    });
}

// In the two tests below the reader is the spawned thread: the explorer runs the first thread first and finds a race
// at the later of two accesses, and the writer's own read of a word would hide the reader's before it.

#[test]
fn a_reader_without_the_lock_never_sees_more_debt_than_the_key_has() {
    explore(|| {
        let words = full();
        let other = Arc::clone(&words);
        let reader = loom::thread::spawn(move || (seen(&other, 1), seen(&other, 9)));
        // 9 takes the slot of 1, which owed least; then 1 comes back and inherits.
        take(&words, 9);
        take(&words, 1);
        let (own, newcomer) = reader.join().expect("no panic");
        // Its own 1 before; afterwards at least what it inherits, at most what it then owes.
        assert!(matches!(own, None | Some(1..=3)), "{own:?}");
        // The debt that 9 inherited is never missing.
        assert!(matches!(newcomer, None | Some(1..=3)), "{newcomer:?}");
        assert_eq!(seen(&words, 1), Some(3));
    });
}

#[test]
fn a_reader_without_the_lock_never_takes_a_newcomers_debt_for_its_own() {
    explore(|| {
        let words = full();
        let other = Arc::clone(&words);
        let reader = loom::thread::spawn(move || seen(&other, 1));
        take(&words, 9);
        let own = reader.join().expect("no panic");
        assert!(matches!(own, None | Some(1)), "{own:?}");
    });
}

//! Writers and newcomers at once: no charge is lost, and none is made to another key.

use super::*;

#[test]
fn two_writers_of_one_key_lose_no_charge() {
    for (one, other) in [(take as Way, take as Way), (draw, take), (draw, draw)] {
        explore(move || {
            let words = empty();
            let shared = Arc::clone(&words);
            let thread = loom::thread::spawn(move || other(&shared, 7));
            one(&words, 7);
            thread.join().expect("no panic");
            assert_eq!(seen(&words, 7), Some(2));
            assert_eq!(owed(&words), 2, "one key has one slot");
            assert!(is_unlocked(&words));
        });
    }
}

type Way = fn(&Words, u64) -> Option<u64>;

#[test]
fn two_newcomers_and_a_known_key_lose_no_charge() {
    for start in FULL {
        explore(move || {
            let words = start();
            let before = owed(&words);
            let shared = Arc::clone(&words);
            let newcomer = loom::thread::spawn(move || take(&shared, 9));
            assert!(draw(&words, 1).is_some());
            newcomer.join().expect("no panic");
            assert_eq!(owed(&words), before + 2, "every grant is owed by a key");
            assert!(is_unlocked(&words));
        });
    }
}

#[test]
fn two_newcomers_of_either_line_lose_no_charge() {
    for other in [9, 109] {
        explore(move || {
            let words = full_beyond();
            let before = owed(&words);
            let shared = Arc::clone(&words);
            let newcomer = loom::thread::spawn(move || take(&shared, other));
            assert!(take(&words, 110).is_some());
            newcomer.join().expect("no panic");
            assert_eq!(owed(&words), before + 2, "every grant is owed by a key");
            assert!(is_unlocked(&words));
        });
    }
}

#[test]
fn a_grant_in_one_step_is_never_charged_to_a_newcomer() {
    for start in FULL {
        explore(move || {
            let words = start();
            let shared = Arc::clone(&words);
            // 9 takes the slot of 1, which owed least, unless 1 is granted first.
            let newcomer = loom::thread::spawn(move || take(&shared, 9));
            let own = step(&words, 1);
            let inherited = newcomer.join().expect("no panic");
            assert_eq!(seen(&words, 9), inherited, "only 9 was charged for 9");
            // Granted before 9 came, or not at all: then 9 found it owing two, as the others do.
            assert!(matches!(own, None | Some(2)), "{own:?}");
            assert_eq!(inherited, Some(if own.is_some() { 3 } else { 2 }));
        });
    }
}

#[test]
fn where_debts_shrink_a_grant_is_never_charged_to_a_newcomer_of_the_same_debt() {
    for start in FULL {
        explore(move || {
            let words = start();
            let shared = Arc::clone(&words);
            // 9 takes the slot of 1 and is given back what it took: the word is as it was, the tenant is not.
            let newcomer = loom::thread::spawn(move || {
                take(&shared, 9);
                refund(&shared, 9, 1);
                seen(&shared, 9)
            });
            let own = held(&words, 1);
            let theirs = newcomer.join().expect("no panic");
            assert_eq!(seen(&words, 9), theirs, "only 9 was charged for 9");
            assert!(matches!(own, None | Some(2)), "{own:?}");
            assert!(is_unlocked(&words));
        });
    }
}

#[test]
fn several_held_slots_keep_grants_and_newcomers_away() {
    explore(|| {
        let words = full();
        let shared = Arc::clone(&words);
        let other = loom::thread::spawn(move || (step(&shared, 1), take(&shared, 9)));
        if let Some((line, mine)) = look(&words, 1).filter(|(line, mine)| line.hold(1, *mine)) {
            assert_eq!(
                seen(&words, 1),
                Some(mine.arrival()),
                "no thread changes it meanwhile"
            );
            line.release(mine, mine.arrival() + 1);
        }
        let (_, newcomer) = other.join().expect("no panic");
        assert_eq!(seen(&words, 9), newcomer);
        assert!(is_unlocked(&words));
    });
}

#[test]
fn a_newcomer_takes_a_free_slot_at_home_before_one_beyond_and_a_smaller_one() {
    loom::model(|| {
        let words = empty();
        let put = |tag: u64, now: u64, arrival: u64| {
            let mut set = set(&words, tag).lock().expect("never moves");
            let (slot, inherited) = set.hold_for_newcomer(now);
            set.write(slot, tag, arrival);
            (slot, inherited)
        };
        assert_eq!(
            [put(1, 0, 5), put(2, 0, 7), put(3, 0, 9), put(4, 0, 9)],
            [(0, 0), (1, 0), (2, 0), (3, 0)]
        );
        assert_eq!(put(5, 4, 9), (4, 0), "all are taken at home");
        assert_eq!(put(6, 6, 9), (0, 5), "free again at home");
        assert_eq!(
            [put(101, 6, 9), put(102, 6, 9), put(103, 6, 8)],
            [(5, 0), (6, 0), (7, 0)]
        );
        assert_eq!(
            put(104, 6, 9),
            (1, 7),
            "of the eight the one that owes least"
        );
    });
}

use std::cell::Cell;
use std::sync::Arc;

use super::*;
use crate::local::bucket::{Bucket, Moving, Whose};
use crate::local::table::Table;
use crate::local::tests::{draw_one, limit, terms};
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::{Algorithm, Kind, TokenBucket};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A table with floors, of one unit a day and a burst of one, in so much memory.
fn table(memory: usize) -> Table {
    let limit = limit(
        0,
        "a",
        &terms(Kind::TokenBucket, 1, Micros::from_secs(86_400), 1),
        memory,
    );
    Table::new(&[&limit], true, START)
}

fn packed(table: &Table) -> &PackedTable {
    table.packed().expect("one word each")
}

/// An empty bucket.
fn owing(table: &Table, whose: Whose) -> Moving {
    let Algorithm::TokenBucket(bucket) = table.algorithm(0) else {
        unreachable!("a token bucket")
    };
    let drained = |_: &TokenBucket| {
        State::Level(Level {
            level: 0,
            at: START,
        })
    };
    Moving {
        whose,
        bucket: Bucket::new(drained(bucket), 0, 0),
    }
}

/// A caller that uses the successor while a table moves has its debt there, even if only one other caller has moved.
#[test]
fn moved_key_redirected_during_a_move_owes_the_units_not_yet_moved() {
    let last = Whose::Floor {
        first: u64::MAX - 1,
        last: u64::MAX,
    };
    for owed in [last, Whose::Birth] {
        let (old, new) = (table(1 << 12), Arc::new(table(1 << 13)));
        let known = 1;
        assert!(draw_one(&old, known).is_some_and(|standing| standing.verdict.is_allow()));
        old.adopt(owing(&old, owed), START);
        assert!(
            !draw_one(&old, u64::MAX)
                .expect("not moved")
                .verdict
                .is_allow()
        );
        let sent_on = Cell::new(0);
        packed(&old).move_to(false, START, |moving| {
            if draw_one(&old, u64::MAX).is_none() {
                sent_on.set(sent_on.get() + 1);
                let standing = draw_one(&new, u64::MAX).expect("not moved");
                assert!(!standing.verdict.is_allow(), "{owed:?}: {standing:?}");
            }
            new.adopt(moving, START);
        });
        assert!(sent_on.get() > 0, "{owed:?}");
        assert!(
            !draw_one(&new, u64::MAX)
                .expect("not moved")
                .verdict
                .is_allow()
        );
        assert!(!draw_one(&new, known).expect("not moved").verdict.is_allow());
    }
}

/// Who is known and owes little is not refused for the floor, when its set moves between the two looks.
#[test]
fn a_key_that_moves_while_it_is_looked_for_is_not_taken_for_a_newcomer() {
    let (old, new) = (table(1 << 12), Arc::new(table(1 << 13)));
    let table = packed(&old);
    assert!(draw_one(&old, 1).is_some());
    old.adopt(
        owing(
            &old,
            Whose::Floor {
                first: 0,
                last: u64::MAX,
            },
        ),
        START,
    );
    let now = START.after(Micros::from_secs(43_200));
    let start = table.start(table.line(1)).expect("not moved");
    assert!(
        table
            .view_from(start, 1, 1, table.packed.ticks(now))
            .is_some()
    );
    table.move_to(false, now, |moving| new.adopt(moving, now));
    assert!(
        table
            .view_from(start, 1, 1, table.packed.ticks(now))
            .is_none(),
        "it has moved"
    );
}

use std::cell::Cell;

use super::*;
use crate::local::bucket::{Moving, Whose};
use crate::local::tests::{draw_one, limit, terms};
use tollgate_limit::bucket::{State, Steps};
use tollgate_limit::{Kind, Micros};

/// 34.5 bytes a place, of which 72 in a hundred are used.
#[test]
fn bucket_of_every_algorithm_takes_48_bytes_at_most() {
    const MEMORY: usize = 64 << 20;
    let kinds = [
        Kind::TokenBucket,
        Kind::Interval,
        Kind::FixedWindow,
        Kind::SlidingWindow,
        Kind::InFlight,
    ];
    for kind in kinds {
        let terms = terms(kind, 10, Micros::from_secs(60), 10);
        let table = Table::new(&[&limit(0, "a", &terms, MEMORY)]);
        assert!(table.room() * 72 / 100 >= MEMORY as u64 / 48, "{kind:?}");
    }
}

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A caller that uses the successor while a table moves is as new there as it was here; a known caller owes no more than before.
#[test]
fn a_newcomer_that_is_sent_on_in_the_middle_of_a_move_begins_as_empty_as_before() {
    let limit = limit(
        0,
        "a",
        &terms(Kind::Interval, 2, Micros::from_secs(86_400), 2),
        1 << 16,
    );
    let (old, new) = (Table::new(&[&limit]), Table::new(&[&limit]));
    assert!(old.shards() > 1);
    let standing = |whose, units: u64| Moving {
        whose,
        bucket: Bucket::new(
            State::Steps(Steps {
                used: 2 - units,
                amount: 2,
                since: START,
            }),
            0,
        ),
    };
    let last = Whose::Bucket { tag: u64::MAX };
    for moving in [standing(last, 1), standing(Whose::Birth, 0)] {
        old.adopt(moving, START);
    }
    let sent_on = Cell::new(0);
    old.move_to(|moving| {
        if moving.whose == last {
            assert!(old.lock(0).is_none(), "the first shard has moved");
            sent_on.set(sent_on.get() + 1);
            assert!(!draw_one(&new, 1).expect("not moved").verdict.is_allow());
        }
        new.adopt(moving, START);
    });
    assert_eq!(sent_on.get(), 1);
    assert!(
        draw_one(&new, u64::MAX)
            .expect("not moved")
            .verdict
            .is_allow(),
        "its own unit"
    );
    assert!(
        !draw_one(&new, u64::MAX)
            .expect("not moved")
            .verdict
            .is_allow()
    );
}

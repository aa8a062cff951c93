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

/// Buckets are kept in the numbers of their last grant, for which a table has an index, through several reloads.
#[test]
fn reload_with_other_numbers_puts_no_bucket_into_a_box() {
    let numbers = |amount| {
        let terms = terms(Kind::TokenBucket, amount, Micros::from_secs(3600), amount);
        limit(0, "it", &terms, 1 << 16)
    };
    let table = |amount: u64, before: Option<Arc<Table>>| {
        let limit = numbers(amount);
        let table = match before {
            Some(before) => before.succeeded_by(&[&limit], START),
            None => Arc::new(Table::new(&[&limit])),
        };
        for key in 0..20_u64 {
            let claim = Claim::new(&limit, b"", 1);
            let tag = key << 59 | amount;
            assert!(
                table
                    .draw(tag, &claim, START)
                    .is_some_and(|one| one.verdict.is_allow())
            );
        }
        table
    };
    let table = table(30, Some(table(20, Some(table(10, None)))));
    let (mut buckets, mut boxes) = (0, 0);
    for shard in table.chunks.iter().filter_map(OnceLock::get).flatten() {
        let shard = shard.lock();
        buckets += shard.buckets(&table).count();
        boxes += shard.boxes();
    }
    assert_eq!((buckets, boxes), (60, 0));
    let Some(standing) = table.draw(10, &Claim::new(&numbers(30), b"", 10), START) else {
        panic!("not moved")
    };
    assert!(!standing.verdict.is_allow(), "nine are left: {standing:?}");
}

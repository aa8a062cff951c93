//! Gateways with smaller numbers use a bucket of larger ones, and take nothing from it that the larger numbers grant.

use super::*;

#[test]
fn a_refund_under_smaller_numbers_leaves_the_rest_of_the_bucket_alone() {
    for kind in RATES {
        let (large, small) = (made(kind, 1000, 1000), made(kind, 100, 100));
        let mut row = Row::new();
        for _ in 0..500 {
            assert!(row.draw(&large, 1), "{kind:?}");
        }
        row.settle(&small, Change::Refund { units: 1 });
        assert_eq!(row.drain(&large), 501, "{kind:?}");
        row.settle(&small, Change::Charge { more: 10 });
        row.settle(&small, Change::Refund { units: 3 });
        row.settle(&large, Change::Refund { units: 17 });
        assert_eq!(row.drain(&large), 10, "{kind:?}");
    }
}

#[test]
fn a_draw_under_smaller_numbers_fills_no_larger_bucket() {
    for kind in RATES {
        let (large, small) = (made(kind, 1000, 1000), made(kind, 1000, 100));
        let small = if matches!(kind, Kind::TokenBucket | Kind::Interval) {
            small
        } else {
            made(kind, 100, 100)
        };
        let mut row = Row::new();
        for _ in 0..500 {
            assert!(row.draw(&large, 1), "{kind:?}");
        }
        // Clamped, and soon full again under the smaller numbers. (All others know what was used, and clamp to nothing.)
        assert_eq!(row.draw(&small, 1), kind == Kind::TokenBucket, "{kind:?}");
        row.settle(&small, Change::Refund { units: 1 });
        let whole = if kind == Kind::TokenBucket { 100 } else { 501 };
        assert_eq!(row.drain(&large), whole, "{kind:?}");
        // And it is a full one of the larger numbers when all that was drawn has come back.
        row.pass(2 * SECOND);
        assert_eq!(row.drain(&large), 1000, "{kind:?}");
    }
}

/// A bucket that was drawn under other numbers has the level that its own numbers say, under its own numbers.
#[test]
fn bucket_under_the_numbers_it_is_kept_in_shows_no_others() {
    for kind in RATES {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert_eq!(row.drain(&large), 40);
        row.pass(if kind == Kind::TokenBucket {
            SECOND / 2
        } else {
            SECOND * 9 / 10
        });
        let mut granted = row.drain(&small);
        for _ in 0..20 {
            row.pass(2 * SECOND);
            let standing = small
                .decide(row.kept.as_ref().and_then(StoredBucket::state), 1, row.now)
                .standing;
            assert_eq!(standing.verdict, Verdict::Allow { wait: Micros::ZERO });
            granted += row.drain(&small);
        }
        assert_eq!(granted / 20, 10, "{kind:?}: {granted}");
    }
}

/// While smaller numbers go on using it a bucket fills up for the larger ones, too.
#[test]
fn a_bucket_in_use_under_smaller_numbers_is_full_again_for_the_larger_in_the_end() {
    for kind in RATES {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert_eq!(row.drain(&large), 40, "{kind:?}");
        for _ in 0..40 {
            row.pass(SECOND / 4);
            row.draw(&small, 1);
        }
        row.pass(SECOND * 5 / 2);
        assert_eq!(row.drain(&large), 40, "{kind:?}");
    }
}

#[test]
fn to_look_twice_at_one_moment_is_to_look_once() {
    for kind in RATES {
        let (large, small) = (made(kind, 40, 40), made(kind, 10, 10));
        let mut row = Row::new();
        assert!((0..35).all(|_| row.draw(&large, 1)));
        let mut compared = 0;
        for step in 0..20 {
            row.draw(&small, 1);
            if let Some(kept) = &row.kept {
                let later = row.now.after(Micros(SECOND * step / 7));
                let once = kept.under(&small, later);
                assert_eq!(once.under(&small, later), once, "{kind:?}, step {step}");
                compared += 1;
            }
            row.pass(SECOND * 3 / 4);
        }
        assert!(compared > 0, "{kind:?}");
    }
}

//! A bucket whose limit has got another algorithm.

use super::*;

#[test]
fn another_algorithm_goes_on_with_the_units_that_are_left() {
    for (from, to) in RATES.iter().flat_map(|from| RATES.map(|to| (*from, to))) {
        let (old, new) = (made(from, 10, 10), made(to, 10, 10));
        let mut row = Row::new();
        assert!(row.draw(&old, 7));
        assert!(!row.draw(&new, 4), "{from:?} to {to:?}");
        assert!(row.draw(&new, 2), "{from:?} to {to:?}");
        // Corrections of grants that the bucket had from either algorithm.
        row.settle(&old, Change::Refund { units: 7 });
        assert_eq!(row.drain(&new), 8, "{from:?} to {to:?}");
        row.settle(&old, Change::Charge { more: 5 });
        row.settle(&new, Change::Refund { units: 2 });
        assert_eq!(
            row.drain(&old),
            0,
            "{from:?} to {to:?}: what is owed is not forgotten"
        );
    }
}

#[test]
fn another_algorithm_with_a_smaller_burst_is_remembered_until_the_larger_would_be_full() {
    let bucket = made(Kind::TokenBucket, 1, 100);
    let window = made(Kind::FixedWindow, 5, 5);
    let mut row = Row::new();
    assert_eq!(row.drain(&bucket), 100);
    row.pass(SECOND);
    assert_eq!(row.drain(&window), 1);
    row.pass(2 * SECOND);
    assert_eq!(row.drain(&window), 5, "its next window");
    row.pass(2 * SECOND);
    let again = row.drain(&bucket);
    assert!(
        again <= 10,
        "{again}: 5 of the window, and what has come back"
    );
    row.pass(200 * SECOND);
    assert_eq!(row.drain(&bucket), 100);
    assert_eq!(row.drain(&window), 0);
}

#[test]
fn places_in_flight_are_no_units_of_a_rate() {
    let (bucket, places) = (
        made(Kind::TokenBucket, 10, 10),
        Algorithm::InFlight(crate::in_flight::InFlight::new(3).expect("a number")),
    );
    let mut row = Row::new();
    assert_eq!(row.drain(&places), 3);
    row.settle(&bucket, Change::Charge { more: 5 });
    assert_eq!(row.drain(&places), 0);
    assert_eq!(row.drain(&bucket), 10);
}

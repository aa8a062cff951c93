use super::*;
use tollgate_limit::fixtures::{limit, terms};
use tollgate_limit::{Kind, Micros};

#[test]
fn the_same_numbers_stay_the_same_shape_while_requests_of_the_last_generation_are_settled() {
    let of = |amount| {
        limit(
            "total",
            &terms(Kind::TokenBucket, amount, Micros::from_secs(1)),
        )
    };
    let (names, old, new) = (Names::new(b"secret"), of(10), of(20));
    let (before, after) = (names.shape(&old), names.shape(&new));
    assert!(!Arc::ptr_eq(&before, &after));
    for _ in 0..3 {
        assert!(Arc::ptr_eq(&names.shape(&old), &before));
        assert!(Arc::ptr_eq(&names.shape(&new), &after));
    }
    // Reload after reload, no more than a few are kept.
    for amount in 30..30 + 2 * KNOWN_MAX as u64 {
        names.shape(&of(amount));
        assert!(
            Arc::ptr_eq(&names.shape(&new), &after),
            "what is used stays"
        );
    }
    assert_eq!(names.shapes.read()[old.index].len(), KNOWN_MAX);
}

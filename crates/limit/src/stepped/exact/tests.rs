use std::sync::Arc;

use super::*;
use crate::quota::Rate;
use crate::{Calendar, Timestamp};

#[test]
fn debt_of_more_windows_than_a_store_knows_is_refused_where_shared() {
    let boundaries = (1..100)
        .map(|day| Timestamp::from_micros(day * 86_400_000_000))
        .collect();
    let calendar = Align::Calendar(Arc::new(Calendar {
        boundaries,
        words: "day".into(),
    }));
    let make = |align: &Align, debt, shared| {
        let quota =
            Quota::new(Rate::new(10, Micros::from_secs(86_400)), 10).expect("representable");
        Stepped::new(quota, align.clone(), debt, Micros::ZERO, shared)
    };
    assert_eq!(
        make(&calendar, 630, true).expect("possible").steps_most(),
        CALENDAR_STEPS_MAX
    );
    let errors = make(&calendar, 631, true).expect_err("one window more");
    assert_eq!(errors.len(), 1);
    assert!(
        errors[0].field == "debt" && errors[0].message.contains("65 windows"),
        "{errors:?}"
    );
    assert!(make(&calendar, 631, false).is_ok() && make(&Align::Clock, 631, true).is_ok());
}

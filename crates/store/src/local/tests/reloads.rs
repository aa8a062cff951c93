//! Reloads: which table a limit's buckets come from, and what the next one can do.

use std::sync::Arc;

use super::fixtures::{START, claim, limit, store, terms};
use crate::local::LocalStore;
use tollgate_limit::{Change, Kind, Limit, Micros, Mode, Settlement};

const HOUR: Micros = Micros::from_secs(3600);

/// How many of fifty requests are granted at once.
fn granted(store: &LocalStore, limit: &Limit, key: &[u8]) -> u64 {
    (0..50)
        .map(|_| u64::from(store.draw_at(&[claim(limit, key)], START).granted))
        .sum()
}

#[test]
fn limit_that_is_enforced_for_all_keys_again_keeps_the_buckets_of_its_tier() {
    let variant = |index, mode, tier: Option<&str>| {
        let limit = limit(
            index,
            "it",
            &terms(Kind::TokenBucket, 10, HOUR, 10),
            1 << 20,
        );
        Arc::new(Limit {
            mode,
            tier: tier.map(Into::into),
            ..limit
        })
    };
    let pro = variant(1, Mode::Enforce, Some("pro"));
    let before = store(&[variant(0, Mode::Off, None), Arc::clone(&pro)]);
    assert_eq!(granted(&before, &pro, b"k"), 10);
    let (after, _) = before.next(&[variant(0, Mode::Enforce, None), Arc::clone(&pro)]);
    assert_eq!(granted(&after, &pro, b"k"), 0);
}

#[test]
fn limit_that_becomes_refundable_can_give_back_what_was_drawn_before() {
    let made = |refundable| {
        let limit = limit(0, "it", &terms(Kind::TokenBucket, 10, HOUR, 10), 1 << 20);
        Arc::new(Limit {
            refundable,
            ..limit
        })
    };
    let before = store(&[made(false)]);
    assert_eq!(granted(&before, &made(false), b"k"), 10);
    let refundable = made(true);
    let (after, _) = before.next(&[Arc::clone(&refundable)]);
    let refund = Settlement::new(&refundable, b"k", Change::Refund { units: 4 });
    after.settle_at(&[refund], START);
    assert_eq!(granted(&after, &refundable, b"k"), 4);
}

/// A bucket that has just filled up is forgotten for a new key: a request that was held up since before finds its debt.
#[test]
fn bucket_that_was_just_forgotten_grants_nothing_to_a_request_from_before_it_was_full() {
    for kind in [Kind::TokenBucket, Kind::Interval] {
        let one = terms(kind, 1, Micros::from_secs(10), 1);
        let one = Arc::new(limit(0, "it", &one, 1));
        let store = store(&[Arc::clone(&one)]);
        let at = |millis: u64| START.after(Micros(millis * 1000));
        let draw = |key: u8, millis| store.draw_at(&[claim(&one, &[key])], at(millis)).granted;
        assert!(draw(0, 0));
        assert!((1..16).all(|key| draw(key, 5_000)), "all in one shard");
        assert!(!draw(0, 9_900));
        assert!(draw(99, 10_500));
        assert!(!draw(0, 9_900), "its ten seconds were not over");
    }
}

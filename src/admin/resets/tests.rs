//! Resets of buckets in the process.

use super::super::tests::live_of;
use super::*;
use crate::overrides::{End, NewOverride, Setting};
use std::sync::Arc;
use tollgate_limit::{KeyBytes, Micros};

/// Gives the bucket of `key` this burst for an hour.
async fn raise(live: &Live, limit: &Limit, key: &[u8], burst: u64) {
    let new = NewOverride {
        key: ("a key".to_owned(), "a name".to_owned()),
        setting: Setting {
            burst: Some(burst),
            ..Setting::default()
        },
        end: End::After(Micros::from_secs(3_600)),
        operator: "ann".to_owned(),
        reason: "a test".to_owned(),
        grant: None,
    };
    let set = live.overrides.change(limit, key, Some(&new)).await;
    set.expect("there is room");
}

/// A gateway with a limit of 20 units, that limit, and the key of a caller.
fn one_bucket() -> (Live, Arc<Limit>, KeyBytes) {
    let live = live_of(
        "[limits.search]\nrate = \"20/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n",
    )
    .for_change();
    let policy = &live.current.load_full().policy;
    let sought = live.sought(policy, "address", &["192.0.2.7"]);
    let (sought, _) = sought.expect("a caller");
    (live, Arc::clone(&policy.rules[0].live), sought.key)
}

/// Resets the bucket; returns how it stands then, after the gateway has confirmed that.
async fn confirmed(live: &Live, limit: &Arc<Limit>, key: &KeyBytes) -> Level {
    let (before, _) = live.stands(limit, key, 1).await;
    let was = before.level.expect("it is known");
    let (after, problem) = live.fill(limit, key, &was).await;
    let problem = problem.map(|problem| format!("{problem:?}"));
    assert_eq!(problem, None);
    after.level.expect("it is known")
}

/// A bucket that is full already has no more units after a reset: it is confirmed by its capacity,
/// which is that of the override.
#[tokio::test]
async fn reset_of_a_full_bucket_is_confirmed_by_the_numbers_of_its_override() {
    let (live, limit, key) = one_bucket();
    for burst in [5, 100] {
        raise(&live, &limit, &key, burst).await;
        for _ in 0..2 {
            let level = confirmed(&live, &limit, &key).await;
            assert_eq!((level.remaining, level.capacity), (burst, burst));
        }
    }
}

/// It has more than the numbers of the file could ever grant, and lacks units all the same.
#[test]
fn reset_of_a_raised_bucket_is_not_confirmed_by_the_numbers_of_the_file() {
    let level = |remaining| Level {
        remaining,
        owed: 0,
        capacity: 100,
        currency: None,
        admits: true,
        admits_in_ms: None,
        admits_at: None,
        full_in_ms: 0,
    };
    assert!(!is_filled(&level(30), &level(30)));
    assert!(is_filled(&level(30), &level(31)));
    assert!(is_filled(&level(100), &level(100)));
}

//! Buckets in the process, as seen by their draws.

mod overrides;
mod fixtures;
mod floods;
mod reloads;
mod restarts;
mod set_clocks;
mod shared_limits;
mod threads;
mod tiers;

use std::sync::Arc;

use super::{Carry, LocalStore};
use fixtures::{START, bucket, claim, store};
pub(super) use fixtures::{draw_one, limit, terms};
use tollgate_limit::{Claim, Kind, Limit, Micros, Verdict};

#[test]
fn local_refused_request_is_admitted_at_its_retry_time() {
    let limits = [bucket(0, "a", 100, 60, 20)];
    let store = store(&limits);
    for left in (0..20).rev() {
        let draw = store.draw_at(&[claim(&limits[0], b"k")], START);
        assert!(draw.granted);
        assert_eq!(draw.standings[0].remaining(), left);
    }
    let refused = store.draw_at(&[claim(&limits[0], b"k")], START);
    assert!(!refused.granted);
    let Verdict::Deny {
        retry_after: Some(wait),
    } = refused.standings[0].verdict
    else {
        panic!("{refused:?}")
    };
    assert_eq!(wait, Micros(600_000));
    assert!(
        !store
            .draw_at(&[claim(&limits[0], b"k")], START.after(Micros(wait.0 - 1)))
            .granted
    );
    assert!(
        store
            .draw_at(&[claim(&limits[0], b"k")], START.after(wait))
            .granted
    );
    assert!(
        store.draw_at(&[claim(&limits[0], b"other")], START).granted,
        "another key is another bucket"
    );
}

#[test]
fn a_refusal_by_one_limit_leaves_the_others_as_they_were() {
    let limits = [
        bucket(0, "wide", 1000, 60, 1000),
        bucket(1, "narrow", 1, 60, 1),
        bucket(2, "shadow", 5, 60, 5),
    ];
    let store = store(&limits);
    let shadow = Claim {
        enforced: false,
        ..claim(&limits[2], b"k")
    };
    let claims = [claim(&limits[0], b"k"), claim(&limits[1], b"k"), shadow];
    assert!(store.draw_at(&claims, START).granted);
    let refused = store.draw_at(&claims, START);
    assert!(!refused.granted);
    assert_eq!(
        refused
            .standings
            .iter()
            .map(|standing| standing.remaining())
            .collect::<Vec<_>>(),
        [999, 0, 4]
    );
    let reversed: Vec<_> = claims.iter().rev().copied().collect();
    assert!(!store.draw_at(&reversed, START).granted);
    assert_eq!(
        store.peek_at(&claims, START)[0].remaining(),
        999,
        "a peek takes nothing"
    );
}

#[test]
fn local_reload_never_adds_a_token_and_reports_its_work() {
    let before = [
        bucket(0, "kept", 10, 60, 10),
        bucket(1, "changed", 10, 60, 10),
        bucket(2, "gone", 10, 60, 10),
    ];
    let old = store(&before);
    for _ in 0..4 {
        let claims: Vec<_> = before.iter().map(|limit| claim(limit, b"k")).collect();
        assert!(old.draw_at(&claims, START).granted);
    }
    let after = [
        bucket(0, "changed", 100, 60, 100),
        bucket(1, "kept", 10, 60, 10),
        bucket(2, "new", 10, 60, 10),
    ];
    let (next, report) = old.next(&after);
    let carried: Vec<_> = report
        .limits
        .iter()
        .map(|carried| (&*carried.name, carried.carry))
        .collect();
    let expected = [
        ("changed", Carry::Renumbered),
        ("kept", Carry::Kept),
        ("new", Carry::New),
        ("gone", Carry::Gone),
    ];
    assert_eq!(carried, expected);
    let left = |store: &LocalStore, limit: &Arc<Limit>| {
        store.peek_at(
            &[Claim {
                cost: 0,
                ..claim(limit, b"k")
            }],
            START,
        )[0]
        .remaining()
    };
    assert_eq!(left(&next, &after[0]), 6);
    assert_eq!(left(&next, &after[1]), 6);

    // A request still in flight on the old generation charges where the buckets are now.
    assert!(
        old.draw_at(&[claim(&before[0], b"k"), claim(&before[1], b"k")], START)
            .granted
    );
    assert_eq!(left(&next, &after[0]), 5);
    assert_eq!(left(&next, &after[1]), 5);
}

/// An application may make the next store on two threads: the buckets are in both.
#[test]
fn reloads_at_the_same_time_refill_no_bucket() {
    for kind in [Kind::TokenBucket, Kind::Interval] {
        let limits = |burst| {
            let terms = terms(kind, 1, Micros::from_secs(3600), burst);
            [Arc::new(limit(0, "a", &terms, 1 << 20))]
        };
        let before = limits(10);
        let store = store(&before);
        let keys: Vec<[u8; 2]> = (0..500_u16).map(u16::to_be_bytes).collect();
        for key in &keys {
            assert!(
                store
                    .draw_at(&[Claim::new(&before[0], key, 10)], START)
                    .granted
            );
        }
        let reload = |burst| store.next(&limits(burst)).0;
        let (one, other) = std::thread::scope(|scope| {
            let other = scope.spawn(|| reload(8));
            (reload(9), other.join().expect("no panic"))
        });
        for (store, limits) in [(one, limits(9)), (other, limits(8))] {
            for key in &keys {
                assert!(
                    !store
                        .draw_at(&[Claim::new(&limits[0], key, 1)], START)
                        .granted
                );
            }
        }
    }
}

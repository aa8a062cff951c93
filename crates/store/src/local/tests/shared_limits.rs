//! Snapshots with the shares of shared limits, which are in a store beside that of the local buckets.

use std::io::Cursor;
use std::sync::Arc;

use super::fixtures::{START, claim, limit, terms};
use crate::clock::Clock;
use crate::local::{ColdStart, LocalStore, Remembered};
use tollgate_limit::{Kind, Limit, Micros, Placement};

/// A limit of each kind, `placed` in the process or in a shared store.
fn both_kinds(placement: Placement) -> [Arc<Limit>; 2] {
    let of = |index, name, kind| {
        let terms = terms(kind, 10, Micros::from_secs(3600), 10);
        let limit = limit(index, name, &terms, 1 << 20);
        Arc::new(Limit { placement, ..limit })
    };
    [
        of(0, "rate", Kind::TokenBucket),
        of(1, "places", Kind::InFlight),
    ]
}

/// The units that are left in the buckets of `limits`.
fn left(store: &LocalStore, limits: &[Arc<Limit>; 2]) -> [u64; 2] {
    let claims = limits.each_ref().map(|limit| claim(limit, b"k"));
    let standings = store.peek_at(&claims, START);
    [0, 1].map(|place| standings[place].remaining())
}

/// A shared limit has no local bucket, and a request that holds a place of a share ends with its process.
#[test]
fn snapshot_for_a_handover_keeps_shares_apart_and_without_their_places() {
    let (shared, shares) = (Placement::Shared, Placement::Local);
    let (shared, shares) = (both_kinds(shared), both_kinds(shares));
    let local = LocalStore::new(&shared, Clock::manual(START), ColdStart::Full);
    let sibling = local.sibling(&shares);
    for share in &shares {
        assert!(sibling.draw_at(&[claim(share, b"k")], START).granted);
    }
    let mut snapshot = Vec::new();
    local
        .save_for_handover(Some(&sibling), &mut snapshot, &Remembered::default())
        .expect("memory takes everything");
    let restored = |limits: &[Arc<Limit>; 2]| {
        let snapshot = Cursor::new(&snapshot);
        let restored = LocalStore::restored(limits, Clock::manual(START), snapshot);
        left(&restored.expect("sound").0, limits)
    };
    assert_eq!(left(&sibling, &shares), [9, 9]);
    assert_eq!(restored(&shares), [9, 10]);
    assert_eq!(restored(&shared), [10, 10]);
}

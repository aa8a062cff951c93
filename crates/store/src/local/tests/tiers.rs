//! A bucket is its limit's name and its caller, never its tier: who is moved to another tier takes along what is left.

use std::sync::Arc;

use super::fixtures::{START, claim, limit, store, terms};
use crate::clock::Clock;
use crate::local::{Carry, ColdStart, HeldPlaces, LocalStore, Remembered};
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{Change, Claim, Kind, Limit, Micros, Mode, Settlement};

const HOUR: Micros = Micros::from_secs(3600);

#[test]
fn handover_places_in_flight_are_counted_and_freed_by_their_tag() {
    let [own, pro] = tiers(Kind::InFlight, 2, 4, 1 << 20);
    let before = store(&[Arc::clone(&own), Arc::clone(&pro)]);
    let draw = |store: &LocalStore, limit: &Limit, key: &[u8]| {
        store.draw_at(&[claim(limit, key)], START).granted
    };
    assert!(draw(&before, &own, b"a"));
    assert_eq!([(); 3].map(|()| draw(&before, &pro, b"b")), [true; 3]);
    let (mut saved, mut for_restart) = (Vec::new(), Vec::new());
    before
        .save_for_handover(None, &mut saved, &Remembered::default())
        .expect("memory takes everything");
    before
        .save(None, &mut for_restart, &Remembered::default())
        .expect("memory takes everything");
    let restored = |own: u64, pro: u64, snapshot: &[u8]| {
        let limits = tiers(Kind::InFlight, own, pro, 1 << 20);
        let clock = Clock::manual(START);
        let snapshot = std::io::Cursor::new(snapshot);
        let (store, _) = LocalStore::restored(&limits, clock, snapshot).expect("sound");
        (limits, store)
    };
    assert_eq!(restored(2, 4, &for_restart).1.held_places(), []);
    // Fewer places are still held by as many requests.
    let ([own, pro], after) = restored(1, 4, &saved);
    let mut held = after.held_places();
    held.sort_by_key(|held| held.units);
    let of = |tag, units| HeldPlaces {
        limit: 0,
        tag,
        units,
    };
    assert_eq!(held, [of(after.tag(b"a"), 1), of(after.tag(b"b"), 3)]);
    assert!(!draw(&after, &own, b"a"));
    assert_eq!([(); 2].map(|()| draw(&after, &pro, b"b")), [true, false]);
    after.release(&own, after.tag(b"a"), 1);
    after.release(&own, after.tag(b"b"), 3);
    assert!(draw(&after, &own, b"a"));
    assert_eq!(
        [(); 4].map(|()| draw(&after, &pro, b"b")),
        [true, true, true, false]
    );
}

/// `own` an hour, and `pro` for the tier of that name.
fn tiers(kind: Kind, own: u64, pro: u64, memory: usize) -> [Arc<Limit>; 2] {
    let variant = |index, amount, tier: Option<&str>| {
        let limit = limit(index, "it", &terms(kind, amount, HOUR, amount), memory);
        Arc::new(Limit {
            tier: tier.map(Into::into),
            refundable: true,
            ..limit
        })
    };
    [variant(0, own, None), variant(1, pro, Some("pro"))]
}

/// How many of a hundred and fifty requests are granted at once.
fn granted(store: &LocalStore, limit: &Limit, key: &[u8]) -> u64 {
    (0..150)
        .map(|_| u64::from(store.draw_at(&[claim(limit, key)], START).granted))
        .sum()
}

#[test]
fn tier_of_a_caller_changed_carries_units_over_and_adds_none() {
    for kind in RATES {
        let [own, pro] = tiers(kind, 10, 100, 1 << 20);
        let store = store(&[Arc::clone(&own), Arc::clone(&pro)]);
        assert_eq!(granted(&store, &own, b"a"), 10, "{kind:?}");
        let due = if kind == Kind::TokenBucket { 0 } else { 90 };
        assert_eq!(
            granted(&store, &pro, b"a"),
            due,
            "{kind:?}: no fresh bucket"
        );
        assert_eq!(granted(&store, &pro, b"b"), 100, "{kind:?}");
        assert_eq!(granted(&store, &own, b"b"), 0, "{kind:?}");
        // Up and down at every request is the larger of the two at most.
        let mut sum = 0;
        for nth in 0..400 {
            let limit = if nth % 2 == 0 { &own } else { &pro };
            sum += u64::from(store.draw_at(&[claim(limit, b"c")], START).granted);
        }
        assert!(sum <= 100, "{kind:?}: {sum}");
        assert_eq!(
            granted(&store, &own, b"c") + granted(&store, &pro, b"c"),
            0,
            "{kind:?}"
        );
    }
}

#[test]
fn tier_changed_keeps_places_held_and_refunds() {
    let [own, pro] = tiers(Kind::InFlight, 1, 3, 1 << 20);
    let places = store(&[Arc::clone(&own), Arc::clone(&pro)]);
    assert_eq!(granted(&places, &pro, b"k"), 3);
    let release = |limit: &Arc<Limit>| {
        places.settle_at(
            &[Settlement::new(limit, b"k", Change::Release { units: 1 })],
            START,
        );
    };
    for _ in 0..2 {
        release(&pro);
        assert_eq!(granted(&places, &own, b"k"), 0, "some are still held");
    }
    release(&own);
    assert_eq!(granted(&places, &own, b"k"), 1);

    let [own, pro] = tiers(Kind::TokenBucket, 10, 100, 1 << 20);
    let store = store(&[Arc::clone(&own), Arc::clone(&pro)]);
    assert_eq!(granted(&store, &pro, b"k"), 100);
    assert_eq!(granted(&store, &own, b"k"), 0);
    let refund = Settlement::new(&pro, b"k", Change::Refund { units: 7 });
    store.settle_at(&[refund], START);
    assert_eq!(
        granted(&store, &own, b"k"),
        7,
        "of a grant that was made in the tier before"
    );
}

#[test]
fn tier_changed_in_a_full_table_refills_no_bucket() {
    for kind in RATES {
        // Room for a few callers.
        let [own, pro] = tiers(kind, 10, 100, 1 << 10);
        let store = store(&[Arc::clone(&own), Arc::clone(&pro)]);
        assert_eq!(granted(&store, &pro, b"known"), 100, "{kind:?}");
        for n in 0..2_000_u32 {
            store.draw_at(&[claim(&own, &n.to_be_bytes())], START);
        }
        assert_eq!(
            granted(&store, &own, b"known") + granted(&store, &pro, b"known"),
            0,
            "{kind:?}: forgotten"
        );
    }
}

#[test]
fn tiers_live_through_reloads_and_restarts_with_one_bucket() {
    for kind in RATES {
        let [own, pro] = tiers(kind, 10, 100, 1 << 20);
        let both = [Arc::clone(&own), Arc::clone(&pro)];
        let first = store(&both);
        let draw = |store: &LocalStore, limit: &Limit, cost| {
            store
                .draw_at(
                    &[Claim {
                        cost,
                        ..claim(limit, b"k")
                    }],
                    START,
                )
                .granted
        };
        assert!(draw(&first, &pro, 95));
        // Other numbers, for one of the two.
        let changed = [
            Arc::clone(&own),
            Arc::new(Limit::clone(&tiers(kind, 10, 200, 1 << 20)[1])),
        ];
        let (next, report) = first.next(&changed);
        assert_eq!(
            [report.limits[0].carry, report.limits[1].carry],
            [Carry::Kept, Carry::Renumbered],
            "{kind:?}"
        );
        let left = next.peek_at(&[claim(&changed[1], b"k")], START)[0].remaining();
        assert!(left <= 105, "{kind:?}: {left}");
        let (back, _) = next.next(&both);
        assert!(!draw(&back, &pro, 6), "{kind:?}: five were left");
        // Without the tier, which is then not limited at all.
        let (alone, report) = back.next(&[Arc::clone(&own)]);
        assert_eq!(report.limits[1].carry, Carry::Gone);
        assert!(!draw(&alone, &own, 6), "{kind:?}");
        let unlimited = Limit {
            mode: Mode::Off,
            ..Limit::clone(&tiers(Kind::TokenBucket, 10, 1, 1 << 20)[1])
        };
        let (free, _) = alone.next(&[Arc::clone(&own), Arc::new(unlimited)]);
        assert!(
            !draw(&free, &own, 6),
            "{kind:?}: a tier that is not limited takes no bucket along"
        );
        let (again, _) = free.next(&both);
        assert!(!draw(&again, &pro, 6), "{kind:?}");

        for (limits, limit) in [(&both[..], &pro), (&both[..], &own), (&both[..1], &own)] {
            let mut file = std::io::Cursor::new(Vec::new());
            again
                .save(None, &mut file, &Remembered::default())
                .expect("written");
            file.set_position(0);
            let (restored, _) =
                LocalStore::restored(limits, Clock::manual(START), file).expect("read");
            assert!(
                !draw(&restored, limit, 6),
                "{kind:?} {:?}: restarted",
                limit.tier
            );
        }
    }
}

#[test]
fn tiers_start_empty_where_that_is_asked() {
    for kind in RATES {
        let [own, pro] = tiers(kind, 10, 100, 1 << 20);
        let store = LocalStore::new(
            &[Arc::clone(&own), Arc::clone(&pro)],
            Clock::manual(START),
            ColdStart::Empty,
        );
        let both = granted(&store, &pro, b"k") + granted(&store, &own, b"k");
        assert_eq!(both, 0, "{kind:?}");
    }
}

/// The numbers of the last tiers have indices that a place has no bits for.
#[test]
fn tiers_by_the_thousand_are_drawn_from_like_one() {
    let variant = |index: usize| {
        let amount = 5 + index as u64 % 7;
        let limit = limit(
            index,
            "it",
            &terms(Kind::TokenBucket, amount, HOUR, amount),
            1 << 20,
        );
        Arc::new(Limit {
            tier: (index > 0).then(|| format!("tier {index}").into()),
            ..limit
        })
    };
    let limits: Vec<_> = (0..4_200).map(variant).collect();
    let store = store(&limits);
    for limit in [&limits[0], &limits[4_093], &limits[4_094], &limits[4_199]] {
        let key = limit.index.to_be_bytes();
        let amount = 5 + limit.index as u64 % 7;
        assert_eq!(granted(&store, limit, &key), amount, "{}", limit.index);
        assert_eq!(granted(&store, &limits[1], &key), 0, "{}", limit.index);
    }
}

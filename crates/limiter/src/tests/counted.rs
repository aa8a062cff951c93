//! What is counted: requests and units of each limit, shadow limits and candidates.

use tollgate_limit::{Mode, Role, UNITS_MAX};

use super::*;

#[test]
fn a_shadow_limit_counts_and_never_refuses_and_a_candidate_is_compared() {
    let live = limit(0, "a", Kind::TokenBucket, 3);
    let candidate = Limit {
        role: Role::Candidate,
        index: 1,
        ..limit(1, "a", Kind::TokenBucket, 1)
    };
    let shadow = Limit {
        mode: Mode::Shadow,
        ..limit(2, "s", Kind::TokenBucket, 1)
    };
    let (limiter, limits) = limiter(vec![live, candidate, shadow], vec![]);
    let quiet = |limit| Claim {
        enforced: false,
        ..claim(limit)
    };
    let claims = [claim(&limits[0]), quiet(&limits[1]), quiet(&limits[2])];
    for _ in 0..3 {
        let _permit = allowed(check(&limiter, &claims));
    }
    assert!(matches!(check(&limiter, &claims), Decision::Deny(_)));
    let counted = limiter.snapshot();
    assert_eq!(
        counted[0].count,
        Count {
            allowed: 3,
            refused: 1,
            units: Units {
                charged: 3,
                refused: 1,
                ..Units::default()
            },
            ..Count::default()
        }
    );
    assert_eq!(
        counted[2].count,
        Count {
            allowed: 1,
            shadow_refused: 3,
            units: Units {
                charged: 1,
                shadow_refused: 3,
                ..Units::default()
            },
            ..Count::default()
        }
    );
    let agreement = Agreement {
        both_allow: 1,
        both_refuse: 1,
        only_live_refuses: 0,
        only_candidate_refuses: 2,
    };
    assert_eq!(counted[1].agreement, agreement);
    let (next, _) = limiter.next(&limits, Arc::clone(limiter.shared()));
    assert_eq!(
        next.snapshot()[0].count.allowed,
        3,
        "counts outlive reloads"
    );
}

#[test]
fn limiter_costs_larger_than_every_burst_are_counted_without_an_overflow() {
    let (limiter, limits) = limiter(vec![limit(0, "few", Kind::TokenBucket, 4)], vec![]);
    for cost in [u64::MAX, u64::MAX, 5] {
        let claim = Claim {
            cost,
            ..claim(&limits[0])
        };
        assert!(matches!(check(&limiter, &[claim]), Decision::Deny(_)));
    }
    let counted = limiter.snapshot()[0].count;
    assert_eq!(counted.refused, 3);
    assert_eq!(counted.units.refused, 2 * UNITS_MAX + 5);
}

#[test]
fn limiter_units_are_counted_as_charged_given_back_and_refused() {
    let paid = Limit {
        refundable: true,
        ..limit(0, "paid", Kind::TokenBucket, 10)
    };
    let (limiter, limits) = limiter(vec![paid, limit(1, "few", Kind::TokenBucket, 4)], vec![]);
    let cost = |limit, cost| Claim {
        cost,
        ..claim(limit)
    };
    let units = || [0, 1].map(|at| limiter.snapshot()[at].count.units);
    let both = [cost(&limits[0], 3), cost(&limits[1], 4)];
    let mut permit = allowed(check(&limiter, &both));
    permit.forwarded();
    // The second limit refuses, so the first one charges nothing either.
    assert!(matches!(check(&limiter, &both), Decision::Deny(_)));
    let _free = allowed(check(&limiter, &[cost(&limits[0], 0)]));
    let charged = Units {
        charged: 3,
        ..Units::default()
    };
    let refused = Units {
        charged: 4,
        refused: 4,
        ..Units::default()
    };
    assert_eq!(units(), [charged, refused]);
    assert_eq!(
        limiter.snapshot()[0].count.allowed,
        3,
        "the bucket could pay each time"
    );

    permit.charge_more("paid", 2);
    let credit = Cause::Upstream.credit().expect("the upstream's failure");
    permit.refund("paid", 4, credit);
    let settled = Units {
        charged: 5,
        given_back: 4,
        ..Units::default()
    };
    assert_eq!(units(), [settled, refused]);
    assert!(limiter.reset(&limits[0], b"k"));
    assert_eq!(
        units(),
        [settled, refused],
        "a reset is no refund of a charge"
    );
}

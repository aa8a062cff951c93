//! What is given back when a request ends, and places of concurrency limits.

use super::*;

#[test]
fn a_place_in_flight_is_freed_however_the_request_ends() {
    let (limiter, limits) = limiter(vec![limit(0, "jobs", Kind::InFlight, 1)], vec![]);
    let mut permit = allowed(check(&limiter, &[claim(&limits[0])]));
    assert!(
        matches!(check(&limiter, &[claim(&limits[0])]), Decision::Deny(denied) if denied.retry_after().is_none())
    );
    permit.forwarded();
    drop(permit);
    let permit = allowed(check(&limiter, &[claim(&limits[0])]));
    // A reload while it is in flight neither frees its place nor loses the release.
    let (next, _) = limiter.next(&limits, Arc::clone(limiter.shared()));
    assert!(matches!(
        check(&next, &[claim(&limits[0])]),
        Decision::Deny(_)
    ));
    drop(permit);
    let _again = allowed(check(&next, &[claim(&limits[0])]));
}

#[test]
fn a_correctable_charge_is_given_back_at_most_once() {
    let (limiter, limits) = limiter(
        vec![Limit {
            refundable: true,
            ..limit(0, "a", Kind::TokenBucket, 10)
        }],
        vec![],
    );
    let claims = [Claim {
        cost: 4,
        ..claim(&limits[0])
    }];
    drop(allowed(check(&limiter, &claims)));
    assert_eq!(left(&limiter, &limits[0]), 10, "never sent on: given back");

    let mut permit = allowed(check(&limiter, &claims));
    permit.forwarded();
    let credit = Cause::Upstream.credit().expect("the upstream alone");
    permit.refund("a", 3, credit);
    permit.refund("a", 3, credit);
    drop(permit);
    assert_eq!(
        left(&limiter, &limits[0]),
        10,
        "four in all were given back"
    );

    let mut permit = allowed(check(&limiter, &claims));
    permit.forwarded();
    permit.charge_more("a", 2);
    drop(permit);
    assert_eq!(left(&limiter, &limits[0]), 4);
}

#[test]
fn credit_needs_an_outcome_of_the_upstream_alone() {
    assert!(Cause::Upstream.credit().is_some());
    for cause in [Cause::Early, Cause::Gateway, Cause::Client] {
        assert!(cause.credit().is_none(), "{cause:?}");
    }
}

#[test]
fn what_was_drawn_before_a_reset_returns_nothing() {
    let (limiter, limits) = limiter(
        vec![Limit {
            refundable: true,
            ..limit(0, "a", Kind::TokenBucket, 10)
        }],
        vec![],
    );
    let claims = [Claim {
        cost: 9,
        ..claim(&limits[0])
    }];
    let before = allowed(check(&limiter, &claims));
    assert!(limiter.reset(&limits[0], b"k"));
    assert_eq!(left(&limiter, &limits[0]), 10);
    let _after = allowed(check(&limiter, &claims));
    // A reload forgets no reset.
    let (next, _) = limiter.next(&limits, Arc::clone(limiter.shared()));
    drop(before);
    assert_eq!(left(&next, &limits[0]), 1);
}

#[test]
fn refund_names_the_moment_of_its_draw_by_the_clock_of_the_store() {
    let at = Timestamp::from_micros(42);
    let drawn = Draw {
        at,
        ..answer(true).expect("a draw")
    };
    let (limiter, limits) = limiter(
        vec![Limit {
            refundable: true,
            ..shared(0, "a", WhenDown::Refuse)
        }],
        vec![Ok(drawn)],
    );
    drop(allowed(check(&limiter, &[claim(&limits[0])])));
    let corrected = limiter.shared().corrected.lock().expect("not poisoned");
    assert_eq!(*corrected, [Corrects::DrawOf(at)]);
}

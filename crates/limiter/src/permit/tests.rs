use super::*;
use crate::{Cause, Decision, Limiter};
use tollgate_limit::fixtures::RATES;
use tollgate_limit::{Algorithm, Kind, Terms, fixtures};
use tollgate_store::Backend;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;

/// The beginning of a minute.
const START: Timestamp = Timestamp::from_micros(1_700_000_040_000_000);
const SECOND: u64 = 1_000_000;

fn at_second(second: u64) -> Timestamp {
    START.after(Micros(second * SECOND))
}

/// A limiter that begins at [`START`], with a limit whose units can be given back.
fn limiter(terms: &Terms) -> (Limiter, Arc<Limit>, Clock) {
    let limit = Arc::new(Limit {
        algorithm: Algorithm::new(terms).expect("a limit"),
        refundable: true,
        ..fixtures::limit("l", terms)
    });
    let clock = Clock::manual(START);
    let limits = [Arc::clone(&limit)];
    let none = Arc::new(Backend::None);
    let limiter = Limiter::new(&limits, none, clock.clone(), ColdStart::Full);
    (limiter, limit, clock)
}

/// Takes `cost` units for a request that is sent to its upstream.
fn take(limiter: &Limiter, limit: &Limit, cost: u64, now: Timestamp) -> Option<Permit> {
    match limiter
        .decide(&[Claim::new(limit, b"k", cost)], now)
        .at_once()
    {
        Some(Decision::Allow(mut permit)) => {
            permit.forwarded();
            Some(permit)
        }
        _ => None,
    }
}

/// An upstream fails after the window of a request has ended. What its units were is no part of a
/// later window.
#[test]
fn refund_after_its_window_lets_no_later_window_grant_more() {
    let terms = |kind| fixtures::terms(kind, 10, Micros::from_secs(60));
    let all: [(Terms, u64); 5] = [
        (
            Terms {
                burst: Some(30),
                ..terms(Kind::Interval)
            },
            20,
        ),
        (terms(Kind::FixedWindow), 9),
        (
            Terms {
                debt: 10,
                ..terms(Kind::FixedWindow)
            },
            15,
        ),
        (terms(Kind::SlidingWindow), 9),
        (terms(Kind::SlidingLog), 9),
    ];
    for (terms, cost) in all {
        let (limiter, limit, clock) = limiter(&terms);
        assert!(take(&limiter, &limit, 1, START).is_some(), "{terms:?}");
        clock.advance(Micros(50 * SECOND));
        let mut early = take(&limiter, &limit, cost, at_second(50)).expect("there are units");
        clock.advance(Micros(65 * SECOND));
        let spend = || (0..100).map_while(|_| take(&limiter, &limit, 1, at_second(115)));
        let granted = spend().count();
        assert!(granted > 0, "{terms:?}");
        let credit = Cause::Upstream.credit().expect("the upstream alone");
        early.refund("l", cost, credit);
        let granted = (granted + spend().count()) as u64;
        let burst = limit.algorithm.burst();
        assert!(granted <= burst, "{granted} of {burst}: {terms:?}");
    }
}

/// The same for units that a request has waited for: they are of the window in which it was due.
#[test]
fn refund_of_a_request_that_waited_lets_no_later_window_grant_more() {
    for (kind, burst, expected) in [
        (Kind::Interval, 30, 12),
        (Kind::FixedWindow, 10, 7),
        (Kind::SlidingWindow, 10, 7),
    ] {
        let terms = Terms {
            burst: (kind == Kind::Interval).then_some(burst),
            max_wait: Micros::from_secs(60),
            ..fixtures::terms(kind, 10, Micros::from_secs(60))
        };
        let (limiter, limit, clock) = limiter(&terms);
        assert!(take(&limiter, &limit, burst, START).is_some(), "{kind:?}");
        clock.advance(Micros(50 * SECOND));
        let mut waiting = take(&limiter, &limit, 5, at_second(50)).expect("it may wait");
        assert!(waiting.hold() > Micros::ZERO, "{kind:?}");
        clock.advance(Micros(75 * SECOND));
        let later = take(&limiter, &limit, 3, at_second(125)).expect("there are units");
        assert_eq!(later.hold(), Micros::ZERO, "{kind:?}");
        clock.advance(Micros(45 * SECOND));
        let credit = Cause::Upstream.credit().expect("the upstream alone");
        waiting.refund("l", 5, credit);
        let look = take(&limiter, &limit, 0, at_second(170)).expect("it takes nothing");
        assert_eq!(
            look.outcomes()[0].standing.remaining(),
            expected,
            "{kind:?}"
        );
    }
}

/// Within its window a refund gives back what was taken, and never more than the burst.
#[test]
fn refund_within_its_window_gives_back_what_was_taken() {
    for kind in RATES {
        let terms = fixtures::terms(kind, 10, Micros::from_secs(60));
        let (limiter, limit, clock) = limiter(&terms);
        let mut permit = take(&limiter, &limit, 10, START).expect("it is full");
        assert!(take(&limiter, &limit, 1, START).is_none(), "{kind:?}");
        clock.advance(Micros(SECOND));
        let credit = Cause::Upstream.credit().expect("the upstream alone");
        permit.refund("l", 10, credit);
        let spend = || (0..100).map_while(|_| take(&limiter, &limit, 1, at_second(1)));
        assert_eq!(spend().count(), 10, "{kind:?}");
    }
}

//! The invariants about leases and failing stores: I9 bounded under-use, I10 no silent grant.

use std::sync::Arc;

use tollgate_limit::{
    Algorithm, Claim, Draw, Kind, Limit, Micros, Placement, Settlement, Standing, Terms, Timestamp,
    WhenDown,
};
use tollgate_limiter::{Decision, Limiter};
use tollgate_store::clock::Clock;
use tollgate_store::local::{ColdStart, LocalStore};
use tollgate_store::{Deadline, Store, StoreError};

use crate::invariants::{bucket, limit};
use crate::random::START;

/// A store that is gone; four gateways share it.
#[derive(Debug)]
struct Gone;

impl Store for Gone {
    async fn draw_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        Err(StoreError::Timeout)
    }

    fn settle(&self, _: &[Settlement<'_>]) {}

    async fn peek_until<'a>(
        &'a self,
        _: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Err(StoreError::Timeout)
    }

    fn replicas(&self) -> u32 {
        4
    }
}

/// Nothing is leased in the process, so nothing lies idle: whatever the threads, a burst is granted to the last unit.
#[test]
fn i9_no_unit_lies_idle_while_a_request_is_refused() {
    for threads in 1..=4 {
        let algorithm =
            Algorithm::new(&bucket(1, Micros::from_secs(86_400), 10_000)).expect("representable");
        let limits = [Arc::new(limit(0, algorithm))];
        let now = Timestamp::from_micros(START);
        let store = LocalStore::new(&limits, Clock::manual(now), ColdStart::Full);
        let greedy = || {
            let claim = [Claim::new(&limits[0], b"k", 1)];
            (0..10_000)
                .take_while(|_| store.draw_at(&claim, now).granted)
                .count()
        };
        let granted: usize = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads).map(|_| scope.spawn(greedy)).collect();
            all.into_iter()
                .map(|thread| thread.join().expect("no panic"))
                .sum()
        });
        assert_eq!(granted, 10_000, "{threads} threads");
    }
}

/// Every grant made without the store is counted, and bounded by what the file says of its absence.
#[test]
fn i10_no_grant_without_the_store_is_silent_or_unbounded() {
    for (when_down, granted_at_most) in [
        (WhenDown::Refuse, Some(0)),
        (WhenDown::Allow, None),
        (WhenDown::LocalShare, Some(10 + 10 * 3)),
    ] {
        let terms = Terms {
            kind: Kind::TokenBucket,
            shared: true,
            ..bucket(40, Micros::from_secs(60), 40)
        };
        let shared = Limit {
            placement: Placement::Shared,
            when_down,
            ..limit(0, Algorithm::new(&terms).expect("representable"))
        };
        let limits = [Arc::new(shared)];
        let clock = Clock::manual(Timestamp::from_micros(START));
        let limiter = Limiter::new(&limits, Arc::new(Gone), clock.clone(), ColdStart::Full);
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        let (mut granted, mut refused) = (0, 0);
        for _ in 0..1_800 {
            let claim = [Claim::new(&limits[0], b"k", 1)];
            let deadline = Deadline::default();
            let deciding = limiter.decide(&claim, clock.now());
            match runtime.block_on(deciding.finish(&deadline)) {
                Decision::Allow(mut permit) => {
                    permit.forwarded();
                    assert!(
                        permit.outcomes()[0].is_without_store(),
                        "{when_down:?}: a grant that says where it comes from"
                    );
                    granted += 1;
                }
                Decision::Deny(_) => refused += 1,
                Decision::Unavailable(_) => assert_eq!(when_down, WhenDown::Refuse),
            }
            clock.advance(Micros(100_000));
        }
        match granted_at_most {
            // A quarter of the burst, and of the rate over three minutes.
            Some(most) => assert!(
                granted <= most && granted + 1 >= most,
                "{when_down:?}: {granted}"
            ),
            None => assert_eq!(granted, 1_800),
        }
        assert_eq!(
            limiter.snapshot()[0].count.ungoverned,
            granted + refused,
            "{when_down:?}"
        );
    }
}

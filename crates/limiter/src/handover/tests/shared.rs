//! Requests with a limit of a shared store, while another process has the buckets.

use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;
use crate::tests::{START, allowed, answer, check, claim, left, limit, limiter, shared};
use tollgate_limit::WhenDown;
use tollgate_store::StoreError;

/// Counts the corrections that it receives.
#[derive(Default)]
struct Counts(AtomicUsize);

impl Successor for Counts {
    fn settle(&self, _: &Settlement<'_>) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

/// The other process was not charged for them, so it gets none back.
#[test]
fn handover_units_that_the_shared_store_refuses_or_the_caller_leaves_come_back_here_only() {
    let (old, limits) = limiter(
        vec![
            limit(0, "own", Kind::TokenBucket, 10),
            shared(1, "shared", WhenDown::Refuse),
        ],
        vec![answer(false), Err(StoreError::Timeout)],
    );
    let claims = [claim(&limits[0]), claim(&limits[1])];
    old.begin_handover();
    let new = Arc::new(Counts::default());
    old.hand_to(Arc::clone(&new) as Arc<dyn Successor>);
    assert!(matches!(check(&old, &claims), Decision::Deny(_)));
    assert!(matches!(check(&old, &claims), Decision::Unavailable(_)));
    let deadline = tollgate_store::Deadline::default();
    // The script is used up, so that the store does not answer.
    let mut asking = Box::pin(old.decide(&claims, START).finish(&deadline));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asking.as_mut().poll(&mut context).is_pending());
    assert_eq!(left(&old, claims[0].limit), 9);
    drop(asking);
    assert_eq!(left(&old, claims[0].limit), 10);
    assert_eq!(new.0.load(Ordering::Relaxed), 0);
}

/// Also after a reload in the process that ends its last requests.
#[test]
fn handover_moves_shares_so_that_they_grant_nothing_here_unless_it_is_abandoned() {
    let gone = || Err(StoreError::Unavailable("gone".to_owned()));
    let (limiter, limits) = limiter(
        vec![
            shared(0, "open", WhenDown::Allow),
            shared(1, "share", WhenDown::LocalShare),
        ],
        (0..6).map(|_| gone()).collect(),
    );
    let [open, share] = [0, 1].map(|index| claim(&limits[index]));
    let counts = Claim {
        enforced: false,
        ..share
    };
    limiter.begin_handover();
    limiter.abandon_handover();
    drop(allowed(check(&limiter, &[open, share])));
    limiter.begin_handover();
    limiter.hand_to(Arc::new(Counts::default()));
    let (reloaded, _) = limiter.next(&limits, Arc::clone(limiter.shared()));
    for limiter in [&limiter, &reloaded] {
        let Decision::Unavailable(unavailable) = check(limiter, &[open, share]) else {
            panic!("the other process has the share");
        };
        assert_eq!(&*unavailable.limit, "share");
    }
    drop(allowed(check(&limiter, &[open])));
    drop(allowed(check(&limiter, &[open, counts])));
}

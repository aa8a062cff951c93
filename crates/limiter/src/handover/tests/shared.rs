//! Requests with a limit of a shared store, while the local buckets are in another process.

use super::*;
use crate::Silent;
use crate::tests::{START, Script, allowed, answer, check, claim, left, limit, limiter, shared};
use tollgate_limit::WhenDown;
use tollgate_store::StoreError;

fn hand_over(limiter: &Limiter<Script>, successor: Arc<dyn Successor>) {
    limiter.freeze_with_shares(false);
    limiter.hand_to(successor);
}

/// The units go back to the process that was charged: the copy of its bucket here was not.
#[test]
fn handover_units_are_given_back_to_their_process_if_the_shared_store_refuses_or_the_caller_leaves()
{
    let (old, limits) = limiter(
        vec![
            limit(0, "taken", Kind::TokenBucket, 10),
            limit(1, "kept", Kind::TokenBucket, 10),
            shared(2, "shared", WhenDown::Refuse),
        ],
        vec![answer(false), Err(StoreError::Timeout), answer(true)],
    );
    let [taken, kept, shared] = [0, 1, 2].map(|index| claim(&limits[index]));
    let before = Claim { cost: 3, ..taken };
    assert!(old.local().draw_at(&[before], START).granted);
    let backend = Arc::new(Backend::None);
    // Of all limits, because local buckets keep track of refunds only beside a shared limit.
    let new = Limiter::new(&limits, backend, Clock::manual(START), ColdStart::Full);
    hand_over(&old, Mortal::new(&["taken"], new.clone()));
    // In the new process, in the copy here, and of the bucket that stays here.
    let units = || {
        let (theirs, copied) = (left(&new, taken.limit), left(&old, taken.limit));
        [theirs, copied, left(&old, kept.limit)]
    };
    let claims = [kept, shared, taken];
    assert!(matches!(check(&old, &claims), Decision::Deny(_)));
    assert_eq!(units(), [10, 7, 10]);
    assert!(matches!(check(&old, &claims), Decision::Unavailable(_)));
    assert_eq!(units(), [10, 7, 10]);
    drop(allowed(check(&old, &claims)));
    assert_eq!(units(), [9, 7, 9]);
    // The script is used up, so that the store does not answer.
    let mut asking = Box::pin(old.check(&claims, START));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(asking.as_mut().poll(&mut context).is_pending());
    assert_eq!(units(), [8, 7, 8]);
    drop(asking);
    assert_eq!(units(), [9, 7, 9]);
}

/// The claim that only counts is left out, and the shared store decides with the bucket that is here.
#[test]
fn handover_limit_that_only_counts_in_a_silent_process_leaves_the_decision_to_the_shared_store() {
    let (limiter, limits) = limiter(
        vec![
            limit(0, "counts", Kind::TokenBucket, 10),
            limit(1, "kept", Kind::TokenBucket, 10),
            shared(2, "shared", WhenDown::Refuse),
            shared(3, "open", WhenDown::Allow),
        ],
        vec![
            answer(false),
            Err(StoreError::Timeout),
            answer(true),
            Err(StoreError::Timeout),
        ],
    );
    let [counts, kept, strict, open] = [0, 1, 2, 3].map(|index| claim(&limits[index]));
    let counts = Claim {
        enforced: false,
        ..counts
    };
    hand_over(&limiter, Mute::new(&["counts"], Undrawn::Silent));
    let left = || left(&limiter, kept.limit);
    let claims = [strict, counts, kept];
    let Decision::Deny(denied) = check(&limiter, &claims) else {
        panic!("the shared store refuses");
    };
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(3)));
    let unasked = |is_unasked: &dyn Fn(usize) -> bool| [0, 1, 2].map(is_unasked);
    assert_eq!(
        unasked(&|place| denied.is_unasked(place)),
        [false, true, false]
    );
    assert_eq!(left(), 10, "it is given back");
    let Decision::Unavailable(unavailable) = check(&limiter, &claims) else {
        panic!("the shared store does not respond");
    };
    assert_eq!(&*unavailable.limit, "shared");
    assert_eq!(left(), 10, "it is given back");
    let permit = allowed(check(&limiter, &claims));
    assert_eq!(
        unasked(&|place| permit.is_unasked(place)),
        [false, true, false]
    );
    let standings = permit.standings();
    assert_eq!(
        standings[0].reset,
        Micros::from_secs(9),
        "of the shared store"
    );
    assert_eq!(standings[2].remaining, 9, "of the bucket here");
    let permit = allowed(check(&limiter, &[counts, open, kept]));
    assert_eq!(
        unasked(&|place| permit.is_ungoverned(place)),
        [false, true, false]
    );
    assert_eq!(
        unasked(&|place| permit.is_unasked(place)),
        [true, true, false]
    );
    assert_eq!(left(), 8);
}

/// A reload puts a new generation in force in a process that ends its last requests.
#[test]
fn handover_shares_stay_in_the_other_process_when_this_one_reloads() {
    let gone = || Err(StoreError::Unavailable("gone".to_owned()));
    let (old, limits) = limiter(
        vec![shared(0, "shared", WhenDown::LocalShare)],
        vec![gone(), gone(), gone()],
    );
    let claims = [claim(&limits[0])];
    drop(allowed(check(&old, &claims)));
    old.freeze_with_shares(true);
    old.hand_to(Mute::new(&["shared"], Undrawn::Silent));
    assert!(matches!(check(&old, &claims), Decision::Unavailable(_)));
    let (reloaded, _) = old.next(&limits, Arc::clone(old.shared()));
    let decision = check(&reloaded, &claims);
    assert!(matches!(decision, Decision::Unavailable(_)), "{decision:?}");
}

/// A share that the store's outage did not hand over, and a request that no share decides, are not the
/// other process's.
#[test]
fn handover_share_in_the_other_process_refuses_only_requests_that_it_decides() {
    let gone = || Err(StoreError::Unavailable("gone".to_owned()));
    let (limiter, limits) = limiter(
        vec![
            shared(0, "open", WhenDown::Allow),
            shared(1, "share", WhenDown::LocalShare),
        ],
        (0..4).map(|_| gone()).collect(),
    );
    let [open, share] = [0, 1].map(|index| claim(&limits[index]));
    let counts = Claim {
        enforced: false,
        ..share
    };
    limiter.freeze_with_shares(true);
    limiter.hand_to(Mute::new(&[], Undrawn::Silent));
    let Decision::Unavailable(unavailable) = check(&limiter, &[open, share]) else {
        panic!("the other process has the share");
    };
    assert_eq!(&*unavailable.limit, "share");
    assert_eq!(unavailable.silent, Silent::NewProcess);
    drop(allowed(check(&limiter, &[open])));
    drop(allowed(check(&limiter, &[open, counts])));
    // The store responded when the handover began, so that the share stays here.
    hand_over(&limiter, Mute::new(&[], Undrawn::Silent));
    drop(allowed(check(&limiter, &[share])));
}

/// What shares owe is paid by one of the two processes.
#[test]
fn handover_debts_of_shares_stay_unless_the_other_process_pays_them() {
    let (limiter, limits) = limiter(
        vec![shared(0, "shared", WhenDown::LocalShare)],
        vec![Err(StoreError::Unavailable("gone".to_owned()))],
    );
    drop(allowed(check(&limiter, &[claim(&limits[0])])));
    let owed = || limiter.generation.shares.unpaid().0.len();
    limiter.freeze_with_shares(false);
    limiter.save_for_handover(std::io::sink()).expect("saved");
    assert_eq!(owed(), 1, "its store responds");
    limiter.freeze_with_shares(true);
    limiter.save_for_handover(std::io::sink()).expect("saved");
    limiter.hand_to(Mute::new(&[], Undrawn::Silent));
    limiter.thaw();
    assert_eq!(owed(), 0, "the other process pays");
}

#[test]
fn reversal_of_a_draw_is_what_it_took() {
    let limits = [
        limit(0, "rate", Kind::TokenBucket, 10),
        limit(1, "places", Kind::InFlight, 10),
    ];
    let [rate, places] = limits.each_ref().map(claim);
    let change = |claim: &Claim<'_>, granted| {
        let draw = answer(granted).expect("a draw");
        crate::reversal(claim, &draw.standings[0])
    };
    assert_eq!(change(&rate, true), Some(Change::Refund { units: 1 }));
    assert_eq!(change(&places, true), Some(Change::Release { units: 1 }));
    assert_eq!(change(&rate, false), None, "it was refused");
    assert_eq!(change(&Claim { cost: 0, ..rate }, true), None);
}

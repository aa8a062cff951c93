//! Shares over a restart and an upgrade during an outage.

use std::io::Cursor;

use super::*;

/// The limiter of the next process, which starts `later` on the same store.
fn restarted(limiter: &Limiter<Gone>, later: Micros, store: Gone) -> Limiter<Gone> {
    let mut saved = Vec::new();
    limiter.save(&mut saved).expect("saved");
    let clock = Clock::manual(limiter.local().clock().now().after(later));
    let restored = Limiter::restored(limiter.limits(), Arc::new(store), clock, Cursor::new(saved));
    restored.expect("sound").0
}

#[test]
fn share_is_not_refilled_by_a_restart_and_what_it_owes_is_charged_after_it() {
    let (limiter, _, limit) = limiter(Gone::default());
    assert_eq!(drain(&limiter, &limit, b"k"), 20);
    let next = restarted(&limiter, Micros::ZERO, Gone::default());
    assert_eq!(drain(&next, &limit, b"k"), 0);
    assert_eq!(drain(&next, &limit, b"other"), 20);
    let owed = [(b"k".to_vec(), 20), (b"other".to_vec(), 20)];
    assert_eq!(next.shared().owed(), owed);
    // What has refilled in the share meanwhile has refilled in the store, too.
    let last = restarted(&limiter, Micros(250_000), Gone::default());
    assert_eq!(drain(&last, &limit, b"k"), 5);
    assert_eq!(last.shared().owed(), [(b"k".to_vec(), 20)]);
}

#[test]
fn share_of_a_gateway_that_restarts_is_its_part_until_gateways_are_counted() {
    let (limiter, _, _) = limiter(Gone::default());
    let next = restarted(&limiter, Micros::ZERO, Gone::default());
    assert_eq!(next.shared().assumed.load(Ordering::Relaxed), 2);
}

//! Shares over reloads during an outage.

use super::*;

/// The limiter after a reload, by which the limit does this while its store is down.
fn reloaded(limiter: &Limiter<Gone>, limit: &Limit, when_down: WhenDown) -> Limiter<Gone> {
    let limit = Arc::new(Limit {
        when_down,
        ..limit.clone()
    });
    limiter.next(&[limit], Arc::clone(limiter.shared())).0
}

#[test]
fn share_is_kept_while_its_limit_refuses_or_allows_and_what_it_owes_is_charged() {
    for meanwhile in [WhenDown::Refuse, WhenDown::Allow] {
        let (limiter, _, limit) = limiter(Gone::default());
        assert_eq!(drain(&limiter, &limit, b"k"), 20);
        let without = reloaded(&limiter, &limit, meanwhile);
        let again = reloaded(&without, &limit, WhenDown::LocalShare);
        assert_eq!(drain(&again, &limit, b"k"), 0, "{meanwhile:?}");
        // The store responds before or after the share is back.
        assert_eq!(again.shared().owed(), [(b"k".to_vec(), 20)]);
        assert_eq!(drain(&again, &limit, b"other"), 20);
        let without = reloaded(&again, &limit, meanwhile);
        assert_eq!(without.shared().owed(), [(b"other".to_vec(), 20)]);
    }
}

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

/// The callers of the tier draw under the limit's own numbers from then on.
#[test]
fn share_of_a_tier_that_is_removed_is_still_charged() {
    let own = forty();
    let gold = Arc::new(Limit {
        index: 1,
        tier: Some("gold".into()),
        ..Limit::clone(&own)
    });
    let limits = [Arc::clone(&own), Arc::clone(&gold)];
    let owing = || {
        let clock = Clock::manual(START);
        let limiter = Limiter::new(&limits, Arc::new(Gone::default()), clock, ColdStart::Full);
        assert_eq!(drain(&limiter, &gold, b"k"), 20);
        limiter
    };
    let limiter = owing();
    let without = limiter
        .next(&[Arc::clone(&own)], Arc::clone(limiter.shared()))
        .0;
    assert_eq!(without.shared().owed(), [(b"k".to_vec(), 20)], "a reload");
    let (limiter, mut saved) = (owing(), Vec::new());
    limiter.save(&mut saved).expect("saved");
    let (saved, clock) = (std::io::Cursor::new(saved), Clock::manual(START));
    let restored = Limiter::restored(&[own], Arc::new(Gone::default()), clock, saved);
    let (restored, _) = restored.expect("sound");
    assert_eq!(restored.shared().owed(), [(b"k".to_vec(), 20)], "a restart");
}

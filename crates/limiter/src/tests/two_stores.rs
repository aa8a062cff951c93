//! Requests with limits of the process and of a shared store, which refuses, fails or does not respond.

use super::*;

#[test]
fn the_local_part_is_given_back_when_the_shared_one_refuses_or_the_caller_leaves() {
    let limits = vec![
        limit(0, "local", Kind::TokenBucket, 10),
        shared(1, "shared", WhenDown::Refuse),
    ];
    let (limiter, limits) = limiter(
        limits,
        vec![answer(false), Err(StoreError::Timeout), answer(true)],
    );
    let claims = [claim(&limits[0]), claim(&limits[1])];
    let Decision::Deny(denied) = check(&limiter, &claims) else {
        panic!("admitted")
    };
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(3)));
    assert_eq!(left(&limiter, &limits[0]), 10);
    let Decision::Unavailable(unavailable) = check(&limiter, &claims) else {
        panic!("decided")
    };
    assert_eq!(
        (&*unavailable.limit, unavailable.error),
        ("shared", StoreError::Timeout)
    );
    assert_eq!(left(&limiter, &limits[0]), 10);
    let permit = allowed(check(&limiter, &claims));
    assert_eq!(left(&limiter, &limits[0]), 9);
    drop(permit);

    // The script is used up and never answers: the caller leaves.
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    let deadline = Deadline::default();
    runtime.block_on(async {
        let mut waiting = std::pin::pin!(limiter.decide(&claims, START).finish(&deadline));
        std::future::poll_fn(|cx| {
            assert!(waiting.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        })
        .await;
        assert_eq!(left(&limiter, &limits[0]), 8);
    });
    assert_eq!(left(&limiter, &limits[0]), 9);
}

#[test]
fn shared_limit_without_its_store_follows_when_down() {
    let limits = vec![
        shared(0, "open", WhenDown::Allow),
        shared(1, "share", WhenDown::LocalShare),
    ];
    let down = || Err(StoreError::Unavailable("down".to_owned()));
    let (limiter, limits) = limiter(limits, (0..20).map(|_| down()).collect());
    let claims = [claim(&limits[0]), claim(&limits[1])];
    for _ in 0..5 {
        let permit = allowed(check(&limiter, &claims));
        assert!(permit.outcomes().iter().all(Outcome::is_without_store));
    }
    let Decision::Deny(denied) = check(&limiter, &claims) else {
        panic!("two replicas share ten: five each")
    };
    assert_eq!(denied.refused().collect::<Vec<_>>(), [1]);
    assert_eq!(
        denied.retry_after(),
        Some(Micros::from_secs(12)),
        "the rate is halved too"
    );
    assert_eq!(limiter.snapshot()[0].count.ungoverned, 6);
}

#[test]
fn a_local_refusal_does_not_ask_the_shared_store() {
    let limits = vec![
        limit(0, "local", Kind::TokenBucket, 1),
        shared(1, "shared", WhenDown::Allow),
    ];
    let (limiter, limits) = limiter(limits, vec![answer(true)]);
    let claims = [claim(&limits[0]), claim(&limits[1])];
    let _permit = allowed(check(&limiter, &claims));
    assert!(matches!(check(&limiter, &claims), Decision::Deny(_)));
    assert_eq!(*limiter.shared().asked.lock().expect("not poisoned"), 1);
}

/// What the store may have charged for a request stays charged only if the request was admitted.
#[test]
fn request_without_a_response_of_the_store_forgoes_its_units_unless_it_is_admitted() {
    for (when_down, requests, forgone) in [
        (WhenDown::Refuse, 2, 2),
        (WhenDown::Allow, 2, 0),
        // The share of one of two gateways has five units.
        (WhenDown::LocalShare, 7, 2),
    ] {
        let timeouts = (0..requests).map(|_| Err(StoreError::Timeout));
        let (limiter, limits) = limiter(vec![shared(0, "shared", when_down)], timeouts.collect());
        for _ in 0..requests {
            match check(&limiter, &[claim(&limits[0])]) {
                Decision::Allow(permit) => std::mem::forget(permit),
                Decision::Deny(_) | Decision::Unavailable(_) => {}
            }
        }
        let script = limiter.shared();
        assert_eq!(*script.forgone.lock().expect("not poisoned"), forgone);
    }
}

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use tollgate_limit::{
    Change, Draw, Kind, Micros, Mode, Role, Settlement, Standing, Terms, UNITS_MAX, WhenDown,
    fixtures,
};
use tollgate_store::{Deadline, StoreError};

const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A shared store that answers what the test says.
#[derive(Debug, Default)]
struct Script {
    answers: Mutex<VecDeque<Result<Draw, StoreError>>>,
    settled: Mutex<Vec<Change>>,
    asked: Mutex<u32>,
}

impl Store for Script {
    async fn draw_until<'a>(
        &'a self,
        _claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Draw, StoreError> {
        *self.asked.lock().expect("not poisoned") += 1;
        let answer = self.answers.lock().expect("not poisoned").pop_front();
        match answer {
            Some(answer) => answer,
            None => std::future::pending().await,
        }
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.settled
            .lock()
            .expect("not poisoned")
            .extend(settlements.iter().map(|settlement| settlement.change));
    }

    async fn peek_until<'a>(
        &'a self,
        _claims: &'a [Claim<'a>],
        _: &'a Deadline,
    ) -> Result<Vec<Standing>, StoreError> {
        Err(StoreError::Timeout)
    }

    fn replicas(&self) -> u32 {
        2
    }
}

fn limit(index: usize, name: &str, kind: Kind, amount: u64) -> Limit {
    let burst = (kind != Kind::InFlight).then_some(amount);
    let terms = Terms {
        burst,
        ..fixtures::terms(kind, amount, Micros::from_secs(60))
    };
    Limit {
        index,
        ..fixtures::limit(name, &terms)
    }
}

fn shared(index: usize, name: &str, when_down: WhenDown) -> Limit {
    Limit {
        placement: Placement::Shared,
        when_down,
        ..limit(index, name, Kind::TokenBucket, 10)
    }
}

fn limiter(
    limits: Vec<Limit>,
    answers: Vec<Result<Draw, StoreError>>,
) -> (Limiter<Script>, Vec<Arc<Limit>>) {
    let limits: Vec<_> = limits.into_iter().map(Arc::new).collect();
    let script = Script {
        answers: Mutex::new(answers.into()),
        ..Script::default()
    };
    (
        Limiter::new(
            &limits,
            Arc::new(script),
            Clock::manual(START),
            ColdStart::Full,
        ),
        limits,
    )
}

fn claim(limit: &Limit) -> Claim<'_> {
    Claim::new(limit, b"k", 1)
}

fn left(limiter: &Limiter<Script>, limit: &Limit) -> u64 {
    limiter.local().peek_at(
        &[Claim {
            cost: 0,
            ..claim(limit)
        }],
        START,
    )[0]
    .remaining
}

fn answer(granted: bool) -> Result<Draw, StoreError> {
    let verdict = match granted {
        true => Verdict::Allow { wait: Micros::ZERO },
        false => Verdict::Deny {
            retry_after: Some(Micros::from_secs(3)),
        },
    };
    let standing = Standing {
        verdict,
        remaining: 0,
        reset: Micros::from_secs(9),
        effective: Micros::ZERO,
        window_end: Timestamp::default(),
    };
    Ok(Draw {
        granted,
        standings: [standing].into_iter().collect(),
    })
}

fn check(limiter: &Limiter<Script>, claims: &[Claim<'_>]) -> Decision {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(limiter.check(claims, START))
}

fn allowed(decision: Decision) -> Permit {
    match decision {
        Decision::Allow(permit) => permit,
        other => panic!("not allowed: {other:?}"),
    }
}

#[test]
fn the_wait_of_a_refusal_is_the_longest_of_the_limits_that_refused() {
    let (limiter, limits) = limiter(
        vec![
            limit(0, "a", Kind::TokenBucket, 1),
            limit(1, "b", Kind::TokenBucket, 2),
        ],
        vec![],
    );
    let claims = [claim(&limits[0]), claim(&limits[1])];
    let _first = allowed(check(&limiter, &claims));
    let Decision::Deny(denied) = check(&limiter, &claims) else {
        panic!("admitted")
    };
    assert_eq!(denied.refused().collect::<Vec<_>>(), [0]);
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(60)));
    let second_b = allowed(check(&limiter, &claims[1..]));
    drop(second_b);
    let Decision::Deny(denied) = check(&limiter, &claims) else {
        panic!("admitted")
    };
    assert_eq!(denied.refused().collect::<Vec<_>>(), [0, 1]);
    assert_eq!(denied.retry_after(), Some(Micros::from_secs(60)));
}

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
    runtime.block_on(async {
        let mut waiting = std::pin::pin!(limiter.check(&claims, START));
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
        assert!(permit.is_ungoverned(0) && permit.is_ungoverned(1));
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

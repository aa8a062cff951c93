//! Decisions with a shared store that follows a script.

mod counted;
mod given_back;
mod two_stores;

use std::collections::VecDeque;
use std::sync::Mutex;

use super::*;
use std::sync::Arc;
use tollgate_limit::{
    Change, Corrects, Draw, Kind, Micros, Settlement, Standing, Terms, WhenDown, fixtures,
};
use tollgate_limit::{Claim, Limit, Placement, Timestamp, Verdict};
use tollgate_store::Store;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_store::{Deadline, StoreError};

pub(crate) const START: Timestamp = Timestamp::from_micros(1_700_000_000_000_000);

/// A shared store that answers what the test says.
#[derive(Debug, Default)]
pub(crate) struct Script {
    answers: Mutex<VecDeque<Result<Draw, StoreError>>>,
    settled: Mutex<Vec<Change>>,
    /// The draws that these correct.
    corrected: Mutex<Vec<Corrects>>,
    asked: Mutex<u32>,
    /// How many requests were refused for want of a response.
    forgone: Mutex<u32>,
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

    fn forgo(&self, _: &Deadline) {
        *self.forgone.lock().expect("not poisoned") += 1;
    }

    fn settle(&self, settlements: &[Settlement<'_>]) {
        self.settled
            .lock()
            .expect("not poisoned")
            .extend(settlements.iter().map(|settlement| settlement.change));
        let corrects = settlements.iter().map(|settlement| settlement.corrects);
        let mut corrected = self.corrected.lock().expect("not poisoned");
        corrected.extend(corrects);
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

pub(crate) fn limit(index: usize, name: &str, kind: Kind, amount: u64) -> Limit {
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

pub(crate) fn shared(index: usize, name: &str, when_down: WhenDown) -> Limit {
    Limit {
        placement: Placement::Shared,
        when_down,
        ..limit(index, name, Kind::TokenBucket, 10)
    }
}

pub(crate) fn limiter(
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

pub(crate) fn claim(limit: &Limit) -> Claim<'_> {
    Claim::new(limit, b"k", 1)
}

pub(crate) fn left<S: Store>(limiter: &Limiter<S>, limit: &Limit) -> u64 {
    limiter.local().peek_at(
        &[Claim {
            cost: 0,
            ..claim(limit)
        }],
        START,
    )[0]
    .remaining()
}

pub(crate) fn answer(granted: bool) -> Result<Draw, StoreError> {
    let verdict = match granted {
        true => Verdict::Allow { wait: Micros::ZERO },
        false => Verdict::Deny {
            retry_after: Some(Micros::from_secs(3)),
        },
    };
    let standing = Standing {
        verdict,
        left: 0,
        reset: Micros::from_secs(9),
        effective: Micros::ZERO,
        window_end: Timestamp::default(),
    };
    Ok(Draw {
        granted,
        standings: [standing].into_iter().collect(),
        ..Draw::default()
    })
}

pub(crate) fn check(limiter: &Limiter<Script>, claims: &[Claim<'_>]) -> Decision {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    runtime.block_on(limiter.decide(claims, START).finish(&Deadline::default()))
}

pub(crate) fn allowed(decision: Decision) -> Permit {
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

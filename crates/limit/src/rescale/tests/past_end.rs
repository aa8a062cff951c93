//! The wait that is told under numbers which end before it.

use super::*;
use crate::fixtures::limit;
use crate::{Claim, Standing};

/// The wait that is told a second after a bucket of 10 a minute was used up and got 1,000 a minute.
fn told(kind: Kind, left: u64, state: &State) -> Option<Micros> {
    let minute = 60 * SECOND;
    let own = terms(kind, 10, minute, None);
    let raised = limit("raised", &terms(kind, 1_000, minute, None));
    let own = Algorithm::new(&own).expect("representable");
    let now = Timestamp::from_micros(START + SECOND);
    let numbers = &raised.algorithm;
    let refused = numbers.judge(Some(state), 1, now).expect_err("used up");
    let verdict = Verdict::Deny {
        retry_after: refused.retry_after,
    };
    let standing = Standing::new(verdict, numbers.report(Some(state), now));
    let claim = Claim::new(&raised, b"k", 1);
    match standing.past_end(&claim, &own, Micros(left), now).verdict {
        Verdict::Deny { retry_after } => retry_after,
        Verdict::Allow { .. } => None,
    }
}

fn steps(units: i64) -> State {
    let since = Timestamp::from_micros(START);
    State::Steps(crate::bucket::Steps { units, since })
}

#[test]
fn past_end_of_a_raise_a_used_up_window_waits_for_its_own_end() {
    for kind in [Kind::FixedWindow, Kind::Interval] {
        let wait = |left| told(kind, left * SECOND, &steps(0));
        assert_eq!(wait(300), Some(Micros(59 * SECOND)), "{kind:?}, it lasts");
        assert_eq!(wait(3), Some(Micros(59 * SECOND)), "{kind:?}, it ends");
    }
}

#[test]
fn past_end_of_a_raise_a_window_in_debt_waits_until_its_own_rate_has_paid() {
    for kind in [Kind::FixedWindow, Kind::Interval] {
        let wait = told(kind, 3 * SECOND, &steps(-25)).expect("a wait");
        // Three windows of 10 pay 25: never less is told.
        assert!(wait >= Micros((59 + 120) * SECOND), "{kind:?}: {wait:?}");
    }
}

//! No edit of a limit's numbers refills a bucket: a token bucket has no more than it had, all others have the
//! new number less what was used. Another algorithm or period begins new buckets.

use std::sync::Arc;

use tollgate_limit::fixtures::RATES;
use tollgate_limit::{
    Algorithm, Align, Kind, Limit, Micros, Mode, OnFailover, Terms, Timestamp, WhenDown,
};

use super::reloads::left;
use crate::random::START;
use crate::subject::{Subject, caller, limit, terms};

const HOUR: Micros = Micros::from_secs(3600);
/// The most that each edited limit grants at once.
const MOST: u64 = 20;

/// An edit of the limit's numbers.
type EditTerms = fn(&mut Terms);
/// An edit of its other settings.
type EditLimit = fn(&mut Limit);

const NUMBERS: [(&str, EditTerms); 16] = [
    ("token_bucket", |terms| become_(terms, Kind::TokenBucket)),
    ("interval", |terms| become_(terms, Kind::Interval)),
    ("fixed_window", |terms| become_(terms, Kind::FixedWindow)),
    ("sliding_window", |terms| {
        become_(terms, Kind::SlidingWindow)
    }),
    ("sliding_log", |terms| become_(terms, Kind::SlidingLog)),
    ("a smaller burst", |terms| resize(terms, MOST / 4)),
    ("a larger burst", |terms| resize(terms, 4 * MOST)),
    ("a higher rate", |terms| {
        terms.amount *= if has_burst(terms) { 50 } else { 1 }
    }),
    ("a lower rate", |terms| {
        terms.period = Micros(terms.period.0 * 7)
    }),
    ("a shorter period", |terms| {
        terms.period = Micros::from_secs(60)
    }),
    ("another unit", |terms| {
        terms.period = Micros(terms.period.0 * 24);
        terms.amount *= if has_burst(terms) { 24 } else { 1 };
    }),
    ("numbers that do not reduce", |terms| {
        terms.period = Micros(HOUR.0 - 1);
    }),
    ("debt", |terms| {
        if has_burst(terms) {
            terms.debt = 7;
        }
    }),
    ("max_wait", |terms| {
        if !(terms.kind == Kind::SlidingWindow && terms.shared) {
            terms.max_wait = Micros(1);
        }
    }),
    ("windows by the clock", |terms| {
        if terms.kind == Kind::FixedWindow {
            terms.align = Align::Clock;
        }
    }),
    ("nothing", |_| {}),
];

const SETTINGS: [(&str, EditLimit); 8] = [
    ("mode", |limit| limit.mode = Mode::Shadow),
    ("enforce_for", |limit| limit.enforce_for = 5_000),
    ("when_down", |limit| limit.when_down = WhenDown::LocalShare),
    ("on_failover", |limit| limit.on_failover = OnFailover::Drain),
    ("lease", |limit| limit.lease = !limit.lease),
    ("memory", |limit| limit.memory *= 4),
    ("refundable", |limit| limit.refundable = !limit.refundable),
    ("settle", |limit| {
        let shared = limit.placement == tollgate_limit::Placement::Shared;
        let algorithm = limit.algorithm.clone().settling(900, shared);
        limit.algorithm = algorithm.expect("representable");
    }),
];

fn has_burst(terms: &Terms) -> bool {
    matches!(terms.kind, Kind::TokenBucket | Kind::Interval)
}

/// Another algorithm with the same rate and as much at once.
fn become_(terms: &mut Terms, kind: Kind) {
    *terms = Terms {
        kind,
        burst: matches!(kind, Kind::TokenBucket | Kind::Interval).then_some(MOST),
        amount: MOST,
        debt: 0,
        align: Align::FirstHit,
        ..terms.clone()
    };
}

fn resize(terms: &mut Terms, most: u64) {
    if has_burst(terms) {
        terms.burst = Some(most);
    } else {
        terms.amount = most;
    }
}

/// Limits to be edited: each algorithm.
fn edited<S: Subject>() -> Vec<Terms> {
    let mut all = Vec::new();
    for kind in RATES {
        let mut one = terms::<S>(kind, MOST, HOUR);
        become_(&mut one, kind);
        all.push(one);
    }
    all
}

fn made<S: Subject>(terms: &Terms) -> Limit {
    let algorithm = Algorithm::new(terms).unwrap_or_else(|errors| panic!("{terms:?}: {errors:?}"));
    Limit::clone(&limit::<S>(0, algorithm))
}

/// For each limit and each edit: what a caller gets by it who has used up his bucket, and what one who has some units left.
/// Twice, since an edit is also taken back.
pub(crate) async fn no_edit_of_a_limit_refills_a_bucket<S: Subject>() {
    for terms in edited::<S>() {
        let before = made::<S>(&terms);
        let numbers = NUMBERS.iter().map(|(name, edit)| {
            let mut terms = terms.clone();
            edit(&mut terms);
            (*name, made::<S>(&terms))
        });
        let settings = SETTINGS.iter().map(|(name, edit)| {
            let mut limit = before.clone();
            edit(&mut limit);
            (*name, limit)
        });
        for (name, after) in numbers.chain(settings) {
            for restart in [false, true] {
                if S::SHARED && restart {
                    continue;
                }
                let what = format!("{:?}, {name}, restart: {restart}", terms.kind);
                let [before, after] = [&before, &after].map(|limit| [Arc::new(limit.clone())]);
                let Some(mut subject) = S::new(&before, Timestamp::from_micros(START)).await else {
                    return;
                };
                let [spent, some, fresh] = ["spent", "some", "fresh"].map(caller);
                assert_eq!(left(&subject, &before[0], &spent, 100).await, MOST);
                assert_eq!(left(&subject, &before[0], &some, 3).await, 3);
                subject.reload(&after, restart);
                let burst = after[0].algorithm.burst();
                if !before[0].algorithm.has_buckets_of(&after[0].algorithm) {
                    assert_eq!(
                        left(&subject, &after[0], &spent, 100).await,
                        burst,
                        "{what}"
                    );
                    continue;
                }
                let is_level = terms.kind == Kind::TokenBucket;
                let rest = |of: u64, used: u64| match is_level {
                    true => (MOST - used).min(of),
                    false => of.saturating_sub(used),
                };
                // A limit that is given a debt or a wait grants what the file now says.
                let owing = after[0].algorithm.greatest_cost() - burst;
                let more = owing.min(1) + u64::from(name == "max_wait");
                let again = left(&subject, &after[0], &spent, 100).await;
                let due = rest(burst, MOST);
                assert!(
                    (due..=due + more).contains(&again),
                    "{what}: {again} of {due}"
                );
                let taken = left(&subject, &after[0], &some, 100).await;
                let due = rest(burst, 3);
                assert!(
                    (due..=due + more).contains(&taken),
                    "{what}: {taken} of {due}"
                );
                subject.reload(&before, restart);
                for key in [&spent, &some] {
                    let most = left(&subject, &before[0], key, 100).await;
                    let due = if burst < MOST && !is_level {
                        MOST - burst
                    } else {
                        0
                    };
                    let due = if key == &some { due } else { 0 };
                    assert_eq!(most, due, "{what}, taken back");
                }
                let most = left(&subject, &before[0], &fresh, 100).await;
                assert_eq!(most, MOST, "{what}");
            }
        }
    }
}

//! One state type over all algorithms, dispatched.

use crate::limit::bucket::{Granted, Held, Judged, Level, Report, State};
use crate::limit::{Algorithm, Change, Timestamp};

/// Whether `cost` can be drawn at `now`.
pub(crate) fn judge(algorithm: &Algorithm, state: Option<&State>, cost: u64, now: Timestamp) -> Judged<State> {
    match algorithm {
        Algorithm::TokenBucket(bucket) => {
            bucket.judge(level(state), cost, now).map(|granted| wrap(granted, State::Level))
        }
        Algorithm::InFlight(limit) => limit.judge(held(state), cost).map(|granted| wrap(granted, State::Held)),
    }
}

/// How it stands.
pub(crate) fn report(algorithm: &Algorithm, state: Option<&State>, now: Timestamp) -> Report {
    match algorithm {
        Algorithm::TokenBucket(bucket) => bucket.report(level(state), now),
        Algorithm::InFlight(limit) => limit.report(held(state)),
    }
}

/// A later correction; `None`: full again.
pub(crate) fn settle(algorithm: &Algorithm, state: Option<&State>, change: Change, now: Timestamp) -> Option<State> {
    match algorithm {
        Algorithm::TokenBucket(bucket) => bucket.settle(level(state), change, now).map(State::Level),
        Algorithm::InFlight(limit) => limit.settle(held(state), change).map(State::Held),
    }
}

/// When the bucket is full again and may be forgotten; `None`: not by waiting.
pub(crate) fn expiry(algorithm: &Algorithm, state: &State) -> Option<Timestamp> {
    match (algorithm, state) {
        (Algorithm::TokenBucket(bucket), State::Level(level)) => Some(bucket.expiry(*level)),
        _ => None,
    }
}

/// A state that owes at least what each of both owes.
pub(crate) fn join(algorithm: &Algorithm, a: &State, b: &State) -> State {
    match (algorithm, a, b) {
        (Algorithm::TokenBucket(bucket), State::Level(a), State::Level(b)) => {
            let at = a.at.max(b.at);
            State::Level(Level { level: bucket.level(Some(*a), at).min(bucket.level(Some(*b), at)), at })
        }
        _ => a.clone(),
    }
}

/// The state under changed numbers, never added to; `None`: full, or it means nothing there.
pub(crate) fn rescale(from: &Algorithm, to: &Algorithm, state: &State, now: Timestamp) -> Option<State> {
    match (from, to, state) {
        (Algorithm::TokenBucket(from), Algorithm::TokenBucket(to), State::Level(level)) => {
            from.rescale(*level, to, now).map(State::Level)
        }
        (Algorithm::InFlight(_), Algorithm::InFlight(_), held) => Some(held.clone()),
        _ => None,
    }
}

/// Whether states under `from` mean anything under `to`.
pub(crate) fn same_kind(from: &Algorithm, to: &Algorithm) -> bool {
    std::mem::discriminant(from) == std::mem::discriminant(to)
}

/// A bucket with nothing in it; `None`: there is no such thing.
pub(crate) fn drained(algorithm: &Algorithm, now: Timestamp) -> Option<State> {
    match algorithm {
        Algorithm::TokenBucket(_) => Some(State::Level(Level { level: 0, at: now })),
        Algorithm::InFlight(_) => None,
    }
}

fn level(state: Option<&State>) -> Option<Level> {
    match state {
        Some(State::Level(level)) => Some(*level),
        _ => None,
    }
}

fn held(state: Option<&State>) -> Option<Held> {
    match state {
        Some(State::Held(held)) => Some(*held),
        _ => None,
    }
}

fn wrap<S>(granted: Granted<S>, state: impl Fn(S) -> State) -> Granted<State> {
    Granted { wait: granted.wait, next: state(granted.next) }
}

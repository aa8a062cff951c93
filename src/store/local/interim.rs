//! What the wide table asks of an algorithm, with the states it keeps.

use crate::limit::bucket::{Granted, Judged, Report, State};
use crate::limit::{Algorithm, Change, Timestamp};

/// Whether `cost` can be drawn at `now`.
pub(crate) fn judge(algorithm: &Algorithm, state: Option<&State>, cost: u64, now: Timestamp) -> Judged<State> {
    let granted = algorithm.judge(state, cost, now)?;
    Ok(Granted { wait: granted.wait, next: algorithm.after(state, granted.next) })
}

/// How it stands.
pub(crate) fn report(algorithm: &Algorithm, state: Option<&State>, now: Timestamp) -> Report {
    algorithm.report(state, now)
}

/// A later correction; `None`: full again.
pub(crate) fn settle(algorithm: &Algorithm, state: Option<&State>, change: Change, now: Timestamp) -> Option<State> {
    let mut state = state.cloned();
    algorithm.settle(&mut state, change, now);
    state
}

/// When the bucket is full again and may be forgotten; `None`: not by waiting.
pub(crate) fn expiry(algorithm: &Algorithm, state: &State) -> Option<Timestamp> {
    algorithm.expiry(state)
}

/// A state that owes at least what each of both owes.
pub(crate) fn join(algorithm: &Algorithm, a: &State, b: &State) -> State {
    algorithm.join(a, b)
}

/// The state under changed numbers, never added to; `None`: full, or it means nothing there.
pub(crate) fn rescale(from: &Algorithm, to: &Algorithm, state: &State, now: Timestamp) -> Option<State> {
    from.rescale(state, to, now)
}

/// Whether states under `from` mean anything under `to`.
pub(crate) fn same_kind(from: &Algorithm, to: &Algorithm) -> bool {
    from.kind() == to.kind()
}

/// A bucket with nothing in it; `None`: there is no such thing.
pub(crate) fn drained(algorithm: &Algorithm, now: Timestamp) -> Option<State> {
    algorithm.drained(now)
}

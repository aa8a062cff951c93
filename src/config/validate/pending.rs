//! Keys that are understood and not yet obeyed. Nothing that is written is passed over in silence: each is warned of,
//! and whoever makes one work removes its line here.

use super::{Context, entries_of};
use crate::config::problem::Problem;
use crate::config::raw::RawFile;
use crate::config::source::Place;

/// Warns of every such key that is written.
pub(crate) fn warn(raw: &RawFile, context: &mut Context<'_>) {
    let mut pending: Vec<(&str, Option<Place>, &str)> = Vec::new();
    for (_, limit) in entries_of(&raw.limits) {
        if limit.lease.get().is_some_and(|lease| lease.value) {
            pending.push(("lease", limit.lease.place(), "every decision asks the store: exact, with more calls"));
        }
    }
    for (key, place, instead) in pending {
        if let Some(place) = place {
            context.push(Problem::warning(format!("`{key}` has no effect in this version")).at(place, instead));
        }
    }
}

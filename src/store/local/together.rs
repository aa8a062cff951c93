//! The common case of several limits: every bucket is known and one word long.
//!
//! All cache lines are asked for before any is looked at, so that their ways from memory overlap. All buckets are judged
//! without a lock; a refusal ends here. Otherwise each slot is locked, and if nobody came in between, what was worked out
//! is written: no set is searched twice. No lock is waited for with another one held, so their order does not matter.

use std::array::from_fn;
use std::sync::atomic::AtomicU64;

use crate::limit::{Claim, Draw, Standing, Timestamp};

use super::LocalStore;
use super::packed::{Glance, Site};
use super::set::Held;
use super::table::Table;

impl LocalStore {
    /// Draws every claim or none.
    #[inline(never)]
    pub(super) fn draw_known<const N: usize>(&self, claims: &[Claim<'_>; N], now: Timestamp) -> Draw {
        let tables: [&Table; N] = from_fn(|place| &*self.tables[claims[place].limit.index]);
        let sites: [Option<Site<'_>>; N] = from_fn(|place| tables[place].site(self.seed.tag(claims[place].key)));
        let Some(sites) = all(sites) else { return self.draw_any(claims, now) };
        let glances: [Option<Glance>; N] = from_fn(|place| sites[place].glance(claims[place].cost, now));
        let Some(glances) = all(glances) else { return self.draw_any(claims, now) };
        if (0..N).any(|place| claims[place].enforced && !glances[place].allows()) {
            let standings: [Standing; N] = from_fn(|place| sites[place].standing(&glances[place]));
            return Draw { granted: false, standings: standings.into_iter().collect() };
        }
        let held: [Option<Held<'_, AtomicU64>>; N] = hold(&sites, &glances);
        match all(held) {
            Some(held) => {
                let commit = |(place, held): (usize, _)| sites[place].commit(held, &glances[place], claims[place].cost);
                Draw { granted: true, standings: held.into_iter().enumerate().map(commit).collect() }
            }
            None => self.draw_any(claims, now),
        }
    }
}

/// Locks the slots, as far as they are as the glances saw them.
#[inline]
fn hold<'s, const N: usize>(sites: &[Site<'s>; N], glances: &[Glance; N]) -> [Option<Held<'s, AtomicU64>>; N] {
    let mut held = [const { None }; N];
    for place in 0..N {
        held[place] = sites[place].hold(&glances[place]);
        if held[place].is_none() {
            break;
        }
    }
    held
}

/// All of them, if none is missing.
#[inline]
fn all<T, const N: usize>(some: [Option<T>; N]) -> Option<[T; N]> {
    if some.iter().any(Option::is_none) {
        return None;
    }
    Some(some.map(|one| one.expect("none is missing")))
}

//! The common case of several limits: every bucket is known and one word long.
//!
//! All cache lines are asked for before any is looked at, so that their ways from memory overlap. All buckets are judged
//! without a lock; a refusal ends here. Otherwise each slot is locked, and if nobody came in between, what was worked out
//! is written: no set is searched twice. No lock is waited for with another one held, so their order does not matter.
//!
//! What is worked out is kept in arrays of words, not of answers: an answer that is moved is read in wider pieces than it was
//! written in, and each such read waits until all of it has arrived in the cache.

use std::array::from_fn;

use smallvec::SmallVec;

use crate::limit::{Claim, Draw, Timestamp, Verdict};

use super::LocalStore;
use super::packed::{PackedTable, Site};

impl LocalStore {
    /// Draws every claim or none.
    #[inline(never)]
    pub(super) fn draw_known<const N: usize>(&self, claims: &[Claim<'_>; N], now: Timestamp) -> Draw {
        let table = |place: usize| self.tables[claims[place].limit.index].plain();
        let Some(first) = table(0) else { return self.draw_any(claims, now) };
        let mut tables: [&PackedTable; N] = [first; N];
        for (place, own) in tables.iter_mut().enumerate().skip(1) {
            let Some(table) = table(place) else { return self.draw_any(claims, now) };
            *own = table;
        }
        let sites: [Site<'_>; N] = from_fn(|place| tables[place].site(self.seed.tag(claims[place].key)));
        std::hint::black_box(sites.iter().fold(0, |words, site| words ^ site.touch()));

        let Some(first) = sites[0].peek() else { return self.draw_any(claims, now) };
        let mut seen = [first; N];
        for place in 1..N {
            let Some(one) = sites[place].peek() else { return self.draw_any(claims, now) };
            seen[place] = one;
        }
        let judged: [(Verdict, u64); N] = from_fn(|place| sites[place].judge(seen[place], claims[place].cost, now));
        let allows = |place: usize| !claims[place].enforced || matches!(judged[place].0, Verdict::Allow { .. });
        let granted = (0..N).all(allows);
        if granted {
            for place in 0..N {
                if !sites[place].hold(seen[place]) {
                    for held in 0..place {
                        sites[held].release(seen[held], seen[held].arrival());
                    }
                    return self.draw_any(claims, now);
                }
            }
            for place in 0..N {
                sites[place].release(seen[place], judged[place].1);
            }
        }
        let mut draw = Draw { granted, standings: SmallVec::new() };
        for place in 0..N {
            let (verdict, next) = judged[place];
            let arrival = if granted { next } else { seen[place].arrival() };
            draw.standings.push(sites[place].standing(verdict, arrival, now));
        }
        draw
    }
}

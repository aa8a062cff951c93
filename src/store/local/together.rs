//! The common case of several limits: every bucket is one word long.
//!
//! *Known buckets.* They are looked up in all sets without a branch in between, so that the ways of the cache lines from
//! memory overlap. All are judged without a lock; a refusal ends here. Otherwise each slot is locked, and if nobody came in
//! between, what was worked out is written: no set is searched twice. No lock is waited for with another one held, so
//! their order does not matter.
//!
//! *New buckets* need their sets' locks, which are waited for: in the order of the tables.
//!
//! What is worked out is kept in words that are written where they stay, and there are few instructions to it, so that the
//! next request's lines are asked for while this one's are still on their way. An answer that is moved is read in wider
//! pieces than it was written in, and each such read waits until all of it has arrived in the cache, behind the locked
//! instructions of the request before.

use std::array::from_fn;

use crate::limit::{Claim, Draw, Micros, Timestamp, Verdict};

use super::LocalStore;
use super::packed::{PackedSlot, PackedTable, Site};
use super::set::Seen;

impl LocalStore {
    /// Draws every claim or none, and says in `draw`, which is empty, what came of it; `false`: nothing was drawn.
    #[inline(never)]
    pub(super) fn draw_together<const N: usize>(
        &self,
        claims: &[Claim<'_>; N],
        now: Timestamp,
        draw: &mut Draw,
    ) -> bool {
        let Some(mut sites) = self.sites(claims, now) else { return false };
        let mut seen = [Seen::default(); N];
        let mut known = true;
        for place in 0..N {
            let (found, one) = sites[place].scan();
            seen[place] = one;
            known &= found;
        }
        if !known {
            return self.draw_in_sets(claims, now, draw);
        }
        let mut verdicts = [Verdict::Allow { wait: Micros::ZERO }; N];
        let mut arrivals = [0; N];
        let mut granted = true;
        for place in 0..N {
            let (verdict, next) = sites[place].judge(seen[place], claims[place].cost);
            granted &= !claims[place].enforced | is_allow(verdict);
            verdicts[place] = verdict;
            arrivals[place] = next;
        }
        if granted {
            for place in 0..N {
                if !sites[place].hold(seen[place]) {
                    for held in 0..place {
                        sites[held].release(seen[held], seen[held].arrival());
                    }
                    return false;
                }
            }
            for place in 0..N {
                sites[place].release(seen[place], arrivals[place]);
            }
        } else {
            arrivals = seen.map(Seen::arrival);
        }
        draw.granted = granted;
        for place in 0..N {
            draw.standings.push(sites[place].standing(verdicts[place], arrivals[place]));
        }
        true
    }

    /// The same, of which some are not known or not unlocked.
    #[inline(never)]
    fn draw_in_sets<const N: usize>(&self, claims: &[Claim<'_>; N], now: Timestamp, draw: &mut Draw) -> bool {
        let Some(sites) = self.sites(claims, now) else { return false };
        if !claims.is_sorted_by_key(|claim| self.tables[claim.limit.index].order) {
            return false;
        }
        let mut slots: [Option<PackedSlot<'_>>; N] = from_fn(|_| None);
        for place in 0..N {
            slots[place] = sites[place].lock(now);
            // It has moved, and where to has another place in the order.
            if slots[place].is_none() {
                return false;
            }
        }
        let mut verdicts = [Verdict::Allow { wait: Micros::ZERO }; N];
        let mut granted = true;
        for (place, slot) in slots.iter_mut().flatten().enumerate() {
            verdicts[place] = slot.judge(claims[place].cost);
            granted &= !claims[place].enforced | is_allow(verdicts[place]);
        }
        draw.granted = granted;
        for (slot, verdict) in slots.iter_mut().flatten().zip(verdicts) {
            if granted {
                slot.commit();
            }
            draw.standings.push(slot.standing(verdict));
        }
        true
    }

    /// Where the buckets are; `None`: not all are one word long.
    #[inline(always)]
    fn sites<const N: usize>(&self, claims: &[Claim<'_>; N], now: Timestamp) -> Option<[Site<'_>; N]> {
        let key = claims[0].key;
        let tag = self.seed.tag(key);
        let table = self.plain(&claims[0])?;
        // All tables of a store count from one moment on.
        let elapsed = table.elapsed(now);
        let mut sites = [table.site(tag, elapsed); N];
        for place in 1..N {
            // Limits that are split the same way have one key between them.
            let same = std::ptr::eq(claims[place].key, key);
            let tag = if same { tag } else { self.tag_of_another(claims[place].key) };
            sites[place] = self.plain(&claims[place])?.site(tag, elapsed);
        }
        Some(sites)
    }

    #[inline(always)]
    fn plain(&self, claim: &Claim<'_>) -> Option<&PackedTable> {
        self.tables[claim.limit.index].plain()
    }

    #[inline(never)]
    fn tag_of_another(&self, key: &[u8]) -> u64 {
        self.seed.tag(key)
    }
}

#[inline(always)]
fn is_allow(verdict: Verdict) -> bool {
    matches!(verdict, Verdict::Allow { .. })
}

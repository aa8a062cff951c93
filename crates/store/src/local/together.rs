//! Draws from several packed buckets, the common case of several limits.
//!
//! *Known buckets.* All sets are searched without a branch in between, so that the memory loads of
//! their cache lines overlap. All buckets are judged without taking a lock; a refusal ends here.
//! Otherwise each slot is locked, and if no other thread intervened, the computed words are
//! written: no set is searched twice. No lock is waited for while another is held, so their order
//! does not matter.
//!
//! *New buckets* are also read before anything is locked, so that a refusal never waits. A grant
//! needs their sets' locks, which are taken in the order of the tables.
//!
//! The code must be short, so that the loads of the next request overlap with those of this one,
//! and results must stay in registers. Hence each position is written out. (Moving a result would
//! read it in wider pieces than it was written in, and each such read waits until all of it has
//! reached the cache, after the locked instructions of the previous request.)

use std::array::from_fn;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Draw, Micros, Standing, Timestamp, Verdict};

use super::LocalStore;
use super::packed::{PackedSlot, PackedTable};
use super::set::SlotView;

/// Repeats the code for every index below `$n`, which is 2, 3 or 4. A loop would keep its data in
/// memory.
macro_rules! each {
    ($place:ident in $n:ident $body:block) => {
        each!($place 0 $body);
        each!($place 1 $body);
        if $n > 2 {
            each!($place 2 $body);
        }
        if $n > 3 {
            each!($place 3 $body);
        }
    };
    ($place:ident $value:literal $body:block) => {{
        let $place = $value;
        $body
    }};
}

impl LocalStore {
    /// Draws every claim or none; `tag` is that of the first one's key.
    #[inline(never)]
    pub(super) fn draw_together<const N: usize>(
        &self,
        tag: u64,
        claims: &[Claim<'_>; N],
        now: Timestamp,
    ) -> Draw {
        let Some(table) = self.plain(&claims[0]) else {
            return self.draw_any(claims, now);
        };
        // All tables of a store count time from one moment.
        let elapsed = table.elapsed(now);
        let mut sites = [table.site(tag, elapsed); N];
        each!(place in N {
            if place > 0 {
                let Some(table) = self.plain(&claims[place]) else { return self.draw_any(claims, now) };
                sites[place] = table.site(self.tag_beside(tag, claims, place), elapsed);
            }
        });
        let mut seen = [SlotView::default(); N];
        let mut known = true;
        each!(place in N {
            let (found, one) = sites[place].scan();
            seen[place] = one;
            known &= found;
        });
        if !known {
            return self.draw_in_sets(tag, claims, now);
        }
        let mut verdicts = [Verdict::Allow { wait: Micros::ZERO }; N];
        let mut arrivals = [0; N];
        let mut granted = true;
        each!(place in N {
            let (verdict, next) = sites[place].judge(seen[place], claims[place].cost);
            granted &= !claims[place].enforced | verdict.is_allow();
            verdicts[place] = verdict;
            arrivals[place] = next;
        });
        if granted {
            each!(place in N {
                if !sites[place].hold(seen[place]) {
                    for held in 0..place {
                        sites[held].release(seen[held], seen[held].arrival());
                    }
                    return self.draw_any(claims, now);
                }
            });
            each!(place in N { sites[place].release(seen[place], arrivals[place]); });
        } else {
            let mut moved = false;
            each!(place in N {
                moved |= seen[place].is_moved();
                arrivals[place] = seen[place].arrival();
            });
            if moved {
                return self.draw_any(claims, now);
            }
        }
        let mut standings = [UNOWNED_; 4];
        each!(place in N { standings[place] = sites[place].standing(verdicts[place], arrivals[place]); });
        Draw {
            granted,
            standings: SmallVec::from_buf_and_len(standings, N),
        }
    }

    /// The same when some buckets are not known.
    #[inline(never)]
    fn draw_in_sets<const N: usize>(
        &self,
        tag: u64,
        claims: &[Claim<'_>; N],
        now: Timestamp,
    ) -> Draw {
        if let Some(refusal) = self.refused(claims, now) {
            return refusal;
        }
        if !claims.is_sorted_by_key(|claim| self.tables[claim.limit.index].order) {
            return self.draw_any(claims, now);
        }
        let mut slots: [Option<PackedSlot<'_>>; N] = from_fn(|_| None);
        for place in 0..N {
            let table = self.plain(&claims[place]);
            slots[place] =
                table.and_then(|table| table.lock(self.tag_beside(tag, claims, place), now));
            // It has moved, and its successor has another position in the lock order.
            if slots[place].is_none() {
                drop(slots);
                return self.draw_any(claims, now);
            }
        }
        let mut verdicts = [Verdict::Allow { wait: Micros::ZERO }; N];
        let mut granted = true;
        for (place, slot) in slots.iter_mut().flatten().enumerate() {
            verdicts[place] = slot.judge(claims[place].cost);
            granted &= !claims[place].enforced | verdicts[place].is_allow();
        }
        let mut standings = SmallVec::new();
        for (slot, verdict) in slots.iter_mut().flatten().zip(verdicts) {
            if granted {
                slot.commit();
            }
            standings.push(slot.standing(verdict));
        }
        Draw { granted, standings }
    }

    #[inline(always)]
    pub(super) fn plain(&self, claim: &Claim<'_>) -> Option<&PackedTable> {
        self.tables[claim.limit.index].packed()
    }

    /// The tag of the claim at `place`; `tag` is that of the first. Limits with the same scope
    /// share one key.
    #[inline(always)]
    fn tag_beside<const N: usize>(&self, tag: u64, claims: &[Claim<'_>; N], place: usize) -> u64 {
        if std::ptr::eq(claims[place].key, claims[0].key) {
            tag
        } else {
            self.tag_of_another(claims[place].key)
        }
    }

    #[inline(never)]
    fn tag_of_another(&self, key: &[u8]) -> u64 {
        self.seed.tag(key)
    }
}

/// A placeholder for indices without a claim.
const UNOWNED_: Standing = Standing {
    verdict: Verdict::Allow { wait: Micros::ZERO },
    remaining: 0,
    reset: Micros::ZERO,
    effective: Micros::ZERO,
    window_end: Timestamp::from_micros(0),
};

//! A draw from the buckets of the tables: the shortest path that the claims allow.

use smallvec::SmallVec;

use tollgate_limit::{Claim, Draw, Standing, Timestamp, Verdict};

use super::LocalStore;
use super::locks::{Bound, lock_all};
use super::packed::{PackedTable, View};
use super::table::Slot;

impl LocalStore {
    /// Draws every claim or none, at `now`.
    // Each path is a separate function, so that the shortest can be inlined: a locked instruction
    // waits for everything a call writes to memory (claims, saved registers, a result to be
    // copied).
    #[inline(always)]
    pub fn draw_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if !self.beside.is_empty() {
            return self.draw_beside(claims, now);
        }
        self.draw_tables(claims, now)
    }

    #[inline(always)]
    pub(super) fn draw_tables(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        match claims {
            [claim] => self.draw_alone(claim, now),
            [] => self.draw_any(claims, now),
            [first, ..] => self.draw_several(self.seed.tag(first.key), claims, now),
        }
    }

    #[inline(always)]
    fn draw_alone(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        let tag = self.seed.tag(claim.key);
        match self.tables[claim.limit.index].draw_known(tag, claim.cost, now) {
            Some(standing) => alone(claim.enforced, standing),
            None => self.draw_one(claim, now),
        }
    }

    #[inline(never)]
    fn draw_one(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        match self.tables[claim.limit.index].draw(self.seed.tag(claim.key), claim, now) {
            Some(standing) => alone(claim.enforced, standing),
            None => self.draw_any(std::slice::from_ref(claim), now),
        }
    }

    /// Draws from several buckets; `tag` is that of the first one's key.
    #[inline(never)]
    fn draw_several(&self, tag: u64, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if let Ok(three) = <&[Claim<'_>; 3]>::try_from(claims) {
            self.draw_together(tag, three, now)
        } else if let Ok(two) = <&[Claim<'_>; 2]>::try_from(claims) {
            self.draw_together(tag, two, now)
        } else if let Ok(four) = <&[Claim<'_>; 4]>::try_from(claims) {
            self.draw_together(tag, four, now)
        } else {
            self.draw_any(claims, now)
        }
    }

    /// Draws from buckets without known state.
    #[inline(never)]
    pub(super) fn draw_any(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        if let Some(refusal) = self.refused(claims, now) {
            return refusal;
        }
        let mut bound = self.bind(claims);
        draw_locked(&mut bound, claims, now)
    }

    /// The refusal, if the result is a refusal and can be determined without a lock: for packed
    /// buckets.
    pub(super) fn refused(&self, claims: &[Claim<'_>], now: Timestamp) -> Option<Draw> {
        let mut views: SmallVec<[(&PackedTable, View); 4]> = SmallVec::with_capacity(claims.len());
        let mut granted = true;
        for claim in claims {
            let table = self.plain(claim)?;
            let view = table.view(self.seed.tag(claim.key), claim.cost, now)?;
            granted &= !claim.enforced || view.verdict.is_allow();
            views.push((table, view));
        }
        let refuse = |(table, view): &(&PackedTable, View)| table.refuse(view);
        (!granted).then(|| Draw {
            granted,
            standings: views.iter().map(refuse).collect(),
        })
    }
}

pub(super) fn draw_locked(bound: &mut [Bound<'_>], claims: &[Claim<'_>], now: Timestamp) -> Draw {
    let mut slots = lock_all(bound, now);
    let mut granted = true;
    let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
    for (claim, slot) in claims.iter().zip(&mut slots) {
        let verdict = slot.judge(claim.cost, now);
        granted &= !claim.enforced || verdict.is_allow();
        verdicts.push(verdict);
    }
    let answer = |(slot, verdict): (&mut Slot<'_>, Verdict)| {
        if granted {
            slot.commit(now);
        }
        Standing::new(verdict, slot.report(now))
    };
    Draw {
        granted,
        standings: slots.iter_mut().zip(verdicts).map(answer).collect(),
    }
}

/// The result of a single claim, written directly to its destination: a copy would read it before
/// the writes have completed.
#[inline(always)]
fn alone(enforced: bool, standing: Standing) -> Draw {
    let granted = !enforced || standing.verdict.is_allow();
    let mut standings = SmallVec::new();
    standings.push(standing);
    Draw { granted, standings }
}

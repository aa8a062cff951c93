//! Draws from the buckets of the tables.

use smallvec::SmallVec;

use tollgate_limit::{Change, Claim, Draw, Standing, Timestamp, Verdict};

use super::LocalStore;
use super::locks::{Bound, lock_all};

impl LocalStore {
    pub fn draw_at(&self, claims: &[Claim<'_>], now: Timestamp) -> Draw {
        match claims {
            [claim] => self.draw_one(claim, now),
            several => draw_locked(&mut self.bind(several), several, now),
        }
    }

    fn draw_one(&self, claim: &Claim<'_>, now: Timestamp) -> Draw {
        let tag = self.seed.tag(claim.key);
        let mut table = &self.tables[claim.limit.index];
        let standing = loop {
            match table.draw(tag, claim, now) {
                Some(standing) => break standing,
                None => table = table.successor(),
            }
        };
        Draw {
            granted: !claim.enforced || standing.verdict.is_allow(),
            standings: SmallVec::from_iter([standing]),
            at: now,
        }
    }
}

fn draw_locked(bound: &mut [Bound<'_>], claims: &[Claim<'_>], now: Timestamp) -> Draw {
    let mut locked = lock_all(bound);
    let mut granted = true;
    let mut verdicts: SmallVec<[Verdict; 4]> = SmallVec::with_capacity(claims.len());
    for (place, claim) in claims.iter().enumerate() {
        let (slot, shard) = locked.at(place);
        let verdict = slot.judge(shard, claim.cost, now);
        granted &= !claim.enforced || verdict.is_allow();
        verdicts.push(verdict);
    }
    let answer = |(place, verdict)| {
        let (slot, shard) = locked.at(place);
        if granted {
            slot.commit(shard, now);
        }
        Standing::new(verdict, slot.report(shard, now))
    };
    Draw {
        granted,
        standings: verdicts.into_iter().enumerate().map(answer).collect(),
        at: now,
    }
}

/// Corrects an earlier grant of each bucket.
pub(super) fn settle_locked(bound: &mut [Bound<'_>], change: Change, now: Timestamp) {
    let mut locked = lock_all(bound);
    for place in 0..bound.len() {
        let (slot, shard) = locked.at(place);
        slot.settle(shard, change, now);
    }
}

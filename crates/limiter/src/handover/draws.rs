//! Draws from local buckets, and corrects charges on them, in the process that has them.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{
    Change, Claim, Draw, KeyBytes, Limit, Settlement, Standing, Timestamp, WhenDown,
};
use tollgate_store::Store;

use super::{Kept, Owner, Undrawn};
use crate::decision::{Silent, Unavailable};
use crate::permit::DrawnFrom;
use crate::two_stores::{NOT_ASKED, Undo, give_back};
use crate::{Generation, allows};

/// The result of a draw from local buckets.
pub(crate) struct LocalDraw {
    /// The decisions about the claims that are not left out.
    pub(crate) draw: Draw,
    /// Bit i: nothing was drawn for claim i. The process that has its bucket is silent, and no claim
    /// on a bucket there is enforced.
    pub(crate) left_out: u16,
    /// Bit i: only the other process has charged claim i.
    pub(crate) there: u16,
}

impl From<Draw> for LocalDraw {
    fn from(draw: Draw) -> Self {
        Self {
            draw,
            left_out: 0,
            there: 0,
        }
    }
}

impl<S: Store + Send + Sync> Generation<S> {
    /// The first limit of these claims whose share another process enforces, so that the copy here may
    /// not grant. A request that only counts is not refused for it.
    pub(crate) async fn share_elsewhere<'c>(&self, claims: &[Claim<'c>]) -> Option<&'c Limit> {
        if !self.handover.is_away() || !self.handover.takes_shares() {
            return None;
        }
        let is_enforced =
            |claim: &&Claim<'_>| claim.enforced && claim.limit.when_down == WhenDown::LocalShare;
        let claim = claims.iter().find(is_enforced)?;
        self.handover.successor().await.map(|_| claim.limit)
    }

    /// Draws from local buckets, in whichever process they are.
    ///
    /// # Errors
    /// If another process has them and does not respond, and one of the claims there is enforced;
    /// nothing is charged here then.
    pub(crate) async fn draw_local(
        &self,
        claims: &[Claim<'_>],
        now: Timestamp,
    ) -> Result<LocalDraw, Unavailable> {
        if !self.handover.is_away() {
            return Ok(self.local.draw_at(claims, now).into());
        }
        let Some(successor) = self.handover.successor().await else {
            return Ok(self.local.draw_at(claims, now).into());
        };
        let there: SmallVec<[bool; 4]> = claims
            .iter()
            .map(|claim| successor.has(claim.limit))
            .collect();
        let of = |wanted: bool| -> SmallVec<[Claim<'_>; 4]> {
            claims
                .iter()
                .zip(&there)
                .filter(|(_, there)| **there == wanted)
                .map(|(claim, _)| *claim)
                .collect()
        };
        let (asked, own) = (of(true), of(false));
        let mine = self.local.draw_at(&own, now);
        if !mine.granted || asked.is_empty() {
            return Ok(merged(&there, mine, None).into());
        }
        let drawn = {
            let mut undo = Undo {
                generation: self,
                claims: &own,
                standings: &mine.standings,
                there: 0,
                now,
                armed: true,
            };
            let drawn = successor.draw(&asked).await;
            undo.armed = false;
            drawn
        };
        let (theirs, are_there) = match drawn {
            Ok(theirs) => (theirs, true),
            // No other process has the buckets now, so their last state in this one is used.
            Err(Undrawn::Ended) => {
                self.handover.reclaim(&successor);
                (self.local.draw_at(&asked, now), false)
            }
            Err(Undrawn::Silent) => {
                let Some(strict) = asked.iter().find(|claim| claim.enforced) else {
                    // These claims never refuse, and their copy here may not be drawn from.
                    return Ok(LocalDraw {
                        draw: mine,
                        left_out: crate::bits(there.iter().copied()),
                        there: 0,
                    });
                };
                give_back(self, &own, (&mine.standings, 0), now);
                return Err(Unavailable {
                    limit: Arc::clone(&strict.limit.name),
                    silent: Silent::NewProcess,
                });
            }
        };
        if !theirs.granted {
            give_back(self, &own, (&mine.standings, 0), now);
        }
        let only_there = if are_there {
            let mut copied = self.copy_places(&asked, &theirs, now).into_iter();
            let is_only_there = |there: &bool| *there && !copied.next().unwrap_or(false);
            crate::bits(there.iter().map(is_only_there))
        } else {
            0
        };
        Ok(LocalDraw {
            draw: merged(&there, mine, Some(theirs)),
            left_out: 0,
            there: only_there,
        })
    }

    /// Takes the places that the other process has granted in the copy of the buckets here as well. If
    /// that process ends, the copy counts the running requests. Returns which claims it took.
    fn copy_places(
        &self,
        asked: &[Claim<'_>],
        theirs: &Draw,
        now: Timestamp,
    ) -> SmallVec<[bool; 4]> {
        let copied = |(claim, standing): (&Claim<'_>, &Standing)| {
            theirs.granted
                && claim.limit.algorithm.holds_places()
                && allows(standing.verdict)
                && self
                    .local
                    .draw_at(&[*claim], now)
                    .standings
                    .iter()
                    .all(|own| allows(own.verdict))
        };
        asked.iter().zip(&theirs.standings).map(copied).collect()
    }

    /// Corrects a charge on a local bucket, in whichever process it is.
    ///
    /// A charge that only the other process has made is gone if that process ends: none of it is given
    /// back here then.
    pub(crate) fn settle_local(&self, settlement: Settlement<'_>, from: DrawnFrom, now: Timestamp) {
        if self.handover.is_away() {
            // Under the lock, so that no correction is kept after the kept ones were sent.
            let mut kept = self.handover.kept.lock();
            let owner = self.handover.owner.borrow().clone();
            match owner {
                Owner::Here => {}
                Owner::Frozen => {
                    let limit = Arc::clone(&self.limits[settlement.limit.index]);
                    let key = KeyBytes::from_slice(settlement.key);
                    kept.push(Kept {
                        limit,
                        key,
                        change: settlement.change,
                        conditions: settlement.conditions.copied(),
                    });
                    return;
                }
                Owner::There(successor) if successor.has(settlement.limit) => {
                    successor.settle(&settlement);
                    // Places are held in the copy here, too, so it is corrected as well.
                    if from == DrawnFrom::OtherProcess {
                        return;
                    }
                }
                Owner::There(_) => {}
            }
        }
        let lowers = !matches!(settlement.change, Change::Charge { .. });
        if lowers && from == DrawnFrom::OtherProcess {
            return;
        }
        self.local.settle_at(&[settlement], now);
    }
}

/// The decisions in the order of the claims; a claim that no process decided gets an empty
/// standing.
fn merged(there: &[bool], mine: Draw, theirs: Option<Draw>) -> Draw {
    let granted = mine.granted && theirs.as_ref().is_none_or(|theirs| theirs.granted);
    let mut mine = mine.standings.into_iter();
    let mut theirs = theirs
        .map(|theirs| theirs.standings)
        .unwrap_or_default()
        .into_iter();
    let next = |there: &bool| -> Standing {
        if *there { theirs.next() } else { mine.next() }.unwrap_or(NOT_ASKED)
    };
    Draw {
        granted,
        standings: there.iter().map(next).collect(),
    }
}

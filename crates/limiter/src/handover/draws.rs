//! Draws from local buckets, and corrects charges on them, in the process that has them.

use std::sync::Arc;

use smallvec::SmallVec;

use tollgate_limit::{Claim, Draw, KeyBytes, Settlement, Standing, Timestamp};
use tollgate_store::{Store, StoreError};

use super::{Kept, Owner, Undrawn};
use crate::Generation;
use crate::decision::Unavailable;
use crate::two_stores::{NOT_ASKED, give_back};

/// What was drawn from local buckets.
pub(crate) struct LocalDraw {
    /// The decisions about the claims that are not left out.
    pub(crate) draw: Draw,
    /// Bit i: nothing was drawn for claim i. The process that has its bucket is silent, and no claim
    /// on a bucket there is enforced.
    pub(crate) left_out: u16,
}

impl From<Draw> for LocalDraw {
    fn from(draw: Draw) -> Self {
        Self { draw, left_out: 0 }
    }
}

impl<S: Store + Send + Sync> Generation<S> {
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
        let theirs = match successor.draw(&asked).await {
            Ok(theirs) => theirs,
            // Nobody else has the buckets now: their last state here is used.
            Err(Undrawn::Ended) => self.local.draw_at(&asked, now),
            Err(Undrawn::Silent) => {
                let Some(strict) = asked.iter().find(|claim| claim.enforced) else {
                    // These claims never refuse, and their copy here may not be drawn from.
                    return Ok(LocalDraw {
                        draw: mine,
                        left_out: crate::bits(there.iter().copied()),
                    });
                };
                give_back(self, &own, &mine.standings, now);
                return Err(Unavailable {
                    limit: Arc::clone(&strict.limit.name),
                    error: StoreError::Lost(SILENT.to_owned()),
                });
            }
        };
        if !theirs.granted {
            give_back(self, &own, &mine.standings, now);
        }
        Ok(merged(&there, mine, Some(theirs)).into())
    }

    /// Corrects a charge on a local bucket, in whichever process it is.
    pub(crate) fn settle_local(&self, settlement: Settlement<'_>, now: Timestamp) {
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
                    return successor.settle(&settlement);
                }
                Owner::There(_) => {}
            }
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

/// Why buckets that another process has taken over cannot be asked.
const SILENT: &str = "the process that has taken the buckets over gives no response";

//! The row of a bucket with leased units, and the pure core's operations on it
//! ([`tollgate_limit::lease`]).
//!
//! Such a row has its own kind, which the functions of the schema leave to the gateway's
//! transaction, so gateways that do not lease still count the leases of others. The row contains
//! the ledger and the numbers of a plain row. Returns and corrections are about units granted
//! before, so they use the numbers that the row was written under.

use super::mark::Mark;
use crate::batch::{Adjust, Batch};
use crate::wire_form::{TOKEN_BUCKET, WireForm, moment, signed};
use tollgate_limit::bucket::{Level, State};
use tollgate_limit::lease::{Leased, Request, Slot};
use tollgate_limit::{Algorithm, Kind, Micros, Terms, Timestamp, TokenBucket};

/// The kind of such a row: the numbers of a plain row, and for each slot of the ledger its units, and
/// until when they count.
pub(super) const KIND: i64 = 9;
/// The numbers of a row before the kind's own: version, kind, fingerprint.
const HEAD: usize = 3;
/// The numbers before the ledger.
const OWN: usize = 5;

/// The ledger of a bucket while its row is locked.
#[derive(Debug, Default)]
pub(super) struct Parts {
    ledger: Vec<Slot>,
    /// Whether returns or corrections have changed it.
    pub(super) changed: bool,
    /// Whether the corrections of the batch were made.
    pub(super) corrected: bool,
}

impl Parts {
    /// Takes the ledger off a row, without what has ended and what `batch` returns, makes the corrections, and
    /// returns the plain row at `now`. Any other row is left as it is, and so is every row where `batch` has a
    /// concurrency limit there, whose corrections are not about it. A fail-over drains the row here: afterwards it is
    /// of `now`, and the moment of the fail-over is past.
    ///
    /// # Errors
    /// When the row cannot be read: what is leased is not known then, and it must not count as nothing.
    pub(super) fn open(
        row: Option<Vec<i64>>,
        batch: &Batch,
        corrections: &[(u32, Adjust)],
        place: u32,
        mark: Mark,
        now: Timestamp,
    ) -> Result<(Option<Vec<i64>>, Self), &'static str> {
        let shape = &batch.buckets[place as usize].1;
        let Some(leased) = row
            .as_deref()
            .filter(|row| !shape.holds() && row.get(1) == Some(&KIND))
        else {
            return Ok((row, Self::default()));
        };
        let (bucket, mut held) = read(leased).ok_or("a row of leases that cannot be read")?;
        let Algorithm::TokenBucket(limit) = shape.algorithm() else {
            return Ok((row, Self::default()));
        };
        let own = bucket.settling_as(limit);
        let changed = held.pull(now);
        let is_lost = shape.drains() && leased[2] != mark.print;
        if is_lost {
            held.refill(&bucket, mark.since().min(now));
            held.level.level = held.level.level.min(0);
        }
        held.refill(&bucket, now);
        let mut parts = Self {
            corrected: true,
            changed,
            ..Self::default()
        };
        for (_, back) in batch.returns.iter().filter(|(bucket, _)| *bucket == place) {
            parts.changed |= held.give_back(&bucket, *back, now);
        }
        for (_, adjust) in corrections.iter().filter(|(bucket, _)| *bucket == place) {
            if let Adjust::Change(change, _) = adjust {
                held.settle(&own, *change, now);
                parts.changed = true;
            }
        }
        let mut plain = leased[..HEAD + OWN].to_vec();
        plain[1] = TOKEN_BUCKET;
        if is_lost {
            plain[2] = mark.print;
        }
        (plain[HEAD + 3], plain[HEAD + 4]) = (held.level.level, signed(held.level.at.as_micros()));
        parts.ledger = held.ledger;
        Ok((Some(plain), parts))
    }

    pub(super) fn are_out(&self) -> bool {
        !self.ledger.is_empty()
    }

    /// The bucket with its leases: never above the room they leave.
    pub(super) fn beside(
        &self,
        shape: &WireForm,
        state: Option<State>,
        now: Timestamp,
    ) -> Option<State> {
        let Algorithm::TokenBucket(bucket) = shape.algorithm() else {
            return state;
        };
        if self.ledger.is_empty() {
            return state;
        }
        let out: u64 = self.ledger.iter().map(|slot| slot.units).sum();
        let most = bucket.full().saturating_sub(shape.scaled(out)).max(0);
        let Level { level, at } = level_of(bucket, state.as_ref(), now);
        let level = level.min(most);
        Some(State::Level(Level { level, at }))
    }

    /// Leases units of the bucket; returns how many.
    pub(super) fn lease(
        &mut self,
        shape: &WireForm,
        request: Request,
        state: &mut Option<State>,
        now: Timestamp,
    ) -> u64 {
        let (Algorithm::TokenBucket(bucket), Some(terms)) = (shape.algorithm(), shape.lease())
        else {
            return 0;
        };
        let mut leased = Leased {
            level: level_of(bucket, state.as_ref(), now),
            ledger: std::mem::take(&mut self.ledger),
        };
        let units = leased.lease(bucket, terms, request, now);
        if units > 0 {
            *state = Some(State::Level(leased.level));
        }
        self.ledger = leased.ledger;
        units
    }

    /// The row of a bucket with its ledger, built from its row without it, and when the row may be deleted.
    pub(super) fn close(&self, mut row: Vec<i64>, gone: i64) -> (Vec<i64>, i64) {
        let Some(last) = self
            .ledger
            .last()
            .filter(|_| row.get(1) == Some(&TOKEN_BUCKET))
        else {
            return (row, gone);
        };
        row.resize(HEAD + OWN, 0);
        row[1] = KIND;
        let last = signed(last.until.as_micros());
        // While leases count, refilling may stop.
        let held_back = last.saturating_sub(row[HEAD + 4]).max(0);
        row.extend(
            self.ledger
                .iter()
                .flat_map(|slot| [signed(slot.units), signed(slot.until.as_micros())]),
        );
        (row, gone.saturating_add(held_back))
    }
}

/// The level of a bucket; one without a state is full.
fn level_of(bucket: &TokenBucket, state: Option<&State>, now: Timestamp) -> Level {
    match state {
        Some(State::Level(level)) => *level,
        _ => Leased::full(bucket, now).level,
    }
}

/// Makes a row with leases one without any: a mistake that the simulation of a fleet must find.
#[cfg(any(test, feature = "simulated"))]
pub(crate) fn forget(row: &mut Vec<i64>) {
    if row.get(1) == Some(&KIND) {
        row.truncate(HEAD + OWN);
        row[1] = TOKEN_BUCKET;
    }
}

/// The bucket in the numbers it was written under.
fn read(row: &[i64]) -> Option<(TokenBucket, Leased)> {
    let number = |value: i64| u64::try_from(value).ok();
    let &[n, p, capacity, level, at, ref ledger @ ..] = row.get(HEAD..)? else {
        return None;
    };
    // (Whether they fit a shared store was checked when the row was written.)
    let terms = Terms {
        burst: Some(number(capacity)?.checked_div(number(p)?)?),
        ..Terms::new(Kind::TokenBucket, number(n)?, Micros(number(p)?))
    };
    let Algorithm::TokenBucket(bucket) = Algorithm::new(&terms).ok()? else {
        return None;
    };
    let slot = |row: &[i64]| {
        let (units, until) = (number(row[0])?, moment(row[1])?);
        Some(Slot { until, units })
    };
    let ledger = ledger.chunks_exact(2).map(slot).collect::<Option<_>>()?;
    let at = moment(at)?;
    let level = Level { level, at };
    Some((bucket, Leased { level, ledger }))
}

#[cfg(test)]
mod tests;

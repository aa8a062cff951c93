//! The parameters and the answer of `tollgate_draw` (schema.sql), which decides the common case in one statement.

use super::link::ROW_MARGIN;
use crate::limit::Timestamp;
use crate::limit::bucket::{Level, State};
use crate::store::batch::{Answer, Batch};
use crate::store::simple::Simple;

/// Numbers of a term.
const TERM: usize = 9;

/// A row for each group, which is for each bucket; sorted by key.
#[derive(Debug)]
pub(super) struct Columns {
    pub(super) keys: Vec<Vec<u8>>,
    pub(super) terms: Vec<i64>,
    pub(super) term_of: Vec<i16>,
    pub(super) counts: Vec<i64>,
    /// Which group a row is.
    order: Vec<usize>,
    /// What one request of each row takes.
    prices: Vec<i64>,
}

impl Columns {
    pub(super) fn of(batch: &Batch, wanted: &[Simple]) -> Self {
        let mut order: Vec<usize> = (0..wanted.len()).collect();
        order.sort_unstable_by_key(|&group| batch.buckets[group].0.hash);
        let rows = order.len();
        let mut columns = Self {
            keys: Vec::with_capacity(rows),
            terms: Vec::new(),
            term_of: Vec::with_capacity(rows),
            counts: Vec::with_capacity(rows),
            prices: Vec::with_capacity(rows),
            order: Vec::new(),
        };
        for &group in &order {
            let Simple { n, p, brim, price, need, lowest, most } = wanted[group];
            let lasts = (brim - lowest) / n + 1 + ROW_MARGIN;
            let fresh = (brim - need) / price + 1;
            let term = [n, p, brim, price, need, lowest, most, lasts, fresh];
            let known = columns.terms.chunks_exact(TERM).position(|known| known == term);
            let place = known.unwrap_or_else(|| {
                columns.terms.extend(term);
                columns.terms.len() / TERM - 1
            });
            columns.keys.push(batch.buckets[group].0.hash.to_be_bytes().to_vec());
            columns.term_of.push(i16::try_from(place).expect("a batch has GROUPS_MAX groups at most"));
            columns.counts.push(i64::from(batch.groups[group].count));
            columns.prices.push(price);
        }
        columns.order = order;
        columns
    }

    /// The answer: a level before is the level after and what was granted. `None`: it is none.
    pub(super) fn read(&self, batch: &Batch, answer: &[i64]) -> Option<Answer> {
        let rows = self.order.len();
        let (now, answer) = answer.split_first()?;
        if answer.len() != rows * 3 {
            return None;
        }
        let (levels, rest) = answer.split_at(rows);
        let (moments, taken) = rest.split_at(rows);
        let mut before = vec![None; batch.buckets.len()];
        let mut granted = vec![0; batch.groups.len()];
        for (row, &group) in self.order.iter().enumerate() {
            let level = taken[row].checked_mul(self.prices[row]).and_then(|spent| spent.checked_add(levels[row]))?;
            before[group] = Some(State::Level(Level { level, at: moment(moments[row])? }));
            granted[group] = u32::try_from(taken[row]).ok()?;
        }
        Some(Answer { now: moment(*now)?, before, granted, corrected: false, leased: Vec::new() })
    }
}

fn moment(micros: i64) -> Option<Timestamp> {
    u64::try_from(micros).ok().map(Timestamp::from_micros)
}

//! The parameters and the response of `tollgate_draw` (schema.sql), which decides the common case
//! in one statement.

use tokio_postgres::types::{ToSql, Type};

use crate::batch::{Answer, Batch};
use crate::simple::Simple;
use crate::sql::ROW_MARGIN;
use crate::sql::decide::key_order;
use crate::wire_form::{TOKEN_BUCKET, moment, state_of};

/// A row for each group, which means for each bucket; sorted by key. All have one limit and one
/// cost.
#[derive(Debug)]
pub(super) struct Columns {
    keys: Vec<Vec<u8>>,
    counts: Vec<i64>,
    /// n, p, capacity, fill, price, need, how many requests a full bucket grants, how long its row
    /// is kept.
    term: [i64; 8],
    /// The group of each row.
    order: Vec<usize>,
}

/// The statement with the function call.
pub(super) const DRAW: &str =
    "SELECT tollgate_draw($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
/// Its parameters' types.
pub(super) const DRAW_OF: &str = "tollgate_draw(bytea[],bigint[],bigint,bigint,bigint,bigint,bigint,bigint,bigint,bigint,bigint,bigint)";

impl Columns {
    /// `None`: the batch has several limits or costs.
    pub(super) fn of(batch: &Batch, wanted: &[Simple]) -> Option<Self> {
        let (first, others) = wanted.split_first()?;
        if others.iter().any(|other| other != first) {
            return None;
        }
        let order = key_order(batch);
        Some(Self {
            keys: order
                .iter()
                .map(|&group| batch.buckets[group].0.hash.to_be_bytes().to_vec())
                .collect(),
            counts: order
                .iter()
                .map(|&group| i64::from(batch.groups[group].count))
                .collect(),
            term: [
                first.n,
                first.p,
                first.brim,
                first.fill(),
                first.price,
                first.need,
                first.fresh(),
                first.lasts() + ROW_MARGIN,
            ],
            order,
        })
    }

    /// The parameters of [`DRAW`].
    pub(super) fn parameters<'a>(
        &'a self,
        fingerprint: &'a i64,
        pinned: &'a Option<i64>,
    ) -> [(&'a (dyn ToSql + Sync), Type); 12] {
        let [n, p, brim, fill, price, need, fresh, lasts] = &self.term;
        [
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.counts, Type::INT8_ARRAY),
            (n, Type::INT8),
            (p, Type::INT8),
            (brim, Type::INT8),
            (fill, Type::INT8),
            (price, Type::INT8),
            (need, Type::INT8),
            (fresh, Type::INT8),
            (lasts, Type::INT8),
            (fingerprint, Type::INT8),
            (pinned, Type::INT8),
        ]
    }

    /// Reads its response. `None`: it is invalid.
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
            before[group] = Some(state_of(TOKEN_BUCKET, &[levels[row], moments[row]])?);
            granted[group] = u32::try_from(taken[row]).ok()?;
        }
        Some(Answer::to_requests(moment(*now)?, before, granted))
    }
}

//! Decides batches by the function `tollgate_draw`: all or nothing over several limits.

use std::sync::Arc;

use tokio_postgres::types::{ToSql, Type};

use super::fault::Fault;
use super::{PostgresLink, Session};
use crate::batch::{Answer, Batch, Wants, place_among};
use crate::simple::span;
use crate::sql::decide::key_order;
use crate::wire_form::{NUMBERS, WireForm, count, moment, signed};
use tollgate_limit::{Algorithm, Micros, Timestamp};

const DRAW: &str = "SELECT tollgate_draw($1, $2, $3, $4, $5, $6)";
pub(in crate::postgres) const DRAW_OF: &str =
    "tollgate_draw(bytea[],smallint[],bigint[],bigint[],bigint,bigint)";

impl PostgresLink {
    /// Calls the function, if it supports the batch; `None`: the transaction must decide it.
    pub(super) async fn decided_there(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Answer>, Fault> {
        let elsewhere = |(name, _): &(_, _)| self.base.is_elsewhere(name);
        if batch.buckets.iter().any(elsewhere) {
            return Ok(None);
        }
        let options = &self.base.options;
        let about = options.pinned.as_ref().unwrap_or(&options.clock).now();
        let Some(asked) = Arguments::of(batch, about) else {
            return Ok(None);
        };
        let (fingerprint, pinned) = (session.print.get(), self.base.pinned());
        let parameters = asked.parameters(&fingerprint, &pinned);
        let row = self.one(session, DRAW, &parameters).await?;
        let read = |answer: Vec<i64>| {
            let corrupt = Fault::Corrupt("not an answer of tollgate_draw");
            asked.read(batch, &answer).ok_or(corrupt)
        };
        row.try_get::<_, Option<Vec<i64>>>(0)?.map(read).transpose()
    }
}

/// Whether the function supports a limit; the core decides the rest in a transaction.
fn carries(shape: &WireForm) -> bool {
    let none_waits = match shape.algorithm() {
        // Above this, a product in the function may exceed 63 bits.
        Algorithm::TokenBucket(bucket) => {
            bucket.max_wait() == Micros::ZERO && bucket.quota().n < 1 << 40
        }
        Algorithm::Interval(bucket) | Algorithm::FixedWindow(bucket) => {
            bucket.max_wait() == Micros::ZERO
        }
        _ => false,
    };
    none_waits && !shape.drains()
}

/// Whether the function supports a request.
pub(super) fn carries_wants(wants: &Wants) -> bool {
    wants
        .iter()
        .all(|wanted| carries(&wanted.shape) && wanted.cost < COST_MAX)
}

/// No limit of a shared store has this many units; the core refuses a greater cost.
const COST_MAX: u64 = 1 << 52;

#[derive(Debug)]
struct Arguments {
    keys: Vec<Vec<u8>>,
    shape_of: Vec<i16>,
    shapes: Vec<i64>,
    groups: Vec<i64>,
    /// The bucket of each key.
    order: Vec<usize>,
}

impl Arguments {
    /// `None`: the function does not support all of it. `about`: approximately the server's time.
    fn of(batch: &Batch, about: Timestamp) -> Option<Self> {
        if !batch.only_requests() {
            return None;
        }
        let order = key_order(batch);
        let mut place_of = vec![0; order.len()];
        let mut known: Vec<*const WireForm> = Vec::new();
        let mut asked = Self {
            keys: Vec::with_capacity(order.len()),
            shape_of: Vec::with_capacity(order.len()),
            shapes: Vec::new(),
            groups: Vec::with_capacity(batch.groups.len() * 5),
            order: Vec::new(),
        };
        for (place, &bucket) in order.iter().enumerate() {
            let (name, shape) = &batch.buckets[bucket];
            if !carries(shape) {
                return None;
            }
            place_of[bucket] = count(place);
            let (shape_place, is_new) = place_among(&mut known, Arc::as_ptr(shape));
            if is_new {
                asked.shapes.extend(numbers(shape, about));
            }
            asked.keys.push(name.hash.to_be_bytes().to_vec());
            asked.shape_of.push(i16::try_from(shape_place).ok()?);
        }
        for group in &batch.groups {
            let counts = [i64::from(group.count), count(group.parts.len())];
            asked.groups.extend(counts);
            for part in &group.parts {
                let cost = signed(part.cost.min(COST_MAX));
                asked.groups.extend([
                    place_of[part.bucket as usize],
                    cost,
                    i64::from(part.enforced),
                ]);
            }
        }
        asked.order = order;
        Some(asked)
    }

    fn parameters<'a>(
        &'a self,
        fingerprint: &'a i64,
        pinned: &'a Option<i64>,
    ) -> [(&'a (dyn ToSql + Sync), Type); 6] {
        [
            (&self.keys, Type::BYTEA_ARRAY),
            (&self.shape_of, Type::INT2_ARRAY),
            (&self.shapes, Type::INT8_ARRAY),
            (&self.groups, Type::INT8_ARRAY),
            (fingerprint, Type::INT8),
            (pinned, Type::INT8),
        ]
    }

    /// Reads its response. `None`: it is invalid.
    fn read(&self, batch: &Batch, answer: &[i64]) -> Option<Answer> {
        let rows = self.order.len();
        let (now, answer) = answer.split_first()?;
        if answer.len() != rows * 2 + batch.groups.len() {
            return None;
        }
        let (levels, rest) = answer.split_at(rows);
        let (moments, granted) = rest.split_at(rows);
        let mut before = vec![None; rows];
        for (row, &bucket) in self.order.iter().enumerate() {
            let (_, shape) = &batch.buckets[bucket];
            let (level, at) = (levels[row], moments[row]);
            before[bucket] = Some(match shape.algorithm() {
                Algorithm::Interval(limit) | Algorithm::FixedWindow(limit) => {
                    let quota = limit.quota();
                    shape.seen(&[signed(quota.amount), signed(quota.burst) - level, at])?
                }
                _ => shape.seen(&[level, at])?,
            });
        }
        let granted = granted.iter().map(|granted| u32::try_from(*granted).ok());
        let granted = granted.collect::<Option<Vec<_>>>()?;
        Some(Answer::to_requests(moment(*now)?, before, granted))
    }
}

/// The limit's own numbers, and for a token bucket the time from any level to the capacity.
fn numbers(shape: &WireForm, about: Timestamp) -> [i64; NUMBERS] {
    let mut numbers = shape.numbers(about);
    if let Algorithm::TokenBucket(bucket) = shape.algorithm() {
        numbers[9] = span(signed(bucket.quota().n));
    }
    numbers
}

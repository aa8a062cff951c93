//! Decides requests for token buckets by the procedures of the schema: one call for a batch.

use super::fault::Fault;
use super::link::{MysqlLink, Session};
use super::several::Several;
use crate::batch::{Answer, Batch};
use crate::simple::{Simple, all_simple};
use crate::sql::decide::key_order;
use crate::sql::{ROW_MARGIN, joined};
use crate::wire_form::{TOKEN_BUCKET, moment, state_of};

/// What became of a batch.
pub(super) enum Drawn {
    /// It is decided.
    Decided(Answer),
    /// The transaction must decide it.
    Left,
    /// The same, because a bucket has too little for the several groups that draw from it.
    Scarce,
}

/// The numbers of a bucket's row, and what is asked of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) bucket: Simple,
    pub(super) price: i64,
    pub(super) need: i64,
    pub(super) fresh: i64,
    pub(super) count: i64,
}

impl Wanted {
    /// Equal requests.
    fn of(simple: Simple, count: u32) -> Self {
        Self {
            bucket: simple,
            price: simple.price,
            need: simple.need,
            fresh: simple.fresh(),
            count: i64::from(count),
        }
    }

    /// The numbers in the procedures' order.
    fn numbers(&self) -> [i64; 9] {
        let bucket = &self.bucket;
        [
            bucket.n,
            bucket.p,
            bucket.brim,
            bucket.fill(),
            self.price,
            self.need,
            self.fresh,
            bucket.lasts() + ROW_MARGIN,
            self.count,
        ]
    }
}

impl MysqlLink {
    /// Calls a procedure, if one supports the batch.
    pub(super) async fn decided_there(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Drawn, Fault> {
        let elsewhere = |(name, _): &(_, _)| self.base.is_elsewhere(name);
        if batch.buckets.iter().any(elsewhere) {
            return Ok(Drawn::Left);
        }
        let order = key_order(batch);
        let simple = all_simple(batch, Simple::even_leased);
        let (wanted, several) = if let Some(simple) = simple {
            let groups = simple.iter().zip(&batch.groups);
            let wanted = groups.map(|(simple, group)| Wanted::of(*simple, group.count));
            (wanted.collect(), None)
        } else if let Some(several) = Several::of(batch) {
            (several.wanted.clone(), Some(several))
        } else {
            return Ok(Drawn::Left);
        };
        let sets = session
            .client
            .run(self.call_text(session, batch, &order, &wanted, several.as_ref()))
            .await?;
        let row = sets.first().and_then(|rows| rows.first());
        let text = |column| {
            row.and_then(|row| row.get_opt::<Option<String>, _>(column))
                .and_then(Result::ok)
                .ok_or(Fault::Corrupt("not a response of tollgate_draw"))
        };
        let grants = text(2)?;
        let Some(answer) = text(1)? else {
            return Ok(match grants {
                Some(_) => Drawn::Scarce,
                None => Drawn::Left,
            });
        };
        read(batch, &order, several.as_ref(), &answer, grants.as_deref())
            .map(Drawn::Decided)
            .ok_or(Fault::Corrupt("not a response of tollgate_draw"))
    }

    fn call_text(
        &self,
        session: &Session,
        batch: &Batch,
        order: &[usize],
        wanted: &[Wanted],
        several: Option<&Several>,
    ) -> String {
        let pinned = self
            .base
            .pinned()
            .map_or("NULL".into(), |at| at.to_string());
        let mark = session.print.get();
        let hash = |bucket: usize| batch.buckets[bucket].0.hash;
        if let ([bucket], None) = (order, several) {
            let numbers = joined(wanted[*bucket].numbers());
            return format!(
                "CALL tollgate_draw_one_3(X'{:032x}',{numbers},{mark},{pinned})",
                hash(*bucket)
            );
        }
        let row = |bucket: &usize| {
            let numbers = joined(wanted[*bucket].numbers());
            format!(r#"["{:032x}",{numbers}]"#, hash(*bucket))
        };
        let rows = joined(order.iter().map(row));
        let parts = several.map_or("NULL".into(), |several| {
            format!("'[{}]'", several.parts(batch))
        });
        format!("CALL tollgate_draw_3('[{rows}]',{parts},{mark},{pinned})")
    }
}

/// Reads a procedure's response: of each bucket the moment, the level before, its moment, how many
/// were granted; and what was granted of each part. `None`: it is invalid.
fn read(
    batch: &Batch,
    order: &[usize],
    several: Option<&Several>,
    answer: &str,
    grants: Option<&str>,
) -> Option<Answer> {
    let numbers = numbers(answer)?;
    if numbers.len() != order.len() * 4 {
        return None;
    }
    let mut before = vec![None; order.len()];
    let mut taken = vec![0; order.len()];
    for (row, &bucket) in numbers.chunks_exact(4).zip(order) {
        before[bucket] = Some(state_of(TOKEN_BUCKET, &row[1..3])?);
        taken[bucket] = u32::try_from(row[3]).ok()?;
    }
    let granted = match (several, grants) {
        // A group for each bucket.
        (None, _) => taken,
        (Some(_), None) => batch.groups.iter().map(|group| group.count).collect(),
        (Some(_), Some(grants)) => Several::read(batch, &self::numbers(grants)?)?,
    };
    Some(Answer::to_requests(
        moment(*numbers.first()?)?,
        before,
        granted,
    ))
}

fn numbers(text: &str) -> Option<Vec<i64>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

//! Decides the common case, requests for one token bucket each, by the procedure of the schema: one
//! call for a batch.

use std::fmt::Write as _;

use super::fault::Fault;
use super::link::{MysqlLink, Session};
use crate::batch::{Answer, Batch};
use crate::simple::{Simple, all_simple};
use crate::sql::ROW_MARGIN;
use crate::sql::decide::key_order;
use crate::wire_form::moment;
use tollgate_limit::bucket::{Level, State};

impl MysqlLink {
    /// Calls the procedure, if it supports the batch; `None`: the batch is left to the transaction.
    pub(super) async fn decided_there(
        &self,
        session: &Session,
        batch: &Batch,
    ) -> Result<Option<Answer>, Fault> {
        let elsewhere = |(name, _): &(_, _)| self.is_elsewhere(name);
        if batch.buckets.iter().any(elsewhere) {
            return Ok(None);
        }
        let Some(simple) = all_simple(batch, Simple::even_leased) else {
            return Ok(None);
        };
        let order = key_order(batch);
        let pinned = self.pinned().map_or("NULL".into(), |at| at.to_string());
        let text = format!(
            "CALL tollgate_draw_1('[{}]',{},{pinned})",
            wanted(batch, &simple, &order),
            session.print.get()
        );
        let sets = session.client.run(text).await?;
        let answer: Option<String> = sets
            .first()
            .and_then(|rows| rows.first())
            .and_then(|row| row.get_opt::<Option<String>, _>(1))
            .and_then(Result::ok)
            .ok_or(Fault::Corrupt("not a response of tollgate_draw_1"))?;
        let Some(answer) = answer else {
            return Ok(None);
        };
        read(batch, &order, &answer)
            .map(Some)
            .ok_or(Fault::Corrupt("not a response of tollgate_draw_1"))
    }
}

/// The procedure's first parameter, without its brackets.
fn wanted(batch: &Batch, simple: &[Simple], order: &[usize]) -> String {
    let mut text = String::with_capacity(order.len() * 120);
    for &group in order {
        let numbers = &simple[group];
        let comma = if text.is_empty() { "" } else { "," };
        let _ = write!(
            text,
            r#"{comma}["{:032x}",{},{},{},{},{},{},{},{},{}]"#,
            batch.buckets[group].0.hash,
            numbers.n,
            numbers.p,
            numbers.brim,
            numbers.fill(),
            numbers.price,
            numbers.need,
            numbers.fresh(),
            numbers.lasts() + ROW_MARGIN,
            batch.groups[group].count
        );
    }
    text
}

/// Reads its response: of each bucket the moment, the level before, its moment, how many were
/// granted. `None`: it is invalid.
fn read(batch: &Batch, order: &[usize], answer: &str) -> Option<Answer> {
    let numbers = answer.split(',').map(|number| number.parse().ok());
    let numbers = numbers.collect::<Option<Vec<i64>>>()?;
    if numbers.len() != order.len() * 4 {
        return None;
    }
    let mut before = vec![None; order.len()];
    let mut granted = vec![0; order.len()];
    for (row, &group) in numbers.chunks_exact(4).zip(order) {
        before[group] = Some(State::Level(Level {
            level: row[1],
            at: moment(row[2])?,
        }));
        granted[group] = u32::try_from(row[3]).ok()?;
    }
    debug_assert_eq!(granted.len(), batch.groups.len(), "a group for each bucket");
    Some(Answer::to_requests(
        moment(*numbers.first()?)?,
        before,
        granted,
    ))
}

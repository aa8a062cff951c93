//! Decides requests for token buckets by the procedure `tollgate_draw_4`: one call for a batch.

use super::fault::Fault;
use super::link::{MysqlLink, Session};
use crate::batch::{Answer, Batch, Wants};
use crate::simple::Simple;
use crate::sql::decide::key_order;
use crate::sql::{ROW_MARGIN, joined};
use crate::wire_form::{TOKEN_BUCKET, moment, state_of};

pub(super) enum Drawn {
    Decided(Answer),
    /// The transaction must decide it.
    Left,
    /// The same, because a bucket has too little for the several groups that draw from it.
    Scarce,
}

/// Whether the procedure supports every claim of a request.
pub(super) fn carries_wants(wants: &Wants) -> bool {
    wants
        .iter()
        .all(|wanted| Simple::even_leased(&wanted.shape, wanted.cost).is_some())
}

const CORRUPT: Fault = Fault::Corrupt("not a response of tollgate_draw");

impl MysqlLink {
    /// Calls the procedure, if it supports the batch.
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
        let Some((buckets, parts)) = parameters(batch, &order) else {
            return Ok(Drawn::Left);
        };
        let (mark, pinned) = (session.print.get(), self.base.pinned());
        let pinned = pinned.map_or("NULL".into(), |at| at.to_string());
        let call = format!("CALL tollgate_draw_4('[{buckets}]','[{parts}]',{mark},{pinned})");
        let sets = session.client.run(call).await?;
        let row = sets.first().and_then(|rows| rows.first());
        let text = |column| {
            row.and_then(|row| row.get_opt::<Option<String>, _>(column))
                .and_then(Result::ok)
                .ok_or(CORRUPT)
        };
        match (text(0)?, text(1)?) {
            (None, Some(_)) => Ok(Drawn::Scarce),
            (None, None) => Ok(Drawn::Left),
            (Some(answer), grants) => read(batch, &order, &answer, grants.as_deref())
                .map(Drawn::Decided)
                .ok_or(CORRUPT),
        }
    }
}

/// All that is asked of a bucket, as one request which needs as much as lets every group be granted.
#[derive(Clone, Copy)]
struct Wanted {
    bucket: Simple,
    price: i64,
    /// The least that one of its parts leaves unpaid: what debt allows.
    spare: i64,
}

impl Wanted {
    fn numbers(&self) -> [i64; 8] {
        let bucket = &self.bucket;
        let need = self.price.saturating_sub(self.spare);
        // What no full bucket can pay is sent as another such price: its own may exceed 63 bits.
        let (price, need, fresh) = match need > bucket.capacity {
            true => (1, bucket.capacity + 1, 0),
            false => (self.price, need, 1),
        };
        let lasts = bucket.lasts() + ROW_MARGIN;
        let fill = bucket.fill();
        [
            bucket.n,
            bucket.p,
            bucket.capacity,
            fill,
            price,
            need,
            fresh,
            lasts,
        ]
    }
}

/// The procedure's two lists, without their brackets: the buckets in key order, and the parts, group
/// after group. `None`: the procedure does not support all of the batch.
fn parameters(batch: &Batch, order: &[usize]) -> Option<(String, String)> {
    if !batch.only_requests() {
        return None;
    }
    let users = batch.users();
    let mut wanted: Vec<Option<Wanted>> = vec![None; batch.buckets.len()];
    let mut parts = Vec::with_capacity(batch.groups.len() * 2);
    for (place, group) in batch.groups.iter().enumerate() {
        for part in &group.parts {
            let bucket = part.bucket as usize;
            let (name, shape) = &batch.buckets[bucket];
            let simple = Simple::even_leased(shape, part.cost)?;
            let (count, spare) = (i64::from(group.count), simple.price - simple.need);
            let known = wanted[bucket].get_or_insert(Wanted {
                bucket: simple,
                price: 0,
                spare,
            });
            known.price = known
                .price
                .saturating_add(simple.price.saturating_mul(count));
            known.spare = known.spare.min(spare);
            let alone = i64::from(users[bucket] == 1);
            let enforced = i64::from(part.enforced);
            let own = joined([count, simple.price, simple.need, alone, enforced]);
            parts.push(format!(r#"[{place},"{:032x}",{own}]"#, name.hash));
        }
    }
    let row = |&bucket: &usize| {
        let (hash, wanted) = (batch.buckets[bucket].0.hash, wanted[bucket]?);
        Some(format!(r#"["{hash:032x}",{}]"#, joined(wanted.numbers())))
    };
    let buckets = order.iter().map(row).collect::<Option<Vec<_>>>()?;
    Some((buckets.join(","), parts.join(",")))
}

/// Reads the procedure's response: of each bucket the moment, the level before and its moment; and what
/// was granted of each part's group (`None`: all). `None`: it is invalid.
fn read(batch: &Batch, order: &[usize], answer: &str, grants: Option<&str>) -> Option<Answer> {
    let numbers = numbers(answer)?;
    if numbers.len() != order.len() * 3 {
        return None;
    }
    let mut before = vec![None; order.len()];
    for (row, &bucket) in numbers.chunks_exact(3).zip(order) {
        before[bucket] = Some(state_of(TOKEN_BUCKET, &row[1..])?);
    }
    let mut granted: Vec<u32> = batch.groups.iter().map(|group| group.count).collect();
    if let Some(grants) = grants {
        let grants = self::numbers(grants)?;
        let mut rest = grants.as_slice();
        for (granted, group) in granted.iter_mut().zip(&batch.groups) {
            let (own, others) = rest.split_at_checked(group.parts.len())?;
            *granted = u32::try_from(*own.first()?).ok()?;
            rest = others;
        }
        if !rest.is_empty() {
            return None;
        }
    }
    let now = moment(*numbers.first()?)?;
    Some(Answer::to_requests(now, before, granted))
}

fn numbers(text: &str) -> Option<Vec<i64>> {
    text.split(',').map(|number| number.parse().ok()).collect()
}

//! Requests with several limits, and groups of requests that share a bucket: writes both parameters of
//! `tollgate_draw_3` (schema.sql), the numbers of each bucket and those of each part, and reads its
//! result.

use super::draw::Wanted;
use crate::batch::{Batch, Group, Part, Wants};
use crate::simple::Simple;
use crate::sql::joined;

/// Whether the procedure supports every claim of a request.
pub(super) fn carries_wants(wants: &Wants) -> bool {
    wants
        .iter()
        .all(|wanted| Simple::even_leased(&wanted.shape, wanted.cost).is_some())
}

/// A batch in the procedure's form.
#[derive(Debug)]
pub(super) struct Several {
    /// Of each bucket, all that is asked of it as one request, which needs as much as lets every
    /// group be granted.
    pub(super) wanted: Vec<Wanted>,
    /// How many parts draw from each bucket.
    users: Vec<u32>,
    /// The numbers of each part, group after group.
    parts: Vec<Simple>,
}

impl Several {
    /// `None`: the procedure does not support all of it.
    pub(super) fn of(batch: &Batch) -> Option<Self> {
        if !batch.only_requests() {
            return None;
        }
        let mut wanted: Vec<Option<Wanted>> = vec![None; batch.buckets.len()];
        let mut parts = Vec::with_capacity(batch.groups.len() * 2);
        for group in &batch.groups {
            for part in &group.parts {
                let place = part.bucket as usize;
                let numbers = Simple::even_leased(&batch.buckets[place].1, part.cost)?;
                parts.push(numbers);
                // The most that is taken before the last request of this part.
                let price = numbers.price.saturating_mul(i64::from(group.count));
                let spare = numbers.price - numbers.need;
                let known = wanted[place].get_or_insert(Wanted {
                    bucket: numbers,
                    price: 0,
                    need: i64::MAX,
                    fresh: 0,
                    count: 1,
                });
                known.price = known.price.saturating_add(price);
                // (For now the least that one request leaves unpaid: what debt allows.)
                known.need = known.need.min(spare);
            }
        }
        let wanted = wanted.into_iter().map(|wanted| Some(all_of(wanted?)));
        Some(Self {
            wanted: wanted.collect::<Option<_>>()?,
            users: batch.users(),
            parts,
        })
    }

    /// The procedure's second parameter, without its brackets.
    pub(super) fn parts(&self, batch: &Batch) -> String {
        let parts = (0..).zip(&batch.groups).flat_map(|(place, group)| {
            let parts = group.parts.iter();
            parts.map(move |part| (place, group, part))
        });
        let part = |((place, group, part), numbers): ((i64, &Group, &Part), &Simple)| {
            let bucket = part.bucket as usize;
            let own = joined([
                i64::from(group.count),
                numbers.price,
                numbers.need,
                i64::from(self.users[bucket] == 1),
                i64::from(part.enforced),
            ]);
            let hash = batch.buckets[bucket].0.hash;
            format!(r#"[{place},"{hash:032x}",{own}]"#)
        };
        joined(parts.zip(&self.parts).map(part))
    }

    /// What was granted of each group, from the numbers of its parts, which are equal.
    pub(super) fn read(batch: &Batch, grants: &[i64]) -> Option<Vec<u32>> {
        let mut granted = Vec::with_capacity(batch.groups.len());
        let mut rest = grants;
        for group in &batch.groups {
            let (own, others) = rest.split_at_checked(group.parts.len())?;
            granted.push(u32::try_from(*own.first()?).ok()?);
            rest = others;
        }
        rest.is_empty().then_some(granted)
    }
}

/// All that is asked of a bucket as one request, from its price and from what debt allows the least
/// of its parts. What no full bucket can pay is sent as a price that it can never pay: its numbers
/// might exceed 63 bits.
fn all_of(asked: Wanted) -> Wanted {
    let brim = asked.bucket.brim;
    let need = asked.price.saturating_sub(asked.need);
    if need > brim {
        return Wanted {
            price: 1,
            need: brim + 1,
            ..asked
        };
    }
    Wanted {
        need,
        fresh: 1,
        ..asked
    }
}

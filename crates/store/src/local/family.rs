//! Groups limits that share one table. A bucket is identified by its limit's name and its caller,
//! so the variants of a limit (its own numbers and those of its tiers) share buckets.

use std::sync::Arc;

use tollgate_limit::{Limit, Mode};

use super::table::Table;

/// Whether two limits draw from the same buckets. An unlimited tier draws from none.
pub(super) fn same(a: &Limit, b: &Limit) -> bool {
    let drawn = a.mode == b.mode || (a.mode != Mode::Off && b.mode != Mode::Off);
    a.name == b.name && a.role == b.role && drawn && a.algorithm.has_buckets_of(&b.algorithm)
}

/// The limits that share a table with `limit`, in the order of `limits`; `limit` itself if it is
/// not among them.
pub(super) fn of<'l>(limit: &'l Limit, limits: &'l [Arc<Limit>]) -> Vec<&'l Limit> {
    let family: Vec<&Limit> = limits
        .iter()
        .map(|other| &**other)
        .filter(|other| same(limit, other))
        .collect();
    if family.is_empty() {
        vec![limit]
    } else {
        family
    }
}

/// A table for each of `limits`, in which those of one name are neighbours; `make` creates one for each
/// family.
pub(super) fn tables(
    limits: &[Arc<Limit>],
    mut make: impl FnMut(&[&Limit]) -> Arc<Table>,
) -> Box<[Arc<Table>]> {
    let mut tables: Vec<Arc<Table>> = Vec::with_capacity(limits.len());
    for named in limits.chunk_by(|one, next| one.name == next.name) {
        let first = tables.len();
        for (place, limit) in named.iter().enumerate() {
            let elder = named[..place].iter().position(|elder| same(elder, limit));
            let table = match elder {
                Some(elder) => Arc::clone(&tables[first + elder]),
                None => make(&of(limit, named)),
            };
            tables.push(table);
        }
    }
    tables.into()
}

//! What becomes of buckets when the limits change under them.

use std::mem::discriminant;
use std::sync::Arc;

use parking_lot::Mutex;

use tollgate_limit::{Limit, Mode, Role};

use super::{Learnt, LocalStore, Table, family, keeps_floors};

/// What a reload did to the buckets of each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryReport {
    /// One entry per limit of the new policy, then one per limit that is gone.
    pub limits: Vec<Carried>,
    /// What limits have learnt of their upstreams, by their places in the new policy; from a snapshot only.
    pub learnt: Vec<(usize, Learnt)>,
}

/// What became of one limit's buckets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    /// The limit's name.
    pub name: Arc<str>,
    /// Its tier.
    pub tier: Option<Arc<str>>,
    /// Live or candidate.
    pub role: Role,
    /// What became of its buckets.
    pub carry: Carry,
}

/// What becomes of buckets on a reload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// The limit did not change, nor do its buckets.
    Kept,
    /// Its numbers changed: every caller keeps the units left, clamped to the new burst when he next draws, never more.
    Rescaled,
    /// Its algorithm changed, and the old state means nothing under the new one: every bucket starts afresh.
    Afresh,
    /// It was not there before.
    New,
    /// It is not there any more; its buckets are forgotten once the requests in flight have ended.
    Gone,
}

impl LocalStore {
    /// The store for `limits`, carrying the buckets over. Limits are matched by name and role; callers of a tier go to its
    /// numbers, or to the limit's own where it has none.
    ///
    /// Draws through `self` still count while and after this runs: a bucket that moved is drawn from where it is now.
    pub fn next(&self, limits: &[Arc<Limit>]) -> (Self, CarryReport) {
        let _one_at_a_time = MOVING.lock();
        let now = self.clock.now();
        let tables = family::tables(limits, |variants| {
            let floors = variants.iter().any(|limit| keeps_floors(limit, limits));
            let Some(table) = self.predecessor(variants, limits) else {
                return Arc::new(Table::new(variants, floors, self.epoch));
            };
            let before = self
                .limits
                .iter()
                .find(|before| variants.iter().any(|limit| same_limit(before, limit)));
            let memory = before.map(|before| before.memory);
            let same = table.numbers().len() == variants.len()
                && table
                    .numbers()
                    .iter()
                    .zip(variants)
                    .all(|(numbers, limit)| {
                        numbers.tier == limit.tier && numbers.algorithm == limit.algorithm
                    });
            let fits = same
                && memory == variants.first().map(|limit| limit.memory)
                && table.keeps_floors() >= floors;
            if fits {
                Arc::clone(table)
            } else {
                table.succeeded_by(variants, floors, self.epoch, now)
            }
        });
        let report = |limit: &Arc<Limit>| {
            let carry = match self.limits.iter().find(|before| same_bucket(before, limit)) {
                Some(before) if before.algorithm == limit.algorithm => Carry::Kept,
                _ if self.predecessor(&[limit], limits).is_some() => Carry::Rescaled,
                Some(_) => Carry::Afresh,
                None => Carry::New,
            };
            Carried::of(limit, carry)
        };
        let mut report = CarryReport {
            limits: limits.iter().map(report).collect(),
            learnt: Vec::new(),
        };
        let gone = self
            .limits
            .iter()
            .filter(|before| !limits.iter().any(|limit| same_bucket(before, limit)));
        report
            .limits
            .extend(gone.map(|limit| Carried::of(limit, Carry::Gone)));
        let next = Self {
            limits: limits.into(),
            tables,
            seed: self.seed.clone(),
            clock: self.clock.clone(),
            epoch: self.epoch,
        };
        (next, report)
    }

    /// The table that has the buckets of a limit with these variants, which are some of `limits`; `None`: another algorithm's
    /// mean nothing to them, and a tier that is not limited draws from none.
    fn predecessor(&self, variants: &[&Limit], limits: &[Arc<Limit>]) -> Option<&Arc<Table>> {
        let limit = variants.first()?;
        let drawn = |other: &Arc<Limit>| same_limit(other, limit) && other.mode != Mode::Off;
        if limit.mode == Mode::Off && limits.iter().any(drawn) {
            return None;
        }
        let kind = |other: &Limit| discriminant(&other.algorithm) == discriminant(&limit.algorithm);
        let before = || {
            self.limits
                .iter()
                .zip(&*self.tables)
                .filter(|(before, _)| same_limit(before, limit))
        };
        let drawn = before().find(|(before, _)| kind(before) && before.mode != Mode::Off);
        drawn
            .or_else(|| before().find(|(before, _)| kind(before)))
            .map(|(_, table)| table.latest())
    }
}

impl Carried {
    pub(super) fn of(limit: &Limit, carry: Carry) -> Self {
        Self {
            name: Arc::clone(&limit.name),
            tier: limit.tier.clone(),
            role: limit.role,
            carry,
        }
    }
}

/// Held while buckets move from table to table: each is moved once, and from where all that came before have arrived.
static MOVING: Mutex<()> = Mutex::new(());

/// Whether two are variants of one limit: a bucket's identity is the limit's name, never its numbers.
fn same_limit(a: &Limit, b: &Limit) -> bool {
    a.name == b.name && a.role == b.role
}

/// Whether two are the same variant of one limit.
pub fn same_bucket(a: &Limit, b: &Limit) -> bool {
    a.name == b.name && a.role == b.role && a.tier == b.tier
}

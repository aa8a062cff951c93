//! What becomes of buckets when the limits change under them.

use std::mem::discriminant;
use std::sync::Arc;

use tollgate_limit::{Algorithm, Limit, Role};

use super::{LocalStore, Table, keeps_floors};

/// What a reload did to the buckets of each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryReport {
    /// One entry per limit of the new policy, then one per limit that is gone.
    pub limits: Vec<Carried>,
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
    /// Its numbers changed: every caller keeps the units left, clamped to the new burst, never more.
    Rescaled,
    /// Its algorithm changed, and the old state means nothing under the new one: every bucket starts afresh.
    Afresh,
    /// It was not there before.
    New,
    /// It is not there any more; its buckets are forgotten once the requests in flight have ended.
    Gone,
}

impl LocalStore {
    /// The store for `limits`, carrying the buckets over. Limits are matched by name, role and tier. Callers of a tier that
    /// gets numbers of its own drew from the limit's until now, and those of a tier that loses them will: their buckets go
    /// along, copied. (A draw that is under way meanwhile is not seen there.)
    ///
    /// Draws through `self` still count while and after this runs: a bucket that moved is drawn from where it is now.
    pub fn next(&self, limits: &[Arc<Limit>]) -> (Self, CarryReport) {
        let now = self.clock.now();
        let mut report = CarryReport::default();
        let mut tables = Vec::with_capacity(limits.len());
        for limit in limits {
            let before = self.limits.iter().position(|before| same_bucket(before, limit));
            let floors = keeps_floors(limit, limits);
            let (carry, table) = match before.map(|index| (&self.limits[index], self.tables[index].latest())) {
                None => match self.origin(limit) {
                    None => (Carry::New, Arc::new(Table::new(limit, floors, self.epoch))),
                    Some(origin) => {
                        // What another table forgot must be kept in so many words.
                        let table = Table::remembering(limit, true, self.epoch, origin.widest());
                        table.adopt_all(origin, now);
                        (Carry::Rescaled, Arc::new(table))
                    }
                },
                Some((_, table)) if discriminant(table.algorithm()) != discriminant(&limit.algorithm) => {
                    (Carry::Afresh, Arc::new(Table::new(limit, floors, self.epoch)))
                }
                Some((before, table)) => {
                    let same = *table.algorithm() == limit.algorithm;
                    let homing = self.homing(limit, limits);
                    let floors = floors || !homing.is_empty();
                    let fits =
                        same && before.memory == limit.memory && table.keeps_floors() >= floors && homing.is_empty();
                    let carry = if same { Carry::Kept } else { Carry::Rescaled };
                    let table = match fits {
                        true => Arc::clone(table),
                        false => {
                            let widest = homing.iter().map(|gone| gone.widest()).max().unwrap_or_default();
                            table.succeeded_by(limit, floors, self.epoch, now, widest)
                        }
                    };
                    for gone in homing {
                        table.adopt_all(gone, now);
                    }
                    (carry, table)
                }
            };
            tables.push(table);
            report.limits.push(Carried::of(limit, carry));
        }
        let gone = self.limits.iter().filter(|before| !limits.iter().any(|limit| same_bucket(before, limit)));
        report.limits.extend(gone.map(|limit| Carried::of(limit, Carry::Gone)));
        let next = Self {
            limits: limits.into(),
            tables: tables.into(),
            seed: self.seed.clone(),
            clock: self.clock.clone(),
            epoch: self.epoch,
        };
        (next, report)
    }

    /// Where callers of a tier without numbers of its own drew from so far.
    fn origin(&self, limit: &Limit) -> Option<&Arc<Table>> {
        limit.tier.as_ref()?;
        let base = |other: &&Limit| other.name == limit.name && other.role == limit.role && other.tier.is_none();
        self.copied(limit, base).next()
    }

    /// The tables of tiers that lose their numbers, and whose callers will draw from `limit`.
    fn homing(&self, limit: &Limit, limits: &[Arc<Limit>]) -> Vec<&Arc<Table>> {
        let lost = |other: &&Limit| {
            other.name == limit.name
                && other.role == limit.role
                && limit.tier.is_none()
                && other.tier.is_some()
                && !limits.iter().any(|new| same_bucket(other, new))
        };
        self.copied(limit, lost).collect()
    }

    /// Tables of `which` limits whose buckets can be copied to `limit`. Places held at once cannot: they are given back to
    /// the table they were taken from.
    fn copied(&self, limit: &Limit, which: impl Fn(&&Limit) -> bool) -> impl Iterator<Item = &Arc<Table>> {
        let kind = discriminant(&limit.algorithm);
        let copies = !matches!(limit.algorithm, Algorithm::InFlight(_));
        let tables = self.limits.iter().zip(&*self.tables).filter(move |(other, _)| which(&&***other));
        tables.map(|(_, table)| table.latest()).filter(move |table| copies && discriminant(table.algorithm()) == kind)
    }
}

impl Carried {
    pub(super) fn of(limit: &Limit, carry: Carry) -> Self {
        Self { name: Arc::clone(&limit.name), tier: limit.tier.clone(), role: limit.role, carry }
    }
}

/// Whether two limits mean the same buckets: a bucket's identity is the limit's name, never its numbers.
pub fn same_bucket(a: &Limit, b: &Limit) -> bool {
    a.name == b.name && a.role == b.role && a.tier == b.tier
}

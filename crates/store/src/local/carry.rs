//! Carries buckets over when limits change.

use std::sync::Arc;

use parking_lot::Mutex;

use tollgate_limit::{Limit, Mode, Role};

use super::table::family_tables;
use super::{LocalStore, Remembered, Table};

/// The effect of a reload on the buckets of each limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CarryReport {
    /// One entry per limit of the new policy, then one per removed limit.
    pub limits: Vec<Carried>,
    /// What a snapshot had beside the buckets; limits by their index in the new policy.
    pub also: Remembered,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Carried {
    pub name: Arc<str>,
    pub tier: Option<Arc<str>>,
    pub role: Role,
    pub carry: Carry,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Carry {
    /// The limit and its buckets did not change.
    Kept,
    /// The numbers changed: the same buckets go on under them.
    Renumbered,
    /// The algorithm changed, or the period of windows: every bucket starts fresh.
    Afresh,
    New,
    /// The limit was removed; its buckets are forgotten when the requests in flight have ended.
    Gone,
}

impl LocalStore {
    /// The store for `limits`, with the buckets carried over. Limits are matched by name and role;
    /// callers of a tier get its numbers, or the limit's own if it has none.
    ///
    /// Draws through `self` still count during and after this call: a bucket that moved is drawn
    /// from in its new table.
    pub fn next(&self, limits: &[Arc<Limit>]) -> (Self, CarryReport) {
        let _one_at_a_time = MOVING.lock();
        let now = self.clock.now();
        let tables = family_tables(limits, |variants| {
            let Some(table) = self.predecessor(variants, limits) else {
                return Arc::new(Table::new(variants));
            };
            let is_it =
                |before: &&Arc<Limit>| variants.iter().any(|limit| same_limit(before, limit));
            let before = self.limits.iter().find(is_it);
            let memory = before.map(|before| before.memory);
            let same = table.numbers().len() == variants.len()
                && table
                    .numbers()
                    .iter()
                    .zip(variants)
                    .all(|(numbers, limit)| {
                        numbers.tier == limit.tier && numbers.algorithm == limit.algorithm
                    });
            if same && memory == variants.first().map(|limit| limit.memory) {
                Arc::clone(table)
            } else {
                table.succeeded_by(variants, now)
            }
        });
        let report = |limit: &Arc<Limit>| {
            let carry = match self.limits.iter().find(|before| same_bucket(before, limit)) {
                Some(before) if before.algorithm == limit.algorithm => Carry::Kept,
                _ if self.predecessor(&[limit], limits).is_some() => Carry::Renumbered,
                Some(_) => Carry::Afresh,
                None => Carry::New,
            };
            Carried::of(limit, carry)
        };
        let mut report = CarryReport {
            limits: limits.iter().map(report).collect(),
            also: Remembered::default(),
        };
        let is_kept = |before: &Limit| limits.iter().any(|limit| same_bucket(before, limit));
        let gone = self.limits.iter().filter(|before| !is_kept(before));
        let gone = gone.map(|limit| Carried::of(limit, Carry::Gone));
        report.limits.extend(gone);
        let next = Self {
            limits: limits.into(),
            tables,
            seed: self.seed.clone(),
            clock: self.clock.clone(),
            resets: Arc::clone(&self.resets),
        };
        (next, report)
    }

    /// The table with the buckets of a limit that has these variants, which are some of `limits`.
    /// `None`: another algorithm or period has
    /// other buckets, and an unlimited tier has none.
    fn predecessor(&self, variants: &[&Limit], limits: &[Arc<Limit>]) -> Option<&Arc<Table>> {
        let limit = variants.first()?;
        let drawn = |other: &Arc<Limit>| same_limit(other, limit) && other.mode != Mode::Off;
        if limit.mode == Mode::Off && limits.iter().any(drawn) {
            return None;
        }
        let kind = |other: &Limit| other.algorithm.has_buckets_of(&limit.algorithm);
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

/// Held while buckets move between tables: each bucket moves once, and only after all earlier moves
/// into its table are complete.
static MOVING: Mutex<()> = Mutex::new(());

/// Whether two are variants of one limit: its name identifies it, never its numbers.
fn same_limit(a: &Limit, b: &Limit) -> bool {
    a.name == b.name && a.role == b.role
}

pub fn same_bucket(a: &Limit, b: &Limit) -> bool {
    same_limit(a, b) && a.tier == b.tier
}

/// The place in `limits` of the numbers that buckets of `limit` are drawn under.
pub fn place_of(limits: &[Arc<Limit>], limit: &Limit) -> Option<usize> {
    place_of_variant(limits, &limit.name, limit.role, limit.tier.as_deref())
}

/// The same by the limit's name. Callers of a tier without numbers of its own draw under the limit's own.
pub(super) fn place_of_variant(
    limits: &[Arc<Limit>],
    name: &str,
    role: Role,
    tier: Option<&str>,
) -> Option<usize> {
    let place = |tier: Option<&str>| {
        limits.iter().position(|limit| {
            *limit.name == *name && limit.role == role && limit.tier.as_deref() == tier
        })
    };
    place(tier).or_else(|| place(None))
}

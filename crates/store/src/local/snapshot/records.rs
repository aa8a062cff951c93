//! The records of a limit in a snapshot: its name, the numbers of its states, and a bucket.

use std::io::{self, Read, Write};
use std::sync::Arc;

use super::SnapshotError;
use super::form::{Input, Stored, stored_by_fields};
use crate::local::bucket::{Bucket, Moving, Whose};
use crate::local::carry::place_of_variant;
use crate::local::{Carried, Carry};
use tollgate_limit::bucket::State;
use tollgate_limit::key::stable_hash;
use tollgate_limit::quota::{LOCAL_BOUND, UNITS_MAX};
use tollgate_limit::sliding_log::LOG_UNITS_MAX;
use tollgate_limit::{Algorithm, Align, Kind, Limit, Micros, Role, Terms};

pub(super) struct Name {
    name: String,
    tier: Option<String>,
    role: Role,
}

stored_by_fields! { Name { name, tier, role } }

impl Name {
    pub(super) fn of(limit: &Limit) -> Self {
        Self {
            name: limit.name.to_string(),
            tier: limit.tier.as_deref().map(str::to_owned),
            role: limit.role,
        }
    }

    pub(super) fn is_of(&self, limit: &Limit) -> bool {
        *limit.name == *self.name
            && limit.tier.as_deref() == self.tier.as_deref()
            && limit.role == self.role
    }

    /// The place in `limits` of the numbers that its buckets are drawn under.
    pub(super) fn place_in(&self, limits: &[Arc<Limit>]) -> Option<usize> {
        place_of_variant(limits, &self.name, self.role, self.tier.as_deref())
    }

    pub(super) fn gone(self) -> Carried {
        Carried {
            name: self.name.into(),
            tier: self.tier.map(Into::into),
            role: self.role,
            carry: Carry::Gone,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Numbers {
    form: u8,
    amount: u64,
    period: u64,
    burst: u64,
    align: u64,
}

stored_by_fields! { Numbers { form, amount, period, burst, align } }

impl Numbers {
    pub(super) fn of(algorithm: &Algorithm) -> Self {
        let form = match algorithm {
            Algorithm::TokenBucket(_) => 0,
            Algorithm::Interval(_) => 1,
            Algorithm::FixedWindow(_) => 2,
            Algorithm::SlidingWindow(_) => 3,
            Algorithm::SlidingLog(_) => 4,
            Algorithm::InFlight(_) => 5,
        };
        let numbers = algorithm.quota().map(|q| (q.amount, q.period.0, q.burst));
        let (amount, period, burst) = numbers.unwrap_or_default();
        Self {
            form,
            amount,
            period,
            burst,
            align: match algorithm.align() {
                Align::FirstHit => 0,
                Align::Clock => 1,
                Align::Calendar(calendar) => stable_hash(calendar.words.as_bytes()) | 2,
            },
        }
    }

    /// The effect on states in these numbers under `algorithm`, and their own algorithm.
    pub(super) fn carry(self, algorithm: &Algorithm) -> (Carry, Option<Algorithm>) {
        let new = Self::of(algorithm);
        if self == new {
            return (Carry::Kept, None);
        }
        let kind = match self.form {
            0 => Kind::TokenBucket,
            1 => Kind::Interval,
            2 => Kind::FixedWindow,
            3 => Kind::SlidingWindow,
            4 => Kind::SlidingLog,
            _ => return (Carry::Afresh, None),
        };
        let bursts = matches!(kind, Kind::TokenBucket | Kind::Interval);
        let terms = Terms {
            burst: bursts.then_some(self.burst),
            align: algorithm.align().clone(),
            ..Terms::new(kind, self.amount, Micros(self.period))
        };
        match Algorithm::new(&terms) {
            Ok(old) if self.align == new.align && old.has_buckets_of(algorithm) => {
                (Carry::Renumbered, Some(old))
            }
            _ => (Carry::Afresh, None),
        }
    }

    /// Whether its windows begin at boundaries of the clock or of a calendar.
    pub(super) fn is_aligned(self) -> bool {
        self.align > 0
    }
}

pub(super) struct Record {
    /// Those of a token bucket that is kept in numbers of before a reload, or of an override.
    pub(super) own: Option<Numbers>,
    whose: Whose,
    state: State,
    largest: u64,
}

stored_by_fields! { Record { own, whose, state, largest } }

impl Record {
    pub(super) fn of(moving: Moving) -> Self {
        let Moving { whose, bucket } = moving;
        Self {
            own: bucket.own.as_deref().map(Numbers::of),
            whose,
            state: bucket.state,
            largest: bucket.largest,
        }
    }

    /// The bucket, without numbers.
    ///
    /// # Errors
    /// When a number is outside the range of every limit: sums of such numbers would overflow.
    pub(super) fn moving(self) -> Result<Moving, SnapshotError> {
        let most = LOCAL_BOUND.unsigned_abs();
        let is_countable = match &self.state {
            State::Level(level) => level.level.unsigned_abs() <= most,
            State::Steps(steps) => steps.used <= most && (1..=UNITS_MAX).contains(&steps.amount),
            State::Pair(pair) => pair.previous.max(pair.current) <= most,
            State::Held(held) => held.units <= most,
            State::Log(log) => {
                // All of them together are counted as well.
                let each = most / (2 * LOG_UNITS_MAX);
                log.entries().len() as u64 <= 2 * LOG_UNITS_MAX
                    && log.entries().all(|entry| entry.units <= each)
            }
        };
        if !is_countable {
            return Err(SnapshotError::Corrupt(
                "a number beyond those that any limit counts to",
            ));
        }
        let bucket = Bucket {
            largest: self.largest.min(UNITS_MAX),
            ..Bucket::new(self.state, 0)
        };
        Ok(Moving {
            whose: self.whose,
            bucket,
        })
    }
}

//! The sliding log: it remembers every grant of the last period, and no period ever holds more than
//! the quota. Exact, for small quotas: the log never has more entries than twice the quota's units.
//!
//! A settlement that raises the log above the quota makes its units count later, as if they had
//! waited in a queue: each is due when as many units before it have expired. So a response's cost
//! never disappears with its period.
//!
//! A grant at t counts until t + period, exclusive: a request that waits until that moment is admitted.

use std::collections::VecDeque;

use super::bucket::{Granted, Judged, Refused, Report, State};
use super::claim::Change;
use super::quota::{PERIOD_MAX, Quota, QuotaError};
use super::time::{Micros, Timestamp};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingLog {
    quota: Quota,
    max_wait: Micros,
    settled: u64,
    /// How far after now a settlement may make units count; zero: grants are not settled.
    reach: Micros,
}

/// The grants of the last period, oldest first; with `max_wait` also promised, future ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Log {
    entries: VecDeque<Entry>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// When the units were granted, or become due.
    pub at: Timestamp,
    pub units: u64,
}

/// The greatest quota for a log: at 16 bytes an entry and at most two quotas, 32 KiB a bucket.
pub const LOG_UNITS_MAX: u64 = 1_024;

impl Log {
    /// A log from its entries, oldest first, as a store has kept them.
    pub fn from_entries(entries: impl IntoIterator<Item = Entry>) -> Self {
        Self {
            entries: entries.into_iter().collect(),
        }
    }

    /// Takes the log out of a state; none there is an empty one.
    pub(super) fn taken(state: &mut Option<State>) -> Self {
        match state.take() {
            Some(State::Log(log)) => log,
            _ => Self::default(),
        }
    }

    pub fn entries(&self) -> impl ExactSizeIterator<Item = Entry> + DoubleEndedIterator + '_ {
        self.entries.iter().copied()
    }

    /// Whether the log has no entries.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn move_back(&mut self, span: Micros) {
        for entry in &mut self.entries {
            entry.at = entry.at.before(span);
        }
    }

    fn append(&mut self, entry: Entry) {
        match self.entries.back_mut() {
            Some(last) if last.at == entry.at => last.units += entry.units,
            _ => self.entries.push_back(entry),
        }
    }

    /// Takes up to this many units out of the oldest grant; `None`: the log is empty.
    fn take_oldest(&mut self, units: u64) -> Option<Entry> {
        let first = self.entries.front_mut()?;
        let taken = Entry {
            units: first.units.min(units),
            ..*first
        };
        first.units -= taken.units;
        if first.units == 0 {
            self.entries.pop_front();
        }
        Some(taken)
    }

    pub(super) fn last(&self) -> Option<Timestamp> {
        self.entries.back().map(|entry| entry.at)
    }
}

impl SlidingLog {
    /// A log of `quota`.
    ///
    /// # Errors
    /// When the quota is too large to remember each grant.
    pub fn new(quota: Quota, max_wait: Micros) -> Result<Self, Vec<QuotaError>> {
        if quota.amount > LOG_UNITS_MAX {
            return Err(vec![QuotaError::new(
                "rate",
                format!(
                    "a sliding log remembers every grant, so {LOG_UNITS_MAX} per period is the most; take sliding_window or token_bucket"
                ),
            )]);
        }
        Ok(Self {
            quota,
            max_wait,
            settled: 0,
            reach: Micros::ZERO,
        })
    }

    /// The same log; each grant may turn out to cost up to `more` units above what it drew. A
    /// charge of that size is never reduced when it comes after the last grant.
    ///
    /// # Errors
    /// When the settlement takes longer than a hundred years.
    pub(super) fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
        if more == 0 {
            return Ok(self);
        }
        let periods = (PERIOD_MAX.0 / self.quota.period.0).saturating_sub(2);
        let fits = periods.saturating_mul(self.quota.amount);
        if more > fits {
            return Err(vec![QuotaError::too_much_to_settle(fits, shared)]);
        }
        let periods = more / self.quota.amount + 2;
        Ok(Self {
            settled: more,
            reach: Micros(self.max_wait.0 + periods * self.quota.period.0),
            ..self
        })
    }

    /// Units that a grant may turn out to cost above what it drew.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// How far after now a settlement may make units count; zero: grants are not settled.
    pub fn reach(&self) -> Micros {
        self.reach
    }

    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The longest a request may wait for its turn.
    pub fn max_wait(&self) -> Micros {
        self.max_wait
    }

    /// Whether `cost` can be drawn at `now`; the grant's `next` is the entry that [`SlidingLog::take`] adds.
    pub fn judge(&self, log: Option<&Log>, cost: u64, now: Timestamp) -> Judged<Entry> {
        let Some(spare) = self.quota.amount.checked_sub(cost) else {
            return Err(Refused::NEVER);
        };
        // Grants are in order. A last grant in the future means a promised grant, a debt, or a
        // clock that stepped back; in the last case the log stops until the clock has caught up.
        let from = log.and_then(Log::last).map_or(now, |last| last.max(now));
        let mut counted = self.counted(log, from);
        let mut due = from;
        if counted > spare {
            for entry in log
                .into_iter()
                .flat_map(Log::entries)
                .filter(|entry| self.counts(*entry, from))
            {
                counted -= entry.units;
                due = entry.at.after(self.quota.period);
                if counted <= spare {
                    break;
                }
            }
        }
        let stands_still =
            due == from && self.max_wait == Micros::ZERO && self.reach == Micros::ZERO;
        let wait = if stands_still {
            Micros::ZERO
        } else {
            due.since(now)
        };
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait.0 - self.max_wait.0)));
        }
        Ok(Granted {
            wait,
            next: Entry {
                at: due,
                units: cost,
            },
        })
    }

    /// Adds a grant to `log` and forgets entries that no longer count for it or any later one.
    pub fn take(&self, log: &mut Log, entry: Entry) {
        if entry.units == 0 {
            return;
        }
        while log
            .entries
            .front()
            .is_some_and(|first| !self.counts(*first, entry.at))
        {
            log.entries.pop_front();
        }
        log.append(entry);
    }

    /// The log's numbers at `now`.
    pub fn report(&self, log: Option<&Log>, now: Timestamp) -> Report {
        let last = log.and_then(Log::last);
        let from = last.map_or(now, |last| last.max(now));
        let owing = self.reach > Micros::ZERO && from > now;
        let remaining = if owing {
            0
        } else {
            self.quota.amount.saturating_sub(self.counted(log, from))
        };
        let effective = match remaining {
            0 => match self.judge(log, 1, now) {
                Ok(granted) => granted.wait,
                Err(refused) => Micros(
                    refused
                        .retry_after
                        .unwrap_or_default()
                        .0
                        .saturating_add(self.max_wait.0),
                ),
            },
            _ => self.quota.time_for(remaining),
        };
        let reset = last.map_or(Micros::ZERO, |last| {
            last.after(self.quota.period).since(now)
        });
        Report {
            remaining,
            owed: 0,
            reset,
            effective,
            window_end: from.after(self.quota.period),
        }
    }

    /// Corrects an earlier grant. A charge counts as of now, and no longer than a grant; where
    /// grants are settled, it queues instead. A refund is taken from the oldest grants, whichever
    /// grant it was for: the remaining grants are the later ones, so nothing leaves the log earlier
    /// than it would have. It is dropped while a request may be waiting (see [`super::TokenBucket::settle`]).
    pub fn settle(&self, log: &mut Log, change: Change, now: Timestamp) {
        let from = log.last().map_or(now, |last| last.max(now));
        match change {
            Change::Charge { more } if self.reach > Micros::ZERO => {
                self.line_up(log, more, from, now)
            }
            Change::Charge { more } => {
                let room = (2 * LOG_UNITS_MAX).saturating_sub(self.counted(Some(log), from));
                let (at, units) = (from, more.min(room));
                self.take(log, Entry { at, units });
            }
            // The grant has left the log: what is in it are others.
            Change::RefundWithin { window_end, .. } if window_end <= now => {}
            Change::Refund { units }
            | Change::RefundWithin { units, .. }
            | Change::Withdraw { units, .. }
                if from <= now || self.max_wait == Micros::ZERO =>
            {
                log.entries.retain(|entry| self.counts(*entry, from));
                let mut units = units;
                while units > 0
                    && let Some(taken) = log.take_oldest(units)
                {
                    units -= taken.units;
                }
            }
            Change::Refund { .. }
            | Change::RefundWithin { .. }
            | Change::Withdraw { .. }
            | Change::Release { .. } => {}
        }
    }

    /// Adds `more` units as of `from`, each due when a full quota of units before it has expired.
    fn line_up(&self, log: &mut Log, more: u64, from: Timestamp, now: Timestamp) {
        let (amount, period) = (self.quota.amount, self.quota.period);
        let at_once = more.min(amount.saturating_sub(self.counted(Some(log), from)));
        let (at, units) = (from, at_once);
        self.take(log, Entry { at, units });
        log.entries.retain(|entry| self.counts(*entry, from));
        let rest = more - at_once;
        let (whole, room) = (
            rest / amount,
            now.after(self.reach).since(from).0 / period.0,
        );
        let (periods, mut part) = if whole < room {
            (whole, rest % amount)
        } else {
            (room, 0)
        };
        // With one quota of units queued after it, a full log is the same log one period later.
        for entry in &mut log.entries {
            entry.at = entry.at.after(Micros(periods * period.0));
        }
        while part > 0
            && let Some(Entry { at, units }) = log.take_oldest(part)
        {
            part -= units;
            let at = at.after(period);
            log.append(Entry { at, units });
        }
    }

    /// When the last grant no longer counts.
    pub fn expiry(&self, log: &Log) -> Timestamp {
        log.last()
            .map_or(Timestamp::default(), |last| last.after(self.quota.period))
    }

    fn counts(&self, entry: Entry, now: Timestamp) -> bool {
        now.since(entry.at) < self.quota.period
    }

    fn counted(&self, log: Option<&Log>, now: Timestamp) -> u64 {
        let counting = log.into_iter().flat_map(Log::entries);
        let counting = counting.filter(|entry| self.counts(*entry, now));
        counting.map(|entry| entry.units).sum()
    }
}

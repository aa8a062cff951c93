//! The two-window estimate: the count of the window that contains `now`, plus the count of the
//! previous window, weighted by how much of it is within one period of `now` (Cloudflare 2017, "How
//! we built rate limiting capable of scaling to millions of domains"). It is the only algorithm
//! that estimates.
//!
//! The worst-case error for a quota Q: the estimate assumes that the previous window's P grants
//! were spread evenly. All of them may have come at that window's end. At the share x of the next
//! window the estimate counts them as P (1 - x) and grants up to Q - P (1 - x) = Q x more, all
//! within one period of the first: Q (1 + x), which is below 2 Q. So any period has fewer than 2 Q
//! grants, and a window aligned to the period has at most Q. Evenly spread traffic is counted
//! exactly. A test reaches 2 Q - 1 and cannot exceed it.
//!
//! With `max_wait` a request is counted at once in the window in which it is due, so later requests
//! see it. While the counted window is in the future, no request passes before it begins, because
//! that request would be counted in it too.
//!
//! A settlement that raises a window above the quota continues in the following windows, each
//! filled to the quota, so a response's cost never disappears with its window. Until then no
//! request passes, as with promised grants.
//!
//! The estimate is compared without rounding:
//! `previous x (period - elapsed) <= (Q - current - cost) x period`.

use super::bucket::{Granted, Judged, Pair, Refused, Report};
use super::claim::Change;
use super::quota::{LOCAL_BOUND, PERIOD_MAX, Quota, QuotaError, SHARED_BOUND};
use super::time::{Micros, Timestamp};

/// A two-window estimate's checked parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SlidingWindow {
    quota: Quota,
    max_wait: Micros,
    most: u64,
    settled: u64,
    /// How many windows after the current one a settlement may fill; zero: grants are not settled.
    ahead: u64,
}

impl SlidingWindow {
    /// Checks that the weighted counts are exact where they are kept.
    ///
    /// # Errors
    /// When they are not.
    pub fn new(quota: Quota, max_wait: Micros, shared: bool) -> Result<Self, Vec<QuotaError>> {
        let bound = i128::from(if shared { SHARED_BOUND } else { LOCAL_BOUND });
        let period = i128::from(quota.period.0);
        let fits = (bound - 1) / period;
        if i128::from(quota.amount) > fits {
            return Err(vec![QuotaError::new(
                "rate",
                format!(
                    "amount x period is too much to weigh exactly: the most per {} is {fits}",
                    super::words::period(quota.period)
                ),
            )]);
        }
        Ok(Self {
            most: u64::try_from(fits).unwrap_or(u64::MAX),
            settled: 0,
            ahead: 0,
            max_wait,
            quota,
        })
    }

    /// The same estimate; each grant may turn out to cost up to `more` units above what it drew. A
    /// charge of that size is never reduced when it comes after the last grant.
    ///
    /// # Errors
    /// When the settlement takes more windows than a hundred years have.
    pub(super) fn settling(self, more: u64, shared: bool) -> Result<Self, Vec<QuotaError>> {
        if more == 0 {
            return Ok(self);
        }
        let promised = if self.max_wait == Micros::ZERO {
            0
        } else {
            self.max_wait.0 / self.quota.period.0 + 1
        };
        let windows = (PERIOD_MAX.0 / self.quota.period.0).saturating_sub(promised + 2);
        let fits = windows.saturating_mul(self.quota.amount);
        if more > fits {
            return Err(vec![QuotaError::too_much_to_settle(fits, shared)]);
        }
        Ok(Self {
            settled: more,
            ahead: more / self.quota.amount + 1 + promised,
            ..self
        })
    }

    /// Units that a grant may turn out to cost above what it drew.
    pub fn settled(&self) -> u64 {
        self.settled
    }

    /// How many windows after the current one a settlement may fill; zero: grants are not settled.
    pub fn ahead(&self) -> u64 {
        self.ahead
    }

    pub fn quota(&self) -> &Quota {
        &self.quota
    }

    /// The highest count that can be weighed exactly.
    pub fn most(&self) -> u64 {
        self.most
    }

    /// The two counts at `now`. A clock that stepped back leaves them unchanged.
    pub fn current(&self, state: Option<Pair>, now: Timestamp) -> Pair {
        let period = self.quota.period;
        let fresh = Pair {
            start: Timestamp::from_micros(now.as_micros() / period.0 * period.0),
            previous: 0,
            current: 0,
        };
        match state {
            None => fresh,
            Some(pair) => match now.since(pair.start).0 / period.0 {
                0 => pair,
                1 => Pair {
                    start: pair.start.after(period),
                    previous: pair.current,
                    current: 0,
                },
                _ => fresh,
            },
        }
    }

    /// Whether `cost` can be drawn at `now`.
    pub fn judge(&self, state: Option<Pair>, cost: u64, now: Timestamp) -> Judged<Pair> {
        let pair = self.current(state, now);
        let Some(wait) = self.due_in(pair, cost, now) else {
            return Err(Refused::NEVER);
        };
        if wait > self.max_wait {
            return Err(Refused::after(Micros(wait.0 - self.max_wait.0)));
        }
        let due = self.current(Some(pair), now.after(wait));
        Ok(Granted {
            wait,
            next: Pair {
                current: due.current + cost,
                ..due
            },
        })
    }

    /// How long until `cost` can be drawn; `None`: never.
    fn due_in(&self, pair: Pair, cost: u64, now: Timestamp) -> Option<Micros> {
        let period = self.quota.period.0;
        let spare = self.quota.amount.checked_sub(cost)?;
        let left = period - now.since(pair.start).0;
        let to_start = pair.start.since(now).0;
        let wait = match spare.checked_sub(pair.current) {
            // The previous window may have at most this many microseconds of weight left.
            Some(room) => match left.saturating_sub(share(room, period, pair.previous)) {
                // No request passes before a window that holds promised grants or debts. A clock
                // that stepped back alone delays no request.
                0 if self.max_wait == Micros::ZERO && self.ahead == 0 => return Some(Micros::ZERO),
                wait => wait,
            },
            // Not in this window. In the next window, this one is the previous.
            None => left + period - share(spare, period, pair.current),
        };
        Some(Micros(wait.saturating_add(to_start)))
    }

    /// The longest a request may wait.
    pub fn max_wait(&self) -> Micros {
        self.max_wait
    }

    pub fn report(&self, state: Option<Pair>, now: Timestamp) -> Report {
        let period = self.quota.period;
        let pair = self.current(state, now);
        let left = period.0 - now.since(pair.start).0;
        let weighted = u64::try_from(
            (u128::from(pair.previous) * u128::from(left)).div_ceil(u128::from(period.0)),
        )
        .unwrap_or(u64::MAX);
        let left = self.quota.amount.saturating_sub(pair.current);
        let remaining = left.saturating_sub(weighted);
        let effective = match remaining {
            0 => self.due_in(pair, 1, now).unwrap_or_default(),
            _ => self.quota.time_for(remaining),
        };
        Report {
            remaining,
            owed: 0,
            reset: self.expiry(pair).since(now),
            effective,
            window_end: pair.start.after(period),
        }
    }

    /// Corrects an earlier grant; `None`: no count is left. A charge goes with its window; where
    /// grants are settled, what exceeds the quota continues in the following windows. A refund is taken
    /// from the window that it names, or else from the current window first, then from the previous one.
    pub fn settle(&self, state: Option<Pair>, change: Change, now: Timestamp) -> Option<Pair> {
        let pair = self.current(state, now);
        let settled = match change {
            Change::Charge { more } if self.ahead > 0 => self.filled(pair, more, now),
            Change::Charge { more } => Pair {
                current: pair
                    .current
                    .saturating_add(more)
                    .min(self.most.max(pair.current)),
                ..pair
            },
            // The counted window is in the future: a request is waiting.
            Change::Refund { .. } | Change::RefundWithin { .. } | Change::Withdraw { .. }
                if self.max_wait > Micros::ZERO && pair.start > now =>
            {
                pair
            }
            Change::Refund { units } | Change::Withdraw { units, .. } => {
                let rest = units.saturating_sub(pair.current);
                Pair {
                    current: pair.current.saturating_sub(units),
                    previous: pair.previous.saturating_sub(rest),
                    ..pair
                }
            }
            Change::RefundWithin { units, window_end }
                if window_end == pair.start.after(self.quota.period) =>
            {
                Pair {
                    current: pair.current.saturating_sub(units),
                    ..pair
                }
            }
            Change::RefundWithin { units, window_end } if window_end == pair.start => Pair {
                previous: pair.previous.saturating_sub(units),
                ..pair
            },
            Change::RefundWithin { .. } | Change::Release { .. } => pair,
        };
        (settled.current > 0 || settled.previous > 0).then_some(settled)
    }

    /// The state with `more` units counted, in consecutive windows filled to the quota.
    fn filled(&self, pair: Pair, more: u64, now: Timestamp) -> Pair {
        let (amount, period) = (self.quota.amount, self.quota.period);
        let total = pair.current.saturating_add(more);
        if total <= amount {
            return Pair {
                current: total,
                ..pair
            };
        }
        let whole = (total - 1) / amount;
        let windows = whole.min(
            self.ahead
                .saturating_sub(pair.start.since(now).0.div_ceil(period.0)),
        );
        if windows == 0 {
            return Pair {
                current: pair.current.max(amount),
                ..pair
            };
        }
        let current = if windows < whole {
            amount
        } else {
            total - whole * amount
        };
        Pair {
            start: pair.start.after(Micros(windows * period.0)),
            previous: amount,
            current,
        }
    }

    /// When neither window counts any more.
    pub fn expiry(&self, state: Pair) -> Timestamp {
        let end = state.start.after(self.quota.period);
        match (state.current, state.previous) {
            (0, 0) => state.start,
            (0, _) => end,
            _ => end.after(self.quota.period),
        }
    }
}

/// `period x part / whole`, rounded down; the whole period when it is no less.
fn share(part: u64, period: u64, whole: u64) -> u64 {
    if part >= whole {
        return period;
    }
    u64::try_from(u128::from(part) * u128::from(period) / u128::from(whole)).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quota::Rate;

    /// Every request at its due moment stays within the estimate, in the order of arrival, and a
    /// refusal gives the moment from which it may wait.
    #[test]
    fn held_requests_keep_to_the_estimate_at_the_moment_they_go() {
        const PERIOD: u64 = 1_000;
        let mut rng = fastrand::Rng::with_seed(7);
        let mut held = 0;
        for _ in 0..300 {
            let amount = rng.u64(1..12);
            let quota = Quota::new(Rate::new(amount, Micros(PERIOD)), amount).expect("a quota");
            let limit = SlidingWindow::new(quota, Micros(rng.u64(1..2_500)), false)
                .expect("counted exactly");
            let (mut state, mut now) = (None, 1_000_000_000);
            let mut gone: Vec<(u64, u64)> = Vec::new();
            for _ in 0..120 {
                now += rng.u64(0..PERIOD / 3);
                let (at, cost) = (Timestamp::from_micros(now), rng.u64(1..=amount.min(3)));
                match limit.judge(state, cost, at) {
                    Ok(granted) => {
                        held += u64::from(granted.wait > Micros::ZERO);
                        let due = now + granted.wait.0;
                        assert!(
                            gone.last().is_none_or(|(last, _)| *last <= due),
                            "no request overtakes"
                        );
                        gone.push((due, cost));
                        state = Some(granted.next);
                        let window = |of: u64| -> u64 {
                            gone.iter()
                                .filter(|(at, _)| at / PERIOD == of)
                                .map(|(_, cost)| cost)
                                .sum()
                        };
                        let (previous, current) = (window(due / PERIOD - 1), window(due / PERIOD));
                        assert!(current <= amount);
                        assert!(
                            previous * (PERIOD - due % PERIOD) <= (amount - current) * PERIOD,
                            "{gone:?}"
                        );
                    }
                    Err(refused) => {
                        let wait = refused.retry_after.expect("a time").0;
                        let later =
                            |wait| limit.judge(state, cost, Timestamp::from_micros(now + wait));
                        assert!(later(wait - 1).is_err());
                        assert_eq!(
                            later(wait).map(|granted| granted.wait),
                            Ok(limit.max_wait())
                        );
                    }
                }
            }
        }
        assert!(held > 1_000, "{held}");
    }
}

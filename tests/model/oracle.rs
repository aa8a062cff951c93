//! The slow oracle: every limit by its definition, from the whole history of grants, with no state to go wrong.
//!
//! It shares no formula with the core. Rates are not reduced, waits are found by searching for the first moment that
//! fits, windows are counted by looking at every grant there has been.

use tollgate_limit::{Align, Kind, Micros, Terms, Timestamp};

/// One bucket by definition.
#[derive(Clone, Debug)]
pub(crate) struct Oracle {
    terms: Terms,
    events: Vec<Event>,
}

/// What has happened to the bucket, in order of time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Event {
    /// Units went out, or will at this moment.
    Grant { due: u64, cost: u64 },
    /// A settlement took units (token buckets).
    Charge { at: u64, units: u64 },
    /// A settlement gave units back (token buckets).
    Refund { at: u64, units: u64 },
}

impl Oracle {
    pub(crate) fn new(terms: &Terms) -> Self {
        Self {
            terms: terms.clone(),
            events: Vec::new(),
        }
    }

    /// How long `cost` has to wait at `now`, whatever `max_wait` says; `None`: for ever.
    pub(crate) fn wait(&self, cost: u64, now: Timestamp) -> Option<Micros> {
        let now = now.as_micros();
        if cost > self.burst() + self.terms.debt {
            return None;
        }
        // Requests are served in order. Where no request waits, the last event lies ahead only after the clock stepped back: then time
        // stands still.
        let last = self.events.last().map_or(0, Event::at);
        let from = now.max(last);
        if self.fits(cost, from) {
            return Some(Micros(if self.terms.max_wait > Micros::ZERO {
                from - now
            } else {
                0
            }));
        }
        let mut step = 1u64;
        while !self.fits(cost, from + step) {
            step = step
                .checked_mul(2)
                .expect("a cost within the burst fits some day");
        }
        let (mut refused, mut granted) = (from + step / 2, from + step);
        while granted - refused > 1 {
            let middle = refused + (granted - refused) / 2;
            if self.fits(cost, middle) {
                granted = middle
            } else {
                refused = middle
            }
        }
        Some(Micros(granted - now))
    }

    pub(crate) fn record(&mut self, event: Event) {
        let last = self.events.last().map_or(0, Event::at);
        self.events.push(match event {
            // Asking takes nothing; that the bucket was looked at matters only to a clock that steps back.
            Event::Grant { cost: 0, .. } if self.terms.kind != Kind::TokenBucket => return,
            Event::Grant { due, cost } => Event::Grant {
                due: due.max(last),
                cost,
            },
            Event::Charge { at, units } => Event::Charge {
                at: at.max(last),
                units,
            },
            Event::Refund { at, units } => Event::Refund {
                at: at.max(last),
                units,
            },
        });
    }

    /// Every grant: its moment and its units.
    pub(crate) fn grants(&self) -> Vec<(u64, u64)> {
        let grant = |event: &Event| match *event {
            Event::Grant { due, cost } if cost > 0 => Some((due, cost)),
            _ => None,
        };
        self.events.iter().filter_map(grant).collect()
    }

    fn burst(&self) -> u64 {
        self.terms.burst.unwrap_or(self.terms.amount)
    }

    fn fits(&self, cost: u64, at: u64) -> bool {
        match self.terms.kind {
            Kind::TokenBucket => self.fits_token_bucket(cost, at),
            Kind::Interval => self.fits_steps(cost, at),
            Kind::FixedWindow if self.terms.debt > 0 => self.fits_steps(cost, at),
            Kind::FixedWindow => self.fits_window(cost, at),
            Kind::SlidingWindow => self.fits_estimate(cost, at),
            Kind::SlidingLog => self.fits_log(cost, at),
            Kind::InFlight => unreachable!("a concurrency limit has no time"),
        }
    }

    /// The level in units x period, replayed from the beginning.
    fn fits_token_bucket(&self, cost: u64, at: u64) -> bool {
        let [amount, period, burst, debt] = [
            self.terms.amount,
            self.terms.period.0,
            self.burst(),
            self.terms.debt,
        ]
        .map(i128::from);
        let full = burst * period;
        let (mut level, mut since) = (full, 0u64);
        let mut refill = |level: i128, to: u64| {
            let refilled = (level + amount * i128::from(to.saturating_sub(since))).min(full);
            since = since.max(to);
            refilled
        };
        for event in &self.events {
            level = refill(level, event.at());
            level = match *event {
                Event::Grant { cost, .. } => level - i128::from(cost) * period,
                Event::Charge { units, .. } => {
                    let floor = -(debt.max(burst)) * period;
                    (level - i128::from(units) * period).max(floor).min(level)
                }
                Event::Refund { units, .. } => (level + i128::from(units) * period).min(full),
            };
        }
        refill(level, at) >= ((i128::from(cost) - debt) * period).max(0)
    }

    /// Whole steps, one at a time.
    fn fits_steps(&self, cost: u64, at: u64) -> bool {
        let [amount, burst, debt] =
            [self.terms.amount, self.burst(), self.terms.debt].map(i128::from);
        let (mut units, mut begun) = (burst, 0u64);
        let advance = |units: &mut i128, begun: &mut u64, to: u64| {
            while *units < burst && self.next_boundary(*begun) <= to {
                *begun = self.next_boundary(*begun);
                *units = (*units + amount).min(burst);
            }
            if *units == burst {
                *begun = self.window_start(to);
            }
        };
        for (due, cost) in self.grants() {
            advance(&mut units, &mut begun, due);
            units -= i128::from(cost);
        }
        advance(&mut units, &mut begun, at);
        units >= (i128::from(cost) - debt).max(0)
    }

    /// Everything granted in the window that `at` lies in.
    fn fits_window(&self, cost: u64, at: u64) -> bool {
        let within: u64 = match self.terms.align {
            Align::FirstHit => {
                // A window begins with the first grant that finds none.
                let (mut begun, mut count) = (None, 0);
                for (due, cost) in self.grants() {
                    match begun {
                        Some(start) if due < start + self.terms.period.0 => count += cost,
                        _ => (begun, count) = (Some(due), cost),
                    }
                }
                if begun.is_some_and(|start| at < start + self.terms.period.0) {
                    count
                } else {
                    0
                }
            }
            _ => {
                let start = self.window_start(at);
                self.grants()
                    .iter()
                    .filter(|(due, _)| self.window_start(*due) == start)
                    .map(|(_, cost)| cost)
                    .sum()
            }
        };
        within + cost <= self.terms.amount
    }

    fn fits_estimate(&self, cost: u64, at: u64) -> bool {
        let period = self.terms.period.0;
        let window = at / period;
        let count = |window: u64| -> u128 {
            self.grants()
                .iter()
                .filter(|(due, _)| due / period == window)
                .map(|(_, cost)| u128::from(*cost))
                .sum()
        };
        let previous = window.checked_sub(1).map_or(0, count);
        let weight_left = u128::from(period - at % period);
        let period = u128::from(period);
        previous * weight_left + (count(window) + u128::from(cost)) * period
            <= u128::from(self.terms.amount) * period
    }

    fn fits_log(&self, cost: u64, at: u64) -> bool {
        let within: u64 = self
            .grants()
            .iter()
            .filter(|(due, _)| due + self.terms.period.0 > at)
            .map(|(_, cost)| cost)
            .sum();
        within + cost <= self.terms.amount
    }

    pub(crate) fn window_start(&self, at: u64) -> u64 {
        match &self.terms.align {
            Align::FirstHit => at,
            Align::Clock => at - at % self.terms.period.0,
            Align::Calendar(calendar) => {
                let started = calendar
                    .boundaries
                    .partition_point(|boundary| boundary.as_micros() <= at);
                started
                    .checked_sub(1)
                    .map_or(0, |last| calendar.boundaries[last].as_micros())
            }
        }
    }

    fn next_boundary(&self, begun: u64) -> u64 {
        match &self.terms.align {
            Align::FirstHit | Align::Clock => begun + self.terms.period.0,
            Align::Calendar(calendar) => {
                let started = calendar
                    .boundaries
                    .partition_point(|boundary| boundary.as_micros() <= begun);
                calendar
                    .boundaries
                    .get(started)
                    .expect("the trace ends before the calendar")
                    .as_micros()
            }
        }
    }
}

impl Event {
    pub(crate) fn at(&self) -> u64 {
        match *self {
            Self::Grant { due, .. } => due,
            Self::Charge { at, .. } | Self::Refund { at, .. } => at,
        }
    }
}

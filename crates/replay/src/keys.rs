//! What each key of one limit asked for: requests, peaks, and the burst that it needs at a rate.

use std::collections::VecDeque;

use crate::classes::Event;
use crate::outcome::at_least;
use crate::replay::Traffic;
use crate::suggest::Rate;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFacts {
    pub(crate) requests: u64,
    /// The most requests in any second and any minute.
    pub(crate) per_second: u64,
    pub(crate) per_minute: u64,
}

/// One request that draws from the limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draw {
    key: u32,
    /// Whether a limiter had refused it when the log was written.
    was_refused: bool,
    at: u64,
    pub(crate) cost: u64,
}

/// The requests of one limit.
#[derive(Debug)]
pub(crate) struct ByKey {
    /// What was drawn, by key and time.
    pub(crate) draws: Vec<Draw>,
    pub(crate) keys: Vec<KeyFacts>,
    /// The most units that a key asks for in any second.
    pub(crate) busiest: u64,
}

impl ByKey {
    /// The requests of rule number `rule`.
    pub(crate) fn of(traffic: &Traffic<'_>, rule: usize) -> Result<Self, String> {
        let draw = |event: &Event| {
            let class = traffic.classes.get_index(event.class as usize)?;
            let mut charges = class.sides[0].charges.iter();
            let charge = charges.find(|charge| charge.rule as usize == rule)?;
            Some(Draw {
                key: charge.key,
                was_refused: class.was_refused,
                at: event.at,
                cost: charge.cost,
            })
        };
        let mut draws: Vec<Draw> = traffic.events.iter().filter_map(draw).collect();
        draws.sort_by_key(|draw| (draw.key, draw.at));
        let mut by_key = Self {
            draws,
            keys: vec![KeyFacts::default(); traffic.subjects[0].keys[rule].len()],
            busiest: 0,
        };
        by_key.gather()?;
        Ok(by_key)
    }

    fn gather(&mut self) -> Result<(), String> {
        for of_key in self.draws.chunk_by(|one, other| one.key == other.key) {
            let spans = [SECOND, 60 * SECOND, SECOND];
            let [mut second, mut minute, mut units] = spans.map(Window::of);
            let mut sum = 0_u64;
            for draw in of_key {
                sum = sum.saturating_add(draw.cost);
                second.add(draw.at, 0, 1);
                minute.add(draw.at, 0, 1);
                units.add(draw.at, 0, draw.cost);
            }
            if sum > SUM_MAX {
                return Err(format!(
                    "the costs of one key add up to more than {SUM_MAX} units: are they units at all?"
                ));
            }
            self.keys[of_key[0].key as usize] = KeyFacts {
                requests: of_key.len() as u64,
                per_second: second.most,
                per_minute: minute.most,
            };
            self.busiest = self.busiest.max(units.most);
        }
        Ok(())
    }

    /// The least whole burst of each key at which a bucket of this rate refuses nothing. `admitted`:
    /// only the requests count that a limiter had admitted.
    pub(crate) fn bursts(&self, rate: &Rate, admitted: bool) -> Vec<u64> {
        let (amount, period) = (u128::from(rate.amount), u128::from(rate.period.max(1)));
        let mut bursts = vec![0; self.keys.len()];
        for of_key in self.draws.chunk_by(|one, other| one.key == other.key) {
            // What was drawn and is not refilled yet, in units times the period.
            let (mut drawn, mut most, mut at) = (0_u128, 0_u128, 0);
            for draw in of_key.iter().filter(|draw| !(admitted && draw.was_refused)) {
                drawn = drawn.saturating_sub(u128::from(draw.at - at) * amount);
                drawn += u128::from(draw.cost) * period;
                most = most.max(drawn);
                at = draw.at;
            }
            let burst = u64::try_from(most.div_ceil(period)).unwrap_or(u64::MAX);
            bursts[of_key[0].key as usize] = burst;
        }
        bursts
    }

    /// How many keys and requests a bucket of this rate and burst refuses.
    pub(crate) fn refused(&self, rate: &Rate, burst: u64) -> (u64, u64) {
        let (amount, period) = (u128::from(rate.amount), u128::from(rate.period.max(1)));
        let full = u128::from(burst) * period;
        let (mut keys, mut requests) = (0, 0);
        for of_key in self.draws.chunk_by(|one, other| one.key == other.key) {
            let (mut level, mut at, mut lost) = (full, of_key[0].at, 0);
            for draw in of_key {
                level = full.min(level + u128::from(draw.at - at) * amount);
                at = draw.at;
                match level.checked_sub(u128::from(draw.cost) * period) {
                    Some(left) => level = left,
                    None => lost += 1,
                }
            }
            keys += u64::from(lost > 0);
            requests += lost;
        }
        (keys, requests)
    }
}

const SECOND: u64 = 1_000_000;
/// With any period, so many units are a number of 128 bits.
const SUM_MAX: u64 = 1 << 62;

/// The most units that any key asks for in a span of time.
#[derive(Debug)]
pub(crate) struct Window {
    span: u64,
    /// Moment, key and units of each request of the last span.
    within: VecDeque<(u64, u32, u64)>,
    /// The units of the last span, by key.
    sums: Vec<u64>,
    pub(crate) most: u64,
}

impl Window {
    pub(crate) const fn of(span: u64) -> Self {
        Self {
            span,
            within: VecDeque::new(),
            sums: Vec::new(),
            most: 0,
        }
    }

    /// Adds a request that comes no earlier than the last.
    pub(crate) fn add(&mut self, at: u64, key: u32, units: u64) {
        while let Some(&(first, key, units)) = self.within.front()
            && at - first >= self.span
        {
            self.within.pop_front();
            let sum = &mut self.sums[key as usize];
            *sum = sum.saturating_sub(units);
        }
        self.within.push_back((at, key, units));
        let sum = at_least(&mut self.sums, key as usize);
        *sum = sum.saturating_add(units);
        self.most = self.most.max(*sum);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frontier_is_the_least_burst_that_refuses_nothing(
            requests in prop::collection::vec((prop_oneof![0_u64..3, 0_u64..2_000_000, 0_u64..90_000_000_000], 0_u64..9), 1..90),
            (amount, period) in prop_oneof![Just((1, 1_000_000)), Just((7, 3)), (1_u64..1_000, 1_u64..100_000_000_000)],
        ) {
            let (mut draws, mut at) = (Vec::new(), 1_700_000_000_000_000);
            for (step, cost) in requests {
                at += step;
                draws.push(Draw { key: 0, was_refused: false, at, cost });
            }
            let keys = vec![KeyFacts::default()];
            let by_key = ByKey { draws, keys, busiest: 0 };
            let rate = Rate { text: String::new(), amount, period };
            let burst = by_key.bursts(&rate, false)[0];
            prop_assert_eq!(by_key.refused(&rate, burst), (0, 0));
            prop_assert!(burst == 0 || by_key.refused(&rate, burst - 1).0 == 1);
        }
    }
}

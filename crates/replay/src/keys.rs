//! What each key of one limit asked for: requests, peaks, and the burst that it needs at a rate.

use foldhash::fast::FixedState;
use indexmap::IndexSet;

use crate::classes::Classes;
use crate::events::{Event, Events, Order};
use crate::suggest::Rate;
use crate::windows::Window;

#[derive(Clone, Debug, Default)]
pub(crate) struct KeyFacts {
    pub(crate) requests: u64,
    /// The most requests in any second and any minute.
    pub(crate) per_second: u64,
    pub(crate) per_minute: u64,
}

/// The requests of one limit, by key and time.
#[derive(Debug)]
pub(crate) struct ByKey<'t> {
    events: &'t Events,
    /// Costs by number; an event's `lasting` is that number, doubled, plus one where a limiter had
    /// refused the request.
    costs: IndexSet<u64, FixedState>,
    pub(crate) keys: Vec<KeyFacts>,
    pub(crate) requests: u64,
    /// The most units in any second, over all keys together.
    pub(crate) busiest: u64,
    pub(crate) equal_costs: bool,
}

pub(crate) struct Requests<'t> {
    pub(crate) events: &'t mut Events,
    pub(crate) classes: &'t Classes,
    pub(crate) keys: usize,
}

/// Takes the requests of rule number `rule` out of the traffic: its events then carry keys and costs.
pub(crate) fn by_key<'t>(traffic: Requests<'t>, rule: usize) -> Result<ByKey<'t>, String> {
    let Requests {
        events,
        classes,
        keys,
    } = traffic;
    let mut costs: IndexSet<u64, FixedState> = IndexSet::default();
    let mut last = (u64::MAX, 0);
    events.relabel(Order::Class, |event| {
        let class = classes.get_index(event.class as usize)?;
        let mut charges = class.sides[0].charges.iter();
        let charge = charges.find(|charge| charge.rule as usize == rule)?;
        if last.0 != charge.cost {
            last = (charge.cost, costs.insert_full(charge.cost).0);
        }
        let number = u32::try_from(last.1).ok().filter(|number| *number < HALF)?;
        Some((charge.key, number << 1 | u32::from(class.was_refused)))
    });
    let mut by_key = ByKey {
        events,
        equal_costs: costs.len() < 2,
        costs,
        keys: vec![KeyFacts::default(); keys],
        requests: 0,
        busiest: 0,
    };
    by_key.gather()?;
    Ok(by_key)
}

struct Gathered {
    second: Window,
    minute: Window,
    units: Window,
    sum: u64,
}

impl Gathered {
    fn new() -> Self {
        Self {
            second: Window::of(SECOND),
            minute: Window::of(60 * SECOND),
            units: Window::of(SECOND),
            sum: 0,
        }
    }
}

impl ByKey<'_> {
    fn cost(&self, event: Event) -> u64 {
        let number = (event.lasting >> 1) as usize;
        self.costs.get_index(number).copied().unwrap_or_default()
    }

    fn gather(&mut self) -> Result<(), String> {
        let mut gathered = Gathered::new();
        let mut current = None;
        for event in self.events.sorted() {
            let key = event.class as usize;
            if current != Some(key)
                && let Some(done) = current.replace(key)
            {
                self.finish(done, std::mem::replace(&mut gathered, Gathered::new()));
            }
            let cost = self.cost(event);
            self.requests += 1;
            self.keys[key].requests += 1;
            gathered.sum = gathered.sum.saturating_add(cost);
            if gathered.sum > SUM_MAX {
                return Err(format!(
                    "the costs of one key add up to more than {SUM_MAX} units: are they units at all?"
                ));
            }
            gathered.second.add(event.at, 0, 1);
            gathered.minute.add(event.at, 0, 1);
            gathered.units.add(event.at, 0, cost);
        }
        if let Some(done) = current {
            self.finish(done, gathered);
        }
        Ok(())
    }

    fn finish(&mut self, key: usize, gathered: Gathered) {
        let facts = &mut self.keys[key];
        facts.per_second = gathered.second.most;
        facts.per_minute = gathered.minute.most;
        self.busiest = self.busiest.max(gathered.units.most);
    }

    /// The least whole burst of each key at which a bucket of this rate refuses nothing. `admitted`:
    /// only the requests count that a limiter had admitted.
    pub(crate) fn bursts(&self, rate: &Rate, admitted: bool) -> Vec<u64> {
        let (amount, period) = (u128::from(rate.amount), u128::from(rate.period.max(1)));
        let mut most = vec![0_u128; self.keys.len()];
        // What was drawn and is not refilled yet, in units times the period.
        let (mut drawn, mut at, mut current) = (0_u128, 0, u32::MAX);
        let counts = |event: &Event| !admitted || event.lasting & 1 == 0;
        for event in self.events.sorted().filter(counts) {
            if event.class != current {
                (drawn, at, current) = (0, event.at, event.class);
            }
            drawn = drawn.saturating_sub(u128::from(event.at - at) * amount);
            drawn += u128::from(self.cost(event)) * period;
            at = event.at;
            let most = &mut most[event.class as usize];
            *most = drawn.max(*most);
        }
        let whole = |drawn: u128| u64::try_from(drawn.div_ceil(period)).unwrap_or(u64::MAX);
        most.into_iter().map(whole).collect()
    }

    /// How many keys and requests a bucket of this rate and burst refuses.
    pub(crate) fn refused(&self, rate: &Rate, burst: u64) -> (u64, u64) {
        let (amount, period) = (u128::from(rate.amount), u128::from(rate.period.max(1)));
        let full = u128::from(burst) * period;
        let (mut level, mut at, mut current) = (full, 0, u32::MAX);
        let (mut keys, mut requests, mut loses) = (0, 0, false);
        for event in self.events.sorted() {
            if event.class != current {
                (level, at, current, loses) = (full, event.at, event.class, false);
            }
            level = full.min(level + u128::from(event.at - at) * amount);
            at = event.at;
            match level.checked_sub(u128::from(self.cost(event)) * period) {
                Some(left) => level = left,
                None => {
                    requests += 1;
                    keys += u64::from(!std::mem::replace(&mut loses, true));
                }
            }
        }
        (keys, requests)
    }
}

const SECOND: u64 = 1_000_000;
/// Half of the numbers of 32 bits.
const HALF: u32 = 1 << 31;
/// With any period, so many units are a number of 128 bits.
const SUM_MAX: u64 = 1 << 62;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn frontier_is_the_least_burst_that_refuses_nothing(
            requests in prop::collection::vec((prop_oneof![0_u64..3, 0_u64..2_000_000, 0_u64..90_000_000_000], 0_u32..9), 1..90),
            (amount, period) in prop_oneof![Just((1, 1_000_000)), Just((7, 3)), (1_u64..1_000, 1_u64..100_000_000_000)],
        ) {
            let (mut events, mut at) = (Events::default(), 1_700_000_000_000_000);
            for (step, cost) in requests {
                at += step;
                events.push(Event { at, lasting: cost << 1, class: 0 });
            }
            events.sort(Order::Class);
            let by_key = ByKey {
                events: &events,
                costs: (0..9).collect(),
                keys: vec![KeyFacts::default()],
                requests: 1,
                busiest: 0,
                equal_costs: false,
            };
            let rate = Rate { text: String::new(), amount, period };
            let burst = by_key.bursts(&rate, false)[0];
            prop_assert_eq!(by_key.refused(&rate, burst), (0, 0));
            prop_assert!(burst == 0 || by_key.refused(&rate, burst - 1).0 == 1);
        }
    }
}

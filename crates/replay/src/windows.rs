//! The most units that any key asks for in a span of time.

use std::collections::VecDeque;

use crate::outcome::at_least;

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

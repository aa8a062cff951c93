//! The latest refusal of each limit and for each reason: examples for the counters of refusals.

use std::collections::HashMap;
use std::sync::Arc;

use tollgate_limit::{Limit, Timestamp};
use tollgate_response::DecisionId;
use tollgate_telemetry::TraceParent;
use tollgate_telemetry::metrics::Exemplar;

#[derive(Clone, Debug, Default)]
pub struct Latest {
    /// By the names of limit and tier, which have one counter.
    limits: HashMap<Counter, Example>,
    reasons: HashMap<&'static str, Example>,
}

type Counter = (Arc<str>, Option<Arc<str>>);

#[derive(Clone, Copy, Debug)]
pub struct Example {
    pub(super) id: u64,
    pub(super) trace: Option<TraceParent>,
    pub(super) at: Timestamp,
}

impl Example {
    fn exemplar(&self) -> Exemplar {
        let text = |digits: &[u8]| String::from_utf8_lossy(digits).into_owned();
        let mut labels = vec![("decision_id", DecisionId::of(self.id).as_str().to_owned())];
        if let Some(trace) = &self.trace {
            labels.push(("trace_id", text(&trace.trace())));
        }
        Exemplar {
            labels,
            at_micros: self.at.as_micros(),
        }
    }
}

impl Latest {
    pub fn of_limit(&self, limit: &Limit) -> Option<Exemplar> {
        self.limits.get(&counter(limit)).map(Example::exemplar)
    }

    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, Exemplar)> {
        let reasons = self.reasons.iter();
        reasons.map(|(reason, example)| (*reason, example.exemplar()))
    }

    pub(super) fn add_limit(&mut self, limit: &Limit, example: Example) {
        self.limits
            .entry(counter(limit))
            .or_insert(example)
            .renew(example);
    }

    pub(super) fn add_reason(&mut self, reason: &'static str, example: Example) {
        self.reasons.entry(reason).or_insert(example).renew(example);
    }
}

impl Example {
    fn renew(&mut self, other: Self) {
        if other.at > self.at {
            *self = other;
        }
    }
}

fn counter(limit: &Limit) -> Counter {
    (Arc::clone(&limit.name), limit.tier.clone())
}

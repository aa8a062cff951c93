//! The latest refusal of each limit and for each reason: examples for the counters of refusals.

use std::sync::Arc;

use tollgate_limit::{Limit, Timestamp};
use tollgate_response::DecisionId;
use tollgate_telemetry::TraceParent;
use tollgate_telemetry::metrics::Exemplar;

#[derive(Clone, Debug, Default)]
pub struct Latest {
    limits: Vec<(Arc<Limit>, Example)>,
    reasons: Vec<(&'static str, Example)>,
}

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
        let same = |one: &&(Arc<Limit>, Example)| is_same(&one.0, limit);
        let (_, example) = self.limits.iter().find(same)?;
        Some(example.exemplar())
    }

    pub fn by_reason(&self) -> impl Iterator<Item = (&'static str, Exemplar)> {
        let reasons = self.reasons.iter();
        reasons.map(|(reason, example)| (*reason, example.exemplar()))
    }

    pub(super) fn add_limit(&mut self, limit: &Arc<Limit>, example: impl Fn() -> Example) {
        match self.limits.iter_mut().find(|(one, _)| is_same(one, limit)) {
            Some((_, latest)) => latest.renew(example()),
            None => self.limits.push((Arc::clone(limit), example())),
        }
    }

    pub(super) fn add_reason(&mut self, reason: &'static str, example: impl Fn() -> Example) {
        match self.reasons.iter_mut().find(|(one, _)| *one == reason) {
            Some((_, latest)) => latest.renew(example()),
            None => self.reasons.push((reason, example())),
        }
    }
}

impl Example {
    fn renew(&mut self, other: Self) {
        if other.at > self.at {
            *self = other;
        }
    }
}

/// Whether two limits have one counter.
fn is_same(one: &Limit, other: &Limit) -> bool {
    one.name == other.name && one.tier == other.tier
}

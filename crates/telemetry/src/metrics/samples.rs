//! Samples that other components collect at a scrape: tables, stores, upstreams.

use std::collections::BTreeMap;

use super::histogram::{Histogram, Snapshot};

/// Collects the samples of one scrape, grouped by metric as the exposition format requires.
#[derive(Debug, Default)]
pub struct Samples {
    pub(super) families: BTreeMap<&'static str, Family>,
    /// Examples of the requests that the gateway rejected, by reason.
    pub(super) rejections: Vec<(&'static str, Exemplar)>,
}

/// A request that a counter counted, as an example of it: an exemplar of OpenMetrics, which the
/// older text format does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exemplar {
    /// What it is found by. OpenMetrics allows 128 characters.
    pub labels: Vec<(&'static str, String)>,
    /// When it was counted, microseconds since the Unix epoch.
    pub at_micros: u64,
}

#[derive(Debug)]
pub(super) struct Family {
    pub(super) help: &'static str,
    pub(super) kind: Kind,
    pub(super) samples: Vec<(LabelPairs, Value)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
    Histogram,
}

#[derive(Debug)]
pub(super) enum Value {
    Counter(u64, Option<Exemplar>),
    Seconds(f64),
    Gauge(f64),
    Histogram(Snapshot),
}

pub(super) type LabelPairs = Vec<(&'static str, String)>;

impl Samples {
    /// Adds a value that can rise and fall. `name` has no `tollgate_` prefix, and is in base units.
    pub fn gauge(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: f64,
    ) {
        self.push(name, help, Kind::Gauge, labels, Value::Gauge(value));
    }

    /// Adds a value that only grows. `name` has no `tollgate_` prefix and no `_total`.
    pub fn counter(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: u64,
    ) {
        self.counter_like(name, help, labels, value, None);
    }

    /// [`Self::counter`] with an example of what it counted.
    pub fn counter_like(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: u64,
        exemplar: Option<Exemplar>,
    ) {
        self.push(
            name,
            help,
            Kind::Counter,
            labels,
            Value::Counter(value, exemplar),
        );
    }

    /// Adds an example of the requests that were rejected for `reason`.
    pub fn rejection(&mut self, reason: &'static str, exemplar: Exemplar) {
        self.rejections.push((reason, exemplar));
    }

    /// Adds a total of time. `name` has no `tollgate_` prefix, ends in `_seconds` and has no
    /// `_total`.
    pub fn seconds(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        value: f64,
    ) {
        self.push(name, help, Kind::Counter, labels, Value::Seconds(value));
    }

    /// Adds a histogram of durations. `name` has no `tollgate_` prefix and ends in `_seconds`.
    pub fn histogram<const N: usize>(
        &mut self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        histogram: &Histogram<N>,
    ) {
        self.push(
            name,
            help,
            Kind::Histogram,
            labels,
            Value::Histogram(histogram.snapshot()),
        );
    }

    fn push(
        &mut self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
        value: Value,
    ) {
        let family = self.families.entry(name).or_insert_with(|| Family {
            help,
            kind,
            samples: Vec::new(),
        });
        debug_assert_eq!(family.kind, kind, "{name} is one kind of metric");
        family.samples.push((
            labels
                .iter()
                .map(|(key, value)| (*key, (*value).to_owned()))
                .collect(),
            value,
        ));
    }
}

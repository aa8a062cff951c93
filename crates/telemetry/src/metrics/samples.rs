//! Samples that other components collect at a scrape: tables, stores, upstreams.

use std::collections::BTreeMap;
use std::mem::discriminant;

use prometheus_client::metrics::MetricType;

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
    pub(super) kind: MetricType,
    pub(super) samples: Vec<(LabelPairs, Value)>,
}

#[derive(Debug)]
pub(super) enum Value {
    Counter(u64, Option<Exemplar>),
    Seconds(f64),
    Gauge(f64),
    /// A gauge that is written without a decimal point.
    Whole(i64),
    Histogram(Snapshot),
}

pub(super) type LabelPairs = Vec<(&'static str, String)>;

type Text = &'static str;

pub(super) type Labels<'l> = &'l [(&'static str, &'l str)];

impl Value {
    fn kind(&self) -> MetricType {
        match self {
            Self::Counter(..) | Self::Seconds(_) => MetricType::Counter,
            Self::Gauge(_) | Self::Whole(_) => MetricType::Gauge,
            Self::Histogram(_) => MetricType::Histogram,
        }
    }
}

impl Family {
    pub(super) const fn new(kind: MetricType, help: &'static str) -> Self {
        Self {
            help,
            kind,
            samples: Vec::new(),
        }
    }

    pub(super) fn single(help: &'static str, value: Value) -> Self {
        let mut family = Self::new(value.kind(), help);
        family.add(&[], value);
        family
    }

    pub(super) fn add(&mut self, labels: Labels<'_>, value: Value) {
        debug_assert_eq!(
            discriminant(&self.kind),
            discriminant(&value.kind()),
            "{} is one kind of metric",
            self.help
        );
        let labels = labels
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()));
        self.samples.push((labels.collect(), value));
    }

    /// Adds the value of a counter, unless it has counted nothing.
    pub(super) fn count(&mut self, labels: Labels<'_>, count: u64) {
        if count > 0 {
            self.add(labels, Value::Counter(count, None));
        }
    }
}

impl Samples {
    /// Adds a value that can rise and fall. `name` has no `tollgate_` prefix, and is in base units.
    pub fn gauge(&mut self, name: Text, help: Text, labels: Labels<'_>, value: f64) {
        self.push(name, help, labels, Value::Gauge(value));
    }

    /// Adds a value that only grows. `name` has no `tollgate_` prefix and no `_total`.
    pub fn counter(&mut self, name: Text, help: Text, labels: Labels<'_>, value: u64) {
        self.counter_like(name, help, labels, value, None);
    }

    /// [`Self::counter`] with an example of what it counted.
    pub fn counter_like(
        &mut self,
        name: Text,
        help: Text,
        labels: Labels<'_>,
        value: u64,
        exemplar: Option<Exemplar>,
    ) {
        self.push(name, help, labels, Value::Counter(value, exemplar));
    }

    pub fn rejection(&mut self, reason: Text, exemplar: Exemplar) {
        self.rejections.push((reason, exemplar));
    }

    /// Adds a total of time. `name` has no `tollgate_` prefix and no `_total`, but `_seconds`.
    pub fn seconds(&mut self, name: Text, help: Text, labels: Labels<'_>, value: f64) {
        self.push(name, help, labels, Value::Seconds(value));
    }

    /// Adds a histogram of durations. `name` has no `tollgate_` prefix and ends in `_seconds`.
    pub fn histogram<const N: usize>(
        &mut self,
        name: Text,
        help: Text,
        labels: Labels<'_>,
        histogram: &Histogram<N>,
    ) {
        self.push(name, help, labels, Value::Histogram(histogram.snapshot()));
    }

    fn push(&mut self, name: Text, help: Text, labels: Labels<'_>, value: Value) {
        let new = || Family::new(value.kind(), help);
        let family = self.families.entry(name).or_insert_with(new);
        family.add(labels, value);
    }
}

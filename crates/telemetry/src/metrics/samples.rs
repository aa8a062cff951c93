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

    /// Adds what a counter has counted; without a sample if that is nothing.
    pub(super) fn count(&mut self, name: Text, help: Text, labels: Labels<'_>, count: u64) {
        if count > 0 {
            self.counter(name, help, labels, count);
        }
    }

    /// Adds the durations of a histogram; without a sample if there are none.
    pub(super) fn snapshot(
        &mut self,
        name: Text,
        help: Text,
        labels: Labels<'_>,
        durations: Snapshot,
    ) {
        if durations.count > 0 {
            self.push(name, help, labels, Value::Histogram(durations));
        }
    }

    pub(super) fn whole(&mut self, name: Text, help: Text, labels: Labels<'_>, value: i64) {
        self.push(name, help, labels, Value::Whole(value));
    }

    fn push(&mut self, name: Text, help: Text, labels: Labels<'_>, value: Value) {
        let labels = labels
            .iter()
            .map(|(key, value)| (*key, (*value).to_owned()));
        let family = self.family(name, help, value.kind());
        family.samples.push((labels.collect(), value));
    }

    /// The metric of this name. A scrape describes it even if it has no sample.
    pub(super) fn family(&mut self, name: Text, help: Text, kind: MetricType) -> &mut Family {
        let family = self.families.entry(name).or_insert_with(|| Family {
            help,
            kind,
            samples: Vec::new(),
        });
        debug_assert_eq!(
            discriminant(&family.kind),
            discriminant(&kind),
            "{name} is one kind of metric"
        );
        family
    }
}

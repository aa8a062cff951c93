//! Writes one metric in the library's form.

use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::exemplar::CounterWithExemplar;

use crate::metrics::histogram::Snapshot;
use crate::metrics::samples::{Exemplar, Family, Kind, LabelPairs, Value};

pub(super) fn encode_family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    family: &Family,
    exemplars: bool,
) -> std::fmt::Result {
    let kind = match family.kind {
        Kind::Counter => MetricType::Counter,
        Kind::Gauge => MetricType::Gauge,
        Kind::Histogram => MetricType::Histogram,
    };
    let mut to = encoder.encode_descriptor(name, family.help, None, kind)?;
    for (labels, value) in &family.samples {
        if labels.is_empty() {
            // An empty set would be written as `{}`.
            encode_value(&mut to, value, exemplars)?;
        } else {
            encode_value(&mut to.encode_family(labels)?, value, exemplars)?;
        }
    }
    Ok(())
}

fn encode_value(to: &mut MetricEncoder<'_>, value: &Value, exemplars: bool) -> std::fmt::Result {
    match value {
        Value::Counter(count, exemplar) => {
            encode_counter(to, *count, exemplar.as_ref().filter(|_| exemplars))
        }
        Value::Seconds(seconds) => to.encode_counter(seconds, NO_EXEMPLAR_OF_SECONDS),
        Value::Gauge(value) => to.encode_gauge(value),
        Value::Histogram(histogram) => to.encode_histogram(
            histogram.sum,
            histogram.count,
            &histogram.buckets,
            NO_EXEMPLARS,
        ),
    }
}

pub(super) fn encode_counter(
    to: &mut MetricEncoder<'_>,
    count: u64,
    exemplar: Option<&Exemplar>,
) -> std::fmt::Result {
    let Some(exemplar) = exemplar else {
        return to.encode_counter(&count, NO_EXEMPLAR);
    };
    // The library makes exemplars in its own counters only.
    let cell = CounterWithExemplar::<LabelPairs>::default();
    let at = SystemTime::UNIX_EPOCH + Duration::from_micros(exemplar.at_micros);
    cell.inc_by(1, Some(exemplar.labels.clone()), Some(at));
    let (_, exemplar) = cell.get();
    to.encode_counter(&count, exemplar.as_ref())
}

pub(super) fn counter<'e>(
    encoder: &'e mut DescriptorEncoder<'_>,
    name: &'e str,
    help: &str,
) -> Result<MetricEncoder<'e>, std::fmt::Error> {
    encoder.encode_descriptor(name, help, None, MetricType::Counter)
}

pub(super) fn histogram(
    to: &mut MetricEncoder<'_>,
    labels: &[(&str, &str); 1],
    snapshot: &Snapshot,
) -> std::fmt::Result {
    to.encode_family(labels)?.encode_histogram(
        snapshot.sum,
        snapshot.count,
        &snapshot.buckets,
        NO_EXEMPLARS,
    )
}

pub(super) type NoLabels = [(&'static str, &'static str); 0];
pub(super) type Exemplars =
    std::collections::HashMap<usize, prometheus_client::metrics::exemplar::Exemplar<NoLabels, f64>>;

pub(super) const NO_EXEMPLAR: Option<
    &prometheus_client::metrics::exemplar::Exemplar<NoLabels, u64>,
> = None;
const NO_EXEMPLAR_OF_SECONDS: Option<
    &prometheus_client::metrics::exemplar::Exemplar<NoLabels, f64>,
> = None;
pub(super) const NO_EXEMPLARS: Option<&Exemplars> = None;

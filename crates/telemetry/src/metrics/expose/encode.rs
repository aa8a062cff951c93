use std::time::{Duration, SystemTime};

use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder};
use prometheus_client::metrics::exemplar::CounterWithExemplar;

use crate::metrics::samples::{Exemplar, Family, LabelPairs, Value};

pub(super) fn encode_family(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    family: &Family,
    exemplars: bool,
) -> std::fmt::Result {
    let mut to = encoder.encode_descriptor(name, family.help, None, family.kind)?;
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
        Value::Whole(value) => to.encode_gauge(value),
        Value::Histogram(histogram) => to.encode_histogram(
            histogram.sum,
            histogram.count,
            &histogram.buckets,
            NO_EXEMPLARS,
        ),
    }
}

fn encode_counter(
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

type NoLabels = [(&'static str, &'static str); 0];
type Exemplars =
    std::collections::HashMap<usize, prometheus_client::metrics::exemplar::Exemplar<NoLabels, f64>>;

const NO_EXEMPLAR: Option<&prometheus_client::metrics::exemplar::Exemplar<NoLabels, u64>> = None;
const NO_EXEMPLAR_OF_SECONDS: Option<
    &prometheus_client::metrics::exemplar::Exemplar<NoLabels, f64>,
> = None;
const NO_EXEMPLARS: Option<&Exemplars> = None;

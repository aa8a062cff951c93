//! The exposition: sums the workers' counters and writes them as text.

mod encode;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::cells::code_label;
use super::cells::{ReasonCells, ResponseCells, WorkerCells};
use super::histogram::seconds;
use super::samples::{Exemplar, Family, Samples, Value};
use super::{Format, Metrics, Shared, process};
use encode::encode_family;

pub(super) fn render(metrics: &Metrics, format: Format) -> String {
    let mut ours = Registry::with_prefix("tollgate");
    ours.register_collector(Box::new(Exposition {
        metrics: metrics.clone(),
        exemplars: format == Format::OpenMetrics,
    }));
    // Standard names do not have our prefix.
    let mut standard = Registry::default();
    standard.register_collector(Box::new(Process {
        started_micros: metrics.shared.started_micros,
    }));
    let mut text = String::new();
    encode_registry(&mut text, &ours)
        .and_then(|()| encode_registry(&mut text, &standard))
        .and_then(|()| encode_eof(&mut text))
        .expect("writing into a String cannot fail");
    match format {
        Format::OpenMetrics => text,
        Format::Prometheus => plain(&text),
    }
}

/// Converts to the older text format: a counter's family name includes `_total`, and units and the
/// end marker are left out.
fn plain(open_metrics: &str) -> String {
    let types = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE "));
    let counters: Vec<&str> = types
        .filter_map(|name| name.strip_suffix(" counter"))
        .collect();
    let mut text = String::with_capacity(open_metrics.len());
    for line in open_metrics.lines() {
        if line == "# EOF" || line.starts_with("# UNIT ") {
            continue;
        }
        let about = line
            .strip_prefix("# HELP ")
            .or_else(|| line.strip_prefix("# TYPE "));
        match about.and_then(|about| about.split_once(' ')) {
            Some((name, rest)) if counters.contains(&name) => {
                text.push_str(&line[..7]);
                text.push_str(name);
                text.push_str("_total ");
                text.push_str(rest);
            }
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[derive(Debug)]
struct Exposition {
    metrics: Metrics,
    exemplars: bool,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let shared = &*self.metrics.shared;
        // Everything is summed under the lock: a worker that ends is counted once.
        let total = {
            let workers = shared.workers.lock();
            let total = WorkerCells::default();
            total.absorb(&shared.retired);
            for cells in workers.iter() {
                total.absorb(cells);
            }
            total
        };
        let [routes, upstreams] = {
            let names = shared.names.lock();
            [&names[0], &names[1]].map(|names| names.list.clone())
        };
        let mut samples = Samples::default();
        // Cloned out of the lock: a source may be slow, and a reload may register another.
        let sources: Vec<_> = shared
            .sources
            .lock()
            .iter()
            .map(|(_, source)| Arc::clone(source))
            .collect();
        for source in sources {
            source(&mut samples);
        }
        let own = requests(&total, &routes, &samples.rejections).into_iter();
        let own = own.chain(upstream_requests(&total, &upstreams));
        let own = own.chain(connections(&total)).chain(shared.own());
        for (name, family) in own.chain(samples.families) {
            encode_family(&mut encoder, name, &family, self.exemplars)?;
        }
        Ok(())
    }
}

#[derive(Debug)]
struct Process {
    started_micros: u64,
}

impl Collector for Process {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let mut samples = Samples::default();
        process::samples(&mut samples, self.started_micros);
        for (name, family) in &samples.families {
            encode_family(&mut encoder, name, family, false)?;
        }
        Ok(())
    }
}

/// Metrics with their names, in the order in which they are written.
type Families = Vec<(&'static str, Family)>;

fn requests(
    total: &WorkerCells,
    routes: &[Arc<str>],
    rejections: &[(&'static str, Exemplar)],
) -> Families {
    let help = "Responses to clients, by route and status";
    let mut statuses = Family::new(MetricType::Counter, help);
    let help = "Time from the end of a request's head to the end of its response, by route";
    let mut durations = Family::new(MetricType::Histogram, help);
    let help = "Requests that limits of a route refused and a later target of it took (over_limit), by route";
    let mut passed_on = Family::new(MetricType::Counter, help);
    total.routes.each(|slot, cells| {
        let route = ("route", name(routes, slot));
        responses(&cells.responses, route, &mut statuses, &mut durations);
        passed_on.count(&[route], get(&cells.passed_on));
    });
    let help = "Time that the gateway itself added to a request";
    let overhead = Family::single(help, Value::Histogram(total.overhead.snapshot()));
    let help = "Requests that the gateway rejected itself, by reason";
    let rejections = reasons(help, &total.rejections, rejections);
    let help = "Input that could not be read as a request, or broke off, by reason";
    let bad_requests = reasons(help, &total.bad_requests, &[]);
    let received = counter("Bytes of request bodies", &total.received_bytes);
    let sent = counter("Bytes of response bodies", &total.sent_bytes);
    vec![
        ("requests", statuses),
        ("request_duration_seconds", durations),
        ("overhead_seconds", overhead),
        ("over_limit_requests", passed_on),
        ("rejections", rejections),
        ("bad_requests", bad_requests),
        ("received_bytes", received),
        ("sent_bytes", sent),
    ]
}

fn upstream_requests(total: &WorkerCells, upstreams: &[Arc<str>]) -> Families {
    let help = "Responses of upstreams, by status";
    let mut statuses = Family::new(MetricType::Counter, help);
    let help = "Requests to which an upstream gave no response, by reason";
    let mut failures = Family::new(MetricType::Counter, help);
    let help = "Time from sending a request to an upstream to the head of its response";
    let mut durations = Family::new(MetricType::Histogram, help);
    total.upstreams.each(|slot, cells| {
        let upstream = ("upstream", name(upstreams, slot));
        responses(&cells.responses, upstream, &mut statuses, &mut durations);
        cells.failures.each(|reason, count| {
            failures.count(&[upstream, ("reason", reason)], count);
        });
    });
    vec![
        ("upstream_requests", statuses),
        ("upstream_failures", failures),
        ("upstream_duration_seconds", durations),
    ]
}

fn connections(total: &WorkerCells) -> Families {
    let accepted = counter("Connections accepted", &total.connections_opened);
    let help = "Connections refused, by reason";
    let refused = reasons(help, &total.connections_refused, &[]);
    let errors = counter("Failures of accept", &total.accept_errors);
    vec![
        ("connections_accepted", accepted),
        ("connections_refused", refused),
        ("accept_errors", errors),
    ]
}

impl Shared {
    fn own(&self) -> Families {
        let help = "Attempts to load a new configuration, by result";
        let mut reloads = Family::new(MetricType::Counter, help);
        let results = [
            ("success", &self.reloads_done),
            ("failure", &self.reloads_failed),
        ];
        for (result, cell) in results {
            reloads.add(&[("result", result)], Value::Counter(get(cell), None));
        }
        let help = "When the configuration in force was loaded, seconds since the Unix epoch";
        let last = Family::single(help, Value::Gauge(seconds(get(&self.last_reload_micros))));
        let successful = !self.last_reload_failed.load(Ordering::Relaxed);
        let help = "Whether the configuration and every file of callers, as they are, were taken when they were last read";
        let successful = Family::single(help, Value::Whole(successful.into()));
        let help = "Requests that failed with a panic; their response is 500";
        let panics = counter(help, &self.panics);
        // Exported as a gauge, because the older text format has no info type.
        let mut build = Family::new(MetricType::Gauge, "The version of the program");
        build.add(&[("version", env!("CARGO_PKG_VERSION"))], Value::Whole(1));
        vec![
            ("config_reloads", reloads),
            ("config_last_reload_success_timestamp_seconds", last),
            ("config_last_reload_successful", successful),
            ("panics", panics),
            ("build_info", build),
        ]
    }
}

fn counter(help: &'static str, cell: &AtomicU64) -> Family {
    Family::single(help, Value::Counter(get(cell), None))
}

fn reasons(
    help: &'static str,
    cells: &ReasonCells,
    examples: &[(&'static str, Exemplar)],
) -> Family {
    let mut family = Family::new(MetricType::Counter, help);
    cells.each(|reason, count| {
        if count > 0 {
            let example = examples.iter().find(|(known, _)| *known == reason);
            let example = example.map(|(_, example)| example.clone());
            family.add(&[("reason", reason)], Value::Counter(count, example));
        }
    });
    family
}

fn responses(
    cells: &ResponseCells,
    whose: (&'static str, &str),
    statuses: &mut Family,
    durations: &mut Family,
) {
    for (index, cell) in cells.codes.iter().enumerate() {
        let count = get(cell);
        if count > 0 {
            statuses.count(&[whose, ("code", &code_label(index))], count);
        }
    }
    let duration = cells.duration.snapshot();
    if duration.count > 0 {
        durations.add(&[whose], Value::Histogram(duration));
    }
}

fn name(names: &[Arc<str>], slot: u32) -> &str {
    names.get(slot as usize).map_or(super::OTHER, |name| name)
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

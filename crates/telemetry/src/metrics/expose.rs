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
use super::samples::{Exemplar, Samples};
use super::{Format, Metrics, Shared, process};
use encode::encode_family;

pub(super) fn render(metrics: &Metrics, format: Format) -> String {
    let mut ours = Registry::with_prefix("tollgate");
    ours.register_collector(Box::new(Exposition {
        samples: gather(&metrics.shared),
        exemplars: format == Format::OpenMetrics,
    }));
    // Standard names do not have our prefix.
    let mut standard = Registry::default();
    let mut samples = Samples::default();
    process::samples(&mut samples, metrics.shared.started_micros);
    standard.register_collector(Box::new(Exposition {
        samples,
        exemplars: false,
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
    samples: Samples,
    exemplars: bool,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        for (name, family) in &self.samples.families {
            encode_family(&mut encoder, name, family, self.exemplars)?;
        }
        Ok(())
    }
}

fn gather(shared: &Shared) -> Samples {
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
    let rejections = std::mem::take(&mut samples.rejections);
    requests(&total, &routes, &rejections, &mut samples);
    upstream_requests(&total, &upstreams, &mut samples);
    connections(&total, &mut samples);
    shared.own(&mut samples);
    samples
}

fn requests(
    total: &WorkerCells,
    routes: &[Arc<str>],
    rejections: &[(&'static str, Exemplar)],
    to: &mut Samples,
) {
    let responses = "Responses to clients, by route and status";
    to.family("requests", responses, MetricType::Counter);
    let durations = "Time from the end of a request's head to the end of its response, by route";
    to.family("request_duration_seconds", durations, MetricType::Histogram);
    let passed_on = "Requests that limits of a route refused and a later target of it took (over_limit), by route";
    to.family("over_limit_requests", passed_on, MetricType::Counter);
    total.routes.each(|slot, cells| {
        let route = ("route", name(routes, slot));
        statuses(&cells.responses, "requests", responses, route, to);
        let duration = cells.responses.duration.snapshot();
        to.snapshot("request_duration_seconds", durations, &[route], duration);
        let count = get(&cells.passed_on);
        to.count("over_limit_requests", passed_on, &[route], count);
    });
    let help = "Time that the gateway itself added to a request";
    to.histogram("overhead_seconds", help, &[], &total.overhead);
    let help = "Requests that the gateway rejected itself, by reason";
    to.family("rejections", help, MetricType::Counter);
    total.rejections.each(|reason, count| {
        let example = rejections.iter().find(|(known, _)| *known == reason);
        let example = example.map(|(_, example)| example.clone());
        to.counter_like("rejections", help, &[("reason", reason)], count, example);
    });
    let help = "Input that could not be read as a request, or broke off, by reason";
    reasons(&total.bad_requests, "bad_requests", help, to);
    let received = get(&total.received_bytes);
    to.counter("received_bytes", "Bytes of request bodies", &[], received);
    let sent = get(&total.sent_bytes);
    to.counter("sent_bytes", "Bytes of response bodies", &[], sent);
}

fn upstream_requests(total: &WorkerCells, upstreams: &[Arc<str>], to: &mut Samples) {
    let responses = "Responses of upstreams, by status";
    to.family("upstream_requests", responses, MetricType::Counter);
    let failures = "Requests to which an upstream gave no response, by reason";
    to.family("upstream_failures", failures, MetricType::Counter);
    let durations = "Time from sending a request to an upstream to the head of its response";
    to.family(
        "upstream_duration_seconds",
        durations,
        MetricType::Histogram,
    );
    total.upstreams.each(|slot, cells| {
        let upstream = ("upstream", name(upstreams, slot));
        statuses(
            &cells.responses,
            "upstream_requests",
            responses,
            upstream,
            to,
        );
        cells.failures.each(|reason, count| {
            let labels = [upstream, ("reason", reason)];
            to.count("upstream_failures", failures, &labels, count);
        });
        let duration = cells.responses.duration.snapshot();
        to.snapshot(
            "upstream_duration_seconds",
            durations,
            &[upstream],
            duration,
        );
    });
}

fn connections(total: &WorkerCells, to: &mut Samples) {
    let accepted = get(&total.connections_opened);
    to.counter(
        "connections_accepted",
        "Connections accepted",
        &[],
        accepted,
    );
    let help = "Connections refused, by reason";
    reasons(&total.connections_refused, "connections_refused", help, to);
    let errors = get(&total.accept_errors);
    to.counter("accept_errors", "Failures of accept", &[], errors);
}

impl Shared {
    fn own(&self, to: &mut Samples) {
        let help = "Attempts to load a new configuration, by result";
        for (result, cell) in [
            ("success", &self.reloads_done),
            ("failure", &self.reloads_failed),
        ] {
            to.counter("config_reloads", help, &[("result", result)], get(cell));
        }
        let help = "When the configuration in force was loaded, seconds since the Unix epoch";
        let last = seconds(get(&self.last_reload_micros));
        to.gauge(
            "config_last_reload_success_timestamp_seconds",
            help,
            &[],
            last,
        );
        let successful = !self.last_reload_failed.load(Ordering::Relaxed);
        let help = "Whether the configuration and every file of callers, as they are, were taken when they were last read";
        to.whole(
            "config_last_reload_successful",
            help,
            &[],
            successful.into(),
        );
        let help = "Requests that failed with a panic; their response is 500";
        to.counter("panics", help, &[], get(&self.panics));
        // Exported as a gauge, because the older text format has no info type.
        let version = [("version", env!("CARGO_PKG_VERSION"))];
        to.whole("build_info", "The version of the program", &version, 1);
    }
}

fn reasons(cells: &ReasonCells, metric: &'static str, help: &'static str, to: &mut Samples) {
    to.family(metric, help, MetricType::Counter);
    cells.each(|reason, count| to.count(metric, help, &[("reason", reason)], count));
}

fn statuses(
    cells: &ResponseCells,
    metric: &'static str,
    help: &'static str,
    whose: (&'static str, &str),
    to: &mut Samples,
) {
    for (index, cell) in cells.codes.iter().enumerate() {
        let count = get(cell);
        if count > 0 {
            to.counter(metric, help, &[whose, ("code", &code_label(index))], count);
        }
    }
}

fn name(names: &[Arc<str>], slot: u32) -> &str {
    names.get(slot as usize).map_or(super::OTHER, |name| name)
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

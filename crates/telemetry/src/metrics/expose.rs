//! The exposition: sums the workers' counters and writes them as text.

mod encode;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::{encode_eof, encode_registry};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;

use super::cells::{ReasonCells, WorkerCells};
use super::codes::{CODES, code_label};
use super::histogram::{OVERHEAD_BOUNDS, REQUEST_BOUNDS, Snapshot, seconds};
use super::samples::{Exemplar, Samples};
use super::slab::Slab;
use super::{Format, Metrics, process};
use encode::{NO_EXEMPLAR, NO_EXEMPLARS, counter, encode_counter, encode_family, histogram};

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
    let counters: Vec<&str> = open_metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.strip_suffix(" counter"))
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

/// All metrics except those of the process.
#[derive(Debug)]
struct Exposition {
    metrics: Metrics,
    exemplars: bool,
}

impl Collector for Exposition {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> std::fmt::Result {
        let shared = &*self.metrics.shared;
        // Everything is summed under the lock, so that a worker that ends meanwhile is counted
        // once.
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
        // Cloned out of the lock: a source may be slow and must not block a reload that registers
        // another.
        let sources: Vec<_> = shared
            .sources
            .lock()
            .iter()
            .map(|(_, source)| Arc::clone(source))
            .collect();
        for source in sources {
            source(&mut samples);
        }
        if !self.exemplars {
            samples.rejections.clear();
        }
        requests(&mut encoder, &total, &routes, &samples)?;
        upstream_requests(&mut encoder, &total, &upstreams)?;
        connections(&mut encoder, &total)?;
        self.metrics.own(&mut encoder)?;
        for (name, family) in &samples.families {
            encode_family(&mut encoder, name, family, self.exemplars)?;
        }
        Ok(())
    }
}

/// The kernel's data about this process.
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

fn requests(
    encoder: &mut DescriptorEncoder<'_>,
    total: &WorkerCells,
    routes: &[Arc<str>],
    samples: &Samples,
) -> std::fmt::Result {
    let mut to = counter(
        encoder,
        "requests",
        "Responses to clients, by route and status",
    )?;
    each_code(
        &total.routes,
        |cells| &cells.codes,
        routes,
        &mut |route, code, count| {
            to.encode_family(&[("route", route), ("code", code)])?
                .encode_counter(&count, NO_EXEMPLAR)
        },
    )?;
    let help = "Time from the end of a request's head to the end of its response, by route";
    let mut to = encoder.encode_descriptor(
        "request_duration_seconds",
        help,
        None,
        MetricType::Histogram,
    )?;
    let mut result = Ok(());
    total.routes.each(|slot, cells| {
        let mut snapshot = Snapshot::empty(REQUEST_BOUNDS);
        snapshot.add(&cells.duration);
        if snapshot.count > 0 && result.is_ok() {
            result = histogram(&mut to, &[("route", name(routes, slot))], &snapshot);
        }
    });
    result?;
    let help = "Time that the gateway itself added to a request";
    let mut to =
        encoder.encode_descriptor("overhead_seconds", help, None, MetricType::Histogram)?;
    let mut snapshot = Snapshot::empty(OVERHEAD_BOUNDS);
    snapshot.add(&total.overhead);
    to.encode_histogram(
        snapshot.sum,
        snapshot.count,
        &snapshot.buckets,
        NO_EXEMPLARS,
    )?;
    let help = "Requests that limits of a route refused and a later target of it took (over_limit), by route";
    let mut to = counter(encoder, "over_limit_requests", help)?;
    let mut result = Ok(());
    total.routes.each(|slot, cells| {
        let count = get(&cells.passed_on);
        if count > 0 && result.is_ok() {
            result = to
                .encode_family(&[("route", name(routes, slot))])
                .and_then(|mut to| to.encode_counter(&count, NO_EXEMPLAR));
        }
    });
    result?;
    reasons(
        encoder,
        "rejections",
        "Requests that the gateway rejected itself, by reason",
        &total.rejections,
        &samples.rejections,
    )?;
    let help = "Input that could not be read as a request, or broke off, by reason";
    reasons(encoder, "bad_requests", help, &total.bad_requests, &[])?;
    for (name, help, cell) in [
        (
            "received_bytes",
            "Bytes of request bodies",
            &total.received_bytes,
        ),
        ("sent_bytes", "Bytes of response bodies", &total.sent_bytes),
    ] {
        counter(encoder, name, help)?.encode_counter(&get(cell), NO_EXEMPLAR)?;
    }
    Ok(())
}

fn upstream_requests(
    encoder: &mut DescriptorEncoder<'_>,
    total: &WorkerCells,
    upstreams: &[Arc<str>],
) -> std::fmt::Result {
    let mut to = counter(
        encoder,
        "upstream_requests",
        "Responses of upstreams, by status",
    )?;
    each_code(
        &total.upstreams,
        |cells| &cells.codes,
        upstreams,
        &mut |upstream, code, count| {
            to.encode_family(&[("upstream", upstream), ("code", code)])?
                .encode_counter(&count, NO_EXEMPLAR)
        },
    )?;
    let mut to = counter(
        encoder,
        "upstream_failures",
        "Requests to which an upstream gave no response, by reason",
    )?;
    let mut result = Ok(());
    total.upstreams.each(|slot, cells| {
        cells.failures.each(|reason, count| {
            if count > 0 && result.is_ok() {
                let labels = [("upstream", name(upstreams, slot)), ("reason", reason)];
                result = to
                    .encode_family(&labels)
                    .and_then(|mut to| to.encode_counter(&count, NO_EXEMPLAR));
            }
        });
    });
    result?;
    let help = "Time from sending a request to an upstream to the head of its response";
    let mut to = encoder.encode_descriptor(
        "upstream_duration_seconds",
        help,
        None,
        MetricType::Histogram,
    )?;
    let mut result = Ok(());
    total.upstreams.each(|slot, cells| {
        let mut snapshot = Snapshot::empty(REQUEST_BOUNDS);
        snapshot.add(&cells.duration);
        if snapshot.count > 0 && result.is_ok() {
            result = histogram(&mut to, &[("upstream", name(upstreams, slot))], &snapshot);
        }
    });
    result
}

fn connections(encoder: &mut DescriptorEncoder<'_>, total: &WorkerCells) -> std::fmt::Result {
    let opened = get(&total.connections_opened);
    counter(encoder, "connections_accepted", "Connections accepted")?
        .encode_counter(&opened, NO_EXEMPLAR)?;
    reasons(
        encoder,
        "connections_refused",
        "Connections refused, by reason",
        &total.connections_refused,
        &[],
    )?;
    counter(encoder, "accept_errors", "Failures of accept")?
        .encode_counter(&get(&total.accept_errors), NO_EXEMPLAR)
}

impl Metrics {
    /// Counters of the process, which are not counted per worker.
    fn own(&self, encoder: &mut DescriptorEncoder<'_>) -> std::fmt::Result {
        let shared = &*self.shared;
        let mut to = counter(
            encoder,
            "config_reloads",
            "Attempts to load a new configuration, by result",
        )?;
        for (result, cell) in [
            ("success", &shared.reloads_done),
            ("failure", &shared.reloads_failed),
        ] {
            to.encode_family(&[("result", result)])?
                .encode_counter(&get(cell), NO_EXEMPLAR)?;
        }
        let help = "When the configuration in force was loaded, seconds since the Unix epoch";
        encoder
            .encode_descriptor(
                "config_last_reload_success_timestamp_seconds",
                help,
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&seconds(get(&shared.last_reload_micros)))?;
        let successful = !shared.last_reload_failed.load(Ordering::Relaxed);
        encoder
            .encode_descriptor(
                "config_last_reload_successful",
                "Whether the last attempt to load a configuration succeeded",
                None,
                MetricType::Gauge,
            )?
            .encode_gauge(&i64::from(successful))?;
        counter(
            encoder,
            "panics",
            "Requests that failed with a panic; their response is 500",
        )?
        .encode_counter(&get(&shared.panics), NO_EXEMPLAR)?;
        // Exported as a gauge, because the older text format has no info type.
        let mut to = encoder.encode_descriptor(
            "build_info",
            "The version of the program",
            None,
            MetricType::Gauge,
        )?;
        to.encode_family(&[("version", env!("CARGO_PKG_VERSION"))])?
            .encode_gauge(&1_i64)
    }
}

fn reasons(
    encoder: &mut DescriptorEncoder<'_>,
    name: &str,
    help: &str,
    cells: &ReasonCells,
    examples: &[(&'static str, Exemplar)],
) -> std::fmt::Result {
    let mut to = counter(encoder, name, help)?;
    let mut result = Ok(());
    cells.each(|reason, count| {
        if count > 0 && result.is_ok() {
            let example = examples.iter().find(|(known, _)| *known == reason);
            let labels = [("reason", reason)];
            result = to
                .encode_family(&labels)
                .and_then(|mut to| encode_counter(&mut to, count, example.map(|(_, one)| one)));
        }
    });
    result
}

fn each_code<T: Default>(
    slab: &Slab<T>,
    codes: impl Fn(&T) -> &[AtomicU64; CODES],
    names: &[Arc<str>],
    with: &mut dyn FnMut(&str, &str, u64) -> std::fmt::Result,
) -> std::fmt::Result {
    let mut result = Ok(());
    slab.each(|slot, cells| {
        for (index, cell) in codes(cells).iter().enumerate() {
            let count = get(cell);
            if count > 0 && result.is_ok() {
                result = with(name(names, slot), &code_label(index), count);
            }
        }
    });
    result
}

fn name(names: &[Arc<str>], slot: u32) -> &str {
    names.get(slot as usize).map_or(super::OTHER, |name| name)
}

fn get(cell: &AtomicU64) -> u64 {
    cell.load(Ordering::Relaxed)
}

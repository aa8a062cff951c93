//! The kernel's data about this process, under the standard names of Prometheus clients.

use super::Samples;

/// Adds `process_*` to a scrape. Without `/proc` it adds only the start time.
pub(super) fn samples(into: &mut Samples, started_micros: u64) {
    into.gauge(
        "process_start_time_seconds",
        "When the process started, seconds since the Unix epoch",
        &[],
        super::histogram::seconds(started_micros),
    );
    if let Some(seconds) = cpu_seconds() {
        into.seconds(
            "process_cpu_seconds",
            "User and system CPU time spent",
            &[],
            seconds,
        );
    }
    if let Some((resident, virtual_bytes)) = memory_bytes() {
        into.gauge(
            "process_resident_memory_bytes",
            "Resident memory",
            &[],
            resident,
        );
        into.gauge(
            "process_virtual_memory_bytes",
            "Virtual memory",
            &[],
            virtual_bytes,
        );
    }
    if let Some(open) = open_descriptors() {
        into.gauge("process_open_fds", "Open file descriptors", &[], open);
    }
}

fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // The name in parentheses may contain any character: count from the last parenthesis.
    let (_, after) = stat.rsplit_once(')')?;
    let mut fields = after.split_ascii_whitespace().skip(11);
    let user: u32 = fields.next()?.parse().ok()?;
    let system: u32 = fields.next()?.parse().ok()?;
    Some(f64::from(user) / TICKS + f64::from(system) / TICKS)
}

fn memory_bytes() -> Option<(f64, f64)> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kilobytes = |name: &str| -> Option<f64> {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_ascii_whitespace().nth(1)?.parse::<f64>().ok()
    };
    Some((
        kilobytes("VmRSS:")? * 1024.0,
        kilobytes("VmSize:")? * 1024.0,
    ))
}

fn open_descriptors() -> Option<f64> {
    let count = std::fs::read_dir("/proc/self/fd").ok()?.count();
    // The directory's own descriptor is one of them.
    u32::try_from(count.saturating_sub(1)).ok().map(f64::from)
}

/// The kernel's times in user space are hundredths of a second (`USER_HZ`).
const TICKS: f64 = 100.0;

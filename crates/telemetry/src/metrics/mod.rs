//! Counters and histograms: each worker counts in its own memory, and a scrape adds the counts up.
//!
//! Names of routes and upstreams are resolved to slots when a configuration is loaded, so that
//! counting a request takes a few plain adds. A name keeps its slot for the life of the process, so
//! counters continue over reloads. No label contains a caller's key, and names without a slot count
//! as `_other`.

mod cells;
mod expose;
mod histogram;
mod process;
mod samples;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::Mutex;

pub use cells::Worker;
pub use histogram::Histogram;
pub use samples::{Exemplar, Samples};

use cells::SLOTS_MAX;
use cells::WorkerCells;

#[derive(Clone, Debug)]
pub struct Metrics {
    shared: Arc<Shared>,
}

/// The names of one configuration as slots, which requests hold beside their policy.
#[derive(Clone, Debug, Default)]
pub struct Labels {
    routes: Box<[RouteSlot]>,
    upstreams: Box<[UpstreamSlot]>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RouteSlot(u32);

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct UpstreamSlot(u32);

impl Metrics {
    pub fn new(started_micros: u64) -> Self {
        Self {
            shared: Arc::new(Shared {
                started_micros,
                names: Mutex::new([Names::default(), Names::default()]),
                workers: Mutex::new(Vec::new()),
                retired: WorkerCells::default(),
                sources: Mutex::new(Vec::new()),
                panics: AtomicU64::new(0),
                reloads_done: AtomicU64::new(0),
                reloads_failed: AtomicU64::new(0),
                last_reload_micros: AtomicU64::new(started_micros),
                last_reload_failed: AtomicBool::new(false),
            }),
        }
    }

    /// Resolves the names of a configuration, each list in the order of its indexes. A name that
    /// existed before keeps its counters.
    pub fn resolve<N: AsRef<str>>(&self, routes: &[N], upstreams: &[N]) -> Labels {
        let mut names = self.shared.names.lock();
        let [of_routes, of_upstreams] = &mut *names;
        Labels {
            routes: routes
                .iter()
                .map(|name| RouteSlot(of_routes.slot(name.as_ref())))
                .collect(),
            upstreams: upstreams
                .iter()
                .map(|name| UpstreamSlot(of_upstreams.slot(name.as_ref())))
                .collect(),
        }
    }

    pub fn worker(&self) -> Worker {
        let cells = Arc::new(WorkerCells::default());
        self.shared.workers.lock().push(Arc::clone(&cells));
        Worker::new(cells, self.clone())
    }

    /// Records a reload at `at_micros` since the Unix epoch; `all`: no other file is refused.
    pub fn reload_done(&self, at_micros: u64, all: bool) {
        self.shared.reloads_done.fetch_add(1, Ordering::Relaxed);
        self.shared
            .last_reload_micros
            .store(at_micros, Ordering::Relaxed);
        self.shared
            .last_reload_failed
            .store(!all, Ordering::Relaxed);
    }

    pub fn reload_failed(&self) {
        self.shared.reloads_failed.fetch_add(1, Ordering::Relaxed);
        self.shared
            .last_reload_failed
            .store(true, Ordering::Relaxed);
    }

    pub fn panicked(&self) {
        self.shared.panics.fetch_add(1, Ordering::Relaxed);
    }

    /// Registers `source`, which is called at every scrape. A second source with the same `key`
    /// replaces the first, so that components recreated by a reload can register again.
    pub fn source(&self, key: &'static str, source: impl Fn(&mut Samples) + Send + Sync + 'static) {
        let mut sources = self.shared.sources.lock();
        sources.retain(|(known, _)| *known != key);
        sources.push((key, Arc::new(source)));
    }

    pub fn render(&self, format: Format) -> String {
        expose::render(self, format)
    }

    /// Adds the counts of a worker that ends to the permanent ones.
    fn retire(&self, cells: &Arc<WorkerCells>) {
        let mut workers = self.shared.workers.lock();
        workers.retain(|known| !Arc::ptr_eq(known, cells));
        // Under the lock, so that no scrape counts them twice or misses them.
        self.shared.retired.absorb(cells);
    }
}

impl Labels {
    /// The slot of the route with this index; `None`: the request matched no route.
    pub fn route(&self, index: Option<usize>) -> RouteSlot {
        let slot = index.and_then(|index| self.routes.get(index));
        slot.copied().unwrap_or_default()
    }

    pub fn upstream(&self, index: usize) -> UpstreamSlot {
        self.upstreams.get(index).copied().unwrap_or_default()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    OpenMetrics,
    Prometheus,
}

impl Format {
    /// The format for a scraper with these `Accept` values: OpenMetrics if it is named and plain
    /// text is not preferred (RFC 9110 section 12.5.1).
    pub fn negotiate<'a>(accept: impl IntoIterator<Item = &'a str>) -> Self {
        let (mut open, mut plain) = (0.0_f32, 0.0_f32);
        for range in accept.into_iter().flat_map(|value| value.split(',')) {
            let mut parts = range.split(';').map(str::trim);
            let kind = parts.next().unwrap_or_default();
            let weight =
                parts.find_map(|part| part.strip_prefix("q=").or_else(|| part.strip_prefix("Q=")));
            let weight = weight.map_or(1.0, |weight| weight.parse::<f32>().unwrap_or(0.0));
            if kind.eq_ignore_ascii_case("application/openmetrics-text") {
                open = open.max(weight);
            } else if kind.eq_ignore_ascii_case("text/plain") {
                plain = plain.max(weight);
            }
        }
        if open > 0.0 && open >= plain {
            Self::OpenMetrics
        } else {
            Self::Prometheus
        }
    }

    pub const fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

type Collector = Arc<dyn Fn(&mut Samples) + Send + Sync>;

struct Shared {
    started_micros: u64,
    names: Mutex<[Names; 2]>,
    workers: Mutex<Vec<Arc<WorkerCells>>>,
    retired: WorkerCells,
    sources: Mutex<Vec<(&'static str, Collector)>>,
    panics: AtomicU64,
    reloads_done: AtomicU64,
    reloads_failed: AtomicU64,
    last_reload_micros: AtomicU64,
    last_reload_failed: AtomicBool,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Metrics").finish_non_exhaustive()
    }
}

/// Names and their slots; slot 0 is `_other`.
#[derive(Debug)]
struct Names {
    list: Vec<Arc<str>>,
    slots: HashMap<Arc<str>, u32>,
}

impl Default for Names {
    fn default() -> Self {
        Self {
            list: vec![Arc::from(OTHER)],
            slots: HashMap::new(),
        }
    }
}

impl Names {
    fn slot(&mut self, name: &str) -> u32 {
        if let Some(slot) = self.slots.get(name) {
            return *slot;
        }
        let Some(slot) = u32::try_from(self.list.len())
            .ok()
            .filter(|slot| (*slot as usize) < SLOTS_MAX)
        else {
            return 0;
        };
        let name: Arc<str> = Arc::from(name);
        self.list.push(Arc::clone(&name));
        self.slots.insert(name, slot);
        slot
    }
}

/// The name under which everything without a slot is counted.
const OTHER: &str = "_other";

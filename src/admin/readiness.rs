//! Whether the gateway accepts requests: its phase, and additional conditions.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use parking_lot::Mutex;

/// The shared state of `/readyz`. Clones share it.
#[derive(Clone, Default)]
pub struct Readiness {
    shared: Arc<Shared>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// Its listeners are not up yet.
    Starting,
    Serving,
    /// It finishes the requests in progress and accepts no new ones.
    Draining,
}

impl Phase {
    pub const fn label(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Serving => "serving",
            Self::Draining => "draining",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    Holds,
    HoldsWith(String),
    /// It has a problem, but the gateway stays ready.
    Strained(String),
    /// It does not hold: the gateway is not ready.
    Fails(String),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    pub phase: Phase,
    pub conditions: Vec<(String, Standing)>,
}

impl Report {
    pub fn ready(&self) -> bool {
        self.phase == Phase::Serving
            && !self
                .conditions
                .iter()
                .any(|(_, standing)| matches!(standing, Standing::Fails(_)))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mark = |good: bool| if good { '+' } else { '-' };
        writeln!(
            f,
            "[{}] {}",
            mark(self.phase == Phase::Serving),
            self.phase.label()
        )?;
        for (name, standing) in &self.conditions {
            match standing {
                Standing::Holds => writeln!(f, "[+] {name}")?,
                Standing::HoldsWith(what) => writeln!(f, "[+] {name}: {what}")?,
                Standing::Strained(why) => writeln!(f, "[!] {name}: {why}")?,
                Standing::Fails(why) => writeln!(f, "[-] {name}: {why}")?,
            }
        }
        Ok(())
    }
}

impl Readiness {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn enter(&self, phase: Phase) {
        self.shared.phase.fetch_max(phase as u8, Ordering::AcqRel);
    }

    pub fn phase(&self) -> Phase {
        match self.shared.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Serving,
            _ => Phase::Draining,
        }
    }

    /// Makes the gateway ready only while `condition` does not fail. It is called at every probe,
    /// so it must return at once. A second condition of the same name replaces the first.
    pub fn require(
        &self,
        name: &'static str,
        condition: impl Fn() -> Standing + Send + Sync + 'static,
    ) {
        self.require_each(name, move || vec![(name.to_owned(), condition())]);
    }

    /// As [`Readiness::require`], for several conditions, each with a name of its own, under one `name`.
    pub fn require_each(
        &self,
        name: &'static str,
        condition: impl Fn() -> Vec<(String, Standing)> + Send + Sync + 'static,
    ) {
        let mut conditions = self.shared.conditions.lock();
        conditions.retain(|(known, _)| *known != name);
        conditions.push((name, Arc::new(condition)));
    }

    pub fn report(&self) -> Report {
        let conditions = self.shared.conditions.lock().clone();
        Report {
            phase: self.phase(),
            conditions: conditions
                .iter()
                .flat_map(|(_, condition)| condition())
                .collect(),
        }
    }
}

type Condition = Arc<dyn Fn() -> Vec<(String, Standing)> + Send + Sync>;

#[derive(Default)]
struct Shared {
    phase: AtomicU8,
    conditions: Mutex<Vec<(&'static str, Condition)>>,
}

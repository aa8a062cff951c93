//! Stops a gateway: reports that it is not ready, drains it, saves its buckets.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::{RunningGateway, state_file};
use crate::admin::{self, Phase};
use tollgate_net::listener::Address;
use tollgate_net::worker::Drain;

impl RunningGateway {
    /// Reports that it is not ready any more, and keeps serving: load balancers have the returned
    /// time (`drain_delay`) to notice before [`Self::drain`].
    pub fn announce_drain(&self) -> Duration {
        self.core.serving.drain();
        self.core.readiness.enter(Phase::Draining);
        self.core.in_force().server.timeouts.drain_delay.into()
    }

    /// Accepts nothing new and finishes the requests in progress, within the configured drain time.
    pub fn drain(&self) {
        self.core.serving.drain();
        self.core.readiness.enter(Phase::Draining);
        let whole = self.core.in_force().server.timeouts.drain.into();
        self.drained_by.get_or_init(|| Instant::now() + whole);
        // Reserve part of the drain time for logging the requests that are cut off.
        let span = whole - LAST_WORDS.min(whole / 8);
        let handed_over = self.has_handed_over();
        // The next process already serves, so there is time. Otherwise an operator waits for the end.
        let grace = if handed_over {
            span - span / 8
        } else {
            LAST_REQUEST.min(span / 2)
        };
        self.kept.lock().clear();
        // An order under way is broken off; the next process makes it again.
        if let Some(acme) = &self.acme {
            acme.stop();
        }
        if let Some(admin) = self.admin.as_ref().filter(|_| handed_over) {
            admin.stop();
        }
        if let Some(workers) = &self.workers {
            workers.drain(Drain {
                span,
                grace,
                handed_over,
            });
        }
    }

    /// Drains, waits, saves the local buckets and ends. Blocks the thread. Returns the rest of the
    /// configured drain time.
    pub fn shutdown(mut self) -> Duration {
        self.drain();
        if let Some(workers) = self.workers.take() {
            workers.join();
        }
        self.watcher = None;
        self.overrides = None;
        self.acme = None;
        #[cfg(feature = "otlp")]
        drop(self.exporter.take());
        // A process that replaced this one has the buckets and the sockets' files too.
        let handed_over = self.has_handed_over();
        // A reload that still runs puts nothing in force after this.
        let (config, backend, mark) = {
            let mut state = self.core.state.lock();
            state.ended = true;
            let mark = if handed_over { None } else { state.mark.take() };
            let (config, backend) = (&state.in_force, &state.backend);
            (Arc::clone(config), Arc::clone(backend), mark)
        };
        if handed_over {
            self.await_permits();
        }
        // Their places are not held by any process after this.
        self.core.permits.clear();
        if let Some(store) = backend.remote() {
            store.close();
        }
        state_file::save(&config, &self.core.gateway.current.load().limiter, mark);
        if let Some(access) = &self.core.gateway.access {
            access.flush(self.time_left());
        }
        if !handed_over {
            for file in self.socket_files() {
                // The file may be gone already.
                let _ = std::fs::remove_file(file);
            }
        }
        self.time_left()
    }

    /// Holds the places of requests that other programs forward until their permits expire, within the
    /// drain time: reports about them do not reach this process.
    fn await_permits(&self) {
        let permits = &self.core.permits;
        let whole: Duration = self.core.in_force().server.timeouts.drain.into();
        let last_words = LAST_WORDS.min(whole / 8);
        let end = self.drained_by.get().map(|end| *end - last_words);
        while permits.count() > 0 && end.is_some_and(|end| Instant::now() < end) {
            std::thread::park_timeout(LOOK_EVERY);
            permits.expire(self.core.gateway.clock.now());
        }
    }

    /// The files of its Unix sockets, except those that a service manager holds and passes to the
    /// next process.
    fn socket_files(&self) -> impl Iterator<Item = &Path> {
        let served = self.addresses.iter().chain(&self.deciding);
        let public = served.filter_map(|address| match address {
            Address::Unix(path) => Some(path.as_path()),
            Address::Tcp(_) => None,
        });
        let admin = self.admin().and_then(|address| match address {
            admin::Listen::Unix(path) => Some(path.as_path()),
            admin::Listen::Tcp { .. } => None,
        });
        let own = |path: &&Path| {
            let place = Address::Unix(path.to_path_buf()).to_string();
            !self.activated.contains(&place)
        };
        public.chain(admin).filter(own)
    }

    fn time_left(&self) -> Duration {
        let end = self.drained_by.get();
        end.map_or(LAST_WORDS, |end| {
            end.saturating_duration_since(Instant::now())
                .min(LAST_WORDS)
        })
    }
}

/// How often it is checked whether permits are still open.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// How long an idle connection is kept during a drain, for a request that may be on its way.
const LAST_REQUEST: Duration = Duration::from_secs(1);
/// The largest part of a drain that is reserved for writing the logs.
pub(super) const LAST_WORDS: Duration = Duration::from_secs(5);

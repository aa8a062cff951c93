//! Exports the state of a running gateway: its metrics, readiness and status.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{ConfigSource, Core, shared_store, upstreams};
use crate::admin::{self, Standing, Status, status};
use tollgate_gateway::refusals::Refusals;
use tollgate_net::server;
use tollgate_store::Store as _;
use tollgate_telemetry::metrics::Samples;

impl Core {
    /// Registers the sources of metrics that are counted elsewhere.
    pub(super) fn show(&self) {
        let current = Arc::clone(&self.gateway.current);
        let refusals = self.gateway.refusals.clone();
        self.gateway.metrics.source("limits", move |samples| {
            let latest = refusals.as_ref().map(Refusals::latest).unwrap_or_default();
            admin::limit_samples(&current.load().limiter.snapshot(), &latest, samples);
        });
        let usage = Arc::clone(&self.gateway.usage);
        self.gateway
            .metrics
            .source("usage", move |samples| usage.samples(samples));
        let overrides = self.overrides.clone();
        self.gateway.metrics.source("overrides", move |samples| {
            let help = "Overrides of operators in force (/api/v1/overrides)";
            let count = u32::try_from(overrides.count()).unwrap_or(u32::MAX);
            samples.gauge("overrides", help, &[], f64::from(count));
        });
        let current = Arc::clone(&self.gateway.current);
        self.gateway.metrics.source("penalties", move |samples| {
            let counts = current.load().limiter.penalty_counts();
            let help = "Keys that this gateway has blocked by a limit's penalty";
            samples.counter("penalties", help, &[], counts.imposed);
            let help = "Refusals that count towards no penalty, because the table of refused keys had no room";
            samples.counter("penalty_refusals_uncounted", help, &[], counts.uncounted);
            let help = "Penalties without an event and a line of the audit, because too many came at once";
            samples.counter("penalties_untold", help, &[], counts.untold);
        });
        if let Some(access) = self.gateway.access.clone() {
            self.gateway.metrics.source("access_log", move |samples| {
                let help = "Records of the access log that were dropped: it could not keep up, or writing failed";
                samples.counter("access_log_dropped", help, &[], access.dropped());
            });
        }
        let current = Arc::clone(&self.gateway.current);
        self.gateway.metrics.source("store", move |samples| {
            let snapshot = current.load();
            let Some(store) = snapshot.limiter.shared().remote() else { return };
            let (health, counters) = (store.health(), store.counters());
            samples.gauge("store_up", "Whether the shared store responds", &[], f64::from(u8::from(health.up)));
            let help = "Gateways that share the store, as this one counts them; its local share is one part of so many";
            samples.gauge("store_replicas", help, &[], f64::from(store.replicas()));
            for (name, help, count) in counters.named() {
                samples.counter(name, help, &[], count);
            }
            shared_store::lease_samples(store, &snapshot.policy.limits, samples);
        });
        if let Some(tls) = self.tls.clone() {
            self.gateway.metrics.source("certificates", move |samples| {
                for (file, expires) in &*tls.expiries() {
                    let help = "When a certificate, or one of its chain, expires: seconds since the Unix epoch";
                    let seconds = expires.as_secs_f64();
                    let file = file.display().to_string();
                    samples.gauge("certificate_expiry_timestamp_seconds", help, &[("certificate", &file)], seconds);
                }
            });
        }
        let keys = self.jwt_keys.clone();
        self.gateway
            .metrics
            .source("jwt_keys", move |samples| keys.samples(samples));
        if self.in_force().server.acme.is_some() {
            let acme = self.acme.clone();
            let samples = move |samples: &mut Samples| acme.samples(samples);
            self.gateway.metrics.source("acme", samples);
        }
        let permits = Arc::clone(&self.permits);
        self.gateway.metrics.source("permits", move |samples| {
            let help = "Requests admitted for other programs whose end was not reported";
            let open = u32::try_from(permits.count()).unwrap_or(u32::MAX);
            samples.gauge("permits_open", help, &[], f64::from(open));
            let help = "Permits that expired, since no program reported the end of the request";
            samples.counter("permits_expired", help, &[], permits.expired());
        });
        #[cfg(feature = "otlp")]
        if let Some(spans) = self.gateway.spans.clone() {
            self.gateway.metrics.source("traces", move |samples| {
                let help =
                    "Spans that were dropped: too many waited, or the collector did not take them";
                samples.counter("traces_spans_dropped", help, &[], spans.dropped());
            });
        }
        let held = Arc::clone(&self.gateway.held);
        let bodies = Arc::clone(&self.gateway.held_bodies);
        self.gateway.metrics.source("held", move |samples| {
            let help = "Requests that wait for their turn now (max_wait)";
            let held = u32::try_from(held.load(Ordering::Relaxed)).unwrap_or(u32::MAX);
            samples.gauge("requests_held", help, &[], f64::from(held));
            let help = "Bytes of request bodies that are held for decisions now (server.bounds.held_bodies)";
            let bytes = bodies.load(Ordering::Relaxed) as f64;
            samples.gauge("held_bodies_bytes", help, &[], bytes);
        });
        let server = Arc::clone(&self.server);
        self.gateway.metrics.source("connections", move |samples| {
            // Upgraded connections are included until they end.
            let open = u32::try_from(server.bounds.open()).unwrap_or(u32::MAX);
            samples.gauge("connections", "Connections that are open", &[], f64::from(open));
            let help = "Connections that were ended by a deadline";
            let stats = &server.stats;
            for (why, count) in [("slow_reader", &stats.slow_reads), ("idle", &stats.idle_closed)] {
                samples.counter("connections_ended", help, &[("why", why)], count.value());
            }
            let help = "HTTP/2 streams reset and connections ended by the gateway, by the error code they were told";
            for (code, count) in server::HTTP2_ERRORS.iter().zip(&stats.http2_errors) {
                samples.counter("http2_errors", help, &[("code", code)], count.value());
            }
        });
    }

    /// If every route refuses without the store, the gateway is ready only while the store responds.
    pub(super) fn require_store(&self) {
        let current = Arc::clone(&self.gateway.current);
        self.readiness.require("store", move || {
            let snapshot = current.load();
            match snapshot.limiter.shared().remote() {
                None => Standing::Holds,
                Some(store) => shared_store::standing(store, &snapshot.policy),
            }
        });
    }

    /// Registers the keys that are fetched with `/readyz?verbose`: the gateway is not ready if every
    /// route needs some that it does not have.
    pub(super) fn require_keys(&self) {
        let keys = self.jwt_keys.clone();
        self.readiness
            .require_each("jwt_keys", move || keys.conditions());
    }

    pub(super) fn show_upstreams(&self) {
        let shared = self.gateway.clone();
        self.readiness.require_each("upstreams", move || {
            upstreams::conditions(
                &shared.health,
                &shared.current.load().policy,
                shared.clock.now(),
            )
        });
    }

    /// Registers what `/readyz?verbose` says of a proxy that is not trusted: nothing, unless there is one.
    pub(super) fn show_untrusted_proxy(&self) {
        let shared = self.gateway.clone();
        self.readiness.require_each("untrusted_proxy", move || {
            let words = shared
                .untrusted_proxy
                .words(&shared.current.load().policy.address);
            let condition = |words| ("trusted_proxies".to_owned(), Standing::Strained(words));
            words.map(condition).into_iter().collect()
        });
    }

    /// Registers what `/readyz?verbose` says of a certificate that the gateway orders. It stays ready
    /// without one: the authority must reach it.
    pub(super) fn show_certificate(&self) {
        if self.in_force().server.acme.is_some() {
            let (acme, clock) = (self.acme.clone(), self.gateway.clock.clone());
            self.readiness
                .require("certificate", move || acme.standing(clock.wall()));
        }
    }

    /// Registers what `/readyz?verbose` says of the configuration: nothing, unless a reload was
    /// refused. The gateway stays ready: the configuration in force is a good one.
    pub(super) fn show_configuration(self: &Arc<Self>) {
        let core = Arc::downgrade(self);
        self.readiness.require_each("configuration", move || {
            let core = core.upgrade();
            let refused = core.and_then(|core| core.state.lock().refused.line());
            let condition = |line| {
                (
                    "configuration".to_owned(),
                    Standing::Strained(format!("the new one is refused: {line}")),
                )
            };
            refused.map(condition).into_iter().collect()
        });
    }

    pub(super) fn status(&self) -> Status {
        let source = match &self.options.source {
            ConfigSource::File(path) | ConfigSource::FileAt { path, .. } => {
                path.display().to_string()
            }
            ConfigSource::Text { name, .. } => name.clone(),
        };
        let (in_force, backend, configuration) = {
            let state = self.state.lock();
            let configuration = status::Configuration {
                source,
                generation: state.generation,
                last_error: state.refused.words(),
                needs_restart: state.needs_restart.clone(),
            };
            let (in_force, backend) = (&state.in_force, &state.backend);
            (Arc::clone(in_force), Arc::clone(backend), configuration)
        };
        let policy = &in_force.policy;
        let store = in_force.store.as_ref().zip(backend.remote());
        Status {
            phase: self.readiness.phase().label(),
            configuration,
            connections: self.server.bounds.open(),
            routes: policy.routes.len(),
            limits: policy.limits.len(),
            upstreams: upstreams::status(&self.gateway.health, policy, self.gateway.clock.now()),
            store: store
                .map(|(settings, store)| shared_store::status(settings, store, &policy.limits)),
            ..Status::default()
        }
    }
}

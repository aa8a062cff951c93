//! Replaces the configuration in one step or not at all.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use super::changes;
use super::state_file::{self, Mark};
use super::watch::Watch;
use super::{Core, DrainTimes, Source, mapped, shared_store, snapshot, upstreams};
use tollgate_config::{Config, ConfigError};
use tollgate_store::Backend;
use tollgate_store::local::Carry;

/// The state that a reload compares with.
pub(super) struct State {
    /// The configuration in force.
    pub(super) in_force: Config,
    /// The number of configurations put in force so far.
    pub(super) generation: u64,
    /// The reason why the last reload was refused; `None`: it was not refused.
    pub(super) last_error: Option<String>,
    /// Changed settings that take effect only after a restart.
    pub(super) needs_restart: Vec<&'static str>,
    pub(super) watch: Watch,
    /// The text to read next, if there is no file.
    pub(super) text: Option<String>,
    pub(super) backend: Arc<Backend>,
    /// The mark of a gateway that keeps its local buckets in a state file.
    pub(super) mark: Option<Mark>,
    /// Stores of earlier configurations, until their last request has ended: dropping a store joins
    /// its thread, and a worker must not wait for that.
    retired: Vec<Arc<Backend>>,
}

impl State {
    pub(super) fn new(in_force: Config, backend: Arc<Backend>, mark: Option<Mark>) -> Self {
        let mut watch = Watch::default();
        watch.set(in_force.files_read.iter().cloned());
        Self {
            in_force,
            generation: 1,
            last_error: None,
            needs_restart: Vec::new(),
            watch,
            text: None,
            backend,
            mark,
            retired: Vec::new(),
        }
    }
}

impl Core {
    /// Loads the configuration again once its file is stable, and puts it in force; returns a
    /// summary.
    pub(super) fn reload(&self) -> Result<String, String> {
        let mut state = self.state.lock();
        state.watch.settle(pause);
        self.reload_settled(&mut state)
    }

    fn reload_settled(&self, state: &mut State) -> Result<String, String> {
        let result = self.replace(state);
        match &result {
            Ok(words) => {
                state.last_error = None;
                self.gateway
                    .metrics
                    .reload_done(self.gateway.clock.now().as_micros());
                let mut lines = words.lines();
                if let Some(outcome) = lines.next() {
                    tracing::info!(generation = state.generation, "{outcome}");
                }
                for change in lines {
                    tracing::info!("changed: {change}");
                }
            }
            Err(words) => {
                state.last_error = Some(words.clone());
                self.gateway.metrics.reload_failed();
                tracing::error!(
                    "the configuration in force stays: the new one is refused\n{words}"
                );
            }
        }
        result
    }

    /// Checks whether a file changed, and reloads what depends on it.
    pub(super) fn look(&self) {
        let mut state = self.state.lock();
        let mut changed = state.watch.changed();
        if changed.is_empty() {
            return;
        }
        changed.extend(state.watch.settle(pause));
        let only_callers = changed.iter().all(|file| {
            state
                .in_force
                .caller_files
                .iter()
                .any(|(_, known)| known == file)
        });
        if only_callers {
            self.replace_callers(&state, &changed);
            return;
        }
        // The reload logs its own result.
        let _ = self.reload_settled(&mut state);
    }

    fn replace(&self, state: &mut State) -> Result<String, String> {
        let mut options = self.options.clone();
        if let (Source::Text { text, .. }, Some(new)) = (&mut options.source, &state.text) {
            text.clone_from(new);
        }
        // Later changes are found by the next check.
        state.watch.changed();
        let config = options.load();
        // If this configuration is refused, a change of a file that it names may repair it,
        // including a file that does not exist yet.
        let named = config
            .as_ref()
            .map_or_else(ConfigError::files, |config| &config.files_read);
        state
            .watch
            .set(state.in_force.files_read.iter().chain(named).cloned());
        let config = config.map_err(|error| error.render(false))?;
        // All steps that can fail come first; none can fail after the first swap.
        upstreams::check(&config.policy)?;
        let backend = if config.store == state.in_force.store {
            Arc::clone(&state.backend)
        } else {
            Arc::new(shared_store::open(
                config.store.as_ref(),
                &config.policy.limits,
                &self.gateway.clock,
            )?)
        };
        if Arc::ptr_eq(&backend, &state.backend) {
            let (before, limits) = (&state.in_force.policy.limits, &config.policy.limits);
            shared_store::change_limits(config.store.as_ref(), &backend, before, limits)?;
        }
        let moved = config.server.state_file != state.in_force.server.state_file;
        let mark = if moved {
            state_file::begin(&config)?
        } else {
            None
        };
        if let (Some(tls), Some(settings)) = (&self.tls, mapped::tls(&config.server)) {
            tls.reload(&settings).map_err(|error| error.to_string())?;
        }
        if moved {
            state_file::replace(&mut state.mark, mark);
        }
        let before = self.gateway.current.load_full();
        let (limiter, report) = before
            .limiter
            .next(&config.policy.limits, Arc::clone(&backend));
        self.gateway
            .current
            .store(Arc::new(snapshot(&config, limiter, &self.gateway.metrics)));
        self.server
            .settings
            .store(Arc::new(mapped::server(&config)));

        state.watch.set(config.files_read.iter().cloned());
        state.needs_restart = needs_restart(&config, &state.in_force);
        let old = std::mem::replace(&mut state.backend, backend);
        if !Arc::ptr_eq(&old, &state.backend) {
            state.retired.push(old);
        }
        state.retired.retain(|store| Arc::strong_count(store) > 1);
        state.generation += 1;
        // Settings that wait for a restart keep the values in force, so that the next reload
        // compares with those.
        let kept = (
            state.in_force.server.listen.clone(),
            state.in_force.server.workers,
        );
        let (admin, log) = (state.in_force.admin.clone(), state.in_force.log.clone());
        let changes = changes::between(&state.in_force.policy, &config.policy);
        state.in_force = config;
        (state.in_force.server.listen, state.in_force.server.workers) = kept;
        (state.in_force.admin, state.in_force.log) = (admin, log);
        *self.drain_times.lock() = DrainTimes::of(&state.in_force);

        let reset = report
            .limits
            .iter()
            .filter(|one| matches!(one.carry, Carry::Afresh))
            .map(|one| &*one.name);
        let reset: Vec<&str> = reset.collect();
        let mut words = "the new configuration is in force".to_owned();
        if !reset.is_empty() {
            words += &format!(
                "; places in flight are no units, so buckets start afresh: {}",
                reset.join(", ")
            );
        }
        if !state.needs_restart.is_empty() {
            words += &format!(
                "; these wait for a restart: {}",
                state.needs_restart.join(", ")
            );
        }
        for change in changes {
            words.push('\n');
            words.push_str(&change);
        }
        for warning in &state.in_force.warnings {
            tracing::warn!("{}", warning.strip_prefix("warning: ").unwrap_or(warning));
        }
        Ok(words)
    }

    fn replace_callers(&self, state: &State, changed: &[PathBuf]) {
        for (identity, file) in state
            .in_force
            .caller_files
            .iter()
            .filter(|(_, file)| changed.contains(file))
        {
            match tollgate_config::load_callers(
                file,
                &state.in_force.policy,
                &*self.options.environment,
            ) {
                Ok(callers) => {
                    state.in_force.policy.identities[*identity].replace_callers(callers);
                    self.gateway
                        .metrics
                        .reload_done(self.gateway.clock.now().as_micros());
                    tracing::info!(file = %file.display(), "the new callers are in force");
                }
                Err(error) => {
                    self.gateway.metrics.reload_failed();
                    tracing::error!(
                        "the callers in force stay: the new ones are refused\n{}",
                        error.render(false)
                    );
                }
            }
        }
    }
}

/// Settings that differ and take effect only after a restart.
fn needs_restart(new: &Config, old: &Config) -> Vec<&'static str> {
    [
        ("server.listen", new.server.listen != old.server.listen),
        (
            "server.workers",
            mapped::workers(&new.server) != mapped::workers(&old.server),
        ),
        ("admin", new.admin != old.admin),
        ("log", new.log != old.log),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

/// How long a file must be unchanged before it is read.
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

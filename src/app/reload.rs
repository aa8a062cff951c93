//! Replaces the configuration in one step or not at all.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::json;

use super::changes::{self, Change};
use super::state_file::{self, Mark};
use super::watch::Watch;
use super::{ConfigSource, Core, mapped};
use crate::admin::Kind;
use tollgate_admission::shared_store;
use tollgate_config::settings::{Admin, DecideListener};
use tollgate_config::{Config, ConfigError};
use tollgate_store::Backend;
use tollgate_store::local::Carry;

/// What is in force. The lock around it is never held while something may hang, so that a status, a
/// drain and the end of the process need not wait for a reload.
pub(super) struct State {
    pub(super) in_force: Arc<Config>,
    pub(super) generation: u64,
    pub(super) refused: Refused,
    /// Changed settings that take effect only after a restart.
    pub(super) needs_restart: Vec<&'static str>,
    /// The text to read next, if there is no file.
    pub(super) text: Option<String>,
    pub(super) backend: Arc<Backend>,
    pub(super) mark: Option<Mark>,
    /// Whether the process ends: nothing is put in force any more.
    pub(super) ended: bool,
}

/// What the last reloads have refused, and why, until it is taken.
#[derive(Default)]
pub(super) struct Refused {
    /// The reason for the configuration as a whole.
    whole: Option<String>,
    /// The reasons for files of callers that were read alone.
    callers: BTreeMap<PathBuf, String>,
}

impl Refused {
    /// All reasons; `None`: the files as they are were taken.
    pub(super) fn words(&self) -> Option<String> {
        let all: Vec<&str> = self
            .whole
            .iter()
            .chain(self.callers.values())
            .map(String::as_str)
            .collect();
        (!all.is_empty()).then(|| all.join("\n\n"))
    }

    /// The first reason, in a line.
    pub(super) fn line(&self) -> Option<String> {
        let words = self.words()?;
        let first: Vec<&str> = words.lines().map(str::trim).take(2).collect();
        Some(first.join(" "))
    }
}

/// What only reloads need. The lock around it serialises them, and is held while they read files
/// and look up names, which may hang.
pub(super) struct Reloads {
    pub(super) watch: Watch,
    /// Stores of earlier configurations, until their last request has ended: dropping a store joins
    /// its thread, and a worker must not wait for that.
    retired: Vec<Arc<Backend>>,
}

impl State {
    pub(super) fn new(in_force: Config, backend: Arc<Backend>, mark: Option<Mark>) -> Self {
        Self {
            in_force: Arc::new(in_force),
            generation: 1,
            refused: Refused::default(),
            needs_restart: Vec::new(),
            text: None,
            backend,
            mark,
            ended: false,
        }
    }
}

impl Reloads {
    pub(super) fn new(in_force: &Config) -> Self {
        let mut watch = Watch::default();
        watch.set(in_force.files_read.iter().cloned());
        Self {
            watch,
            retired: Vec::new(),
        }
    }
}

impl Core {
    /// Loads the configuration again once its file is stable, and puts it in force; returns a summary.
    pub(super) fn reload(&self) -> Result<String, String> {
        let mut reloads = self.reloads.lock();
        reloads.watch.settle(pause);
        self.reload_settled(&mut reloads)
    }

    fn reload_settled(&self, reloads: &mut Reloads) -> Result<String, String> {
        let result = self.replace(reloads);
        let generation = {
            let mut state = self.state.lock();
            state.refused.whole = result.as_ref().err().cloned();
            if result.is_ok() {
                // The files of callers were read with the others.
                state.refused.callers.clear();
            }
            state.generation
        };
        self.tell_reload(generation, result.as_deref());
        match &result {
            Ok(words) => {
                let mut lines = words.lines();
                if let Some(outcome) = lines.next() {
                    tracing::info!(generation, "{outcome}");
                }
                for change in lines {
                    tracing::info!("changed: {change}");
                }
            }
            Err(words) => {
                tracing::error!("the configuration in force stays: the new one is refused\n{words}")
            }
        }
        result
    }

    fn tell_reload(&self, generation: u64, result: Result<&str, &String>) {
        let metrics = &self.gateway.metrics;
        let (good, message) = match result {
            Ok(words) => (true, words),
            Err(words) => (false, words.as_str()),
        };
        match good {
            true => {
                let all = self.state.lock().refused.words().is_none();
                metrics.reload_done(self.gateway.clock.now().as_micros(), all);
            }
            false => metrics.reload_failed(),
        }
        let event = json!({ "good": good, "generation": generation, "message": message });
        self.events.emit(Kind::Reload, &event);
    }

    /// Has TLS read the certificate that the gateway ordered. `None`: a reload runs, which does it too,
    /// perhaps too early.
    pub(super) fn reload_certificate(&self) -> Option<Result<(), String>> {
        let _reloads = self.reloads.try_lock()?;
        let (tls, settings) = (self.tls.as_ref()?, mapped::tls(&self.in_force().server)?);
        Some(tls.reload(&settings).map_err(|error| error.to_string()))
    }

    /// Checks whether a file changed, and reloads what depends on it.
    pub(super) fn look(&self) {
        let mut reloads = self.reloads.lock();
        let mut changed = reloads.watch.changed();
        if changed.is_empty() {
            return;
        }
        changed.extend(reloads.watch.settle(pause));
        let in_force = self.in_force();
        let only_callers = changed
            .iter()
            .all(|file| in_force.caller_files.iter().any(|(_, known)| known == file));
        if only_callers && self.replace_callers(&in_force, &changed) {
            return;
        }
        // The reload logs its own result.
        let _ = self.reload_settled(&mut reloads);
    }

    pub(super) fn in_force(&self) -> Arc<Config> {
        Arc::clone(&self.state.lock().in_force)
    }

    fn replace(&self, reloads: &mut Reloads) -> Result<String, String> {
        let mut options = self.options.clone();
        let (in_force, store) = {
            let state = self.state.lock();
            if let (ConfigSource::Text { text, .. }, Some(new)) = (&mut options.source, &state.text)
            {
                text.clone_from(new);
            }
            (Arc::clone(&state.in_force), Arc::clone(&state.backend))
        };
        // Later changes are found by the next check.
        reloads.watch.changed();
        let config = options.load();
        // If this configuration is refused, a change of a file that it names may repair it,
        // including a file that does not exist yet.
        let named = config
            .as_ref()
            .map_or_else(ConfigError::files, |config| &config.files_read);
        reloads
            .watch
            .set(in_force.files_read.iter().chain(named).cloned());
        let mut config = config.map_err(|error| error.render(false))?;
        let needs_restart = needs_restart(&config, &in_force);
        if needs_restart.contains(&ACME) {
            let (new, old) = (&mut config.server, &in_force.server);
            new.acme.clone_from(&old.acme);
            new.certificates.clone_from(&old.certificates);
        }
        // All steps that can fail come first; none can fail after the first swap.
        let providers = self.jwt_keys.next(&config.policy)?;
        let backend = if config.store == in_force.store {
            Arc::clone(&store)
        } else {
            Arc::new(shared_store::open(
                config.store.as_ref(),
                &config.policy.limits,
                &self.gateway.clock,
            )?)
        };
        if Arc::ptr_eq(&backend, &store) {
            let (before, limits) = (&in_force.policy.limits, &config.policy.limits);
            shared_store::change_limits(config.store.as_ref(), &backend, before, limits)?;
        }
        let moved = config.server.state_file != in_force.server.state_file;
        let mut mark = if moved {
            state_file::begin(&config)?
        } else {
            None
        };
        if let (Some(tls), Some(settings)) = (&self.tls, mapped::tls(&config.server)) {
            tls.reload(&settings).map_err(|error| error.to_string())?;
        }
        if let Some(mark) = &mut mark {
            mark.serves()?;
        }
        // Settings that wait for a restart keep the values in force, so that the next reload
        // compares with those.
        let mut kept = config;
        kept.server.listen.clone_from(&in_force.server.listen);
        kept.server.workers = in_force.server.workers;
        match (&mut kept.decide, &in_force.decide) {
            (Some(kept), Some(in_force)) => kept.listen.clone_from(&in_force.listen),
            // Without a listener nothing is decided, and a listener cannot be closed by a reload.
            (kept, in_force) => kept.clone_from(in_force),
        }
        (kept.admin, kept.log) = (with_operators_of(&in_force, &kept), in_force.log.clone());
        kept.traces.clone_from(&in_force.traces);
        let config = Arc::new(kept);
        let mut changes = changes::between(&in_force, &config);
        if config.admin.operators != in_force.admin.operators {
            let line = "admin.operators: changed".to_owned();
            changes.push(Change { mark: '+', line });
        }

        let before = self.gateway.current.load_full();
        let mut state = self.state.lock();
        if state.ended {
            state_file::replace(&mut mark, None);
            return Err("the process ends".to_owned());
        }
        if moved {
            state_file::replace(&mut state.mark, mark);
        }
        let (limiter, report) = before
            .limiter
            .next(&config.policy.limits, Arc::clone(&backend));
        self.gateway.current.store(Arc::new(mapped::snapshot(
            &config,
            limiter,
            &self.gateway.metrics,
            &self.challenges,
        )));
        self.overrides.look_again();
        self.server
            .settings
            .store(Arc::new(mapped::server(&config)));
        self.decide_server
            .settings
            .store(Arc::new(mapped::decide_server(&config)));
        state.needs_restart.clone_from(&needs_restart);
        state.backend = Arc::clone(&backend);
        state.generation += 1;
        state.in_force = Arc::clone(&config);
        drop(state);
        if let Err(error) = self.jwt_keys.fetch(providers) {
            tracing::error!(%error, "the thread that fetches keys cannot be started: the keys in force stay");
        }

        reloads.watch.set(config.files_read.iter().cloned());
        if !Arc::ptr_eq(&store, &backend) {
            reloads.retired.push(store);
        }
        reloads.retired.retain(|store| Arc::strong_count(store) > 1);

        let reset = report
            .limits
            .iter()
            .filter(|one| matches!(one.carry, Carry::Afresh))
            .map(|one| &*one.name);
        let reset: Vec<&str> = reset.collect();
        let mut words = "the new configuration is in force".to_owned();
        if !reset.is_empty() {
            words += &format!(
                "; another algorithm or period begins new buckets: {}",
                reset.join(", ")
            );
        }
        if !needs_restart.is_empty() {
            words += &format!("; these wait for a restart: {}", needs_restart.join(", "));
        }
        for change in changes.iter().take(CHANGES_MAX) {
            words += &format!("\n{change}");
        }
        if changes.len() > CHANGES_MAX {
            words += &format!("\nand {} more lines", changes.len() - CHANGES_MAX);
        }
        for warning in &config.warnings {
            tracing::warn!("{}", warning.strip_prefix("warning: ").unwrap_or(warning));
        }
        Ok(words)
    }

    /// Puts the callers of these files in force. `false`: one of them has limits of its own now, so the
    /// whole configuration must be read.
    fn replace_callers(&self, in_force: &Config, changed: &[PathBuf]) -> bool {
        let files = in_force.caller_files.iter();
        for (identity, file) in files.filter(|(_, file)| changed.contains(file)) {
            let environment = &*self.options.environment;
            let read = tollgate_config::load_callers(file, in_force, environment);
            let read = match read {
                Ok(Some(callers)) => Ok(callers),
                Ok(None) => return false,
                Err(error) => Err(error.render(false)),
            };
            let generation = {
                let mut state = self.state.lock();
                match &read {
                    Ok(_) => state.refused.callers.remove(file),
                    Err(words) => state.refused.callers.insert(file.clone(), words.clone()),
                };
                state.generation
            };
            match read {
                Ok(callers) => {
                    in_force.policy.identities[*identity].replace_callers(callers);
                    let words = format!("the new callers of {} are in force", file.display());
                    self.tell_reload(generation, Ok(&words));
                    tracing::info!(file = %file.display(), "the new callers are in force");
                }
                Err(words) => {
                    self.tell_reload(generation, Err(&words));
                    tracing::error!("the callers in force stay: the new ones are refused\n{words}");
                }
            }
        }
        true
    }
}

/// Settings that differ and take effect only after a restart.
fn needs_restart(new: &Config, old: &Config) -> Vec<&'static str> {
    [
        ("server.listen", new.server.listen != old.server.listen),
        (ACME, new.server.acme.is_some() != old.server.acme.is_some()),
        (
            "server.workers",
            mapped::workers(&new.server) != mapped::workers(&old.server),
        ),
        (
            "decide.listen",
            decide_listeners(new) != decide_listeners(old),
        ),
        ("admin", with_operators_of(old, new) != new.admin),
        ("log", new.log != old.log),
        ("traces", new.traces != old.traces),
    ]
    .into_iter()
    .filter_map(|(name, differs)| differs.then_some(name))
    .collect()
}

/// The settings of the admin listener that are in force after a reload: only the operators are new ones.
fn with_operators_of(old: &Config, new: &Config) -> Admin {
    Admin {
        operators: new.admin.operators.clone(),
        ..old.admin.clone()
    }
}

fn decide_listeners(config: &Config) -> &[DecideListener] {
    config.decide.as_ref().map_or(&[], |decide| &decide.listen)
}

/// Whether the gateway orders its certificate; what it orders is taken up by a reload.
const ACME: &str = "server.acme";

/// The most lines of changes that a reload says.
const CHANGES_MAX: usize = 50;

/// How long a file must be unchanged before it is read.
fn pause() {
    std::thread::sleep(Duration::from_millis(50));
}

//! The inputs of a gateway, and the checks that are possible before it starts.

use std::path::PathBuf;
use std::sync::Arc;

use super::{StartError, memory, state_file, upstreams};
use tollgate_admission::shared_store;
use tollgate_config::settings::{ColdStart, Listener};
use tollgate_config::{Config, ConfigError};
use tollgate_limit::{Micros, Placement};
use tollgate_store::clock::Clock;

/// The source of the configuration.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, with its includes.
    File(PathBuf),
    /// A file, with listeners that replace its own.
    FileAt {
        /// The file.
        path: PathBuf,
        /// The address of the gateway; `None`: as in the file.
        listen: Option<Listener>,
        /// The address of the admin listener; `None`: as in the file; `Some(None)`: no admin
        /// listener.
        admin: Option<Option<Listener>>,
    },
    /// A text; `name` identifies it in messages, and its directory is the base of relative paths.
    Text {
        /// The text.
        text: String,
        /// Its name.
        name: String,
    },
}

/// The environment as a function: nothing here reads it directly.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The inputs of a gateway.
#[derive(Clone)]
pub struct Options {
    /// The source of the configuration.
    pub source: Source,
    /// The values of `${…}` in it.
    pub environment: Environment,
    /// The clock.
    pub clock: Clock,
}

impl Options {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        let now = self.clock.now();
        let mut config = match &self.source {
            Source::File(path) => tollgate_config::load(path, &*self.environment, now),
            Source::FileAt { path, listen, .. } => {
                tollgate_config::load_at(path, listen.as_ref(), &*self.environment, now)
            }
            Source::Text { text, name } => {
                tollgate_config::parse(text, name, &*self.environment, now)
            }
        }?;
        if let Source::FileAt {
            admin: Some(admin), ..
        } = &self.source
        {
            config.admin.listen.clone_from(admin);
        }
        state_file::settle(&mut config, (self.environment)(STATE_DIRECTORY));
        Ok(config)
    }
}

/// Checks a configuration as a start would, without starting or connecting: the store's address and
/// files, and the place of the buckets. Returns notes for the operator.
///
/// # Errors
/// The reason why a gateway would not start.
pub fn preflight(
    config: &mut Config,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<String>, String> {
    // A store whose URL or secret is not available cannot be checked.
    if let (Some(store), true) = (&config.store, config.assumed.is_empty()) {
        shared_store::check(store).map_err(|error| StartError::Store(error).to_string())?;
    }
    upstreams::check(&config.policy)?;
    check_traces(config)?;
    state_file::settle(config, environment(STATE_DIRECTORY));
    let mut notes = notes(config);
    if let Some(file) = &config.server.state_file
        && let Err(error) = state_file::usable(file)
    {
        let told = format!("`server.state_file`: {error}");
        if !state_file::directory_is_there(file) {
            return Err(told);
        }
        // The gateway may run as another user.
        notes.push(told);
    }
    Ok(notes)
}

/// Checks whether this program can export spans, if it is to.
pub(super) fn check_traces(config: &Config) -> Result<(), String> {
    if config.traces.is_some() && cfg!(not(feature = "otlp")) {
        return Err("[traces] needs a program that was built with `--features otlp`".to_owned());
    }
    Ok(())
}

/// Notes on settings that are valid but may surprise, such as a restart that refills buckets.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let mut notes: Vec<String> = memory::note(config).into_iter().collect();
    if config.server.state_file.is_some() {
        return notes;
    }
    let mut forgotten: Vec<&str> = config
        .policy
        .limits
        .iter()
        .filter(|limit| {
            limit.placement == Placement::Local && shared_store::period(limit) >= WORTH_KEEPING
        })
        .map(|limit| &*limit.name)
        .collect();
    forgotten.dedup();
    if config.server.cold_start == ColdStart::Empty {
        notes.push(
            "cold_start = \"empty\" without a server.state_file takes every start for one after a crash: local buckets begin \
             empty each time"
                .to_owned(),
        );
    } else if !forgotten.is_empty() {
        notes.push(format!(
            "a restart refills these limits, which are counted in the process: {}; server.state_file keeps them (as does \
             $STATE_DIRECTORY, which systemd sets)",
            forgotten.join(", ")
        ));
    }
    notes
}

/// The environment variable with the directory that a service manager provides for state.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";
/// A limit that refills completely in less than this is full a moment after a restart anyway.
const WORTH_KEEPING: Micros = Micros::from_secs(60);

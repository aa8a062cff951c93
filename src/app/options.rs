//! The inputs of a gateway, and the checks that are possible before it starts.

use std::path::PathBuf;
use std::sync::Arc;

use super::opening::unopened;
use super::{StartError, memory, state_file};
use tollgate_admission::shared_store;
use tollgate_config::settings::{ColdStart, Listener};
use tollgate_config::{Config, ConfigError, Loader};
use tollgate_limit::{Micros, Placement};
use tollgate_store::clock::Clock;

#[derive(Clone, Debug)]
pub enum ConfigSource {
    File(PathBuf),
    /// A file, with listeners that replace its own.
    FileAt {
        path: PathBuf,
        /// The address of the gateway; `None`: as in the file.
        listen: Option<Listener>,
        /// The address of the admin listener; `None`: as in the file; `Some(None)`: no admin listener.
        admin: Option<Option<Listener>>,
    },
    /// A text; `name` identifies it in messages, and its directory is the base of relative paths.
    Text {
        text: String,
        name: String,
    },
}

/// The environment as a function: nothing here reads it directly.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

#[derive(Clone)]
pub struct Options {
    pub source: ConfigSource,
    pub environment: Environment,
    pub clock: Clock,
}

impl Options {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        let loader = Loader::new(&*self.environment, self.clock.now()).opening(&unopened);
        let mut config = match &self.source {
            ConfigSource::File(path) => loader.file(path),
            ConfigSource::FileAt { path, listen, .. } => loader.listen(listen.as_ref()).file(path),
            ConfigSource::Text { text, name } => loader.text(text, name),
        }?;
        if let ConfigSource::FileAt {
            admin: Some(admin), ..
        } = &self.source
        {
            config.admin.listen.clone_from(admin);
        }
        state_file::settle(&mut config, (self.environment)(STATE_DIRECTORY));
        Ok(config)
    }
}

/// Checks the store's address and files as a start would, without connecting, and the place of the
/// buckets; [`unopened`] has checked the rest. Returns notes for the operator.
pub fn preflight(
    config: &mut Config,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<String>, String> {
    // A store whose URL or secret is not available cannot be checked.
    if let (Some(store), true) = (&config.store, config.assumed.is_empty()) {
        shared_store::check(store).map_err(|error| StartError::Store(error).to_string())?;
    }
    state_file::settle(config, environment(STATE_DIRECTORY));
    let mut notes = notes(config);
    if let Some(file) = &config.server.state_file
        && let Err(error) = state_file::usable(file)
    {
        // The gateway may run as another user.
        notes.push(format!("`server.state_file`: {error}"));
    }
    Ok(notes)
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
            limit.placement == Placement::Local
                && limit.algorithm.fill_time() >= Some(WORTH_KEEPING)
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

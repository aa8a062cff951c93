//! What a gateway is made of, and what of it can be checked before one is started.

use std::path::PathBuf;
use std::sync::Arc;

use super::{StartError, memory, shared_store, state_file, upstreams};
use tollgate_config::settings::{ColdStart, Listener};
use tollgate_config::{Config, ConfigError};
use tollgate_limit::{Micros, Placement};
use tollgate_store::clock::Clock;

/// Where the configuration comes from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A file, with what it includes.
    File(PathBuf),
    /// A file, with other listeners than it names.
    FileAt {
        /// The file.
        path: PathBuf,
        /// Where the gateway listens; `None`: where the file says.
        listen: Option<Listener>,
        /// Where the admin listener is; `None`: where the file says; `Some(None)`: nowhere.
        admin: Option<Option<Listener>>,
    },
    /// A text; `name` stands for it in messages, and its directory is where relative paths start.
    Text {
        /// The text.
        text: String,
        /// Its name.
        name: String,
    },
}

/// The environment, as a function: nothing here reads it.
pub type Environment = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// What a gateway is made of.
#[derive(Clone)]
pub struct Options {
    /// Where the configuration comes from.
    pub source: Source,
    /// What `${…}` in it stands for.
    pub environment: Environment,
    /// The one clock.
    pub clock: Clock,
}

impl Options {
    pub(super) fn load(&self) -> Result<Config, ConfigError> {
        let now = self.clock.now();
        let mut config = match &self.source {
            Source::File(path) | Source::FileAt { path, .. } => {
                tollgate_config::load(path, &*self.environment, now)
            }
            Source::Text { text, name } => {
                tollgate_config::parse(text, name, &*self.environment, now)
            }
        }?;
        if let Source::FileAt { listen, admin, .. } = &self.source {
            if let Some(listen) = listen {
                config.server.listen = vec![listen.clone()];
            }
            if let Some(admin) = admin {
                config.admin.listen.clone_from(admin);
            }
        }
        state_file::settle(&mut config, (self.environment)(STATE_DIRECTORY));
        Ok(config)
    }
}

/// Checks what a configuration stands on as a start would, without starting or connecting: the store's address and files,
/// where buckets are kept. What an operator should know comes back.
///
/// # Errors
/// What would keep a gateway from starting.
pub fn preflight(
    config: &mut Config,
    environment: &dyn Fn(&str) -> Option<String>,
) -> Result<Vec<String>, String> {
    // A store whose URL or secret is not at hand cannot be checked.
    if let (Some(store), true) = (&config.store, config.assumed.is_empty()) {
        shared_store::check(store).map_err(|error| StartError::Store(error).to_string())?;
    }
    upstreams::check(&config.policy)?;
    state_file::settle(config, environment(STATE_DIRECTORY));
    let mut notes = notes(config);
    if let Some(file) = &config.server.state_file
        && let Err(error) = state_file::usable(file)
    {
        let told = format!("`server.state_file`: {error}");
        if !state_file::directory_is_there(file) {
            return Err(told);
        }
        // It may be another user that the gateway runs as.
        notes.push(told);
    }
    Ok(notes)
}

/// What is no mistake and yet a surprise to somebody: a restart that refills.
pub(super) fn notes(config: &Config) -> Vec<String> {
    let mut notes: Vec<String> =
        memory::note(&config.policy.limits, config.server.bounds.connections)
            .into_iter()
            .collect();
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

/// The directory that a service manager gives the process to keep things in.
const STATE_DIRECTORY: &str = "STATE_DIRECTORY";
/// A limit that gives back what it allows in less than this is as full as ever a moment after a restart.
const WORTH_KEEPING: Micros = Micros::from_secs(60);

//! Reads and checks the configuration file and builds the types that the gateway runs on.
//!
//! [`load`] reads a file with everything it includes, [`parse`] reads a text, [`Loader`] is both with more settings. All report *every*
//! mistake with its place, or return a valid [`Config`]. The environment is passed in as a
//! function. This crate opens no sockets, connects to no stores, and starts nothing.
//!
//! A file passes three steps: syntax ([`mod@include`], which also follows `include`), structure
//! ([`reading`] reads what [`raw`] declares with the forms of [`values`]: types that run, and mirrors of tables that depend
//! on other tables), and checks between tables ([`validate`], which makes a
//! [`tollgate_policy::Policy`]). A key that could not be read is [`reading::Field::Broken`], so that
//! later steps do not report it as missing.

#![forbid(unsafe_code)]

mod admin_listener;
mod calendar;
mod compile;
mod error;
mod files;
mod include;
mod loader;
mod merge;
mod quick;
pub mod rate_limit_yaml;
mod raw;
mod reading;
mod render;
mod report;
mod schema;
pub mod settings;
mod validate;
mod values;
pub mod yaml;

use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use admin_listener::{load_admin_listener, parse_admin_listener};
pub use error::{ConfigError, Diagnostic, Span};
pub use files::{FILE_MAX, matches, read_text};
pub use loader::{Loader, Unopened};
pub use quick::{COMMAND_LINE, quick, quoted};
pub use reading::{Env, Unset, nearest, suggestion};
pub use report::report;
pub use schema::schema;
pub use values::rate::rate_in;

use reading::{Context, Problems};
use settings::{Admin, Decide, Log, Server, Store, TestCase, Traces};

use tollgate_limit::{Micros, Rate, Timestamp};
use tollgate_policy::Policy;
use tollgate_policy::identity::Callers;

#[derive(Debug)]
pub struct Config {
    pub server: Server,
    pub admin: Admin,
    /// The listeners for decisions; `None`: there are none.
    pub decide: Option<Decide>,
    pub traces: Option<Traces>,
    pub log: Log,
    /// The store that gateways share; `None`: all limits are local.
    pub store: Option<Store>,
    pub policy: Arc<Policy>,
    pub tests: Vec<TestCase>,
    /// Files of callers that are reloaded separately ([`load_callers`]), with the index of their
    /// identity: those in which no caller has limits of its own.
    pub caller_files: Vec<(usize, PathBuf)>,
    /// The names of the tiers, with or without numbers, which such a file may give its callers.
    tiers: Vec<String>,
    /// Warnings about legal but probably unintended settings, rendered for printing.
    pub warnings: Vec<String>,
    pub diagnostics: Vec<Diagnostic>,
    /// Unset environment variables for which a value was assumed ([`Unset::Assumed`]).
    pub assumed: Vec<String>,
    /// Every file that was read, and every pattern of an include: if one of these files changes,
    /// the configuration changes.
    pub files_read: Vec<PathBuf>,
}

/// Parses a duration as the file writes it: `10s`, `1h30m`.
pub fn duration(text: &str) -> Result<Micros, String> {
    values::quantity::duration(text).map_err(|flaw| flaw.title)
}

/// Parses a rate as the file writes it: units and their period.
pub fn rate(text: &str) -> Result<Rate, String> {
    values::rate::finite(text).map(|(rate, _)| rate)
}

/// Reads a file and everything it includes, for a gateway. `now` determines the years for which
/// calendar windows are computed.
pub fn load(path: &Path, env: Env<'_>, now: Timestamp) -> Result<Config, ConfigError> {
    Loader::new(env, now).file(path)
}

/// Reads a text, for a gateway. Messages call it `name`, and relative paths start in the directory of `name`.
pub fn parse(text: &str, name: &str, env: Env<'_>, now: Timestamp) -> Result<Config, ConfigError> {
    Loader::new(env, now).text(text, name)
}

/// Reads a file of callers again ([`Config::caller_files`] of the configuration in force), for
/// [`tollgate_policy::identity::Identity::replace_callers`]. `None`: a caller in it has limits of its
/// own, so the whole configuration must be read again.
/// On an error the callers in force stay.
pub fn load_callers(
    path: &Path,
    config: &Config,
    env: Env<'_>,
) -> Result<Option<Callers>, ConfigError> {
    let mut context = Context::new(env, Problems::default());
    let tiers: Vec<&str> = config.tiers.iter().map(String::as_str).collect();
    match validate::callers::read(path, None, &tiers, &mut context) {
        Some((callers, own)) if !context.problems.any_error() => {
            Ok(own.is_empty().then_some(callers))
        }
        _ => Err(ConfigError {
            problems: context.problems.into_sorted(),
            sources: context.sources,
            files: vec![path.to_path_buf()],
        }),
    }
}

/// Runs the README's example as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

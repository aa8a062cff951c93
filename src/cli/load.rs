//! Loads the configuration for all subcommands.

use std::io::Read;
use std::path::Path;

use tollgate_config::settings::Listener;
use tollgate_config::{Config, ConfigError, Loader, Unset};
use tollgate_store::clock::Clock;

use super::args::ConfigFile;
use crate::app;

/// Reads the configuration: a file, or standard input for `-`.
pub(super) fn read(file: &ConfigFile, unset: Unset) -> Result<Config, ConfigError> {
    read_by(&loader().unset(unset), file)
}

/// Reads the configuration like [`read`], and opens what it names, as a start does.
pub(super) fn read_and_open(file: &ConfigFile, unset: Unset) -> Result<Config, ConfigError> {
    read_by(&loader().unset(unset).opening(&app::unopened), file)
}

fn read_by(loader: &Loader<'_>, file: &ConfigFile) -> Result<Config, ConfigError> {
    let path = file.path();
    if path.as_os_str() != "-" {
        return loader.file(&path);
    }
    let text = standard_input().map_err(|error| ConfigError::unreadable(&path, &error))?;
    loader.text(&text, STANDARD_INPUT)
}

pub(super) fn loader<'l>() -> Loader<'l> {
    Loader::new(&environment, Clock::system().now())
}

/// Reads the configuration in this file, to apply it to a log; secrets do not change the result.
pub(super) fn load_file(path: &Path) -> Result<Config, ConfigError> {
    loader().unset(Unset::Assumed).file(path)
}

/// Reads standard input; more than any configuration has is an error, as of a file.
pub(super) fn standard_input() -> std::io::Result<String> {
    let mut text = String::new();
    let read = std::io::stdin()
        .take(tollgate_config::FILE_MAX + 1)
        .read_to_string(&mut text)?;
    if read as u64 > tollgate_config::FILE_MAX {
        return Err(std::io::Error::new(
            std::io::ErrorKind::InvalidData,
            "a configuration has at most 16 MiB",
        ));
    }
    Ok(text)
}

/// The message if there is no file and none was named.
pub(super) fn without_a_file(file: &ConfigFile) -> Option<String> {
    let missing = file.written().is_none() && !Path::new("gateway.toml").exists();
    missing.then(|| {
        "there is no gateway.toml here\n\n  \
         tollgate init     writes one to start from, with comments\n  \
         tollgate FILE     runs another file\n  \
         tollgate --help   lists every verb\n\n\
         Or run without a file:\n  \
         tollgate run --upstream http://127.0.0.1:3000 --limit 100/minute --per address"
            .to_owned()
    })
}

/// The admin listener that the configuration names, whatever mistakes it has elsewhere; the default
/// one if there is no file and none was named. `None`: the configuration says `off`.
pub(super) fn admin_listener(file: &ConfigFile) -> Result<Option<Listener>, ConfigError> {
    let path = file.path();
    let text = if path.as_os_str() == "-" {
        standard_input().map_err(|error| ConfigError::unreadable(&path, &error))?
    } else if file.written().is_some() || path.exists() {
        return tollgate_config::load_admin_listener(&path, &environment);
    } else {
        String::new()
    };
    tollgate_config::parse_admin_listener(&text, STANDARD_INPUT, &environment)
}

/// The process's environment for the configuration. Values that are not UTF-8 count as unset.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads variables"
)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(super) fn environment_lossy(name: &str) -> Option<String> {
    std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
}

pub(super) const STANDARD_INPUT: &str = "standard input";

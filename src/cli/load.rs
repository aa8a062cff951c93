//! The configuration, as every verb reads it.

use std::io::Read;
use std::path::Path;

use tollgate_config::settings::Listener;
use tollgate_config::{Config, ConfigError, Unset};
use tollgate_store::clock::Clock;

use super::args::ConfigFile;

/// Reads the configuration: a file, or standard input for `-`.
pub(super) fn read(file: &ConfigFile, unset: Unset) -> Result<Config, ConfigError> {
    let (path, now) = (file.path(), Clock::system().now());
    if path.as_os_str() != "-" {
        return tollgate_config::load_with(&path, &environment, unset, now);
    }
    let text = standard_input().map_err(|error| ConfigError::unreadable(&path, &error))?;
    tollgate_config::parse_with(&text, STANDARD_INPUT, &environment, unset, now)
}

/// Reads the configuration; what is wrong with it goes to standard error. `None`: it is not good.
pub(super) fn load(file: &ConfigFile, unset: Unset) -> Option<Config> {
    match read(file, unset) {
        Ok(config) => Some(config),
        Err(error) => {
            eprintln!("{}", error.render(super::colour()));
            None
        }
    }
}

/// Reads the configuration in this file, as a log is judged by it: without secrets it is the same.
pub(super) fn load_file(path: &Path) -> Option<Config> {
    let read =
        tollgate_config::load_with(path, &environment, Unset::Assumed, Clock::system().now());
    match read {
        Ok(config) => Some(config),
        Err(error) => {
            eprintln!("{}", error.render(super::colour()));
            None
        }
    }
}

/// Everything on standard input, up to what no configuration is as long as.
pub(super) fn standard_input() -> std::io::Result<String> {
    let mut text = String::new();
    std::io::stdin().take(TEXT_MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// What to do where there is no file and none was named.
pub(super) fn without_a_file(file: &ConfigFile) -> Option<String> {
    let missing = file.written().is_none() && !Path::new("gateway.toml").exists();
    missing.then(|| {
        "tollgate: there is no gateway.toml here\n\n  \
         tollgate init     writes one to start from, with comments\n  \
         tollgate FILE     runs another file\n  \
         tollgate --help   lists every verb\n\n\
         Or run without a file:\n  \
         tollgate run --upstream http://127.0.0.1:3000 --limit 100/minute --per address"
            .to_owned()
    })
}

/// Where the configuration says that the admin listener is; `None` when it cannot be read or says nowhere.
pub(super) fn admin_of(file: &ConfigFile) -> Option<Listener> {
    read(file, Unset::Assumed).ok()?.admin.listen
}

/// The process's environment, as the configuration sees it. What is no UTF-8 is not there.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads variables"
)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// What messages call standard input.
pub(super) const STANDARD_INPUT: &str = "standard input";
/// Bytes of a configuration on standard input.
const TEXT_MAX: u64 = 16 << 20;

//! The configuration, as every verb reads it.

use tollgate_config::Config;
use tollgate_config::settings::Listener;
use tollgate_store::clock::Clock;

use super::args::ConfigArg;

/// Reads the configuration; what is wrong with it goes to standard error. `None`: it is not good.
pub(super) fn load(arg: &ConfigArg) -> Option<Config> {
    match tollgate_config::load(&arg.config, &environment, Clock::system().now()) {
        Ok(config) => Some(config),
        Err(error) => {
            eprintln!("{}", error.render(super::colour()));
            None
        }
    }
}

/// Where the configuration says that the admin listener is; `None` when it cannot be read or says nowhere.
pub(super) fn admin_of(arg: &ConfigArg) -> Option<Listener> {
    tollgate_config::load(&arg.config, &environment, Clock::system().now())
        .ok()?
        .admin
        .listen
}

/// The process's environment, as the configuration sees it. What is no UTF-8 is not there.
#[expect(
    clippy::disallowed_methods,
    reason = "the one place that reads variables"
)]
pub(super) fn environment(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

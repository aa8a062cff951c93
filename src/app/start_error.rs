//! The reasons why a gateway does not start.

use std::io;

use tollgate_config::ConfigError;
use tollgate_config::settings::Listener;
use tollgate_net::listener::BindError;
use tollgate_net::tls::TlsError;

/// The reason why a gateway did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    #[error("{0}")]
    Config(ConfigError),
    /// A listener cannot be bound.
    #[error(transparent)]
    Bind(#[from] BindError),
    /// A certificate, key or authority cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A service manager handed over a socket for which there is no listener.
    #[error(
        "a socket on {0} was handed over, and neither server.listen nor admin.listen names that address"
    )]
    Unclaimed(String),
    /// A running gateway cannot be replaced.
    #[error("cannot take over from the running gateway: {0}")]
    TakeOver(String),
    /// A setting cannot be carried out: buckets cannot be stored in the configured place, an
    /// upstream's certificates or keys are invalid, or this program cannot export spans.
    #[error("{0}")]
    Setting(String),
    /// The shared store cannot be set up.
    #[error("[store]: {0}")]
    Store(String),
    /// The admin listener cannot be bound.
    #[error("the admin listener cannot be started on {address}: {source}")]
    Admin { address: String, source: io::Error },
    #[error("{what}: {source}")]
    System {
        what: &'static str,
        source: io::Error,
    },
}

impl StartError {
    /// The error of a system call, with the attempted operation.
    pub(super) fn system(what: &'static str) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::System { what, source }
    }

    /// The error of the admin listener on this address.
    pub(super) fn admin(listen: &Listener) -> impl Fn(io::Error) -> Self {
        let address = listen.to_string();
        move |source| Self::Admin {
            address: address.clone(),
            source,
        }
    }
}

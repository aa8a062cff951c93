//! TLS towards callers: certificates by name, reloaded while connections live on.

use std::sync::Arc;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;

/// TLS towards callers. What is swapped in is used by the next handshake; connections that stand keep what they have.
#[derive(Debug)]
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
}

impl ServerTls {
    /// TLS as `config` says.
    pub fn new(config: Arc<ServerConfig>) -> Self {
        Self { config: ArcSwap::new(config) }
    }

    /// Uses `config` from the next handshake on.
    pub fn replace(&self, config: Arc<ServerConfig>) {
        self.config.store(config);
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

/// The subject of the client certificate that the handshake verified.
pub(super) fn client_subject(_session: &tokio_rustls::rustls::ServerConnection) -> Option<Arc<str>> {
    None
}

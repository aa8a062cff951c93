//! The authorities and our certificate for TLS to Redis. In a build without TLS there are none, and
//! addresses with TLS are refused.

use redis::{Client, ConnectionInfo, RedisError};

#[cfg(feature = "tls")]
use super::Tls;

#[derive(Clone, Debug)]
pub struct Certificates(Content);

#[cfg(feature = "tls")]
type Content = redis::TlsCertificates;

#[cfg(not(feature = "tls"))]
type Content = std::convert::Infallible;

#[cfg(feature = "tls")]
impl Certificates {
    pub(super) fn new(tls: &Tls) -> Self {
        let client_tls = tls.client.clone();
        Self(redis::TlsCertificates {
            root_cert: tls.ca.clone(),
            client_tls: client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig {
                client_cert,
                client_key,
            }),
        })
    }

    pub(super) fn client(&self, server: ConnectionInfo) -> Result<Client, RedisError> {
        Client::build_with_tls(server, self.0.clone())
    }
}

#[cfg(not(feature = "tls"))]
impl Certificates {
    pub(super) fn client(&self, _: ConnectionInfo) -> Result<Client, RedisError> {
        match self.0 {}
    }
}

pub(super) fn with_certificates(
    server: ConnectionInfo,
    certificates: Option<&Certificates>,
) -> Result<ConnectionInfo, RedisError> {
    match certificates {
        Some(certificates) => Ok(certificates.client(server)?.get_connection_info().clone()),
        None => Ok(server),
    }
}

/// Chooses the process's provider of cryptography, which redis-rs uses.
pub(super) fn choose_provider() {
    #[cfg(feature = "tls")]
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
}

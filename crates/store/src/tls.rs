//! TLS to a shared store: the trusted authorities, and our own certificate.

#[cfg(all(feature = "postgres", not(feature = "tls")))]
pub(crate) use tokio_postgres::NoTls as Connector;
#[cfg(feature = "tls")]
pub(crate) use with_rustls::Connector;

/// The TLS settings of a store, each as the PEM text of its file.
#[derive(Clone, Default)]
pub struct Tls {
    /// The authorities that sign the server's certificate; `None`: the system's.
    pub ca: Option<Vec<u8>>,
    /// Our certificate with its chain, and its private key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
}

impl std::fmt::Debug for Tls {
    /// Does not print the key.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tls")
            .field("ca", &self.ca.is_some())
            .field("client", &self.client.is_some())
            .finish()
    }
}

impl Tls {
    /// Whether any of it is set: TLS is then required.
    pub const fn is_said(&self) -> bool {
        self.ca.is_some() || self.client.is_some()
    }
}

#[cfg(not(feature = "tls"))]
impl Tls {
    /// Checks that nothing is set: this build has no TLS.
    pub fn check(&self) -> Result<(), String> {
        if self.is_said() {
            return Err("this build has no TLS: enable the feature `tls`".to_owned());
        }
        Ok(())
    }

    #[cfg(feature = "postgres")]
    pub(crate) fn connector(&self) -> Result<Connector, String> {
        self.check().map(|()| Connector)
    }
}

#[cfg(feature = "tls")]
mod with_rustls {
    use std::sync::Arc;

    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};
    use rustls::{ClientConfig, RootCertStore};
    use rustls_platform_verifier::BuilderVerifierExt;

    use super::Tls;

    #[cfg(feature = "postgres")]
    pub(crate) use tokio_postgres_rustls::MakeRustlsConnect as Connector;
    #[cfg(not(feature = "postgres"))]
    pub(crate) type Connector = ();

    impl Tls {
        /// Checks that every part can be parsed.
        pub fn check(&self) -> Result<(), String> {
            self.config().map(drop)
        }

        #[cfg(feature = "postgres")]
        pub(crate) fn connector(&self) -> Result<Connector, String> {
            self.config().map(Connector::new)
        }

        /// The rustls configuration. The server's certificate and name are always checked.
        fn config(&self) -> Result<ClientConfig, String> {
            let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
            let builder = ClientConfig::builder_with_provider(provider)
                .with_safe_default_protocol_versions()
                .map_err(|error| error.to_string())?;
            let builder = match &self.ca {
                None => builder
                    .with_platform_verifier()
                    .map_err(|error| error.to_string())?,
                Some(pem) => {
                    let mut roots = RootCertStore::empty();
                    for certificate in certificates(pem, "ca_file")? {
                        roots
                            .add(certificate)
                            .map_err(|error| format!("`ca_file`: {error}"))?;
                    }
                    builder.with_root_certificates(roots)
                }
            };
            let Some((chain, key)) = &self.client else {
                return Ok(builder.with_no_client_auth());
            };
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|error| format!("`client_key`: {error}"))?;
            builder
                .with_client_auth_cert(certificates(chain, "client_certificate")?, key)
                .map_err(|error| format!("`client_certificate`: {error}"))
        }
    }

    fn certificates(pem: &[u8], key: &str) -> Result<Vec<CertificateDer<'static>>, String> {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        match read {
            Ok(read) if read.is_empty() => Err(format!("`{key}` holds no certificate")),
            Ok(read) => Ok(read),
            Err(error) => Err(format!("`{key}`: {error}")),
        }
    }
}

//! TLS towards clients: certificates by server name, reloaded while connections stay open, and
//! client certificates as an identity.

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::crypto::{CryptoProvider, aws_lc_rs};
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert, WebPkiClientVerifier};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, ServerConnection};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::pem::Pem;
use tollgate_policy::expiry::first_expiry;

/// TLS as configured: PEM files, read when it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// At least one; the first is also used for names without a certificate.
    pub certificates: Vec<CertificateFiles>,
    /// The authorities that verify client certificates; `None`: no certificate is requested.
    pub client_ca: Option<PathBuf>,
    /// Whether a client must present a certificate; meaningless without `client_ca`.
    pub client_required: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CertificateFiles {
    /// The file of the chain, beginning with its own certificate.
    pub chain: PathBuf,
    pub key: PathBuf,
    /// The names for which it is used, `*.example.com` for one label before it; empty: the DNS
    /// names in it.
    pub hosts: Vec<String>,
}

impl TlsSettings {
    /// Every file it is read from.
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let certificates = self
            .certificates
            .iter()
            .flat_map(|one| [one.chain.as_path(), one.key.as_path()]);
        certificates.chain(self.client_ca.as_deref())
    }
}

/// The error if TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", file.display())]
pub struct TlsError {
    pub file: PathBuf,
    /// Whether the file was read for its private key.
    pub is_of_key: bool,
    pub what: String,
}

/// TLS towards clients. A reloaded configuration is used from the next handshake on; open
/// connections keep theirs.
#[derive(Debug)]
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
    expiries: ArcSwap<Vec<(PathBuf, Duration)>>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// The first file that is unreadable, or that does not match the others.
    pub fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let config = ArcSwap::from_pointee(config(settings)?);
        Ok(Self {
            config,
            expiries: ArcSwap::from_pointee(expiries(settings)),
        })
    }

    /// Reads the files again, for later handshakes.
    ///
    /// # Errors
    /// As [`ServerTls::load`]; the previous configuration then stays in use.
    pub fn reload(&self, settings: &TlsSettings) -> Result<(), TlsError> {
        self.config.store(Arc::new(config(settings)?));
        self.expiries.store(Arc::new(expiries(settings)));
        Ok(())
    }

    /// The certificates in use, each with the earliest expiry in its chain.
    pub fn expiries(&self) -> Arc<Vec<(PathBuf, Duration)>> {
        self.expiries.load_full()
    }

    pub(super) fn acceptor(&self) -> TlsAcceptor {
        TlsAcceptor::from(self.config.load_full())
    }
}

fn expiries(settings: &TlsSettings) -> Vec<(PathBuf, Duration)> {
    let certificates = settings.certificates.iter();
    certificates
        .filter_map(|one| {
            Some((
                one.chain.clone(),
                Duration::from_micros(first_expiry(&one.chain)?.as_micros()),
            ))
        })
        .collect()
}

fn config(settings: &TlsSettings) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let by_name = Arc::new(ByName::load(&settings.certificates, &provider)?);
    let at = |file: &Path| {
        let file = file.to_path_buf();
        move |error: &dyn fmt::Display| TlsError {
            file: file.clone(),
            is_of_key: false,
            what: error.to_string(),
        }
    };
    let first = settings
        .certificates
        .first()
        .map(|one| one.chain.clone())
        .unwrap_or_default();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| at(&first)(&error))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let error = at(file);
            let mut roots = RootCertStore::empty();
            let content = read(file, false)?;
            let pem = Pem {
                path: file,
                content: &content,
            };
            for certificate in pem.certificates()? {
                roots.add(certificate).map_err(|e| error(&e))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if settings.client_required {
                verifier
            } else {
                verifier.allow_unauthenticated()
            };
            builder.with_client_cert_verifier(verifier.build().map_err(|e| error(&e))?)
        }
    };
    let mut config = builder.with_cert_resolver(by_name);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Session resumption without state per client; a reload replaces the key, so that older
    // sessions cannot be resumed.
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|error| at(&first)(&error))?;
    Ok(config)
}

fn read(file: &Path, is_of_key: bool) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| TlsError {
        file: file.to_path_buf(),
        is_of_key,
        what: error.to_string(),
    })
}

#[derive(Debug, Default)]
struct ByName {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// `*.example.com` is stored under `example.com`.
    wildcard: HashMap<String, Arc<CertifiedKey>>,
    default: Option<Arc<CertifiedKey>>,
}

impl ByName {
    fn load(
        certificates: &[CertificateFiles],
        provider: &CryptoProvider,
    ) -> Result<Self, TlsError> {
        let mut by_name = Self::default();
        for files in certificates {
            let (chain, key) = (read(&files.chain, false)?, read(&files.key, true)?);
            let chain = Pem {
                path: &files.chain,
                content: &chain,
            };
            let key = Pem {
                path: &files.key,
                content: &key,
            };
            let certified = key.certified(chain, provider)?;
            let names = if files.hosts.is_empty() {
                certified.cert.first().map(dns_names).unwrap_or_default()
            } else {
                files.hosts.clone()
            };
            for name in names {
                let name = name.trim_end_matches('.').to_ascii_lowercase();
                // The first certificate for a name keeps it.
                match name.strip_prefix("*.") {
                    Some(suffix) => by_name.wildcard.entry(suffix.to_owned()),
                    None => by_name.exact.entry(name),
                }
                .or_insert_with(|| Arc::clone(&certified));
            }
            by_name.default.get_or_insert(certified);
        }
        Ok(by_name)
    }

    fn find(&self, name: Option<&str>) -> Option<&Arc<CertifiedKey>> {
        let named = name.and_then(|name| {
            let name = name.trim_end_matches('.').to_ascii_lowercase();
            let wildcard = || self.wildcard.get(name.split_once('.')?.1);
            self.exact.get(&name).or_else(wildcard)
        });
        named.or(self.default.as_ref())
    }
}

impl ResolvesServerCert for ByName {
    fn resolve(&self, hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.find(hello.server_name()).cloned()
    }
}

fn dns_names(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(certificate) = x509_cert::Certificate::from_der(certificate) else {
        return Vec::new(); // rustls says what is wrong with it
    };
    alternative_names(&certificate)
        .into_iter()
        .filter_map(|name| match name {
            GeneralName::DnsName(name) => Some(name.to_string()),
            _ => None,
        })
        .collect()
}

fn alternative_names(certificate: &x509_cert::Certificate) -> Vec<GeneralName> {
    match certificate.tbs_certificate.get::<SubjectAltName>() {
        Ok(Some((_, names))) => names.0,
        _ => Vec::new(),
    }
}

/// The identity in the client certificate that the handshake verified: its subject (RFC 4514) or,
/// if that is empty, its first URI, DNS name or mail address with the kind as a prefix. The prefix
/// prevents a name of one kind from being used as an identity of another, because no subject begins
/// with a word and a colon.
pub(super) fn client_subject(session: &ServerConnection) -> Option<Arc<str>> {
    subject(session.peer_certificates()?.first()?)
}

fn subject(certificate: &CertificateDer<'_>) -> Option<Arc<str>> {
    let certificate = x509_cert::Certificate::from_der(certificate).ok()?;
    let subject = certificate.tbs_certificate.subject.to_string();
    if !subject.is_empty() {
        return Some(subject.into());
    }
    alternative_names(&certificate)
        .iter()
        .find_map(|name| match name {
            GeneralName::UniformResourceIdentifier(uri) => {
                Some(format!("uri:{}", uri.as_str()).into())
            }
            GeneralName::DnsName(name) => Some(format!("dns:{}", name.as_str()).into()),
            GeneralName::Rfc822Name(address) => Some(format!("email:{}", address.as_str()).into()),
            _ => None,
        })
}

#[cfg(test)]
mod tests;

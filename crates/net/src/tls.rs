//! TLS towards clients: certificates by server name, reloaded while connections stay open, and
//! client certificates as an identity.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::rustls::crypto::aws_lc_rs;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::server::{
    Acceptor, ClientHello, ResolvesServerCert, WebPkiClientVerifier,
};
use tokio_rustls::rustls::sign::CertifiedKey;
use tokio_rustls::rustls::{self, RootCertStore, ServerConfig, ServerConnection};
use tokio_rustls::server::TlsStream;
use tokio_rustls::{LazyConfigAcceptor, TlsAcceptor};
use x509_cert::der::Decode;
use x509_cert::ext::pkix::SubjectAltName;
use x509_cert::ext::pkix::name::GeneralName;

use super::pem::Pem;
use tollgate_policy::expiry::first_expiry;

/// TLS as configured: PEM files, read when it is loaded.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    /// The first is also used for names without a certificate. None: those in use stay, and without
    /// any, handshakes are refused.
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
    /// The names for which it is used (`*.example.com`: one label more); empty: those in it.
    pub hosts: Vec<String>,
}

impl TlsSettings {
    pub fn files(&self) -> impl Iterator<Item = &Path> {
        let certificates = self
            .certificates
            .iter()
            .flat_map(|one| [one.chain.as_path(), one.key.as_path()]);
        certificates.chain(self.client_ca.as_deref())
    }
}

#[derive(Debug, thiserror::Error)]
#[error("{}: {what}", file.display())]
pub struct TlsError {
    pub file: PathBuf,
    pub is_of_key: bool,
    pub what: String,
}

impl TlsError {
    /// `file` cannot be used, or what else cannot.
    pub fn new(file: impl Into<PathBuf>, error: impl fmt::Display) -> Self {
        Self {
            file: file.into(),
            is_of_key: false,
            what: error.to_string(),
        }
    }

    pub(super) fn of_key(self, is_of_key: bool) -> Self {
        Self { is_of_key, ..self }
    }
}

/// TLS towards clients. A reloaded configuration is used from the next handshake on; open
/// connections keep theirs.
#[derive(Debug)]
pub struct ServerTls {
    config: ArcSwap<ServerConfig>,
    by_name: ArcSwap<ByName>,
    /// For handshakes by which an authority checks a host; `None`: it checks none at present.
    challenges: ArcSwapOption<ServerConfig>,
    expiries: ArcSwap<Vec<(PathBuf, Duration)>>,
}

impl ServerTls {
    /// Reads the files, which must match each other.
    pub fn load(settings: &TlsSettings) -> Result<Self, TlsError> {
        let by_name = Arc::new(ByName::load(&settings.certificates)?);
        Ok(Self {
            config: ArcSwap::from_pointee(config(settings, Arc::clone(&by_name))?),
            by_name: ArcSwap::new(by_name),
            challenges: ArcSwapOption::empty(),
            expiries: ArcSwap::from_pointee(expiries(settings)),
        })
    }

    /// Reads the files again, for later handshakes. After an error the old ones stay in use.
    pub fn reload(&self, settings: &TlsSettings) -> Result<(), TlsError> {
        let by_name = match settings.certificates.as_slice() {
            [] => self.by_name.load_full(),
            certificates => Arc::new(ByName::load(certificates)?),
        };
        let config = config(settings, Arc::clone(&by_name))?;
        self.config.store(Arc::new(config));
        self.by_name.store(by_name);
        if !settings.certificates.is_empty() {
            self.expiries.store(Arc::new(expiries(settings)));
        }
        Ok(())
    }

    /// Shows these certificates, by host, in handshakes by which an authority checks a host
    /// (TLS-ALPN-01, RFC 8737).
    pub fn answer_challenges(
        &self,
        certificates: HashMap<String, Arc<CertifiedKey>>,
    ) -> Result<(), rustls::Error> {
        if certificates.is_empty() {
            self.challenges.store(None);
            return Ok(());
        }
        let builder = ServerConfig::builder_with_provider(Arc::new(aws_lc_rs::default_provider()));
        let builder = builder.with_safe_default_protocol_versions()?;
        let by_name = ByName {
            exact: certificates,
            ..ByName::default()
        };
        let builder = builder.with_no_client_auth();
        let mut config = builder.with_cert_resolver(Arc::new(by_name));
        config.alpn_protocols = vec![ACME_TLS.to_vec()];
        self.challenges.store(Some(Arc::new(config)));
        Ok(())
    }

    /// Performs the handshake. After one with an authority ([`ACME_TLS`]) no request may follow.
    pub(super) async fn accept<S>(&self, stream: S) -> io::Result<TlsStream<S>>
    where
        S: AsyncRead + AsyncWrite + Unpin,
    {
        let config = self.config.load_full();
        let Some(challenges) = self.challenges.load_full() else {
            return TlsAcceptor::from(config).accept(stream).await;
        };
        let begun = LazyConfigAcceptor::new(Acceptor::default(), stream).await?;
        let protocols = begun.client_hello().alpn();
        let is_challenge = protocols.is_some_and(|mut names| names.any(|name| name == ACME_TLS));
        begun
            .into_stream(if is_challenge { challenges } else { config })
            .await
    }

    /// The certificates in use, each with the earliest expiry in its chain.
    pub fn expiries(&self) -> Arc<Vec<(PathBuf, Duration)>> {
        self.expiries.load_full()
    }
}

/// The protocol of handshakes by which an authority checks a host.
pub(super) const ACME_TLS: &[u8] = b"acme-tls/1";

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

fn config(settings: &TlsSettings, by_name: Arc<ByName>) -> Result<ServerConfig, TlsError> {
    let provider = Arc::new(aws_lc_rs::default_provider());
    let first = settings.certificates.first();
    let first = first.map(|one| one.chain.clone()).unwrap_or_default();
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new(&first, error))?;
    let builder = match &settings.client_ca {
        None => builder.with_no_client_auth(),
        Some(file) => {
            let mut roots = RootCertStore::empty();
            let content = read(file, false)?;
            let pem = Pem {
                path: file,
                content: &content,
            };
            for certificate in pem.certificates()? {
                let added = roots.add(certificate);
                added.map_err(|error| TlsError::new(file, error))?;
            }
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier = if settings.client_required {
                verifier
            } else {
                verifier.allow_unauthenticated()
            };
            let verifier = verifier
                .build()
                .map_err(|error| TlsError::new(file, error))?;
            builder.with_client_cert_verifier(verifier)
        }
    };
    let mut config = builder.with_cert_resolver(by_name);
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Session resumption without state per client; a reload replaces the key, so that older
    // sessions cannot be resumed.
    config.ticketer = aws_lc_rs::Ticketer::new().map_err(|error| TlsError::new(&first, error))?;
    Ok(config)
}

fn read(file: &Path, is_of_key: bool) -> Result<Vec<u8>, TlsError> {
    std::fs::read(file).map_err(|error| TlsError::new(file, error).of_key(is_of_key))
}

#[derive(Debug, Default)]
struct ByName {
    exact: HashMap<String, Arc<CertifiedKey>>,
    /// `*.example.com` is stored under `example.com`.
    wildcard: HashMap<String, Arc<CertifiedKey>>,
    default: Option<Arc<CertifiedKey>>,
}

impl ByName {
    fn load(certificates: &[CertificateFiles]) -> Result<Self, TlsError> {
        let provider = aws_lc_rs::default_provider();
        let mut by_name = Self::default();
        for files in certificates {
            let chain = read(&files.chain, false)?;
            // Read once where both are in one file, which another process may replace.
            let key = match files.key == files.chain {
                true => chain.clone(),
                false => read(&files.key, true)?,
            };
            let chain = Pem {
                path: &files.chain,
                content: &chain,
            };
            let key = Pem {
                path: &files.key,
                content: &key,
            };
            let certified = key.certified(chain, &provider)?;
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

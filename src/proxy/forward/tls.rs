//! TLS towards upstreams: whom to trust, what to show.

use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, RootCertStore};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::policy::upstream::TlsFiles;

/// The TLS configuration that `files` describe: the platform's roots unless a file names others, and a client
/// certificate where one is given. `http2` is what is offered by ALPN.
///
/// # Errors
/// In words: which file cannot be read or used, and why.
pub fn client_config(files: &TlsFiles, http2: bool) -> Result<Arc<ClientConfig>, String> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(|error| format!("TLS cannot be set up: {error}"))?;
    let builder = match &files.ca {
        Some(path) => builder.with_root_certificates(roots(path)?),
        None => builder.with_platform_verifier().map_err(|error| format!("the platform's roots: {error}"))?,
    };
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => builder
            .with_client_auth_cert(certificates(certificate)?, private_key(key)?)
            .map_err(|error| format!("{}: {error}", certificate.display()))?,
        (None, None) => builder.with_no_client_auth(),
        _ => return Err("a client certificate needs both `certificate` and `key`".to_owned()),
    };
    config.alpn_protocols = vec![if http2 { b"h2".to_vec() } else { b"http/1.1".to_vec() }];
    Ok(Arc::new(config))
}

fn roots(path: &Path) -> Result<RootCertStore, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(path)? {
        roots.add(certificate).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(roots)
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let list: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| format!("{}: {error}", path.display()))?;
    if list.is_empty() {
        return Err(format!("{}: there is no certificate in it", path.display()));
    }
    Ok(list)
}

fn private_key(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_file(path).map_err(|error| format!("{}: {error}", path.display()))
}

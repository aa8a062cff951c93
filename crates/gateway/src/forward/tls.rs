//! TLS towards upstreams: which certificates to trust, and which to present.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::sign::SingleCertAndKey;
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use rustls_platform_verifier::BuilderVerifierExt;
use sha2::{Digest, Sha256};

use tollgate_limit::hex;
use tollgate_net::pem::Pem;
use tollgate_net::tls::TlsError;
use tollgate_policy::upstream::{PemFile, TlsFiles, Upstream};

/// Builds the TLS configuration from `files`: the platform's roots unless a file names others or
/// certificates are pinned, and a client certificate if one is given. `http2`: ALPN offers HTTP/2,
/// before HTTP/1.1.
///
/// # Errors
/// A message that says which file cannot be read or used, and why.
pub fn client_config(files: &TlsFiles, http2: bool) -> Result<Arc<ClientConfig>, String> {
    configured(files, http2).map_err(|error| error.to_string())
}

fn configured(files: &TlsFiles, http2: bool) -> Result<Arc<ClientConfig>, TlsError> {
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::new("TLS cannot be set up", error))?;
    let builder = match &files.ca {
        _ if !files.pinned.is_empty() => {
            let verifier = Pinned::new(files, Arc::clone(&provider))?;
            builder
                .dangerous()
                .with_custom_certificate_verifier(Arc::new(verifier))
        }
        Some(file) => builder.with_root_certificates(roots(file)?),
        None => builder
            .with_platform_verifier()
            .map_err(|error| TlsError::new("the platform's roots", error))?,
    };
    let mut config = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let certified = pem(key).certified(pem(certificate), &provider)?;
            builder.with_client_cert_resolver(Arc::new(SingleCertAndKey::from(certified)))
        }
        (None, None) => builder.with_no_client_auth(),
        (Some(alone), None) | (None, Some(alone)) => {
            let what = "a client certificate and its key are written together";
            return Err(TlsError::new(&alone.path, what));
        }
    };
    config.alpn_protocols = if http2 {
        vec![HTTP2.to_vec(), HTTP1.to_vec()]
    } else {
        vec![HTTP1.to_vec()]
    };
    Ok(Arc::new(config))
}

pub(super) const HTTP2: &[u8] = b"h2";
pub(super) const HTTP1: &[u8] = b"http/1.1";

/// Accepts the pinned certificates and no others. If the file also names authorities, they must
/// have signed the certificate for the server's name; otherwise the pin alone is checked.
#[derive(Debug)]
struct Pinned {
    pins: Vec<[u8; 32]>,
    authorities: Option<Arc<WebPkiServerVerifier>>,
    provider: Arc<CryptoProvider>,
}

impl Pinned {
    fn new(files: &TlsFiles, provider: Arc<CryptoProvider>) -> Result<Self, TlsError> {
        let authorities = files.ca.as_ref().map(|file| {
            let builder = WebPkiServerVerifier::builder_with_provider(
                Arc::new(roots(file)?),
                Arc::clone(&provider),
            );
            builder
                .build()
                .map_err(|error| TlsError::new(&file.path, error))
        });
        Ok(Self {
            pins: files.pinned.clone(),
            authorities: authorities.transpose()?,
            provider,
        })
    }
}

impl ServerCertVerifier for Pinned {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let digest: [u8; 32] = Sha256::digest(end_entity).into();
        if !self.pins.contains(&digest) {
            return Err(rustls::Error::General(format!(
                "its certificate is not pinned: its SHA-256 is {}",
                hex::digits(&digest)
            )));
        }
        match &self.authorities {
            Some(verifier) => verifier.verify_server_cert(
                end_entity,
                intermediates,
                server_name,
                ocsp_response,
                now,
            ),
            None => Ok(ServerCertVerified::assertion()),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls12_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(
            message,
            certificate,
            signature,
            &self.provider.signature_verification_algorithms,
        )
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider
            .signature_verification_algorithms
            .supported_schemes()
    }
}

fn roots(file: &PemFile) -> Result<RootCertStore, TlsError> {
    let mut roots = RootCertStore::empty();
    for certificate in pem(file).certificates()? {
        roots
            .add(certificate)
            .map_err(|error| TlsError::new(&file.path, error))?;
    }
    Ok(roots)
}

fn pem(file: &PemFile) -> Pem<'_> {
    Pem {
        path: &file.path,
        content: &file.content,
    }
}

/// Checks whether the files for TLS towards `upstream` can be used.
///
/// # Errors
/// As [`client_config`].
pub fn check(upstream: &Upstream) -> Result<(), TlsError> {
    // The file does not configure the platform's roots.
    if upstream.tls.ca.is_none() && upstream.tls.certificate.is_none() {
        return Ok(());
    }
    configured(&upstream.tls, upstream.http2).map(|_| ())
}

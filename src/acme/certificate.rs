//! What the gateway must know of its certificate, and the certificates by which a host is proved.

use std::path::Path;
use std::sync::Arc;

use rcgen::{CertificateParams, CustomExtension, KeyPair};
use rustls::crypto::aws_lc_rs;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use sha2::{Digest, Sha256};
use x509_cert::der::Decode;
use x509_cert::time::Time;

use tollgate_limit::Timestamp;
use tollgate_net::pem::Pem;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaf {
    pub(super) begins: Timestamp,
    pub(super) ends: Timestamp,
}

impl Leaf {
    /// The validity of the first certificate of a chain (PEM) with its key; `None`: the file cannot be used.
    pub(super) fn of(path: &Path, content: &[u8]) -> Option<Self> {
        let pem = Pem { path, content };
        pem.certified(pem, &aws_lc_rs::default_provider()).ok()?;
        let first = CertificateDer::from_pem_slice(content).ok()?;
        let first = x509_cert::Certificate::from_der(&first).ok()?;
        let validity = first.tbs_certificate.validity;
        Some(Self {
            begins: timestamp(validity.not_before)?,
            ends: timestamp(validity.not_after)?,
        })
    }
}

fn timestamp(time: Time) -> Option<Timestamp> {
    let micros = u64::try_from(time.to_unix_duration().as_micros()).ok()?;
    Some(Timestamp::from_micros(micros))
}

/// The certificate that proves a host in a handshake (RFC 8737 section 3).
pub(super) fn of_challenge(host: &str, answer: &str) -> Option<Arc<CertifiedKey>> {
    let mut params = CertificateParams::new(vec![host.to_owned()]).ok()?;
    let digest = Sha256::digest(answer.as_bytes());
    params.custom_extensions = vec![CustomExtension::new_acme_identifier(&digest)];
    let key = KeyPair::generate().ok()?;
    let certificate = params.self_signed(&key).ok()?;
    let key = PrivatePkcs8KeyDer::from(key.serialize_der()).into();
    let key = aws_lc_rs::default_provider()
        .key_provider
        .load_private_key(key);
    // `CertifiedKey::from_der` would read the certificate, and refuse its critical extension.
    let chain = vec![certificate.der().clone()];
    Some(Arc::new(CertifiedKey::new(chain, key.ok()?)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acme_certificate_without_its_key_cannot_be_used() {
        let made =
            || rcgen::generate_simple_self_signed(vec!["a.example".to_owned()]).expect("made");
        let (one, other) = (made(), made());
        let file = |key: String| format!("{key}{}", one.cert.pem());
        let of = |text: &str| Leaf::of(Path::new("x.pem"), text.as_bytes());
        let leaf = of(&file(one.signing_key.serialize_pem())).expect("a pair");
        assert!(leaf.begins < leaf.ends);
        assert_eq!(of(&file(other.signing_key.serialize_pem())), None);
        assert_eq!(of(&one.cert.pem()), None);
        assert_eq!(of(""), None);
    }

    #[test]
    fn acme_challenge_is_proved_by_a_critical_extension() {
        let made = of_challenge("a.example", "token.thumbprint").expect("made");
        let certificate = x509_cert::Certificate::from_der(&made.cert[0]).expect("DER");
        let extensions = certificate.tbs_certificate.extensions.expect("some");
        let named =
            |one: &&x509_cert::ext::Extension| one.extn_id.to_string() == "1.3.6.1.5.5.7.1.31";
        let found = extensions.iter().find(named).expect("RFC 8737's");
        assert!(found.critical);
        // An OCTET STRING with the digest.
        assert_eq!(found.extn_value.as_bytes()[..2], [4, 32]);
        let digest = Sha256::digest(b"token.thumbprint");
        assert_eq!(found.extn_value.as_bytes()[2..], digest[..]);
    }
}

//! Certificates and keys in the text of PEM files. An error says what the file has instead.

use std::path::Path;
use std::sync::Arc;

use tokio_rustls::rustls::Error;
use tokio_rustls::rustls::crypto::CryptoProvider;
use tokio_rustls::rustls::pki_types::pem::{self, PemObject};
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::sign::CertifiedKey;

use super::tls::TlsError;

#[derive(Clone, Copy, Debug)]
pub struct Pem<'p> {
    pub path: &'p Path,
    pub content: &'p [u8],
}

impl Pem<'_> {
    /// Every certificate in it, at least one.
    pub fn certificates(self) -> Result<Vec<CertificateDer<'static>>, TlsError> {
        let chain: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(self.content).collect();
        let chain = chain.map_err(|error| self.error(false, error.to_string()))?;
        if chain.is_empty() {
            let instead = match self.has("PRIVATE KEY-----") {
                true => "has a private key and no certificate: are two files swapped?",
                false => "has no certificate",
            };
            return Err(self.error(false, instead.to_owned()));
        }
        Ok(chain)
    }

    /// The first private key in it.
    pub fn private_key(self) -> Result<PrivateKeyDer<'static>, TlsError> {
        let read = PrivateKeyDer::from_pem_slice(self.content);
        read.map_err(|error| {
            let what = match error {
                _ if self.has("ENCRYPTED") => {
                    "has an encrypted private key, and there is nobody to ask for its password: `openssl pkey` writes it in clear".to_owned()
                }
                pem::Error::NoItemsFound if self.has("BEGIN CERTIFICATE-----") => {
                    "has a certificate and no private key: are two files swapped?".to_owned()
                }
                pem::Error::NoItemsFound => "has no private key".to_owned(),
                error => error.to_string(),
            };
            self.error(true, what)
        })
    }

    /// The certificates in `chain` with the key in this file, which must be theirs.
    pub fn certified(
        self,
        chain: Pem<'_>,
        provider: &CryptoProvider,
    ) -> Result<Arc<CertifiedKey>, TlsError> {
        let certified =
            CertifiedKey::from_der(chain.certificates()?, self.private_key()?, provider);
        certified.map(Arc::new).map_err(|error| {
            let what = match error {
                Error::InconsistentKeys(_) => {
                    format!(
                        "has another key than that of the certificate in {}",
                        chain.path.display()
                    )
                }
                error => error.to_string(),
            };
            self.error(true, what)
        })
    }

    fn has(self, label: &str) -> bool {
        self.content
            .windows(label.len())
            .any(|part| part == label.as_bytes())
    }

    fn error(self, is_of_key: bool, what: String) -> TlsError {
        TlsError::new(self.path, what).of_key(is_of_key)
    }
}

#[cfg(test)]
mod tests {
    use tokio_rustls::rustls::crypto::aws_lc_rs::default_provider;

    use super::*;

    #[test]
    fn pem_file_with_something_else_says_what_it_has() {
        let made =
            || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).expect("made");
        let (one, other) = (made(), made());
        let (chain, key) = (one.cert.pem(), one.signing_key.serialize_pem());
        let other = other.signing_key.serialize_pem();
        let encrypted = key.replace("PRIVATE KEY", "ENCRYPTED PRIVATE KEY");
        let traditional = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES-128-CBC,00\n\nAAAA\n-----END RSA PRIVATE KEY-----\n";
        let of = |chain: &str, key: &str| {
            let pem = |path, content| Pem {
                path: Path::new(path),
                content,
            };
            let key = pem("site.key", key.as_bytes());
            let read = key.certified(pem("site.pem", chain.as_bytes()), &default_provider());
            read.map(|_| ())
                .map_err(|error| (error.is_of_key, error.to_string()))
        };
        assert_eq!(of(&chain, &key), Ok(()));
        for (chain, key, is_of_key, words) in [
            (
                &*chain,
                &*other,
                true,
                "another key than that of the certificate in site.pem",
            ),
            (
                &key,
                &chain,
                false,
                "a private key and no certificate: are two files swapped?",
            ),
            (&chain, &chain, true, "a certificate and no private key"),
            ("", &key, false, "has no certificate"),
            (&chain, "", true, "has no private key"),
            (&chain, &encrypted, true, "encrypted"),
            (&chain, traditional, true, "encrypted"),
        ] {
            let (of_key, error) = of(chain, key).expect_err(words);
            assert_eq!(of_key, is_of_key, "{error}");
            assert!(
                error.contains(words)
                    && error.contains(if of_key { "site.key" } else { "site.pem" }),
                "{error}"
            );
        }
    }
}

//! Reads when certificates expire. Verifies nothing.

use std::path::Path;

use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use x509_cert::der::Decode;

use tollgate_limit::Timestamp;

/// When the first certificate of the chain in a PEM file expires: from then on clients refuse the
/// whole chain (RFC 5280 section 6.1.3). `None`: the file contains no readable certificate; the
/// code that loads it reports that.
pub fn first_expiry(chain: &Path) -> Option<Timestamp> {
    CertificateDer::pem_file_iter(chain)
        .ok()?
        .filter_map(|certificate| {
            let certificate = certificate.ok()?;
            let certificate = x509_cert::Certificate::from_der(&certificate).ok()?;
            let expires = certificate
                .tbs_certificate
                .validity
                .not_after
                .to_unix_duration();
            u64::try_from(expires.as_micros())
                .ok()
                .map(Timestamp::from_micros)
        })
        .min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_chain_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("chain.pem");
        let mut chain = String::new();
        for year in [2031, 2029, 2030] {
            let mut params =
                rcgen::CertificateParams::new(vec!["localhost".to_owned()]).expect("a name");
            params.not_after = rcgen::date_time_ymd(year, 1, 1);
            let key = rcgen::KeyPair::generate().expect("a key");
            chain += &params.self_signed(&key).expect("signed").pem();
        }
        std::fs::write(&file, chain).expect("written");
        assert_eq!(
            first_expiry(&file),
            Some(Timestamp::from_micros(1_861_920_000_000_000))
        );
        std::fs::write(&file, "nothing").expect("written");
        assert_eq!(first_expiry(&file), None);
        assert_eq!(first_expiry(&folder.path().join("absent")), None);
    }
}

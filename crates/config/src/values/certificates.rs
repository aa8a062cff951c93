//! TLS towards servers: the name that certificates are verified for, pinned certificates, and the
//! gateway's own certificate.

use std::sync::Arc;

use rustls_pki_types as pki_types;

use crate::context::Context;
use crate::declare::forms;
use crate::lists::OneOrMany;
use crate::source::{At, Place};
use crate::text::Text;
use tollgate_limit::hex;

forms! {
    /// A name for certificates, without a port.
    ServerName -> Arc<str> = server_name;
    /// The SHA-256 of a certificate.
    Pin -> [u8; 32] = pin;
    /// The certificates that servers may show.
    Pins -> Vec<[u8; 32]> as OneOrMany<Pin> = |list, context| {
        if list.is_empty() {
            context
                .error("no certificate is pinned", list.place, "an empty list")
                .help("leave it out, and certificates are verified as usual");
        }
        Some(list.iter().map(|at| at.value).collect())
    };
}

/// A client certificate and its key: both or neither.
pub(crate) fn pair(certificate: Option<Place>, key: Option<Place>, context: &mut Context<'_>) {
    let (title, place, label) = match (certificate, key) {
        (Some(place), None) => (
            "a client certificate without its key",
            place,
            "`client_key` is missing",
        ),
        (None, Some(place)) => (
            "a client key without its certificate",
            place,
            "`client_certificate` is missing",
        ),
        _ => return,
    };
    context.error(title, place, label);
}

fn server_name(text: &At<Text>, context: &mut Context<'_>) -> Option<Arc<str>> {
    let name = text.as_str().to_ascii_lowercase();
    if pki_types::ServerName::try_from(name.as_str()).is_err() {
        let title = format!("`{}` is not a server's name", text.as_str());
        let label = "a host name or an address was expected, without a port";
        context
            .error(title, text.place, label)
            .help("it is one of the names in the certificate: \"app.internal\"");
        return None;
    }
    Some(name.into())
}

/// 64 hex digits, with colons between them as `openssl` writes them or without.
fn pin(text: &At<Text>, context: &mut Context<'_>) -> Option<[u8; 32]> {
    let digest = hex::bytes(&text.as_str().replace(':', ""));
    let digest = digest.and_then(|bytes| bytes.try_into().ok());
    if digest.is_none() {
        let title = format!("`{}` is not the SHA-256 of a certificate", text.as_str());
        context
            .error(title, text.place, "64 hexadecimal digits were expected")
            .help("`openssl x509 -in server.pem -noout -fingerprint -sha256` prints them");
    }
    digest
}

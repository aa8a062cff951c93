//! An upstream's TLS: its files, the name it is verified for, and the certificates it may present.

use std::path::PathBuf;
use std::sync::Arc;

use rustls::pki_types::ServerName;

use super::Context;
use crate::problem::Problem;
use crate::reader::Field;
use crate::scalar::{OneOrMany, Text};
use crate::source::{At, Place};
use tollgate_policy::upstream::{PemFile, Server};

/// `ca_file`.
pub(super) fn authorities(text: &At<Text>, context: &mut Context<'_>) -> Option<PemFile> {
    let path = context.readable(text, "authorities are read from here")?;
    pem(path, Some(text.place), context)
}

/// The current content of the file at `path`.
pub(super) fn pem(
    path: PathBuf,
    place: Option<Place>,
    context: &mut Context<'_>,
) -> Option<PemFile> {
    match std::fs::read(&path) {
        Ok(content) => Some(PemFile {
            path,
            content: content.into(),
        }),
        Err(error) => {
            let problem = Problem::error(format!("cannot read `{}`: {error}", path.display()));
            context.push(match place {
                Some(place) => problem.at(place, "certificates and keys are read from here"),
                None => problem,
            });
            None
        }
    }
}

/// `server_name`: replaces the name in the URL of every server that uses TLS.
pub(super) fn named(
    mut servers: Vec<Server>,
    field: &Field<Text>,
    context: &mut Context<'_>,
) -> Vec<Server> {
    let Some(text) = field.get() else {
        return servers;
    };
    let name = text.as_str().to_ascii_lowercase();
    if ServerName::try_from(name.as_str()).is_err() {
        let problem = Problem::error(format!("`{}` is not a server's name", text.as_str()));
        let problem = problem.at(
            text.place,
            "a host name or an address was expected, without a port",
        );
        context.push(problem.help("it is one of the names in the certificate: \"app.internal\""));
        return servers;
    }
    let name: Arc<str> = name.into();
    for server in servers.iter_mut().filter(|server| server.tls.is_some()) {
        server.tls = Some(Arc::clone(&name));
    }
    servers
}

/// `pinned_sha256`.
pub(super) fn pinned(field: &Field<OneOrMany<Text>>, context: &mut Context<'_>) -> Vec<[u8; 32]> {
    let Some(list) = field.get() else {
        return Vec::new();
    };
    if list.list.is_empty() {
        let problem = Problem::error("no certificate is pinned").at(list.place, "an empty list");
        context.push(problem.help("leave it out, and certificates are verified as usual"));
    }
    list.list
        .iter()
        .filter_map(|text| pin(text, context))
        .collect()
}

/// 64 hex digits, with colons between them as `openssl` writes them or without.
fn pin(text: &At<Text>, context: &mut Context<'_>) -> Option<[u8; 32]> {
    let digits: Vec<u8> = text.as_str().bytes().filter(|byte| *byte != b':').collect();
    let pairs = digits
        .chunks(2)
        .map(|pair| std::str::from_utf8(pair).ok().filter(|_| pair.len() == 2));
    let hexadecimal = digits.iter().all(u8::is_ascii_hexdigit);
    let bytes: Option<Vec<u8>> = pairs
        .map(|pair| u8::from_str_radix(pair?, 16).ok())
        .collect();
    let digest = bytes
        .filter(|_| hexadecimal)
        .and_then(|bytes| <[u8; 32]>::try_from(bytes).ok());
    if digest.is_none() {
        let problem = Problem::error(format!(
            "`{}` is not the SHA-256 of a certificate",
            text.as_str()
        ));
        let problem = problem.at(text.place, "64 hexadecimal digits were expected");
        context.push(
            problem.help("`openssl x509 -in server.pem -noout -fingerprint -sha256` prints them"),
        );
    }
    digest
}

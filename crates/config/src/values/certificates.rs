//! Certificates and keys: the files that have them, pinned certificates, and the digests of tokens.

use std::path::PathBuf;

use crate::reading::{At, Context, OneOrMany, Place, Text, forms};
use tollgate_limit::hex;
use tollgate_policy::identity::callers::digest_words;
use tollgate_policy::identity::parse_digest;
use tollgate_policy::upstream::PemFile;

/// What is read from a file, for messages.
const AUTHORITIES: &str = "authorities are read from here";
const CHAIN: &str = "the certificate is read from here";
const PRIVATE_KEY: &str = "the private key is read from here";

forms! {
    Authorities -> PathBuf = |text, context| context.readable(text, AUTHORITIES);
    Chain -> PathBuf = |text, context| context.readable(text, CHAIN);
    PrivateKey -> PathBuf = |text, context| context.readable(text, PRIVATE_KEY);
    AuthoritiesPem -> PemFile = |text, context| pem(text, AUTHORITIES, context);
    ChainPem -> PemFile = |text, context| pem(text, CHAIN, context);
    PrivateKeyPem -> PemFile = |text, context| pem(text, PRIVATE_KEY, context);
}

fn pem(text: &At<Text>, what: &str, context: &mut Context<'_>) -> Option<PemFile> {
    let (path, content) = context.bytes(text, what)?;
    let content = content.into();
    Some(PemFile { path, content })
}

forms! {
    TokenDigest -> [u8; 32] = token;
    Pin -> [u8; 32] = pin;
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

fn token(text: &At<Text>, context: &mut Context<'_>) -> Option<[u8; 32]> {
    let error = match parse_digest(text.as_str()) {
        Ok(digest) => return Some(digest),
        Err(error) => error,
    };
    if text.as_str().starts_with("sha256:") {
        context.error("this is not a SHA-256", text.place, error.message);
    } else {
        let digest = digest_words(text.as_str().as_bytes());
        let title = "an operator's token is written in plain text in the file";
        let label = "operators are listed by the SHA-256 of their token";
        let problem = context.error(title, text.place, label);
        problem.secret = true;
        problem.help(format!("if this is the token itself, write \"{digest}\""));
    }
    None
}

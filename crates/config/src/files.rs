//! Files that the configuration names: certificates and keys.

use std::path::PathBuf;

use super::context::Context;
use super::declare::forms;
use super::source::At;
use super::text::Text;
use tollgate_policy::upstream::PemFile;

/// What is read from a file, for messages.
const AUTHORITIES: &str = "authorities are read from here";
const CHAIN: &str = "the certificate is read from here";
const PRIVATE_KEY: &str = "the private key is read from here";

forms! {
    /// The path of a file with authorities that certificates are verified against.
    Authorities -> PathBuf = |text, context| context.readable(text, AUTHORITIES);
    /// The path of a file with a certificate chain.
    Chain -> PathBuf = |text, context| context.readable(text, CHAIN);
    /// The path of a file with a private key.
    PrivateKey -> PathBuf = |text, context| context.readable(text, PRIVATE_KEY);
    /// A file with authorities, and its content.
    AuthoritiesPem -> PemFile = |text, context| pem(text, AUTHORITIES, context);
    /// A file with a certificate chain, and its content.
    ChainPem -> PemFile = |text, context| pem(text, CHAIN, context);
    /// A file with a private key, and its content.
    PrivateKeyPem -> PemFile = |text, context| pem(text, PRIVATE_KEY, context);
}

fn pem(text: &At<Text>, what: &str, context: &mut Context<'_>) -> Option<PemFile> {
    let (path, content) = context.bytes(text, what)?;
    let content = content.into();
    Some(PemFile { path, content })
}

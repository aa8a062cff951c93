//! Files that the configuration names: certificates and keys.

use std::marker::PhantomData;
use std::path::PathBuf;

use serde_json::Value;

use super::context::Context;
use super::reader::{Node, Read};
use super::schema::Defs;
use super::text::Text;
use tollgate_policy::upstream::PemFile;

/// What a file holds, for messages.
pub(crate) trait Content {
    const READ_HERE: &str;
}

/// Authorities that certificates are verified against.
pub(crate) enum Authorities {}
/// A certificate chain.
pub(crate) enum Chain {}
/// A private key.
pub(crate) enum PrivateKey {}

impl Content for Authorities {
    const READ_HERE: &str = "authorities are read from here";
}

impl Content for Chain {
    const READ_HERE: &str = "the certificate is read from here";
}

impl Content for PrivateKey {
    const READ_HERE: &str = "the private key is read from here";
}

/// The path of a file that exists and can be read.
#[derive(Clone, Debug)]
pub(crate) struct Readable<C>(PhantomData<C>);

impl<C: Content> Read for Readable<C> {
    type Value = PathBuf;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<PathBuf> {
        let text = Text::read_as(node, context, "a string")?;
        context.readable(&text, C::READ_HERE)
    }

    fn schema(defs: &mut Defs) -> Value {
        Text::schema(defs)
    }
}

/// A file with its content.
#[derive(Clone, Debug)]
pub(crate) struct Pem<C>(PhantomData<C>);

impl<C: Content> Read for Pem<C> {
    type Value = PemFile;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<PemFile> {
        let text = Text::read_as(node, context, "a string")?;
        let (path, content) = context.bytes(&text, C::READ_HERE)?;
        let content = content.into();
        Some(PemFile { path, content })
    }

    fn schema(defs: &mut Defs) -> Value {
        Text::schema(defs)
    }
}

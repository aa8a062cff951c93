//! Who is asking: identities, their sources, and what happens when they are missing or unknown.

use std::path::PathBuf;
use std::sync::Arc;

use http::HeaderName;
use ipnet::IpNet;

/// How a caller's address is known: the one place for trust.
#[derive(Clone, Debug)]
pub struct AddressPolicy {
    /// Forwarding headers are believed only from these.
    pub trusted_proxies: Vec<IpNet>,
    /// IPv6 callers are told apart by this many leading bits.
    pub ipv6_prefix: u8,
    /// These callers are never limited.
    pub exempt: Vec<IpNet>,
}

/// A named way to tell who is asking.
#[derive(Debug)]
pub struct Identity {
    /// Its name in the file.
    pub name: Arc<str>,
    /// The sources of its key, all of them together.
    pub sources: Vec<Source>,
    /// What happens when a source is absent.
    pub when_missing: WhenMissing,
    /// What happens when callers are listed and the key is none of them.
    pub when_unknown: WhenUnknown,
    /// Known callers, if they are listed.
    pub callers: Option<Callers>,
    /// How its `jwt:` sources are verified.
    pub jwt: Option<super::identity::JwtPolicy>,
}

/// Where one part of a key stands in a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// `address`
    Address,
    /// `header:NAME`
    Header(HeaderName),
    /// `bearer`: the token of `Authorization: Bearer`.
    Bearer,
    /// `basic`: the user of `Authorization: Basic`.
    BasicUser,
    /// `cookie:NAME`
    Cookie(String),
    /// `query:NAME`
    Query(String),
    /// `path:NAME`: a `{NAME}` segment of the route.
    Path(String),
    /// `jwt:CLAIM`: a claim of a verified token.
    JwtClaim(String),
    /// `client_certificate`: the subject of the verified client certificate.
    ClientCertificate,
}

/// What happens when an identity's key is absent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WhenMissing {
    /// 401.
    Refuse,
    /// No limit by this identity.
    Skip,
    /// The caller's address instead.
    UseAddress,
    /// Another identity instead, by index.
    Use(usize),
}

/// What happens when callers are listed and the key is none of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenUnknown {
    /// 401.
    Refuse,
    /// The caller's address instead.
    UseAddress,
    /// A caller like any other.
    Accept,
}

/// Known callers by the SHA-256 of their key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Callers {
    /// Sorted by digest.
    pub by_digest: Vec<([u8; 32], Caller)>,
}

/// One known caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Its name, for logs and keys.
    pub name: Arc<str>,
    /// Its tier.
    pub tier: Option<Arc<str>>,
}

/// How tokens are verified.
#[derive(Debug)]
pub struct JwtPolicy {
    /// Where the keys came from, for messages.
    pub keys_file: PathBuf,
}

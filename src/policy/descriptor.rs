//! The facts of one request that routes are matched by and keys are made of.

use std::borrow::Cow;
use std::net::IpAddr;

use http::{HeaderMap, Method};

use super::Peer;

/// The facts of one request. Borrowed from it; the path is decoded and normalised once, here.
#[derive(Debug)]
pub struct Descriptor<'r> {
    /// The method.
    pub method: &'r Method,
    /// The host asked for: lower case, without port or trailing dot; empty when the request names none.
    pub host: Cow<'r, str>,
    /// The path, decoded and normalised: what routes are matched against. Never what is forwarded.
    pub path: Cow<'r, str>,
    /// The query as sent, without `?`.
    pub query: Option<&'r str>,
    /// The headers.
    pub headers: &'r HeaderMap,
    /// The connection's other end.
    pub peer: Peer,
    /// The caller's address, behind trusted proxies; `None` on a Unix socket without a trusted forwarding header.
    pub client: Option<IpAddr>,
    /// The subject of the verified client certificate, if there is one.
    pub client_certificate: Option<&'r str>,
}

//! The facts of one request with which routes are matched and keys are made. Limits are not known here.

use std::borrow::Cow;
use std::cell::Cell;
use std::net::IpAddr;

use http::header::{
    ACCESS_CONTROL_REQUEST_METHOD, AUTHORIZATION, CONTENT_LENGTH, COOKIE, HOST, HeaderName,
    HeaderValue, ORIGIN, PROXY_AUTHORIZATION, TRANSFER_ENCODING,
};
use http::{HeaderMap, Method, Uri};

use super::body::BodyFacts;
use super::identity::address::{AddressPolicy, parse_host_address};
use super::identity::source::{Several, only_line};
use super::routes::method;
use super::routes::path::Malformed;
use super::routes::pattern::{HOST_MAX, is_host_character};

/// The peer of a connection, before any header is trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer's address; `None` on a Unix socket.
    pub address: Option<IpAddr>,
    pub port: u16,
    pub tls: bool,
    /// The load balancer in front declared that it names no client (PROXY protocol). Then no header
    /// is trusted either, because it passed them through unchecked.
    pub unnamed: bool,
}

impl Peer {
    pub fn is_trusted(&self, policy: &AddressPolicy) -> bool {
        !self.unnamed && policy.trusts(self.address)
    }
}

/// The facts of one request, borrowed from it. The path is decoded and normalised once, here.
#[derive(Debug)]
pub struct Descriptor<'r> {
    pub method: &'r Method,
    /// The requested host: lower case, without port or trailing dot; empty when the request names none.
    pub host: Cow<'r, str>,
    /// The path, decoded and normalised, for matching routes. Never forwarded.
    pub path: Cow<'r, str>,
    /// The path as sent, with one leading slash.
    pub target_path: &'r str,
    pub query: Option<&'r str>,
    pub headers: &'r HeaderMap,
    pub peer: Peer,
    /// The client's address, behind trusted proxies; `None` on a Unix socket without a trusted
    /// forwarding header.
    pub client: Option<IpAddr>,
    pub client_certificate: Option<&'r str>,
    /// The key that a service gives its request, if it gives one.
    pub application: Option<&'r str>,
    /// What its body says, if that was read. A cell, because the route that asks for the body is found by
    /// the other facts.
    pub body: Cell<Option<&'r BodyFacts>>,
    /// Whether another program has its body: a proxy that asks about its request.
    pub is_body_elsewhere: bool,
    /// An identity, by index, that is assumed without proof: the known caller with this name, otherwise
    /// the caller with this key. For tests in the file, which do not have the keys of known callers;
    /// never for a request.
    pub assumed: Option<(usize, &'r str)>,
}

impl<'r> Descriptor<'r> {
    /// The method a CORS preflight asks about (Fetch standard, section 4.8); `None` for any other
    /// request.
    ///
    /// A preflight is not charged, so only a request as a browser sends it is one: without
    /// credentials, without a body, and without a header or parameter that makes a server treat it
    /// as another method.
    pub fn preflight(&self) -> Option<Method> {
        if self.method != Method::OPTIONS {
            return None;
        }
        self.once(&ORIGIN)?;
        let asked = self.once(&ACCESS_CONTROL_REQUEST_METHOD)?;
        let said = NOT_IN_PREFLIGHTS
            .iter()
            .any(|name| self.headers.contains_key(name))
            || self.headers.keys().any(method::is_override)
            || (self.query).is_some_and(|query| method::is_override_in(query.as_bytes()))
            || self
                .headers
                .get_all(CONTENT_LENGTH)
                .iter()
                .any(|length| length != "0");
        let asked = Method::from_bytes(asked.trim_ascii())
            .ok()
            .filter(|asked| method::is_in_capitals(asked.as_str()));
        asked.filter(|_| !said)
    }

    /// The value of a header that appears exactly once.
    fn once(&self, name: &HeaderName) -> Option<&'r [u8]> {
        only_line(self.headers, name)
            .ok()?
            .map(HeaderValue::as_bytes)
    }
}

const NOT_IN_PREFLIGHTS: [HeaderName; 4] = [
    AUTHORIZATION,
    COOKIE,
    PROXY_AUTHORIZATION,
    TRANSFER_ENCODING,
];

/// The host a request asks for: from its URI if that names one (HTTP/2, absolute form), otherwise
/// from its Host header.
pub(super) fn requested_host<'r>(
    uri: &'r Uri,
    headers: &'r HeaderMap,
) -> Result<Cow<'r, str>, Malformed> {
    if let Some(authority) = uri.authority() {
        return normal_host(authority.as_str());
    }
    match only_line(headers, &HOST).map_err(|Several| Malformed::Host)? {
        Some(line) => {
            normal_host(std::str::from_utf8(line.as_bytes()).map_err(|_| Malformed::Host)?)
        }
        None => Ok(Cow::Borrowed("")),
    }
}

/// `HOST[:PORT]` in lower case, without port or trailing dot; borrowed if it already has this form.
/// Refuses an impossible host: user information, spaces, empty labels, an impossible port.
pub fn normal_host(text: &str) -> Result<Cow<'_, str>, Malformed> {
    if let Some(length) = plain_host(text.as_bytes()) {
        return Ok(Cow::Borrowed(&text[..length]));
    }
    let text = text.trim_ascii();
    if text.starts_with('[') {
        let end = text.find(']').ok_or(Malformed::Host)? + 1;
        check_port(&text[end..])?;
        return parse_host_address(&text[..end])
            .map(Cow::Owned)
            .ok_or(Malformed::Host);
    }
    let (name, port) = text.split_at(text.find(':').unwrap_or(text.len()));
    check_port(port)?;
    let name = name.strip_suffix('.').unwrap_or(name);
    let is_named = name.chars().all(is_host_character) && !name.split('.').any(str::is_empty);
    if name.is_empty() && port.is_empty() && text.is_empty() {
        // RFC 9112 section 3.2: a request to a target without authority sends an empty Host.
        return Ok(Cow::Borrowed(""));
    }
    if !is_named || name.len() > HOST_MAX {
        return Err(Malformed::Host);
    }
    let has_capitals = name.bytes().any(|byte| byte.is_ascii_uppercase());
    Ok(if has_capitals {
        Cow::Owned(name.to_ascii_lowercase())
    } else {
        Cow::Borrowed(name)
    })
}

/// The length of the name in `NAME[:PORT]`, if one pass finds it valid: lower-case letters, digits
/// and hyphens between single dots. `None`: the full check is needed.
pub fn plain_host(text: &[u8]) -> Option<usize> {
    let mut in_label = false;
    let mut length = 0;
    for byte in text {
        in_label = match byte {
            b'a'..=b'z' | b'0'..=b'9' | b'-' => true,
            b'.' if in_label => false,
            b':' => break,
            _ => return None,
        };
        length += 1;
    }
    let port = text.get(length + 1..).unwrap_or_default();
    let fits = port.len() < 5 || (port.len() == 5 && port <= &b"65535"[..]);
    (in_label && length <= HOST_MAX && fits && port.iter().all(u8::is_ascii_digit))
        .then_some(length)
}

fn check_port(text: &str) -> Result<(), Malformed> {
    let is_port = match text.strip_prefix(':') {
        Some("") => true,
        Some(digits) => {
            digits.bytes().all(|byte| byte.is_ascii_digit()) && digits.parse::<u16>().is_ok()
        }
        None => text.is_empty(),
    };
    if is_port {
        Ok(())
    } else {
        Err(Malformed::Host)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_form() {
        for (text, expected) in [
            ("example.com", "example.com"),
            ("EXAMPLE.com.:8080", "example.com"),
            ("a_b-c.example.com:", "a_b-c.example.com"),
            ("[2001:DB8:0::1]:80", "[2001:db8::1]"),
            ("127.0.0.1:80", "127.0.0.1"),
            ("", ""),
        ] {
            assert_eq!(normal_host(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn descriptor_invalid_host_is_refused() {
        for text in [
            "a b", "a/b", "a?b", "a\\b", "user@a", "a:x", "a:+80", "a:99999", "a..b", ".a", ".",
            ":80", "[::1", "[::1]x", "ä",
        ] {
            assert_eq!(normal_host(text), Err(Malformed::Host), "{text}");
        }
        assert_eq!(normal_host(&"a".repeat(254)), Err(Malformed::Host));
    }

    #[test]
    fn two_host_lines_are_malformed() {
        let mut headers = HeaderMap::new();
        headers.append(HOST, http::HeaderValue::from_static("a.example"));
        let uri = Uri::from_static("/x");
        assert_eq!(requested_host(&uri, &headers).as_deref(), Ok("a.example"));
        headers.append(HOST, http::HeaderValue::from_static("b.example"));
        assert_eq!(requested_host(&uri, &headers), Err(Malformed::Host));
        let absolute = Uri::from_static("http://C.example:80/x");
        assert_eq!(
            requested_host(&absolute, &headers).as_deref(),
            Ok("c.example")
        );
    }
}

//! Refuses requests whose framing, host or target two parties could read differently, and
//! normalises the others.
//!
//! It does not check syntax, which the reader of the request has done; it checks the meaning, in
//! the same way for HTTP/1 and HTTP/2. After [`normalise`] a request has exactly one Host and a
//! target in origin form.

mod host;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{EXPECT, HeaderValue, MAX_FORWARDS, SEC_WEBSOCKET_KEY, TRANSFER_ENCODING};
use http::uri::{PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri, Version};
use hyper::ext::Protocol;

use super::headers::{HeaderSet, RequestHeaders, announce_upgrade};
use tollgate_http1::head::Framing;
use tollgate_http1::{BodyLength, Message, tokens};
use tollgate_policy::routes::method::is_in_capitals;

pub use host::is_host;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Transfer-Encoding is not exactly one `chunked`.
    TransferEncoding,
    TransferCoding,
    /// No Host, more than one, or one that contradicts the target.
    Host,
    HostSyntax,
    /// The target is not a path, not an http URL, and not `*` for OPTIONS.
    Target,
    Connect,
    /// The method is longer than any known one.
    Method,
    MethodCase,
    /// HTTP/2: a header's value begins or ends with whitespace.
    FieldValue,
    /// Expect has a value other than `100-continue`.
    Expectation,
    /// There is more than one Expect, and the next hop may use another one.
    Expectations,
    /// Connection lists a header that limits, routes or bodies are read by: the next hop would not
    /// receive it.
    ConnectionOption,
    /// A header whose value routes compare has several values.
    StatedTwice,
}

tollgate_policy::labels! {
    Malformed {
        Self::TransferEncoding => "transfer_encoding",
        Self::TransferCoding => "transfer_coding",
        Self::Host => "host",
        Self::HostSyntax => "host_syntax",
        Self::Target => "target",
        Self::Connect => "connect",
        Self::Method => "method",
        Self::MethodCase => "method_case",
        Self::Expectation => "expectation",
        Self::Expectations => "expectations",
        Self::ConnectionOption => "connection_option",
        Self::StatedTwice => "stated_twice",
        Self::FieldValue => "field_value",
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget {
    pub present: HeaderSet,
    /// Its only Host; `None`: HTTP/1.0 without one.
    pub host: Option<HeaderValue>,
    /// The length of the Host's name if that is in normal form (`plain_host` in
    /// `tollgate_policy::descriptor`); `None`: it must be parsed.
    pub plain_host: Option<usize>,
    /// Its absolute form, as sent to a proxy (HTTP/1 only: over HTTP/2 every request names its authority).
    pub absolute: Option<Absolute>,
    /// Whether it came through another gateway or proxy.
    pub via: bool,
    /// Whether it asked for an upgrade by extended CONNECT; it has been converted to the HTTP/1.1 form.
    pub bridged: bool,
    /// Whether it is OPTIONS or TRACE and ends here (`Max-Forwards: 0`).
    pub last_hop: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absolute {
    pub https: bool,
}

/// Checks `request`, whose headers are `seen`, and normalises it: one Host, the target in origin
/// form.
///
/// # Errors
/// The reason why it is malformed; the connection should then be closed, because another party may
/// read its framing differently.
pub fn normalise<B>(
    request: &mut Request<B>,
    seen: &RequestHeaders,
) -> Result<RequestTarget, Malformed> {
    let bridged = check_method(request)?;
    let present = if bridged {
        seen.present.and(HeaderSet::UPGRADES)
    } else {
        seen.present
    };
    if present.has(HeaderSet::TRANSFER_ENCODING) {
        check_transfer_encoding(request.headers(), request.version())?;
    }
    if present.has(HeaderSet::EXPECT) {
        check_expectation(request.headers())?;
    }
    if request.version() >= Version::HTTP_2 {
        check_values(request.headers())?;
    }
    let (host, plain_host) = host::settle(request, seen)?;
    let via = present.has(HeaderSet::VIA);
    let last_hop = match *request.method() {
        Method::OPTIONS | Method::TRACE => count_hop(request.headers_mut()),
        _ => false,
    };
    let absolute = settle_target(request)?;
    Ok(RequestTarget {
        present,
        host,
        plain_host,
        absolute,
        via,
        bridged,
        last_hop,
    })
}

/// Converts an extended CONNECT (RFC 8441) to an HTTP/1.1 upgrade, which upstreams understand.
#[cold]
fn bridge<B>(request: &mut Request<B>) -> Result<(), Malformed> {
    let protocol = request
        .extensions_mut()
        .remove::<Protocol>()
        .ok_or(Malformed::Connect)?;
    let named = HeaderValue::from_str(protocol.as_str()).map_err(|_| Malformed::Connect)?;
    *request.method_mut() = Method::GET;
    let headers = request.headers_mut();
    if protocol.as_str().eq_ignore_ascii_case("websocket") {
        // HTTP/2 needs no key (RFC 8441 5): a key only proves that the other side has read it.
        let key = STANDARD.encode(fastrand::u128(..).to_be_bytes());
        headers.insert(
            SEC_WEBSOCKET_KEY,
            HeaderValue::from_str(&key).expect("base64 is visible ASCII"),
        );
    }
    announce_upgrade(headers, named);
    Ok(())
}

/// Decrements `Max-Forwards` (RFC 9110 7.6.2); returns whether this was the last hop. A value that
/// is not a number is ignored.
#[cold]
fn count_hop(headers: &mut HeaderMap) -> bool {
    let Some(left) = headers
        .get(MAX_FORWARDS)
        .and_then(|left| left.to_str().ok()?.trim().parse::<u64>().ok())
    else {
        return false;
    };
    match left.checked_sub(1) {
        None => true,
        Some(left) => {
            headers.insert(MAX_FORWARDS, HeaderValue::from(left));
            false
        }
    }
}

/// Checks that the method is supported. Converts an upgrade over HTTP/2 to its HTTP/1.1 form;
/// returns whether it did.
fn check_method<B>(request: &mut Request<B>) -> Result<bool, Malformed> {
    if *request.method() == Method::CONNECT {
        return bridge(request).map(|()| true);
    }
    if request.method().as_str().len() > METHOD_BYTES_MAX {
        return Err(Malformed::Method);
    }
    if !is_in_capitals(request.method().as_str()) {
        return Err(Malformed::MethodCase);
    }
    Ok(false)
}

/// Allows one header with the single value `chunked`, on HTTP/1.1 only: for `x, chunked` and
/// similar lists some parsers use the last coding, others the first (RFC 9112 6.1, 6.3). The body
/// of any other request was not read.
fn check_transfer_encoding(headers: &HeaderMap, version: Version) -> Result<(), Malformed> {
    let understood = |framing| BodyLength::of(Message::Request, version, framing).is_ok();
    if version == Version::HTTP_11 && Framing::of(headers).is_ok_and(understood) {
        return Ok(());
    }
    // The request is refused; find the reason.
    let mut lines = headers.get_all(TRANSFER_ENCODING).iter();
    let known = |token: &[u8]| {
        token.eq_ignore_ascii_case(b"chunked") || token.eq_ignore_ascii_case(b"identity")
    };
    match (lines.next(), lines.next()) {
        (Some(line), None)
            if version == Version::HTTP_11 && !tokens(line.as_bytes()).all(known) =>
        {
            Err(Malformed::TransferCoding)
        }
        _ => Err(Malformed::TransferEncoding),
    }
}

/// HTTP/1 parsers, including the upstream's, trim whitespace around a value. An untrimmed value
/// would be another caller's key here and the same key at the upstream (RFC 9113 8.2.1).
fn check_values(headers: &HeaderMap) -> Result<(), Malformed> {
    let is_padded = |value: &HeaderValue| value.as_bytes().trim_ascii().len() < value.len();
    if headers.values().any(is_padded) {
        Err(Malformed::FieldValue)
    } else {
        Ok(())
    }
}

fn check_expectation(headers: &HeaderMap) -> Result<(), Malformed> {
    let mut lines = headers.get_all(EXPECT).iter();
    let understood = |line: &HeaderValue| {
        line.as_bytes()
            .trim_ascii()
            .eq_ignore_ascii_case(b"100-continue")
    };
    match (lines.next(), lines.next()) {
        (_, Some(_)) => Err(Malformed::Expectations),
        (Some(line), None) if !understood(line) => Err(Malformed::Expectation),
        _ => Ok(()),
    }
}

/// Converts the target to origin form, or `*`; returns its absolute form, if it had one.
fn settle_target<B>(request: &mut Request<B>) -> Result<Option<Absolute>, Malformed> {
    let uri = request.uri();
    let absolute = match (uri.scheme(), uri.authority()) {
        (None, None) => None,
        (None, Some(_)) => return Err(Malformed::Target),
        (Some(scheme), _) if *scheme == Scheme::HTTP || *scheme == Scheme::HTTPS => {
            Some(Absolute {
                https: *scheme == Scheme::HTTPS,
            })
        }
        (Some(_), _) => return Err(Malformed::Target),
    };
    if absolute.is_some() {
        let uri = std::mem::take(request.uri_mut());
        let path = match uri.into_parts().path_and_query {
            // The path of `http://host?x` is empty, which means `/` (RFC 9112 3.2.1): it is
            // displayed as `/` but stored as empty.
            Some(path) if path.as_str().starts_with('?') => {
                PathAndQuery::try_from(path.to_string()).map_err(|_| Malformed::Target)?
            }
            Some(path) => path,
            None => PathAndQuery::from_static("/"),
        };
        *request.uri_mut() = Uri::from(path);
    }
    let path = request.uri().path();
    if path.starts_with('/') || (path == "*" && *request.method() == Method::OPTIONS) {
        Ok(absolute.filter(|_| request.version() < Version::HTTP_2))
    } else {
        Err(Malformed::Target)
    }
}

/// The longest registered method has 17 bytes (UPDATEREDIRECTREF).
const METHOD_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests;

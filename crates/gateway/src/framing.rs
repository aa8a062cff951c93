//! Refuses requests whose framing, host or target two parties could read differently, and gives the others one shape.
//!
//! The syntax has been checked by whoever read the request; what it means is checked here, alike for HTTP/1 and HTTP/2.
//! After [`normalise`] a request has exactly one Host and a target in origin form, whatever it came as.

use std::cell::RefCell;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http::header::{EXPECT, HOST, HeaderValue, MAX_FORWARDS, SEC_WEBSOCKET_KEY, TRANSFER_ENCODING};
use http::uri::{Authority, PathAndQuery, Scheme};
use http::{HeaderMap, Method, Request, Uri, Version};
use hyper::ext::Protocol;

use super::headers::{HeaderSet, RequestHeaders, announce_upgrade};
use tollgate_http1::head::Framing;
use tollgate_http1::{BodyLength, Message, tokens};
use tollgate_policy::descriptor::plain_host;
use tollgate_policy::method::is_in_capitals;

/// What is wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// Transfer-Encoding is anything but one `chunked`.
    #[error("Transfer-Encoding must be one single `chunked`")]
    TransferEncoding,
    /// Transfer-Encoding names a coding that is not understood.
    #[error("the only transfer coding understood is `chunked`")]
    TransferCoding,
    /// No Host, more than one, or one that does not agree with the target.
    #[error("there must be exactly one Host, and it must agree with the target")]
    Host,
    /// Host is no `host[:port]`.
    #[error("Host must be a host name or address, with a port or without")]
    HostSyntax,
    /// The target is neither a path nor an http URL nor `*` for OPTIONS.
    #[error("the request target must be a path or an http URL")]
    Target,
    /// CONNECT is not served.
    #[error("CONNECT is not served here")]
    Connect,
    /// The method is longer than any there is.
    #[error("the method is not understood")]
    Method,
    /// The method has a lower-case letter.
    #[error("a method must be in capitals")]
    MethodCase,
    /// HTTP/2: a field's value begins or ends with a blank.
    #[error("a field's value must not begin or end with a blank")]
    FieldValue,
    /// Expect says something other than `100-continue`.
    #[error("the only expectation understood is `100-continue`")]
    Expectation,
    /// Expect stands there more than once: the next hop may read another one.
    #[error("there must be at most one Expect")]
    Expectations,
}

impl Malformed {
    /// A fixed word for metrics and logs.
    pub const fn label(self) -> &'static str {
        match self {
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
            Self::FieldValue => "field_value",
        }
    }
}

/// What a request was like before it got its one shape.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTarget {
    /// Which fields it has now.
    pub present: HeaderSet,
    /// Its one Host; `None`: HTTP/1.0 without.
    pub host: Option<HeaderValue>,
    /// How much of the Host is a name in its normal form ([`plain_host`]); `None`: it takes a closer look.
    pub plain_host: Option<usize>,
    /// It was in absolute form, as a proxy is asked (HTTP/1 only: over HTTP/2 every request names its authority).
    pub absolute: Option<Absolute>,
    /// It came through another gateway or proxy.
    pub via: bool,
    /// It asked for an upgrade by extended CONNECT, and now asks for the same as HTTP/1.1 does.
    pub bridged: bool,
    /// It is OPTIONS or TRACE and goes no further than here (`Max-Forwards: 0`).
    pub last_hop: bool,
}

/// An absolute form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Absolute {
    /// It named `https`.
    pub https: bool,
}

/// Checks `request`, whose headers are `seen`, and gives it one shape: one Host, the target in origin form.
///
/// # Errors
/// What is wrong with it; the connection should then be closed, since its framing may be read differently elsewhere.
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
    let (host, plain_host) = settle_host(request, seen)?;
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

/// Gives an extended CONNECT (RFC 8441) the form that an upgrade has in HTTP/1.1: the one upstreams understand.
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
        // HTTP/2 needs none (RFC 8441 5): it says nothing but that the other side has read it.
        let key = STANDARD.encode(fastrand::u128(..).to_be_bytes());
        headers.insert(
            SEC_WEBSOCKET_KEY,
            HeaderValue::from_str(&key).expect("base64 is visible ASCII"),
        );
    }
    announce_upgrade(headers, named);
    request.extensions_mut().insert(Bridged);
    Ok(())
}

/// Marks a request that came as extended CONNECT.
#[derive(Clone, Copy, Debug)]
pub struct Bridged;

/// Counts this hop where `Max-Forwards` counts them (RFC 9110 7.6.2); whether it was the last. What is no number says
/// nothing.
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

/// Whether the method is one that is served; an upgrade over HTTP/2 is given its HTTP/1.1 form, which is told.
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

/// One field with the single value `chunked`, on HTTP/1.1 only: of `x, chunked` and its kin some go by the last coding,
/// others by the first (RFC 9112 6.1, 6.3). Nothing was read of the body of any other.
fn check_transfer_encoding(headers: &HeaderMap, version: Version) -> Result<(), Malformed> {
    let understood = |framing| BodyLength::of(Message::Request, version, framing).is_ok();
    if version == Version::HTTP_11 && Framing::of(headers).is_ok_and(understood) {
        return Ok(());
    }
    // It is refused; what is left is to say why.
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

/// HTTP/1's parser cuts blanks off a value, and so does the next that reads it in HTTP/1: one that kept them here would
/// be another caller's key to us and the same to the upstream (RFC 9113 8.2.1).
fn check_values(headers: &HeaderMap) -> Result<(), Malformed> {
    let blank = |byte: Option<&u8>| matches!(byte, Some(b' ' | b'\t'));
    let bad =
        |value: &HeaderValue| blank(value.as_bytes().first()) || blank(value.as_bytes().last());
    if headers.values().any(bad) {
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

/// Leaves exactly one checked Host. An authority in the target (absolute form) replaces it (RFC 9112 3.2.2);
/// HTTP/2's `:authority` must agree with it (RFC 9113 8.3.1). Gives the Host, and how much of it is plain.
fn settle_host<B>(
    request: &mut Request<B>,
    seen: &RequestHeaders,
) -> Result<(Option<HeaderValue>, Option<usize>), Malformed> {
    let version = request.version();
    if seen.present.has(HeaderSet::HOSTS) {
        return Err(Malformed::Host);
    }
    let host = seen.host.as_ref();
    let plain = match host.map(HeaderValue::as_bytes) {
        Some(text) => checked_host(text)?,
        None => None,
    };
    match (request.uri().authority(), host) {
        (None, Some(_)) => Ok((host.cloned(), plain)),
        // HTTP/1.0 knows no Host.
        (None, None) if version <= Version::HTTP_10 => Ok((None, None)),
        (None, None) => Err(Malformed::Host),
        (Some(_), None) if version == Version::HTTP_11 => Err(Malformed::Host),
        (Some(authority), host) => {
            let same = host.is_some_and(|host| {
                host.as_bytes()
                    .eq_ignore_ascii_case(authority.as_str().as_bytes())
            });
            if let (true, Some(host)) = (same, host) {
                return Ok((Some(host.clone()), plain));
            }
            let plain = checked_host(authority.as_str().as_bytes())?;
            if version >= Version::HTTP_2 && host.is_some() {
                return Err(Malformed::Host);
            }
            let value = host_value(authority)?;
            request.headers_mut().insert(HOST, value.clone());
            Ok((Some(value), plain))
        }
    }
}

/// [`plain_host`] of what may be a Host at all. Most requests name the host that the one before them named.
fn checked_host(text: &[u8]) -> Result<Option<usize>, Malformed> {
    LAST_HOST.with_borrow_mut(|(last, length)| {
        if *length > 0 && last == text {
            return Ok(Some(*length));
        }
        let plain = check_host(text)?;
        if let Some(found) = plain {
            last.clear();
            last.extend_from_slice(text);
            *length = found;
        }
        Ok(plain)
    })
}

thread_local! {
    /// The last plain Host, and the length of its name; 0: there was none yet.
    static LAST_HOST: RefCell<(Vec<u8>, usize)> = const { RefCell::new((Vec::new(), 0)) };
}

fn check_host(text: &[u8]) -> Result<Option<usize>, Malformed> {
    let plain = plain_host(text);
    if plain.is_some() || is_host(text) {
        Ok(plain)
    } else {
        Err(Malformed::HostSyntax)
    }
}

fn host_value(authority: &Authority) -> Result<HeaderValue, Malformed> {
    HeaderValue::from_str(authority.as_str()).map_err(|_| Malformed::HostSyntax)
}

/// Leaves the target in origin form, or `*`; what it was as absolute form.
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
        let options = *request.method() == Method::OPTIONS;
        let uri = std::mem::take(request.uri_mut());
        let bare = uri.path_and_query().is_none();
        let path = match uri.into_parts().path_and_query {
            // `OPTIONS http://host` asks about the server as a whole (RFC 9112 3.2.4).
            _ if bare && options => PathAndQuery::from_static("*"),
            // Of `http://host?x` the path is empty, which is `/` (RFC 9112 3.2.1): it is displayed so, and kept otherwise.
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

/// Whether `text` is `host [":" port]` (RFC 9110 4.2.1, RFC 3986 3.2.2): no user information, no path, no blanks.
pub fn is_host(text: &[u8]) -> bool {
    let (host, port) = match text {
        [b'[', rest @ ..] => {
            let Some(end) = rest.iter().position(|&byte| byte == b']') else {
                return false;
            };
            let literal = std::str::from_utf8(&rest[..end]).ok();
            if literal.is_none_or(|literal| literal.parse::<std::net::Ipv6Addr>().is_err()) {
                return false;
            }
            match &rest[end + 1..] {
                [] => return true,
                [b':', port @ ..] => (None, port),
                _ => return false,
            }
        }
        _ => match text.iter().position(|&byte| byte == b':') {
            Some(colon) => (Some(&text[..colon]), &text[colon + 1..]),
            None => (Some(text), &[][..]),
        },
    };
    let port_holds = port.len() <= 5
        && port.iter().all(u8::is_ascii_digit)
        && port
            .iter()
            .fold(0_u32, |sum, digit| sum * 10 + u32::from(digit - b'0'))
            <= 65_535;
    port_holds && host.is_none_or(is_reg_name)
}

fn is_reg_name(host: &[u8]) -> bool {
    if host.is_empty() {
        return false;
    }
    let mut bytes = host.iter();
    while let Some(byte) = bytes.next() {
        let fits = match byte {
            b'%' => {
                bytes.next().is_some_and(u8::is_ascii_hexdigit)
                    && bytes.next().is_some_and(u8::is_ascii_hexdigit)
            }
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+'
            | b',' | b';' | b'=' => true,
            other => other.is_ascii_alphanumeric(),
        };
        if !fits {
            return false;
        }
    }
    true
}

/// The longest registered method has 17 bytes (UPDATEREDIRECTREF).
const METHOD_BYTES_MAX: usize = 32;

#[cfg(test)]
mod tests;

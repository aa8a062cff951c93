//! The Host of a request: exactly one, valid, and the one that the target names.

use http::header::{HOST, HeaderValue};
use http::{Request, Version};

use super::Malformed;
use crate::headers::{HeaderSet, RequestHeaders};
use tollgate_policy::descriptor::plain_host;

/// Leaves exactly one checked Host. An authority in the target (absolute form) replaces it (RFC
/// 9112 3.2.2); HTTP/2's `:authority` must equal it (RFC 9113 8.3.1). Returns the Host, and the
/// length of its plain name.
pub(super) fn settle<B>(
    request: &mut Request<B>,
    seen: &RequestHeaders,
) -> Result<(Option<HeaderValue>, Option<usize>), Malformed> {
    let version = request.version();
    if seen.present.has(HeaderSet::HOSTS) {
        return Err(Malformed::Host);
    }
    let host = seen.host.as_ref();
    let plain = match host.map(HeaderValue::as_bytes) {
        Some(text) => check_host(text)?,
        None => None,
    };
    match (request.uri().authority(), host) {
        (None, Some(_)) => Ok((host.cloned(), plain)),
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
            let plain = check_host(authority.as_str().as_bytes())?;
            if version >= Version::HTTP_2 && host.is_some() {
                return Err(Malformed::Host);
            }
            let value = HeaderValue::from_str(authority.as_str());
            let value = value.map_err(|_| Malformed::HostSyntax)?;
            request.headers_mut().insert(HOST, value.clone());
            Ok((Some(value), plain))
        }
    }
}

/// [`plain_host`] of a valid Host.
fn check_host(text: &[u8]) -> Result<Option<usize>, Malformed> {
    let plain = plain_host(text);
    if plain.is_some() || is_host(text) {
        Ok(plain)
    } else {
        Err(Malformed::HostSyntax)
    }
}

/// Whether `text` is `host [":" port]` (RFC 9110 4.2.1, RFC 3986 3.2.2): no user information, no
/// path, no whitespace.
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

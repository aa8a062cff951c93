//! What a proxy does to headers: removes hop-by-hop headers, adds forwarding headers, applies the
//! route's edits.
//!
//! The functions are pure and edit in place; values are moved, not copied.

mod deadlines;
mod forwarding;
mod trailers;

use bytes::BytesMut;
use http::HeaderMap;
use http::header::{
    CONNECTION, CONTENT_LENGTH, COOKIE, HOST, HeaderName, HeaderValue, TE, TRANSFER_ENCODING,
    UPGRADE,
};

use tollgate_http1::tokens;
use tollgate_policy::is_unusual;
use tollgate_telemetry::TraceParent;

pub use self::deadlines::{DEADLINES, GRPC_TIMEOUT, ReadDeadline, grpc_timeout, reads_deadline};
pub use self::forwarding::{Origin, drop_forwarding, set_forwarding};
pub use self::trailers::{clean_request_trailers, clean_trailers};

pub const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
pub const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
pub const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PORT: HeaderName = HeaderName::from_static("x-forwarded-port");
const X_REAL_IP: HeaderName = HeaderName::from_static("x-real-ip");
const KEEP_ALIVE: HeaderName = HeaderName::from_static("keep-alive");
const PROXY_CONNECTION: HeaderName = HeaderName::from_static("proxy-connection");
const HTTP2_SETTINGS: HeaderName = HeaderName::from_static("http2-settings");

/// The set of known headers in a message, found in one pass over the names: most headers are absent
/// from most messages, and each look-up would hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HeaderSet(u32);

impl HeaderSet {
    pub const CONNECTION: Self = Self(1);
    const TE: Self = Self(1 << 1);
    const KEEP_ALIVE: Self = Self(1 << 2);
    const PROXY_CONNECTION: Self = Self(1 << 3);
    const UPGRADE: Self = Self(1 << 4);
    const HTTP2_SETTINGS: Self = Self(1 << 5);
    pub const TRANSFER_ENCODING: Self = Self(1 << 6);
    const FORWARDED: Self = Self(1 << 7);
    const X_REAL_IP: Self = Self(1 << 8);
    const X_FORWARDED_PORT: Self = Self(1 << 9);
    pub const EXPECT: Self = Self(1 << 10);
    pub const CONTENT_LENGTH: Self = Self(1 << 11);
    pub const CONTENT_TYPE: Self = Self(1 << 12);
    pub const ORIGIN: Self = Self(1 << 13);
    pub const USER_AGENT: Self = Self(1 << 14);
    pub const REFERER: Self = Self(1 << 15);
    pub const VIA: Self = Self(1 << 16);
    /// A name with other characters than letters, digits and hyphens: set for request headers only
    /// ([`RequestHeaders`]).
    pub const UNUSUAL: Self = Self(1 << 17);
    pub const GRPC_TIMEOUT: Self = Self(1 << 20);
    pub const HOSTS: Self = Self(1 << 18);
    /// The headers that [`announce_upgrade`] adds.
    pub const UPGRADES: Self = Self(1 | 1 << 4);
    pub const HOST: Self = Self(1 << 19);
    /// `Connect-Timeout-Ms`, and the headers in which Envoy reads a deadline
    pub const TIMEOUT_MS: Self = Self(1 << 25);
    const X_FORWARDED_FOR: Self = Self(1 << 21);
    /// `Forwarded` or `X-Forwarded-For`, which name clients.
    pub const NAMES_CLIENT: Self = Self(1 << 7 | 1 << 21);
    const X_FORWARDED_PROTO: Self = Self(1 << 22);
    const X_FORWARDED_HOST: Self = Self(1 << 23);
    const TRACEPARENT: Self = Self(1 << 24);
    const HOP_BY_HOP: Self = Self(0b111_1111);
    const CLAIMS: Self = Self(0b111 << 7 | 0b111 << 21);

    pub fn of(headers: &HeaderMap) -> Self {
        headers
            .keys()
            .fold(Self(0), |present, name| present.and(Self::bit(name)))
    }

    #[must_use]
    pub const fn and(self, more: Self) -> Self {
        Self(self.0 | more.0)
    }

    /// The set of `headers`, whose set this was before some of them were removed or set.
    pub fn after_edits(self, headers: &HeaderMap) -> Self {
        Self::of(headers).and(Self(self.0 & Self::UNUSUAL.0))
    }

    pub const fn decides_form(self) -> bool {
        self.has(Self(Self::CONTENT_TYPE.0 | Self::ORIGIN.0))
    }

    pub const fn has(self, fields: Self) -> bool {
        self.0 & fields.0 != 0
    }

    fn bit(name: &HeaderName) -> Self {
        match name.as_str() {
            "te" => Self::TE,
            "via" => Self::VIA,
            "host" => Self::HOST,
            "expect" => Self::EXPECT,
            "origin" => Self::ORIGIN,
            "upgrade" => Self::UPGRADE,
            "referer" => Self::REFERER,
            "forwarded" => Self::FORWARDED,
            "x-real-ip" => Self::X_REAL_IP,
            "connection" => Self::CONNECTION,
            "keep-alive" => Self::KEEP_ALIVE,
            "user-agent" => Self::USER_AGENT,
            "traceparent" => Self::TRACEPARENT,
            "content-type" => Self::CONTENT_TYPE,
            "grpc-timeout" => Self::GRPC_TIMEOUT,
            "content-length" => Self::CONTENT_LENGTH,
            "http2-settings" => Self::HTTP2_SETTINGS,
            "proxy-connection" => Self::PROXY_CONNECTION,
            "x-forwarded-for" => Self::X_FORWARDED_FOR,
            "x-forwarded-port" => Self::X_FORWARDED_PORT,
            "x-forwarded-host" => Self::X_FORWARDED_HOST,
            "x-forwarded-proto" => Self::X_FORWARDED_PROTO,
            "transfer-encoding" => Self::TRANSFER_ENCODING,
            "connect-timeout-ms"
            | "x-envoy-upstream-rq-timeout-ms"
            | "x-envoy-expected-rq-timeout-ms"
            | "x-envoy-upstream-stream-duration-ms"
            | "x-envoy-upstream-rq-per-try-timeout-ms" => Self::TIMEOUT_MS,
            _ => Self(0),
        }
    }
}

#[derive(Clone, Debug)]
pub struct RequestHeaders {
    pub present: HeaderSet,
    pub host: Option<HeaderValue>,
    pub user_agent: Option<HeaderValue>,
    pub referer: Option<HeaderValue>,
    /// The trace; `None`: `traceparent` is missing, malformed, or not the only one.
    pub trace: Option<TraceParent>,
}

impl RequestHeaders {
    pub fn of(headers: &HeaderMap) -> Self {
        let mut present = HeaderSet(0);
        let (mut host, mut user_agent, mut referer, mut trace) = (None, None, None, None);
        for (name, value) in headers {
            let field = HeaderSet::bit(name);
            match field {
                HeaderSet::HOST if host.is_some() => present = present.and(HeaderSet::HOSTS),
                HeaderSet::HOST => host = Some(value),
                HeaderSet::USER_AGENT => user_agent = user_agent.or(Some(value)),
                HeaderSet::REFERER => referer = referer.or(Some(value)),
                HeaderSet::TRACEPARENT if present.has(field) => trace = None,
                HeaderSet::TRACEPARENT => trace = TraceParent::parse(value.as_bytes()),
                HeaderSet(0) if is_unusual(name.as_str().as_bytes()) => {
                    present = present.and(HeaderSet::UNUSUAL)
                }
                _ => {}
            }
            present = present.and(field);
        }
        Self {
            present,
            host: host.cloned(),
            user_agent: user_agent.cloned(),
            referer: referer.cloned(),
            trace,
        }
    }
}

/// The values of hop-by-hop headers before they were removed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hop {
    /// The one protocol to which the message asks for (or announces) an upgrade.
    pub upgrade: Option<HeaderValue>,
    pub trailers: bool,
}

/// Removes the hop-by-hop headers of a message: first all names in Connection lines, then the
/// headers that are always hop-by-hop (RFC 9110 7.6.1). Call it before own headers are added, so
/// that no peer can remove them.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) -> Hop {
    let mut present = HeaderSet::of(headers);
    strip_present(headers, &mut present)
}

/// [`strip_hop_by_hop`] with the known set of headers, which it updates if other headers than the
/// hop-by-hop ones are removed.
pub fn strip_present(headers: &mut HeaderMap, present: &mut HeaderSet) -> Hop {
    let mut hop = Hop::default();
    if !present.has(HeaderSet::HOP_BY_HOP) {
        return hop;
    }
    if present.has(HeaderSet::CONNECTION) {
        let listed = listed(headers);
        if options(headers).any(|one| one.eq_ignore_ascii_case(b"upgrade")) {
            hop.upgrade = upgrade(headers);
        }
        headers.remove(CONNECTION);
        if !listed.is_empty() {
            for name in listed {
                headers.remove(name);
            }
            *present = present.after_edits(headers);
        }
    }
    // A Connection line may have listed the header, which is gone then and found empty here.
    if present.has(HeaderSet::TE) {
        hop.trailers = headers.get_all(TE).iter().any(|line| {
            tokens(line.as_bytes()).any(|token| {
                let name = token.split(|&byte| byte == b';').next();
                name.is_some_and(|name| name.trim_ascii().eq_ignore_ascii_case(b"trailers"))
            })
        });
        headers.remove(TE);
    }
    for (field, name) in [
        (HeaderSet::KEEP_ALIVE, KEEP_ALIVE),
        (HeaderSet::PROXY_CONNECTION, PROXY_CONNECTION),
        (HeaderSet::UPGRADE, UPGRADE),
        (HeaderSet::HTTP2_SETTINGS, HTTP2_SETTINGS),
        (HeaderSet::TRANSFER_ENCODING, TRANSFER_ENCODING),
    ] {
        if present.has(field) {
            headers.remove(name);
        }
    }
    hop
}

fn options(headers: &HeaderMap) -> impl Iterator<Item = &[u8]> {
    let lines = headers.get_all(CONNECTION).iter();
    lines.flat_map(|line| tokens(line.as_bytes()))
}

/// The headers that Connection lists, besides those that every proxy removes. A peer must not remove
/// framing and routing headers (RFC 9110 7.6.1: a sender MUST NOT list fields meant for all recipients).
pub fn listed(headers: &HeaderMap) -> Vec<HeaderName> {
    let common = |option: &&[u8]| {
        [&b"close"[..], b"keep-alive", b"te", b"upgrade"]
            .iter()
            .any(|known| option.eq_ignore_ascii_case(known))
    };
    options(headers)
        .filter(|option| !common(option))
        .filter_map(|option| HeaderName::from_bytes(option).ok())
        .filter(|name| name != HOST && name != CONTENT_LENGTH && name != TRANSFER_ENCODING)
        .collect()
}

/// The one protocol named by Upgrade. A list of several is ignored, which RFC 9110 7.8 allows,
/// because two parties could choose differently.
fn upgrade(headers: &HeaderMap) -> Option<HeaderValue> {
    let mut lines = headers.get_all(UPGRADE).iter();
    let only = lines.next().filter(|_| lines.next().is_none())?;
    (!only.is_empty() && !only.as_bytes().contains(&b',')).then(|| only.clone())
}

/// Adds the headers of an upgrade again, on either side of the gateway.
pub fn announce_upgrade(headers: &mut HeaderMap, protocol: HeaderValue) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
}

/// Joins the Cookie headers: HTTP/2 may split them, HTTP/1.1 allows one (RFC 9113 8.2.3).
pub fn join_cookies(headers: &mut HeaderMap) {
    let mut lines = headers.get_all(COOKIE).iter();
    if lines.next().is_none() || lines.next().is_none() {
        return;
    }
    let mut joined = BytesMut::new();
    for line in headers.get_all(COOKIE) {
        if !joined.is_empty() {
            joined.extend_from_slice(b"; ");
        }
        joined.extend_from_slice(line.as_bytes());
    }
    let value = HeaderValue::from_maybe_shared(joined.freeze())
        .expect("joined field values are a field value");
    headers.insert(COOKIE, value);
}

#[cfg(test)]
mod tests;

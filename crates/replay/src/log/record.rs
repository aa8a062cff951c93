//! One request as a log tells it, whatever the format.

use std::borrow::Cow;

use smallvec::SmallVec;

/// A value of a log line: borrowed where it stands there as it is.
pub(crate) type Text<'a> = Cow<'a, [u8]>;

/// One request. What the format does not hold is `None` or empty.
#[derive(Clone, Debug, Default)]
pub struct Record<'a> {
    pub kind: Kind,
    /// The moment of the stamp, microseconds since the Unix epoch.
    pub at: u64,
    /// What the stamp is rounded down to, microseconds.
    pub resolution: u32,
    /// From the request's start to its end, microseconds.
    pub duration: Option<u64>,
    /// An address, or a host name where the server looked names up.
    pub client: Option<Text<'a>>,
    /// The user that the server authenticated.
    pub user: Option<Text<'a>>,
    pub method: Text<'a>,
    /// Path and query, or a URL.
    pub target: Text<'a>,
    pub host: Option<Text<'a>>,
    pub status: Option<u16>,
    /// Bytes of the response's body.
    pub sent: Option<u64>,
    /// Bytes of the request's body.
    pub received: Option<u64>,
    /// Request headers, names in lower case.
    pub headers: SmallVec<[(Text<'a>, Text<'a>); 2]>,
    /// The caller's key, where `--fields key=` names it.
    pub key: Option<Text<'a>>,
    /// Units, where `--fields cost=` names them.
    pub cost: Option<u64>,
    /// Whether the line says that only a sample of requests is logged.
    pub sampled: bool,
    /// What only Tollgate's own log holds.
    pub own: Option<Box<Own>>,
}

/// What Tollgate's own log holds beside what all logs do.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// The decision's number, by which lines that are missing are found.
    pub id: Option<u64>,
    /// Whether the gateway itself turned the request away.
    pub refused: bool,
    pub reason: String,
    /// The known caller's name; empty: none.
    pub caller: String,
    /// The tier of the caller; empty: none.
    pub tier: String,
    pub forwarded: bool,
    pub limits: Vec<OwnLimit>,
}

/// What one limit said of a request of Tollgate's own log.
#[derive(Clone, Debug, Default)]
pub struct OwnLimit {
    pub name: String,
    pub candidate: bool,
    /// The bucket's key as logged.
    pub key: String,
    pub cost: u64,
    /// Whether it could pay; `None`: it was not judged.
    pub allowed: Option<bool>,
}

/// What a line's time marks. The comments are the help of `--stamps`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "clap", derive(clap::ValueEnum))]
pub enum Stamp {
    /// The start of a request: Apache
    #[default]
    Start,
    /// The end of its response: NGINX
    End,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    #[default]
    Tollgate,
    /// Common and combined, with or without virtual host and tail.
    Combined,
    TraefikClf,
    /// An NGINX `log_format` given as text.
    LogFormat,
    Caddy,
    Traefik,
    Envoy,
    EnvoyText,
    HaProxy,
    Alb,
    /// W3C extended, CloudFront among them.
    W3c,
    Cloudflare,
    /// JSON lines with the usual names.
    Json,
    /// CSV or JSON lines by `--fields`.
    Fields,
}

impl Kind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Tollgate => "Tollgate",
            Self::Combined => "combined",
            Self::TraefikClf => "Traefik (common)",
            Self::LogFormat => "log_format",
            Self::Caddy => "Caddy",
            Self::Traefik => "Traefik (JSON)",
            Self::Envoy => "Envoy (JSON)",
            Self::EnvoyText => "Envoy (text)",
            Self::HaProxy => "HAProxy",
            Self::Alb => "AWS ALB",
            Self::W3c => "W3C extended",
            Self::Cloudflare => "Cloudflare",
            Self::Json => "JSON lines",
            Self::Fields => "by --fields",
        }
    }

    /// What its stamp marks unless the user says otherwise: what the servers that write this format log.
    pub fn default_stamp(self) -> Stamp {
        match self {
            Self::Caddy | Self::Alb | Self::W3c => Stamp::End,
            kind if kind.is_ambiguous() => Stamp::End,
            _ => Stamp::Start,
        }
    }

    /// Whether its stamp could as well mark the other end, so that the default is said.
    pub fn is_ambiguous(self) -> bool {
        matches!(self, Self::Combined | Self::LogFormat | Self::Json)
    }
}

impl<'a> Record<'a> {
    /// Adds a header whose value the line has.
    pub(super) fn header(&mut self, name: &'static str, value: Option<Text<'a>>) {
        let value = value.map(|value| (Cow::Borrowed(name.as_bytes()), value));
        self.headers.extend(value);
    }

    /// Whether its client and its host are single words: a line that is not of the format that it was read as has
    /// other text in their place.
    pub(super) fn names_one_client(&self) -> bool {
        let is_word = |text: &Text<'_>| {
            !text
                .iter()
                .any(|byte| byte.is_ascii_whitespace() || *byte == b',')
        };
        self.client.iter().chain(&self.host).all(is_word)
    }

    /// The greatest number of units that the line names.
    pub(super) fn greatest_cost(&self) -> u64 {
        let own = self.own.iter().flat_map(|own| &own.limits);
        let costs = own.map(|limit| limit.cost).chain(self.cost);
        costs.max().unwrap_or(0)
    }
}

/// A value that means "none" in most formats.
pub(crate) fn given(text: &[u8]) -> Option<Text<'_>> {
    (!text.is_empty() && text != b"-").then_some(Cow::Borrowed(text))
}

/// A number in digits only.
pub(crate) fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    text.parse().ok().filter(|_| !text.starts_with('+'))
}

pub(crate) fn status(text: &[u8]) -> Option<u16> {
    let status = u16::try_from(number(text)?).ok()?;
    (100..=999).contains(&status).then_some(status)
}

/// Seconds with decimals (`0.123`), in microseconds; further digits are cut.
pub(crate) fn seconds(text: &[u8]) -> Option<u64> {
    decimal(text, 6)
}

/// A decimal number scaled by `10^places`, cut.
pub(crate) fn decimal(text: &[u8], places: usize) -> Option<u64> {
    let point = memchr::memchr(b'.', text).unwrap_or(text.len());
    let mut value = number(&text[..point])?;
    let decimals = text.get(point + 1..).unwrap_or_default();
    if !decimals.iter().all(u8::is_ascii_digit) || (point < text.len() && decimals.is_empty()) {
        return None;
    }
    for place in 0..places {
        let digit = decimals.get(place).map_or(0, |byte| byte - b'0');
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(value)
}

/// Splits `METHOD TARGET [PROTOCOL]`; `None` where no method stands.
pub(crate) fn request_line(line: &[u8]) -> Option<(&[u8], &[u8])> {
    let space = memchr::memchr(b' ', line)?;
    let (method, rest) = (&line[..space], &line[space + 1..]);
    let target = match memchr::memrchr(b' ', rest) {
        Some(end) if rest[end + 1..].starts_with(b"HTTP/") => &rest[..end],
        // HTTP/0.9, and requests with blanks in their path.
        _ => rest,
    };
    (is_method(method) && !target.is_empty()).then_some((method, target))
}

/// Whether it is a method: a token in capitals. A load balancer writes `-` where it read none.
pub(crate) fn is_method(text: &[u8]) -> bool {
    text.len() <= 32
        && text.first().is_some_and(u8::is_ascii_uppercase)
        && text
            .iter()
            .all(|byte| byte.is_ascii_uppercase() || matches!(byte, b'-' | b'_'))
}

/// The path and query of an absolute URL, and its host; a path is returned as it is.
pub(crate) fn split_url(target: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let scheme = memchr::memmem::find(target, b"://");
    let Some(scheme) = scheme.filter(|at| *at <= 8 && !target.starts_with(b"/")) else {
        return (None, target);
    };
    let rest = &target[scheme + 3..];
    let path = rest
        .iter()
        .position(|byte| matches!(byte, b'/' | b'?'))
        .unwrap_or(rest.len());
    let (host, path) = rest.split_at(path);
    (Some(host), if path.is_empty() { b"/" } else { path })
}

/// An address without its port: `192.0.2.1:80`, `[2001:db8::1]:80`.
pub(crate) fn without_port(text: &[u8]) -> &[u8] {
    if let Some(inside) = text.strip_prefix(b"[") {
        return &inside[..memchr::memchr(b']', inside).unwrap_or(inside.len())];
    }
    match memchr::memrchr(b':', text) {
        // Two colons: an IPv6 address without brackets.
        Some(colon) if memchr::memchr(b':', &text[..colon]).is_none() => &text[..colon],
        _ => text,
    }
}

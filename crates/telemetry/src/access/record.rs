//! One request as a record of the access log.

use std::cell::{Cell, RefCell};
use std::io::Write;
use std::net::IpAddr;

use super::{Format, Keys, escape};
use crate::text::push_dotted;
use crate::trace::TraceParent;

/// One finished request. Borrowed: nothing is copied before it is formatted.
#[derive(Clone, Debug, Default)]
pub struct Record<'r> {
    /// When its head had arrived, microseconds since the Unix epoch.
    pub at_micros: u64,
    pub id: &'r str,
    pub trace: Option<TraceParent>,
    pub method: &'r str,
    pub path: &'r str,
    /// The query, if it is to be logged; empty: none. Queries may contain secrets.
    pub query: &'r str,
    pub host: &'r [u8],
    pub protocol: &'r str,
    pub route: &'r str,
    /// The status of the response; 499 if the client left before there was one.
    pub status: u16,
    /// Whether the gateway refused it: such records are never sampled or crowded out.
    pub refused: bool,
    /// The reason of a refusal or failure: a fixed word; empty: neither.
    pub reason: &'r str,
    pub received_bytes: u64,
    pub sent_bytes: u64,
    /// The time from its head to the end of its response, microseconds.
    pub duration_micros: u64,
    /// The time until the head of the upstream's response; `None`: no upstream was used.
    pub upstream_micros: Option<u64>,
    /// The part of that spent by the store, microseconds; `None`: every bucket was local.
    pub store_micros: Option<u64>,
    pub client: Option<IpAddr>,
    pub caller: &'r str,
    pub tier: &'r str,
    pub charges: &'r [Charge<'r>],
    /// What the response states that it used; `None`: nothing.
    pub usage: Option<Usage<'r>>,
    /// The retry time, microseconds; `None`: none was sent.
    pub retry_after_micros: Option<u64>,
    pub upstream: &'r str,
    /// The target of its route that its charges are for; 0: the route's own.
    pub over_limit: u64,
    pub user_agent: &'r [u8],
    pub referer: &'r [u8],
}

/// The tokens of a response and what they cost.
#[derive(Clone, Debug, Default)]
pub struct Usage<'r> {
    pub model: &'r str,
    /// How many of each kind, by its word.
    pub tokens: Vec<(&'static str, u64)>,
    /// In millionths of the currency; `None`: no limit of the request counts money.
    pub cost: Option<u64>,
    pub currency: &'r str,
}

#[derive(Clone, Copy, Debug, Default)]
pub struct Charge<'r> {
    pub limit: &'r str,
    pub key: &'r [u8],
    /// Whether it is the limit's candidate, which only counts.
    pub candidate: bool,
    pub cost: u64,
    pub settled: Option<u64>,
    pub remaining: u64,
    /// The result: `allow`, `deny`, `shadow_deny`; `ungoverned`: granted without its store, which
    /// did not respond; `unasked`: no store was asked.
    pub outcome: &'static str,
}

impl Record<'_> {
    pub fn line(&self, format: Format, keys: &Keys) -> Vec<u8> {
        let mut line = Vec::new();
        self.write(&mut line, format, &Stamp::default(), keys);
        line
    }

    pub(super) fn write(&self, into: &mut Vec<u8>, format: Format, stamp: &Stamp, keys: &Keys) {
        match format {
            Format::Json => self.json(into, stamp, keys),
            Format::Combined => self.combined(into, stamp),
        }
    }

    /// Appends the record as a line of JSON. Empty fields are left out.
    pub(super) fn json(&self, into: &mut Vec<u8>, stamp: &Stamp, keys: &Keys) {
        into.reserve(TYPICAL);
        into.extend_from_slice(b"{\"time\":\"");
        stamp.rfc3339(into, self.at_micros);
        into.extend_from_slice(b"\",\"id\":\"");
        into.extend_from_slice(self.id.as_bytes());
        if let Some(trace) = &self.trace {
            into.extend_from_slice(b"\",\"trace_id\":\"");
            into.extend_from_slice(&trace.trace());
            into.extend_from_slice(b"\",\"span_id\":\"");
            into.extend_from_slice(&trace.span());
        }
        into.extend_from_slice(b"\",\"status\":");
        number(into, u64::from(self.status));
        word(into, b",\"method\":\"", self.method);
        text(into, b",\"host\":\"", self.host);
        text(into, b",\"path\":\"", self.path.as_bytes());
        text(into, b",\"query\":\"", self.query.as_bytes());
        word(into, b",\"protocol\":\"", self.protocol);
        text(into, b",\"route\":\"", self.route.as_bytes());
        if let Some(client) = self.client {
            into.extend_from_slice(b",\"client\":\"");
            address(into, client);
            into.push(b'"');
        }
        text(into, b",\"caller\":\"", self.caller.as_bytes());
        text(into, b",\"tier\":\"", self.tier.as_bytes());
        if self.refused {
            into.extend_from_slice(b",\"refused\":true");
        }
        word(into, b",\"reason\":\"", self.reason);
        self.limits(into, keys);
        if let Some(usage) = &self.usage {
            usage.json(into);
        }
        if let Some(micros) = self.retry_after_micros {
            field(into, b",\"retry_after_ms\":", micros.div_ceil(1_000));
        }
        field(into, b",\"received_bytes\":", self.received_bytes);
        field(into, b",\"sent_bytes\":", self.sent_bytes);
        field(into, b",\"duration_us\":", self.duration_micros);
        text(into, b",\"upstream\":\"", self.upstream.as_bytes());
        if self.over_limit > 0 {
            field(into, b",\"over_limit\":", self.over_limit);
        }
        if let Some(micros) = self.upstream_micros {
            field(into, b",\"upstream_us\":", micros);
        }
        if let Some(micros) = self.store_micros {
            field(into, b",\"store_us\":", micros);
        }
        text(into, b",\"user_agent\":\"", self.user_agent);
        text(into, b",\"referer\":\"", self.referer);
        into.extend_from_slice(b"}\n");
    }

    fn limits(&self, into: &mut Vec<u8>, keys: &Keys) {
        for (place, charge) in self.charges.iter().enumerate() {
            into.extend_from_slice(if place == 0 {
                b",\"limits\":[{\"name\":\""
            } else {
                b",{\"name\":\""
            });
            escape::json(into, charge.limit.as_bytes());
            into.extend_from_slice(if charge.candidate {
                b"\",\"candidate\":true"
            } else {
                b"\""
            });
            if !charge.key.is_empty() {
                into.extend_from_slice(b",\"key\":\"");
                match keys {
                    Keys::Hashed(names) => into.extend_from_slice(&names.name(charge.key)),
                    Keys::Plain => escape::json(into, charge.key),
                }
                into.push(b'"');
            }
            field(into, b",\"cost\":", charge.cost);
            if let Some(settled) = charge.settled {
                field(into, b",\"settled\":", settled);
            }
            field(into, b",\"remaining\":", charge.remaining);
            word(into, b",\"outcome\":\"", charge.outcome);
            into.push(b'}');
        }
        if !self.charges.is_empty() {
            into.push(b']');
        }
    }

    pub(super) fn combined(&self, into: &mut Vec<u8>, stamp: &Stamp) {
        match self.client {
            Some(client) => address(into, client),
            None => into.push(b'-'),
        }
        into.extend_from_slice(b" - ");
        if self.caller.is_empty() {
            into.push(b'-');
        } else {
            // The column has no quotes, so a space or a quote would shift the columns after it.
            for byte in self.caller.bytes() {
                into.push(if byte.is_ascii_graphic() && byte != b'"' {
                    byte
                } else {
                    b'_'
                });
            }
        }
        into.extend_from_slice(b" [");
        stamp.combined(into, self.at_micros);
        into.extend_from_slice(b"] \"");
        escape::combined(into, self.method.as_bytes());
        into.push(b' ');
        escape::combined(into, self.path.as_bytes());
        if !self.query.is_empty() {
            into.push(b'?');
            escape::combined(into, self.query.as_bytes());
        }
        into.push(b' ');
        escape::combined(into, self.protocol.as_bytes());
        into.extend_from_slice(b"\" ");
        number(into, u64::from(self.status));
        into.push(b' ');
        number(into, self.sent_bytes);
        for quoted in [self.referer, self.user_agent] {
            into.extend_from_slice(b" \"");
            escape::combined(into, if quoted.is_empty() { b"-" } else { quoted });
            into.push(b'"');
        }
        into.push(b'\n');
    }
}

impl Usage<'_> {
    fn json(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(b",\"usage\":{\"model\":\"");
        escape::json(into, self.model.as_bytes());
        into.push(b'"');
        for (kind, count) in &self.tokens {
            into.extend_from_slice(b",\"");
            into.extend_from_slice(kind.as_bytes());
            field(into, b"\":", *count);
        }
        if let Some(cost) = self.cost {
            field(into, b",\"cost\":", cost);
            word(into, b",\"currency\":\"", self.currency);
        }
        into.push(b'}');
    }
}

/// `opening` is the comma, the name and the characters before the value, copied as one piece.
fn text(into: &mut Vec<u8>, opening: &[u8], value: &[u8]) {
    if value.is_empty() {
        return;
    }
    into.extend_from_slice(opening);
    escape::json(into, value);
    into.push(b'"');
}

/// As [`text`], for values without special characters: fixed words, and methods.
fn word(into: &mut Vec<u8>, opening: &[u8], value: &str) {
    debug_assert!(
        value
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\'),
        "{value:?}"
    );
    if !value.is_empty() {
        into.extend_from_slice(opening);
        into.extend_from_slice(value.as_bytes());
        into.push(b'"');
    }
}

fn field(into: &mut Vec<u8>, opening: &[u8], value: u64) {
    into.extend_from_slice(opening);
    number(into, value);
}

fn number(into: &mut Vec<u8>, value: u64) {
    into.extend_from_slice(itoa::Buffer::new().format(value).as_bytes());
}

fn address(into: &mut Vec<u8>, address: IpAddr) {
    match address {
        IpAddr::V4(v4) => push_dotted(into, v4),
        IpAddr::V6(v6) => write!(into, "{v6}").unwrap_or_default(),
    }
}

const TYPICAL: usize = 768;

/// The calendar part of a time, computed once a second.
#[derive(Debug)]
pub(super) struct Stamp {
    second: Cell<u64>,
    rfc3339: RefCell<String>,
    combined: RefCell<String>,
}

impl Default for Stamp {
    fn default() -> Self {
        Self {
            second: Cell::new(u64::MAX),
            rfc3339: RefCell::default(),
            combined: RefCell::default(),
        }
    }
}

impl Stamp {
    fn rfc3339(&self, into: &mut Vec<u8>, micros: u64) {
        self.turn(micros / 1_000_000);
        into.extend_from_slice(self.rfc3339.borrow().as_bytes());
        // A seventh digit keeps the leading zeros.
        let mut digits = itoa::Buffer::new();
        let behind = digits.format(1_000_000 + micros % 1_000_000).as_bytes();
        let behind = behind.last_chunk::<6>();
        into.push(b'.');
        into.extend_from_slice(behind.expect("seven digits"));
        into.push(b'Z');
    }

    fn combined(&self, into: &mut Vec<u8>, micros: u64) {
        self.turn(micros / 1_000_000);
        into.extend_from_slice(self.combined.borrow().as_bytes());
    }

    fn turn(&self, second: u64) {
        if self.second.replace(second) == second {
            return;
        }
        let moment = i64::try_from(second)
            .ok()
            .and_then(|second| jiff::Timestamp::from_second(second).ok());
        let moment = moment.unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        *self.rfc3339.borrow_mut() = moment.strftime("%Y-%m-%dT%H:%M:%S").to_string();
        *self.combined.borrow_mut() = moment.strftime("%d/%b/%Y:%H:%M:%S +0000").to_string();
    }
}

//! Text formats of load balancers and proxies: HAProxy, AWS ALB, Envoy, W3C extended (CloudFront, IIS).

use std::borrow::Cow;

use memchr::{memchr, memmem};

use super::clf::{quoted, token, tokens};
use super::record::{
    Kind, Record, Text, decimal, given, is_method, number, request_line, seconds, split_url,
    status, without_port,
};
use super::role::{Draft, Role};
use super::time::Times;
use tollgate_limit::hex::percent_decoded;

/// HAProxy's `httplog`, with the syslog prefix or without.
pub(crate) fn haproxy<'a>(line: &'a [u8], times: &Times) -> Option<Record<'a>> {
    let open = memmem::find(line, b" [")?;
    let close = open + memchr(b']', &line[open..])?;
    let client = line[..open].rsplit(|byte| *byte == b' ').next()?;
    let (at, resolution) = times.haproxy(&line[open + 2..close])?;
    let ([_frontend, _server, timers, code, sent], rest) = tokens(&line[close + 1..])?;
    // TR/Tw/Tc/Tr/Ta: the last one is the whole; `+` says that the log was written early.
    let total = timers.rsplit(|byte| *byte == b'/').next()?;
    if timers.iter().filter(|byte| **byte == b'/').count() != 4 {
        return None;
    }
    let total = number(total.strip_prefix(b"+").unwrap_or(total));
    let request = memchr(b'"', rest)?;
    let (request, _) = quoted(&rest[request..])
        // A request that was cut has no closing quote.
        .or_else(|| Some((&rest[request + 1..], &[][..])))?;
    let (method, target) = request_line(request)?;
    let (host, target) = split_url(target);
    Some(Record {
        kind: Kind::HaProxy,
        at,
        resolution,
        duration: total.and_then(|millis| millis.checked_mul(1_000)),
        client: given(without_port(client)),
        method: Cow::Borrowed(method),
        target: Cow::Borrowed(target),
        host: host.map(|host| Cow::Borrowed(without_port(host))),
        status: status(code),
        sent: number(sent.strip_prefix(b"+").unwrap_or(sent)),
        ..Record::default()
    })
}

pub(crate) fn alb<'a>(line: &'a [u8], times: &Times) -> Option<Record<'a>> {
    let ([scheme, time, _balancer, client, _target], rest) = tokens(line)?;
    if !ALB.contains(&scheme) {
        return None;
    }
    let (at, resolution) = times.iso(time)?;
    // -1: a part did not end, so the duration is not known.
    let (parts, rest) = tokens::<3>(rest)?;
    let duration: Option<u64> = parts.into_iter().map(seconds).sum();
    let ([code, _target_code, received, sent], rest) = tokens(rest)?;
    let (request, rest) = quoted(rest.trim_ascii_start())?;
    let (method, url) = request_line(request)?;
    let (host, target) = split_url(url);
    let mut record = Record {
        kind: Kind::Alb,
        at,
        resolution,
        duration,
        client: given(without_port(client)),
        method: Cow::Borrowed(method),
        target: Cow::Borrowed(target),
        host: host.map(|host| Cow::Borrowed(without_port(host))),
        status: status(code),
        sent: number(sent),
        received: number(received),
        ..Record::default()
    };
    let agent = quoted(rest.trim_ascii_start());
    record.header("user-agent", agent.and_then(|(agent, _)| given(agent)));
    Some(record)
}

const ALB: [&[u8]; 6] = [b"http", b"https", b"h2", b"ws", b"wss", b"grpcs"];

/// Envoy's default format, and Istio's, which has four more words.
pub(crate) fn envoy<'a>(line: &'a [u8], times: &Times) -> Option<Record<'a>> {
    let inside = line.strip_prefix(b"[")?;
    let close = memchr(b']', inside)?;
    let (at, resolution) = times.iso(&inside[..close])?;
    let rest = inside[close + 1..].strip_prefix(b" ")?;
    let (request, rest) = quoted(rest)?;
    let (method, target) = request_line(request)?;
    let (code, rest) = token(rest)?;
    let mut words: Vec<(&[u8], bool)> = Vec::new();
    let mut rest = rest.trim_ascii_start();
    while !rest.is_empty() && words.len() < 20 {
        let (word, in_quotes, after) = match quoted(rest) {
            Some((word, after)) => (word, true, after),
            None => token(rest).map(|(word, after)| (word, false, after))?,
        };
        words.push((word, in_quotes));
        rest = after.trim_ascii_start();
    }
    // After the flags (and Istio's details) come four numbers: received, sent, duration, the upstream's part.
    let numbers = |at: usize| {
        let four = words.get(at..at + 4)?;
        let plain = |(word, in_quotes): &(&[u8], bool)| {
            !in_quotes && (number(word).is_some() || *word == b"-")
        };
        (four[..3].iter().all(|(word, _)| number(word).is_some()) && plain(&four[3])).then_some(at)
    };
    let at_numbers = (0..words.len()).find_map(numbers)?;
    let quotes = &words[at_numbers + 4..];
    let value = |place: usize| quotes.get(place).and_then(|(word, _)| given(word));
    // Envoy appends its peer's address: the last one is the client, unless another proxy is in front of it.
    let client = value(0).and_then(|list| last_hop(&list));
    let mut record = Record {
        kind: Kind::EnvoyText,
        at,
        resolution,
        duration: number(words[at_numbers + 2].0).and_then(|millis| millis.checked_mul(1_000)),
        client,
        method: Cow::Borrowed(method),
        target: Cow::Borrowed(target),
        host: value(3).map(|host| Cow::Owned(without_port(&host).to_vec())),
        status: status(code),
        received: number(words[at_numbers].0),
        sent: number(words[at_numbers + 1].0),
        ..Record::default()
    };
    for (place, name) in ["x-forwarded-for", "user-agent", "x-request-id"]
        .iter()
        .enumerate()
    {
        record.header(name, value(place));
    }
    Some(record)
}

/// The last address of an `X-Forwarded-For`.
pub(crate) fn last_hop(list: &[u8]) -> Option<Text<'static>> {
    let last = list.rsplit(|byte| *byte == b',').next()?.trim_ascii();
    given(without_port(last)).map(|address| Cow::Owned(address.into_owned()))
}

/// The columns of a W3C log, as its `#Fields:` line names them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Columns {
    names: Vec<String>,
}

impl Columns {
    /// Reads `#Fields: date time …`; `None`: another directive.
    pub(crate) fn read(line: &[u8]) -> Option<Self> {
        let fields = line.strip_prefix(b"#Fields:")?;
        let fields = std::str::from_utf8(fields).ok()?;
        let names = fields.split_ascii_whitespace().map(str::to_ascii_lowercase);
        Some(Self {
            names: names.take(COLUMNS_MAX).collect(),
        })
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    pub(crate) fn parse<'a>(&self, line: &[u8], times: &Times) -> Option<Record<'a>> {
        let tabs = memchr(b'\t', line).is_some();
        let mark = if tabs { b'\t' } else { b' ' };
        let mut draft = Draft::new(Kind::W3c);
        let mut stamp = [None; 2];
        let mut seen = 0;
        for (name, value) in self.names.iter().zip(line.split(|byte| *byte == mark)) {
            seen += 1;
            if value.is_empty() || value == b"-" {
                continue;
            }
            let role = match name.as_str() {
                "date" | "time" => {
                    stamp[usize::from(name == "time")] = Some(value);
                    continue;
                }
                "time-taken" => {
                    // IIS writes milliseconds, CloudFront seconds with decimals.
                    let is_seconds = tabs || memchr(b'.', value).is_some();
                    draft.record.duration = decimal(value, if is_seconds { 6 } else { 3 });
                    continue;
                }
                "c-ip" => Role::Client,
                "cs-username" => Role::User,
                "cs-method" => Role::Method,
                "cs-uri-stem" | "cs-uri" => Role::Path,
                "cs-uri-query" => Role::Query,
                "x-host-header" | "cs-host" => {
                    draft.record.host = None;
                    Role::Host
                }
                "cs(host)" => Role::Host,
                "sc-status" => Role::Status,
                "sc-bytes" => Role::Sent,
                "cs-bytes" => Role::Received,
                name => {
                    let header = name.strip_prefix("cs(");
                    if let Some(header) = header.and_then(|name| name.strip_suffix(')')) {
                        let header = header.as_bytes().to_vec();
                        // Header values of CloudFront are encoded twice, and a key need not be pretty.
                        let value = percent_decoded(value, false).into_owned();
                        draft.record.headers.push((header.into(), value.into()));
                    }
                    continue;
                }
            };
            draft.take(&role, value, times)?;
        }
        let stamp = [stamp[0]?, b"T", stamp[1]?, b"Z"].concat();
        (draft.record.at, draft.record.resolution) = times.iso(&stamp)?;
        let record = draft.finished();
        let is_request = is_method(&record.method) && !record.target.is_empty();
        (seen == self.names.len() && is_request).then_some(record)
    }
}

const COLUMNS_MAX: usize = 256;

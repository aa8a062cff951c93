//! JSON lines: Tollgate's own log, Caddy, Traefik, Envoy, Cloudflare, and others with the usual names.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};

use super::record::{
    Kind, Own, OwnLimit, Record, Text, is_method, number, request_line, split_url, status,
    without_port,
};
use super::text::last_hop;
use super::time::Times;

pub(super) type Object = Map<String, Value>;

/// Reads one line; `None`: it is no request. The servers give their members different names, so
/// one list of names for each value serves all of them.
pub(crate) fn parse<'a>(line: &[u8], times: &Times) -> Option<Record<'a>> {
    let object = &serde_json::from_slice::<Object>(line).ok()?;
    let kind = kind(object);
    let all = |names: &'static [&'static str]| {
        let given = names.iter();
        given.filter_map(move |name| text(object, name))
    };
    let first = |names| all(names).next();
    let numbered = |names| all(names).find_map(|text| number(&text));
    // Floats of serde_json print their shortest form: the digits that stood there, as far as a double holds them.
    let (at, mut resolution) = all(TIMES).find_map(|text| times.any(&text))?;
    if kind == Kind::Caddy && resolution != SECOND {
        // A number of seconds with decimals loses its zeros: it is as exact as a double.
        resolution = 1;
    }
    let line = first(&["request"]);
    let (method, target) = match line.as_deref().and_then(request_line) {
        Some((method, target)) => (method.to_vec().into(), target.to_vec().into()),
        None => (first(METHODS)?, first(TARGETS)?),
    };
    let (named, path) = split_url(&target);
    let named = named.map(|host| without_port(host).to_vec().into());
    let mut target: Text<'static> = path.to_vec().into();
    if let Some(query) = first(&["args", "query", "query_string"])
        && !target.contains(&b'?')
    {
        target = [&target, &b"?"[..], &query].concat().into();
    }
    let end = || Some(times.any(&first(&["EdgeEndTimestamp"])?)?.0);
    let mut client = first(CLIENTS).map(host);
    if client.is_none() && kind == Kind::Envoy {
        client = first(&["x_forwarded_for"]).and_then(|list| last_hop(&list));
    }
    let record = Record {
        kind,
        at,
        resolution,
        duration: match kind {
            Kind::Tollgate => span(object, "duration_us", 1e-6),
            Kind::Caddy => span(object, "duration", 1.0),
            Kind::Traefik => span(object, "Duration", 1e-9),
            Kind::Envoy => span(object, "duration", 1e-3),
            Kind::Cloudflare => end().and_then(|end| end.checked_sub(at)),
            _ => span(object, "request_time", 1.0),
        },
        client,
        user: first(USERS),
        method,
        target,
        host: first(HOSTS).map(host).or(named),
        status: all(STATUSES).find_map(|text| status(&text)),
        sent: numbered(SENT),
        received: match kind {
            Kind::Caddy => numbered(&["bytes_read"]),
            _ => numbered(RECEIVED),
        },
        headers: match kind {
            Kind::Caddy => listed_headers(object).collect(),
            _ => named_headers(object, kind).collect(),
        },
        sampled: numbered(&["SampleInterval"]).is_some_and(|interval| interval > 1),
        own: (kind == Kind::Tollgate).then(|| Box::new(own(object))),
        ..Record::default()
    };
    (is_method(&record.method) && !record.target.is_empty()).then_some(record)
}

/// Who wrote it, by members that no other has.
fn kind(object: &Object) -> Kind {
    let has = |name: &str| object.contains_key(name);
    if has("duration_us") && has("id") {
        Kind::Tollgate
    } else if object.get("request").is_some_and(Value::is_object) {
        Kind::Caddy
    } else if has("RequestMethod") {
        Kind::Traefik
    } else if has("ClientRequestMethod") {
        Kind::Cloudflare
    } else if has("start_time") && has("method") {
        Kind::Envoy
    } else {
        Kind::Json
    }
}

/// A text or number of an object, or of an object in it (`request.uri`), as bytes.
pub(super) fn text(object: &Object, name: &str) -> Option<Text<'static>> {
    let inside = || {
        let (outer, inner) = name.split_once('.')?;
        let mut steps = inner.split('.');
        steps.try_fold(object.get(outer)?, |value, step| value.get(step))
    };
    given_text(object.get(name).or_else(inside)?)
}

/// `-` and empty count as absent.
fn given_text(value: &Value) -> Option<Text<'static>> {
    match value {
        Value::String(text) if !text.is_empty() && text != "-" => {
            Some(Cow::Owned(text.clone().into_bytes()))
        }
        Value::Number(number) => Some(Cow::Owned(number.to_string().into_bytes())),
        _ => None,
    }
}

/// A number or a text that counts `unit` seconds, in microseconds.
fn span(object: &Object, name: &str, unit: f64) -> Option<u64> {
    let text = text(object, name)?;
    let count: f64 = std::str::from_utf8(&text).ok()?.parse().ok()?;
    let span = Duration::try_from_secs_f64(count * unit).ok()?;
    u64::try_from(span.as_micros()).ok()
}

fn host(text: Text<'static>) -> Text<'static> {
    Cow::Owned(without_port(&text).to_vec())
}

/// Headers that are members of the line, by the names that NGINX and Traefik give them, and by their own.
fn named_headers<'a>(object: &Object, kind: Kind) -> impl Iterator<Item = (Text<'a>, Text<'a>)> {
    let prefix = match kind {
        Kind::Traefik => "request_",
        _ => "http_",
    };
    object.iter().filter_map(move |(name, value)| {
        let name = match name.as_str() {
            "http_host" | "http_method" => return None,
            "user_agent" | "ClientRequestUserAgent" => "user-agent",
            "referer" | "ClientRequestReferer" => "referer",
            "x_forwarded_for" => "x-forwarded-for",
            name => name.strip_prefix(prefix)?,
        };
        let name = name.to_ascii_lowercase().replace('_', "-");
        Some((name.into_bytes().into(), given_text(value)?))
    })
}

/// Headers as Caddy lists them.
fn listed_headers<'a>(object: &Object) -> impl Iterator<Item = (Text<'a>, Text<'a>)> {
    let headers = object
        .get("request")
        .and_then(|request| request.get("headers"));
    let headers = headers.and_then(Value::as_object);
    headers.into_iter().flatten().flat_map(|(name, values)| {
        let values = values.as_array().into_iter().flatten();
        // What Caddy hides is not known, and all callers would share it.
        let known = values
            .filter_map(Value::as_str)
            .filter(|value| *value != "REDACTED");
        known.map(|value| {
            let name = name.to_ascii_lowercase().into_bytes();
            (name.into(), value.as_bytes().to_vec().into())
        })
    })
}

/// What only Tollgate's own log holds.
fn own(object: &Object) -> Own {
    let word = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let limits = object.get("limits").and_then(Value::as_array);
    let limit = |value: &Value| {
        let word = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
        OwnLimit {
            name: word("name").to_owned(),
            candidate: value.get("candidate") == Some(&Value::Bool(true)),
            key: word("key").to_owned(),
            cost: value.get("cost").and_then(Value::as_u64).unwrap_or(0),
            allowed: match word("outcome") {
                "allow" => Some(true),
                "deny" | "shadow_deny" => Some(false),
                _ => None,
            },
        }
    };
    Own {
        id: u64::from_str_radix(word("id"), 16).ok(),
        refused: object.get("refused") == Some(&Value::Bool(true)),
        reason: word("reason").to_owned(),
        caller: word("caller").to_owned(),
        tier: word("tier").to_owned(),
        forwarded: object.contains_key("upstream"),
        limits: limits.into_iter().flatten().map(limit).collect(),
    }
}

/// The resolution of a stamp of whole seconds, microseconds.
const SECOND: u32 = 1_000_000;

#[rustfmt::skip]
const TIMES: &[&str] = &[
    "StartUTC", "EdgeStartTimestamp", "time", "timestamp", "@timestamp", "ts", "time_iso8601", "msec",
    "time_local", "date", "start_time",
];
#[rustfmt::skip]
const METHODS: &[&str] = &[
    "method", "request_method", "http_method", "verb", "request.method", "RequestMethod",
    "ClientRequestMethod",
];
#[rustfmt::skip]
const TARGETS: &[&str] = &[
    "request_uri", "uri", "path", "url", "request_path", "request.uri", "RequestPath", "ClientRequestURI",
    "ClientRequestPath",
];
#[rustfmt::skip]
const CLIENTS: &[&str] = &[
    "remote_addr", "client_ip", "client", "ip", "remote_ip", "clientip", "request.client_ip",
    "request.remote_ip", "request.remote_addr", "downstream_remote_address", "ClientHost", "ClientIP",
];
const USERS: &[&str] = &["remote_user", "user", "user_id", "ClientUsername"];
#[rustfmt::skip]
const HOSTS: &[&str] = &[
    "host", "http_host", "server_name", "authority", "request.host", "RequestHost", "RequestAddr",
    "ClientRequestHost",
];
#[rustfmt::skip]
const STATUSES: &[&str] = &[
    "status", "response_code", "status_code", "code", "DownstreamStatus", "OriginStatus",
    "EdgeResponseStatus",
];
#[rustfmt::skip]
const SENT: &[&str] = &[
    "body_bytes_sent", "bytes_sent", "bytes", "size", "sent_bytes", "DownstreamContentSize",
    "EdgeResponseBytes",
];
#[rustfmt::skip]
const RECEIVED: &[&str] = &[
    "received_bytes", "bytes_received", "RequestContentSize", "ClientRequestBytes",
];

//! JSON lines: Tollgate's own log, Caddy, Traefik, Envoy, Cloudflare, and others with the usual names.

use std::borrow::Cow;
use std::time::Duration;

use serde_json::{Map, Value};
use smallvec::SmallVec;

use super::record::{
    Kind, Own, OwnLimit, Record, Text, is_method, request_line, split_url, without_port,
};
use super::text::last_hop;
use super::time::{Moment, Times};

type Headers<'a> = SmallVec<[(Text<'a>, Text<'a>); 2]>;

pub(crate) type Object = Map<String, Value>;

/// Reads one line; `None`: it is no request.
pub(crate) fn parse<'a>(line: &[u8], times: &Times) -> Option<Record<'a>> {
    let object: Object = serde_json::from_slice(line).ok()?;
    let has = |name: &str| object.contains_key(name);
    let record = if has("duration_us") && has("id") {
        tollgate(&object, times)
    } else if object.get("request").is_some_and(Value::is_object) {
        caddy(&object, times)
    } else if has("RequestMethod") {
        traefik(&object, times)
    } else if has("ClientRequestMethod") {
        cloudflare(&object, times)
    } else if has("start_time") && has("method") {
        envoy(&object, times)
    } else {
        usual(&object, times)
    }?;
    (is_method(&record.method) && !record.target.is_empty()).then_some(record)
}

/// A text or number of an object, as bytes; `-` and empty count as absent.
pub(crate) fn text(object: &Object, name: &str) -> Option<Text<'static>> {
    match object.get(name)? {
        Value::String(text) if !text.is_empty() && text != "-" => {
            Some(Cow::Owned(text.clone().into_bytes()))
        }
        Value::Number(number) => Some(Cow::Owned(number.to_string().into_bytes())),
        _ => None,
    }
}

fn number(object: &Object, name: &str) -> Option<u64> {
    match object.get(name)? {
        Value::Number(number) => number.as_u64(),
        Value::String(text) => super::record::number(text.as_bytes()),
        _ => None,
    }
}

fn status(object: &Object, name: &str) -> Option<u16> {
    u16::try_from(number(object, name)?)
        .ok()
        .filter(|status| (100..=999).contains(status))
}

fn moment(object: &Object, name: &str, times: &Times) -> Option<Moment> {
    // Floats of serde_json print their shortest form: the digits that stood there, as far as a double holds them.
    times.any(&text(object, name)?)
}

/// Seconds as a number or a text, in microseconds.
fn span(object: &Object, name: &str) -> Option<u64> {
    let text = text(object, name)?;
    let seconds: f64 = std::str::from_utf8(&text).ok()?.parse().ok()?;
    let span = Duration::try_from_secs_f64(seconds).ok()?;
    u64::try_from(span.as_micros()).ok()
}

fn headers<'a>(object: &Object, members: [(&'static str, &str); 2]) -> Headers<'a> {
    let given = members
        .into_iter()
        .filter_map(|(name, member)| Some((name.as_bytes().into(), text(object, member)?)));
    given.collect()
}

fn header(name: String, value: &str) -> (Text<'static>, Text<'static>) {
    (name.into_bytes().into(), value.as_bytes().to_vec().into())
}

fn host(text: Text<'static>) -> Text<'static> {
    Cow::Owned(without_port(&text).to_vec())
}

fn tollgate<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let (at, resolution) = moment(object, "time", times)?;
    let word = |name: &str| object.get(name).and_then(Value::as_str).unwrap_or_default();
    let mut target = text(object, "path")?;
    if let Some(query) = text(object, "query") {
        target = [&target, &b"?"[..], &query].concat().into();
    }
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
    let own = Own {
        id: u64::from_str_radix(word("id"), 16).ok(),
        refused: object.get("refused") == Some(&Value::Bool(true)),
        reason: word("reason").to_owned(),
        caller: word("caller").to_owned(),
        tier: word("tier").to_owned(),
        forwarded: object.contains_key("upstream"),
        limits: limits.into_iter().flatten().map(limit).collect(),
    };
    Some(Record {
        kind: Kind::Tollgate,
        at,
        resolution,
        duration: number(object, "duration_us"),
        client: text(object, "client"),
        method: text(object, "method")?,
        target,
        host: text(object, "host"),
        status: status(object, "status"),
        sent: number(object, "sent_bytes"),
        received: number(object, "received_bytes"),
        headers: headers(
            object,
            [("user-agent", "user_agent"), ("referer", "referer")],
        ),
        own: Some(Box::new(own)),
        ..Record::default()
    })
}

fn caddy<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let request = object.get("request")?.as_object()?;
    let (at, resolution) = moment(object, "ts", times).or_else(|| moment(object, "time", times))?;
    let client = text(request, "client_ip").or_else(|| text(request, "remote_ip"));
    let client = client.or_else(|| text(request, "remote_addr").map(host));
    let headers = request.get("headers").and_then(Value::as_object);
    let headers = headers.into_iter().flatten().flat_map(|(name, values)| {
        let values = values.as_array().map_or(&[][..], Vec::as_slice);
        // What Caddy hides is not known, and all callers would share it.
        let known = values
            .iter()
            .filter_map(Value::as_str)
            .filter(|value| *value != "REDACTED");
        known.map(|value| header(name.to_ascii_lowercase(), value))
    });
    Some(Record {
        kind: Kind::Caddy,
        at,
        // A number of seconds with decimals loses its zeros: it is as exact as a double.
        resolution: if resolution == SECOND { SECOND } else { 1 },
        duration: span(object, "duration"),
        client,
        user: text(object, "user_id"),
        method: text(request, "method")?,
        target: text(request, "uri")?,
        host: text(request, "host").map(host),
        status: status(object, "status"),
        sent: number(object, "size"),
        received: number(object, "bytes_read"),
        headers: headers.collect(),
        ..Record::default()
    })
}

fn traefik<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let (at, resolution) =
        moment(object, "StartUTC", times).or_else(|| moment(object, "time", times))?;
    let headers = object.iter().filter_map(|(name, value)| {
        let name = name.strip_prefix("request_")?;
        Some(header(name.to_ascii_lowercase(), value.as_str()?))
    });
    Some(Record {
        kind: Kind::Traefik,
        at,
        resolution,
        duration: number(object, "Duration").map(|nanos| nanos / 1_000),
        client: text(object, "ClientHost"),
        user: text(object, "ClientUsername"),
        method: text(object, "RequestMethod")?,
        target: text(object, "RequestPath")?,
        host: text(object, "RequestHost")
            .or_else(|| text(object, "RequestAddr"))
            .map(host),
        status: status(object, "DownstreamStatus").or_else(|| status(object, "OriginStatus")),
        sent: number(object, "DownstreamContentSize"),
        received: number(object, "RequestContentSize"),
        headers: headers.collect(),
        ..Record::default()
    })
}

fn envoy<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let (at, resolution) = moment(object, "start_time", times)?;
    let client = text(object, "downstream_remote_address").map(host);
    let client = client.or_else(|| last_hop(&text(object, "x_forwarded_for")?));
    Some(Record {
        kind: Kind::Envoy,
        at,
        resolution,
        duration: number(object, "duration").and_then(|millis| millis.checked_mul(1_000)),
        client,
        method: text(object, "method")?,
        target: text(object, "path")?,
        host: text(object, "authority").map(host),
        status: status(object, "response_code"),
        sent: number(object, "bytes_sent"),
        received: number(object, "bytes_received"),
        headers: headers(
            object,
            [
                ("x-forwarded-for", "x_forwarded_for"),
                ("user-agent", "user_agent"),
            ],
        ),
        ..Record::default()
    })
}

fn cloudflare<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let (at, resolution) = moment(object, "EdgeStartTimestamp", times)?;
    let end = moment(object, "EdgeEndTimestamp", times).map(|(end, _)| end);
    let names = [
        ("user-agent", "ClientRequestUserAgent"),
        ("referer", "ClientRequestReferer"),
    ];
    Some(Record {
        kind: Kind::Cloudflare,
        at,
        resolution,
        duration: end.and_then(|end| end.checked_sub(at)),
        client: text(object, "ClientIP"),
        method: text(object, "ClientRequestMethod")?,
        target: text(object, "ClientRequestURI").or_else(|| text(object, "ClientRequestPath"))?,
        host: text(object, "ClientRequestHost").map(host),
        status: status(object, "EdgeResponseStatus"),
        sent: number(object, "EdgeResponseBytes"),
        received: number(object, "ClientRequestBytes"),
        headers: headers(object, names),
        sampled: number(object, "SampleInterval").is_some_and(|interval| interval > 1),
        ..Record::default()
    })
}

/// Names that people give to NGINX's variables, and what other servers write.
fn usual<'a>(object: &Object, times: &Times) -> Option<Record<'a>> {
    let first = |names: &[&str]| names.iter().find_map(|name| text(object, name));
    let (at, resolution) = TIMES.iter().find_map(|name| moment(object, name, times))?;
    let line = text(object, "request");
    let line = line.as_deref().and_then(request_line);
    let (method, target) = match line {
        Some((method, target)) => (method.to_vec().into(), target.to_vec().into()),
        None => (
            first(&["method", "request_method", "http_method", "verb"])?,
            first(&["request_uri", "uri", "path", "url", "request_path"])?,
        ),
    };
    let (named, path) = split_url(&target);
    let named = named.map(|host| without_port(host).to_vec().into());
    let mut target: Text<'static> = path.to_vec().into();
    if let Some(query) = first(&["args", "query", "query_string"])
        && !target.contains(&b'?')
    {
        target = [&target, &b"?"[..], &query].concat().into();
    }
    let headers = object.iter().filter_map(|(name, value)| {
        let (name, value) = (name.strip_prefix("http_")?, value.as_str()?);
        let is_given = !matches!(name, "host" | "method") && !matches!(value, "" | "-");
        is_given.then(|| header(name.replace('_', "-"), value))
    });
    let numbered = |names: &[&str]| names.iter().find_map(|name| number(object, name));
    let clients = [
        "remote_addr",
        "client_ip",
        "client",
        "ip",
        "remote_ip",
        "clientip",
    ];
    let hosts = ["host", "http_host", "server_name", "authority"];
    let statuses = ["status", "response_code", "status_code", "code"];
    Some(Record {
        kind: Kind::Json,
        at,
        resolution,
        duration: span(object, "request_time"),
        client: first(&clients).map(host),
        user: first(&["remote_user", "user"]),
        method,
        target,
        host: first(&hosts).map(host).or(named),
        status: statuses.iter().find_map(|name| status(object, name)),
        sent: numbered(&["body_bytes_sent", "bytes_sent", "bytes", "size"]),
        headers: headers.collect(),
        ..Record::default()
    })
}

/// The resolution of a stamp of whole seconds, microseconds.
const SECOND: u32 = 1_000_000;
const TIMES: [&str; 9] = [
    "time",
    "timestamp",
    "@timestamp",
    "ts",
    "time_iso8601",
    "msec",
    "time_local",
    "date",
    "start_time",
];

//! JSON lines: Tollgate's own log, Caddy, Traefik, Envoy, Cloudflare, and others with the usual names.

use std::borrow::Cow;

use serde_json::{Map, Value};

use super::record::{
    Kind, Own, OwnLimit, Record, Text, decimal, is_method, request_line, split_url, without_port,
};
use super::text::last_hop;
use super::time::{Moment, Times};

/// A JSON object.
pub(crate) type Object = Map<String, Value>;

/// Reads one line; `None`: it is no request.
pub(crate) fn parse<'a>(line: &[u8], times: &mut Times) -> Option<Record<'a>> {
    let object: Object = serde_json::from_slice(line).ok()?;
    let record = if object.contains_key("duration_us") && object.contains_key("id") {
        tollgate(&object, times)
    } else if object.get("request").is_some_and(Value::is_object) {
        caddy(&object, times)
    } else if object.contains_key("RequestMethod") {
        traefik(&object, times)
    } else if object.contains_key("ClientRequestMethod") {
        cloudflare(&object, times)
    } else if object.contains_key("start_time") && object.contains_key("method") {
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

fn moment(object: &Object, name: &str, times: &mut Times) -> Option<Moment> {
    // Floats of serde_json print their shortest form: the digits that stood there, as far as a double holds them.
    times.any(&text(object, name)?)
}

/// Seconds as a number or a text, in microseconds.
fn span(object: &Object, name: &str, places: usize) -> Option<u64> {
    let text = text(object, name)?;
    if memchr::memchr2(b'e', b'E', &text).is_some() {
        // 1.2e-05: below the resolution of most, and still no zero.
        let value: f64 = std::str::from_utf8(&text).ok()?.parse().ok()?;
        let scaled = value * 10_f64.powi(i32::try_from(places).ok()?);
        return (0.0..1e18).contains(&scaled).then(|| {
            #[expect(clippy::cast_possible_truncation, reason = "within the range above")]
            let whole = scaled as u64;
            whole
        });
    }
    decimal(&text, places)
}

fn host(text: Text<'static>) -> Text<'static> {
    Cow::Owned(without_port(&text).to_vec())
}

/// The gateway's own log.
fn tollgate<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
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
            cost: value
                .get("cost")
                .and_then(Value::as_u64)
                .unwrap_or_default(),
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
    let mut record = Record {
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
        own: Some(Box::new(own)),
        ..Record::default()
    };
    for (name, key) in [("user-agent", "user_agent"), ("referer", "referer")] {
        if let Some(value) = text(object, key) {
            record.headers.push((Cow::Borrowed(name.as_bytes()), value));
        }
    }
    Some(record)
}

fn caddy<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
    let request = object.get("request")?.as_object()?;
    let (at, resolution) = moment(object, "ts", times).or_else(|| moment(object, "time", times))?;
    let client = text(request, "client_ip").or_else(|| text(request, "remote_ip"));
    let client = client.or_else(|| text(request, "remote_addr").map(host));
    let mut record = Record {
        kind: Kind::Caddy,
        at,
        // A number of seconds with decimals loses its zeros: it is as exact as a double.
        resolution: if resolution == 1_000_000 {
            resolution
        } else {
            1
        },
        duration: span(object, "duration", 6),
        client,
        user: text(object, "user_id"),
        method: text(request, "method")?,
        target: text(request, "uri")?,
        host: text(request, "host").map(host),
        status: status(object, "status"),
        sent: number(object, "size"),
        received: number(object, "bytes_read"),
        ..Record::default()
    };
    let headers = request.get("headers").and_then(Value::as_object);
    for (name, values) in headers.into_iter().flatten() {
        let values = values.as_array().map_or(&[][..], Vec::as_slice);
        for value in values.iter().filter_map(Value::as_str) {
            // What Caddy hides is not known, and all callers would share it.
            if value != "REDACTED" {
                let name = name.to_ascii_lowercase().into_bytes();
                record
                    .headers
                    .push((name.into(), value.as_bytes().to_vec().into()));
            }
        }
    }
    Some(record)
}

fn traefik<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
    let (at, resolution) =
        moment(object, "StartUTC", times).or_else(|| moment(object, "time", times))?;
    let mut record = Record {
        kind: Kind::Traefik,
        at,
        resolution,
        // In nanoseconds.
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
        ..Record::default()
    };
    for (name, value) in object {
        if let (Some(name), Value::String(value)) = (name.strip_prefix("request_"), value) {
            let name = name.to_ascii_lowercase().into_bytes();
            record
                .headers
                .push((name.into(), value.clone().into_bytes().into()));
        }
    }
    Some(record)
}

fn envoy<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
    let (at, resolution) = moment(object, "start_time", times)?;
    let forwarded = text(object, "x_forwarded_for");
    let client = text(object, "downstream_remote_address").map(host);
    let client = client.or_else(|| last_hop(forwarded.as_deref()?));
    let mut record = Record {
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
        ..Record::default()
    };
    let agent = text(object, "user_agent");
    for (name, value) in [("x-forwarded-for", forwarded), ("user-agent", agent)] {
        if let Some(value) = value {
            record.headers.push((Cow::Borrowed(name.as_bytes()), value));
        }
    }
    Some(record)
}

fn cloudflare<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
    let (at, resolution) = moment(object, "EdgeStartTimestamp", times)?;
    let end = moment(object, "EdgeEndTimestamp", times).map(|(end, _)| end);
    let mut record = Record {
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
        sampled: number(object, "SampleInterval").is_some_and(|interval| interval > 1),
        ..Record::default()
    };
    for (name, key) in [
        ("user-agent", "ClientRequestUserAgent"),
        ("referer", "ClientRequestReferer"),
    ] {
        if let Some(value) = text(object, key) {
            record.headers.push((Cow::Borrowed(name.as_bytes()), value));
        }
    }
    Some(record)
}

/// Names that people give to NGINX's variables, and what other servers write.
fn usual<'a>(object: &Object, times: &mut Times) -> Option<Record<'a>> {
    let first = |names: &[&str]| names.iter().find_map(|name| text(object, name));
    let (at, resolution) = TIMES.iter().find_map(|name| moment(object, name, times))?;
    let line = first(&["request"]);
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
    let mut record = Record {
        kind: Kind::Json,
        at,
        resolution,
        duration: span(object, "request_time", 6),
        client: first(&[
            "remote_addr",
            "client_ip",
            "client",
            "ip",
            "remote_ip",
            "clientip",
        ])
        .map(host),
        user: first(&["remote_user", "user"]),
        method,
        target,
        host: first(&["host", "http_host", "server_name", "authority"])
            .map(host)
            .or(named),
        status: ["status", "response_code", "status_code", "code"]
            .iter()
            .find_map(|name| status(object, name)),
        sent: ["body_bytes_sent", "bytes_sent", "bytes", "size"]
            .iter()
            .find_map(|name| number(object, name)),
        ..Record::default()
    };
    for (name, value) in object {
        if let (Some(name), Value::String(value)) = (name.strip_prefix("http_"), value)
            && !matches!(name, "host" | "method")
            && !value.is_empty()
            && value != "-"
        {
            let name = name.replace('_', "-").into_bytes();
            record
                .headers
                .push((name.into(), value.clone().into_bytes().into()));
        }
    }
    Some(record)
}

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

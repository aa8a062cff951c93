//! The zones of `rate_limit` as limits.

use crate::draft::{Counting, Difference, Draft, Limit, by_method, clients, either};
use crate::words::{duration, go_duration};

use crate::directive::Directive;

pub(super) fn zones(directive: &Directive, draft: &mut Draft) -> Vec<String> {
    let mut made = Vec::new();
    let is_several = directive.all("zone").count() > 1;
    for inner in &directive.block {
        let why = match inner.name.as_str() {
            "zone" => match zone(inner, is_several) {
                Ok((limit, differences, what)) => {
                    let wanted = if inner.arg(0).is_empty() { "zone" } else { inner.arg(0) };
                    made.extend(draft.limit(wanted, &inner.place, &what, limit, differences));
                    continue;
                }
                Err(why) => why,
            },
            "distributed" | "storage" => {
                "Caddy's instances tell each other their counts every few seconds; gateways count together in a [store]"
                    .to_owned()
            }
            "jitter" => "Retry-After is exact here and has no jitter".to_owned(),
            "sweep_interval" | "log_key" => continue,
            _ => "it is not understood".to_owned(),
        };
        draft.lost(inner, &why);
    }
    made
}

fn zone(zone: &Directive, is_several: bool) -> Result<(Limit, Vec<Difference>, String), String> {
    let (mut key, mut window, mut events) = (String::new(), 0, 0);
    for inner in &zone.block {
        let value = inner.arg(0);
        let bad = |what: &str| format!("the {what} `{value}` is not understood");
        match inner.name.as_str() {
            "key" => key = value.to_owned(),
            "window" => window = go_duration(value).ok_or_else(|| bad("window"))?,
            "events" => events = value.parse().map_err(|_| bad("number of events"))?,
            "match" => {
                return Err(
                    "a `match` within a zone has no counterpart: put the limit on a route"
                        .to_owned(),
                );
            }
            "ipv4_prefix" | "ipv6_prefix" => {
                return Err(format!(
                    "`{}` is [address] ipv6_prefix for all limits here",
                    inner.words()
                ));
            }
            other => return Err(format!("`{other}` is not understood")),
        }
    }
    if window == 0 || events == 0 {
        return Err("a zone needs a window and events above 0".to_owned());
    }
    let mut limit = Limit::new(Counting::SlidingLog, events, window);
    let mut differences = vec![clients(format!(
        "Caddy refuses a request exactly {} after the event it waits for, and admits it a moment later; here it is admitted then",
        duration(window)
    ))];
    if is_several {
        differences.push(clients(
            "Caddy has counted a request in one zone when another refuses it; here it is charged on none",
        ));
    }
    scope(&key, &mut limit, &mut differences)?;
    let what = format!(
        "zone {} key {key} window {} events {events}",
        zone.arg(0),
        duration(window)
    );
    Ok((limit, differences, what))
}

fn scope(key: &str, limit: &mut Limit, differences: &mut Vec<Difference>) -> Result<(), String> {
    let mut per = Vec::new();
    let mut rest = key;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}').ok_or("the key has an open brace")? + open;
        let name = &rest[open + 1..close];
        let bare = name.strip_prefix("http.request.").unwrap_or(name);
        per.push(match bare {
            "remote_host"
            | "remote.host"
            | "client_ip"
            | "http.vars.client_ip"
            | "http.request.remote.host" => "address".to_owned(),
            "host" | "hostport" => {
                differences.push(either("hosts that no route names share one bucket here"));
                "host".to_owned()
            }
            "method" => {
                differences.push(by_method());
                "method".to_owned()
            }
            "http.auth.user.id" => "basic".to_owned(),
            _ => {
                let source = source(bare);
                source.ok_or_else(|| format!("the key `{{{name}}}` has no counterpart"))?
            }
        });
        rest = &rest[close + 1..];
    }
    if per.is_empty() {
        per.push("everyone".to_owned());
    }
    if per.iter().any(|per| per.contains(':') || per == "basic") {
        limit.when_missing = "use:address";
        if !per.iter().any(|per| per == "address") {
            differences.push(clients(
                "without the key all requests share one bucket in Caddy; here each address has one",
            ));
        }
    }
    limit.per = per;
    Ok(())
}

/// The source of an identity that a placeholder reads.
fn source(placeholder: &str) -> Option<String> {
    if let Some(header) = placeholder.strip_prefix("header.") {
        return Some(format!("header:{}", header.to_ascii_lowercase()));
    }
    let of = |prefix: &str, kind: &str| {
        let name = placeholder.strip_prefix(prefix)?;
        Some(format!("{kind}{name}"))
    };
    let query = || of("query.", "query:").or_else(|| of("uri.query.", "query:"));
    of("cookie.", "cookie:").or_else(query)
}

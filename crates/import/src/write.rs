//! Writes a draft as `gateway.toml`, and holds everything to what `tollgate check` accepts.

use std::fmt::Write;

use tollgate_config::ConfigError;
use tollgate_limit::Timestamp;

use crate::draft::{Counting, Draft, Identity, Named, Route, Target};
use crate::words::{duration, plain};
use crate::{ImportError, Peer, Source};

/// Writes the draft. Routes that contradict others are taken out and noted.
///
/// # Errors
/// When the result is no good configuration.
pub(crate) fn checked(
    draft: &mut Draft,
    peer: Peer,
    sources: &[Source],
) -> Result<String, ImportError> {
    if draft.routes.is_empty() {
        let mut route = Route::new(None, "/**", Target::Unknown);
        route.limits = draft
            .limits
            .iter()
            .map(|limit| limit.name.clone())
            .collect();
        draft.routes.push(route);
    }
    if draft
        .limits
        .iter()
        .any(|named| named.limit.per.iter().any(|per| per == "address"))
    {
        draft.note(format!(
            "addresses: {} counts each IPv6 address for itself, so [address] ipv6_prefix is 128. With 64, the default, \
             one customer's network counts together",
            peer.name()
        ));
    }
    if draft
        .routes
        .iter()
        .any(|route| route.target == Target::Unknown)
    {
        draft.note(
            "routes: where a route says `builtin:echo`, the files do not tell its upstream as Tollgate needs it: \
             put yours in its place",
        );
    }
    let mut text = text(draft, peer, sources);
    if check(&text).is_err() {
        // Two routes can contradict each other in ways that only the router knows.
        let routes = std::mem::take(&mut draft.routes);
        if routes.len() <= 200 {
            for route in routes {
                draft.routes.push(route);
                if check(&self::text(draft, peer, sources)).is_err()
                    && let Some(route) = draft.routes.pop()
                {
                    leave_out(draft, &route);
                }
            }
        }
        text = self::text(draft, peer, sources);
    }
    if draft.drop_unrouted() {
        text = self::text(draft, peer, sources);
    }
    check(&text).map_err(|error| ImportError::Unsound(error.render(false)))?;
    Ok(text)
}

fn leave_out(draft: &mut Draft, route: &Route) {
    let why = "another route takes the same requests";
    if route.limits.is_empty() {
        draft.note(format!(
            "route {}: {why}; it is left out",
            plain(&route.pattern, 200)
        ));
    } else {
        draft.unlimited(route, why);
    }
}

/// Whether `tollgate check` accepts the text.
fn check(text: &str) -> Result<(), ConfigError> {
    tollgate_config::parse(text, "gateway.toml", &|_| None, Timestamp::default()).map(|_| ())
}

/// Whether Tollgate can count a limit.
pub(crate) fn check_limit(named: &Named, has_identity: bool) -> Result<(), String> {
    let mut text = String::new();
    if has_identity {
        let identity = Identity {
            keys: vec!["header:x-key".to_owned()],
            when_missing: "use:address",
            callers: Vec::new(),
        };
        write_identity(&mut text, &identity);
    }
    write_limit(&mut text, named);
    let name = quoted(&named.name);
    let _ = write!(
        text,
        "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [{name}]\n"
    );
    said(&text)
}

/// Whether a pattern and a target are those of a route. The limits are checked elsewhere.
pub(crate) fn check_route(route: &Route) -> Result<(), String> {
    let mut text = String::new();
    let mut alone = route.clone();
    alone.limits.clear();
    if let Target::Upstream(name) = &alone.target
        && !name.contains(':')
    {
        alone.target = Target::Unknown;
    }
    write_route(&mut text, &alone);
    said(&text)
}

/// Whether a URL is one of a server, with this weight.
pub(crate) fn check_server(url: &str, weight: u64) -> Result<(), String> {
    check_upstream(&[(url.to_owned(), weight)])
}

/// Whether these servers make an upstream.
pub(crate) fn check_upstream(servers: &[(String, u64)]) -> Result<(), String> {
    let mut text = String::new();
    write_upstream(&mut text, "app", servers);
    text.push_str("[[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = []\n");
    said(&text)
}

fn said(text: &str) -> Result<(), String> {
    check(text).map_err(|error| {
        let said: Vec<String> = error.by_key().into_iter().map(|(_, what)| what).collect();
        plain(&said.join("; "), 300)
    })
}

fn text(draft: &Draft, peer: Peer, sources: &[Source]) -> String {
    let mut text = String::new();
    let names: Vec<String> = sources
        .iter()
        .map(|source| plain(&source.name, 100))
        .collect();
    let _ = writeln!(
        text,
        "# Made by `tollgate import` from {} ({}). The report says what differs; `tollgate check` says what it means.",
        plain(&names.join(", "), 300),
        peer.name()
    );
    let by_address = draft
        .limits
        .iter()
        .any(|named| named.limit.per.iter().any(|per| per == "address"));
    if by_address || !draft.trusted.is_empty() || !draft.exempt.is_empty() {
        text.push_str("\n[address]\n");
        if !draft.trusted.is_empty() {
            let _ = writeln!(text, "trusted_proxies = {}", list(&draft.trusted));
        }
        if !draft.exempt.is_empty() {
            let _ = writeln!(text, "exempt = {}", list(&draft.exempt));
        }
        if by_address {
            text.push_str("ipv6_prefix = 128                      # each address for itself\n");
        }
    }
    if let Some(identity) = &draft.identity {
        text.push('\n');
        write_identity(&mut text, identity);
    }
    for limit in &draft.limits {
        text.push('\n');
        write_limit(&mut text, limit);
    }
    for (name, servers) in &draft.upstreams {
        text.push('\n');
        write_upstream(&mut text, name, servers);
    }
    for route in &draft.routes {
        text.push('\n');
        write_route(&mut text, route);
    }
    text
}

fn write_identity(text: &mut String, identity: &Identity) {
    let keys = match &identity.keys[..] {
        [key] => quoted(key),
        keys => format!("{{ first_of = {} }}", list(keys)),
    };
    let _ = writeln!(text, "[identities.consumer]\nkey = {keys}");
    let _ = writeln!(text, "when_missing = {}", quoted(identity.when_missing));
    if identity.callers.is_empty() {
        return;
    }
    let unknown = if identity.when_missing == "refuse" {
        "refuse"
    } else {
        "use:address"
    };
    let _ = writeln!(
        text,
        "when_unknown = \"{unknown}\"\n\n[identities.consumer.callers]"
    );
    for caller in &identity.callers {
        let _ = write!(
            text,
            "\"sha256:{}\" = {{ name = {}",
            caller.digest,
            quoted(&caller.name)
        );
        if !caller.limits.is_empty() {
            let limits = caller
                .limits
                .iter()
                .map(|(limit, rate)| format!("{limit} = {}", quoted(rate)));
            let _ = write!(
                text,
                ", limits = {{ {} }}",
                limits.collect::<Vec<_>>().join(", ")
            );
        }
        text.push_str(" }\n");
    }
}

fn write_limit(text: &mut String, named: &Named) {
    let limit = &named.limit;
    for comment in &named.comments {
        let _ = writeln!(text, "# {}", plain(comment, 500));
    }
    let _ = writeln!(text, "[limits.{}]", named.name);
    if limit.counting == Counting::InFlight {
        let _ = writeln!(text, "in_flight = {}", limit.amount);
    } else {
        let _ = writeln!(text, "rate = {}", quoted(&limit.rate()));
    }
    if let Some(burst) = limit.burst {
        let _ = writeln!(text, "burst = {burst}");
    }
    let (algorithm, align) = match limit.counting {
        Counting::TokenBucket | Counting::InFlight => ("", ""),
        Counting::ClockWindow => ("fixed_window", "clock"),
        Counting::CalendarMonth => ("fixed_window", "calendar"),
        Counting::SlidingWindow => ("sliding_window", ""),
        Counting::SlidingLog => ("sliding_log", ""),
    };
    if !algorithm.is_empty() {
        let _ = writeln!(text, "algorithm = \"{algorithm}\"");
    }
    if !align.is_empty() {
        let _ = writeln!(text, "window = {{ align = \"{align}\" }}");
    }
    if limit.max_wait > 0 {
        let _ = writeln!(text, "max_wait = {}", quoted(&duration(limit.max_wait)));
    }
    let per = match &limit.per[..] {
        [per] => quoted(per),
        per => list(per),
    };
    let _ = writeln!(text, "per = {per}");
    if !limit.when_missing.is_empty() {
        let _ = writeln!(text, "when_missing = \"{}\"", limit.when_missing);
    }
    if !limit.count.is_empty() {
        let _ = writeln!(text, "count = {}", list(&limit.count));
    }
    if limit.shadow {
        text.push_str("mode = \"shadow\"\n");
    }
}

fn write_upstream(text: &mut String, name: &str, servers: &[(String, u64)]) {
    let _ = writeln!(text, "[upstreams.{name}]");
    let servers: Vec<String> = servers
        .iter()
        .map(|(url, weight)| match weight {
            1 => quoted(url),
            weight => format!("{{ url = {}, weight = {weight} }}", quoted(url)),
        })
        .collect();
    let _ = writeln!(text, "servers = [{}]", servers.join(", "));
}

fn write_route(text: &mut String, route: &Route) {
    text.push_str("[[routes]]");
    if let Some(place) = &route.place {
        let _ = write!(text, "  # {}", plain(&place.to_string(), 200));
    }
    text.push('\n');
    if route.headers.is_empty() {
        let _ = writeln!(text, "match = {}", quoted(&route.pattern));
    } else {
        let slash = route.pattern.find('/').unwrap_or_default();
        let (host, path) = route.pattern.split_at(slash);
        let host = match host {
            "" => String::new(),
            host => format!("host = {}, ", quoted(host)),
        };
        let headers = route
            .headers
            .iter()
            .map(|(name, value)| format!("{} = {}", quoted(name), quoted(value)));
        let headers = headers.collect::<Vec<_>>().join(", ");
        let path = quoted(path);
        let _ = writeln!(
            text,
            "match = {{ {host}path = {path}, headers = {{ {headers} }} }}"
        );
    }
    match &route.target {
        Target::Upstream(url) => {
            let _ = writeln!(text, "upstream = {}", quoted(url));
        }
        Target::Unknown => {
            text.push_str("upstream = \"builtin:echo\"               # put your upstream here\n")
        }
        Target::Respond(status, body) => {
            let _ = writeln!(
                text,
                "respond = {{ status = {status}, body = {} }}",
                quoted(body)
            );
        }
        Target::Redirect(status, to) => {
            let _ = writeln!(
                text,
                "redirect = {{ to = {}, status = {status} }}",
                quoted(to)
            );
        }
    }
    if !route.strip_prefix.is_empty() {
        let _ = writeln!(text, "strip_prefix = {}", quoted(&route.strip_prefix));
    }
    if !route.add_prefix.is_empty() {
        let _ = writeln!(text, "add_prefix = {}", quoted(&route.add_prefix));
    }
    let _ = writeln!(text, "limits = {}", list(&route.limits));
}

fn list<T: AsRef<str>>(texts: &[T]) -> String {
    let texts: Vec<String> = texts.iter().map(|text| quoted(text.as_ref())).collect();
    format!("[{}]", texts.join(", "))
}

/// A TOML string with exactly this value: nothing in it is read as a variable.
fn quoted(text: &str) -> String {
    let json = serde_json::Value::String(text.replace("${", "$${")).to_string();
    json.replace('\u{7f}', "\\u007f")
}

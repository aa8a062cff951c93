//! Common mistakes of users of other products, and the correct setting for each.

use toml::de::DeValue;

/// Keys with other names: the table (for user-chosen names without the last part), the words users
/// write, and the correct key.
const KEYS: [(&str, &[&str], &str); 44] = [
    (
        "",
        &["route", "location", "locations", "rules"],
        "each route is a table of a list: [[routes]]",
    ),
    (
        "",
        &[
            "limit",
            "rate_limit",
            "rate_limits",
            "ratelimit",
            "limiter",
            "limiters",
            "zones",
        ],
        "each limit is a table with a name of its own: [limits.per_caller]",
    ),
    (
        "",
        &["port", "bind", "listen", "host", "hostname"],
        "write it in a table: [server] listen = \"0.0.0.0:8080\"",
    ),
    (
        "",
        &["rate", "burst", "per", "requests_per_second"],
        "a limit is a table with a name of its own: [limits.per_caller] rate = \"100/minute\"",
    ),
    (
        "",
        &[
            "upstream",
            "backend",
            "backends",
            "proxy_pass",
            "service",
            "services",
            "target",
        ],
        "write it in a route: [[routes]] match = \"/**\", upstream = \"http://127.0.0.1:3000\"; several servers are [upstreams.app] servers = […]",
    ),
    (
        "",
        &[
            "redis",
            "postgres",
            "postgresql",
            "storage",
            "cache",
            "database",
        ],
        "a store that gateways share is [store] kind = \"redis\", url = \"redis://127.0.0.1:6379/0\"",
    ),
    (
        "",
        &["trusted_proxies", "trusted_hops", "real_ip", "proxies"],
        "write it in a table: [address] trusted_proxies = [\"10.0.0.0/8\"]",
    ),
    (
        "",
        &["keys", "api_keys", "callers", "consumers", "auth"],
        "callers belong to the identity that reads their key: [identities.tenant.callers]",
    ),
    (
        "",
        &["logging", "logs", "access_log"],
        "write it in a table: [log] access = \"stdout\"",
    ),
    (
        "",
        &["metrics", "prometheus", "health", "dashboard"],
        "health and metrics are on the admin listener: [admin] listen = \"127.0.0.1:9180\"",
    ),
    (
        "server",
        &["port"],
        "the port is a part of the address: listen = \"0.0.0.0:8080\"",
    ),
    (
        "server",
        &[
            "host",
            "address",
            "addr",
            "bind",
            "bind_address",
            "hostname",
        ],
        "write the address with its port: listen = \"0.0.0.0:8080\"",
    ),
    (
        "server",
        &[
            "cert",
            "certificate",
            "key",
            "tls",
            "ssl",
            "ssl_certificate",
            "tls_cert",
        ],
        "write certificates = [{ certificate = \"site.pem\", key = \"site.key\" }] and listen = \"https://0.0.0.0:8443\"",
    ),
    (
        "server",
        &["threads", "worker_processes", "cores"],
        "write workers = 4, or leave it out: one per core",
    ),
    (
        "server",
        &[
            "max_connections",
            "max_body",
            "client_max_body_size",
            "max_body_size",
            "body_limit",
        ],
        "write it in a table: [server.bounds] connections = 10000, body = \"10MiB\"",
    ),
    (
        "server",
        &[
            "timeout",
            "read_timeout",
            "idle_timeout",
            "keepalive",
            "keepalive_timeout",
            "graceful_timeout",
        ],
        "write it in a table: [server.timeouts] header_read = \"10s\", body_idle = \"30s\", keep_alive = \"75s\", drain = \"30s\"",
    ),
    (
        "server",
        &["trusted_proxies", "trust_proxy", "trusted_hops"],
        "write it in a table: [address] trusted_proxies = [\"10.0.0.0/8\"]",
    ),
    (
        "limits",
        &["requests_per_second", "rps", "per_second"],
        "write the number with its unit: rate = \"100/second\"",
    ),
    (
        "limits",
        &["requests_per_minute", "rpm", "per_minute", "minute"],
        "write the number with its unit: rate = \"100/minute\"",
    ),
    (
        "limits",
        &["requests_per_hour", "per_hour", "hour"],
        "write the number with its unit: rate = \"100/hour\"",
    ),
    (
        "limits",
        &["requests_per_day", "per_day", "day"],
        "write the number with its unit: rate = \"100/day\"",
    ),
    (
        "limits",
        &[
            "limit",
            "requests",
            "max",
            "max_requests",
            "average",
            "count_limit",
            "quota",
            "amount",
        ],
        "write the number with its period: rate = \"100/minute\"",
    ),
    (
        "limits",
        &[
            "period",
            "interval",
            "unit",
            "time_window",
            "duration",
            "reset",
            "refill_interval",
            "window_size",
        ],
        "the period is a part of the rate: rate = \"100/minute\", or rate = \"100/10s\"",
    ),
    (
        "limits",
        &[
            "capacity",
            "bucket_size",
            "max_burst",
            "burst_size",
            "max_tokens",
            "size",
        ],
        "write burst = 20",
    ),
    (
        "limits",
        &[
            "key",
            "by",
            "limit_by",
            "identifier",
            "source",
            "scope",
            "group_by",
            "for",
        ],
        "write per = \"address\", per = \"everyone\", or per = \"header:x-api-key\"",
    ),
    (
        "limits",
        &["type", "kind", "strategy", "policy"],
        "write algorithm = \"token_bucket\"",
    ),
    (
        "limits",
        &[
            "concurrency",
            "max_concurrent",
            "concurrent",
            "max_connections",
            "connections",
        ],
        "write in_flight = 10, without a rate",
    ),
    (
        "limits",
        &["dry_run", "dryrun", "log_only", "shadow", "report_only"],
        "write mode = \"shadow\"",
    ),
    (
        "limits",
        &["enabled", "disabled", "active"],
        "write mode = \"off\" to switch a limit off",
    ),
    (
        "limits",
        &["nodelay"],
        "leave it out: nothing is delayed unless max_wait says so, and NGINX's burst = 20 is burst = 21 here",
    ),
    (
        "limits",
        &["delay", "queue", "wait", "timeout"],
        "write max_wait = \"2s\" to hold requests until their turn",
    ),
    (
        "limits",
        &[
            "path", "match", "route", "routes", "paths", "methods", "endpoint",
        ],
        "a limit does not match requests: a route names it in limits = [\"…\"]",
    ),
    (
        "limits",
        &["status", "status_code", "message", "response"],
        "a refusal is 429; its body is written in [responses.refusal] or in a route's `refusal`",
    ),
    (
        "routes",
        &[
            "path",
            "paths",
            "url",
            "uri",
            "prefix",
            "location",
            "pattern",
            "path_prefix",
        ],
        "write match = \"/api/**\"",
    ),
    (
        "routes",
        &["method", "methods", "host", "hosts"],
        "write it in the pattern: match = \"GET api.example.com/v1/**\"",
    ),
    (
        "routes",
        &[
            "backend",
            "proxy_pass",
            "target",
            "to",
            "forward",
            "forward_to",
            "service",
            "proxy",
            "servers",
            "url_to",
        ],
        "write upstream = \"http://127.0.0.1:3000\", or the name of one of [upstreams]",
    ),
    (
        "routes",
        &[
            "rate",
            "burst",
            "rate_limit",
            "limit",
            "limiter",
            "rate_limits",
        ],
        "a route names its limits: limits = [\"per_caller\"], with [limits.per_caller] rate = \"100/minute\"",
    ),
    (
        "upstreams",
        &[
            "url",
            "server",
            "address",
            "host",
            "hosts",
            "targets",
            "endpoints",
            "backends",
            "nodes",
        ],
        "write servers = [\"http://10.0.0.1:3000\"]",
    ),
    (
        "upstreams",
        &[
            "timeout",
            "connect_timeout",
            "read_timeout",
            "proxy_read_timeout",
        ],
        "write timeouts = { connect = \"1s\", response = \"30s\", idle = \"60s\" }",
    ),
    (
        "upstreams",
        &["lb_policy", "load_balancing", "algorithm", "policy"],
        "write balance = \"least_requests\"",
    ),
    (
        "store",
        &["type", "driver", "backend"],
        "write kind = \"redis\" or kind = \"postgres\"",
    ),
    (
        "store",
        &[
            "host",
            "port",
            "address",
            "addr",
            "server",
            "servers",
            "dsn",
            "connection_string",
        ],
        "write url = \"redis://127.0.0.1:6379/0\", or url = \"${REDIS_URL}\"",
    ),
    (
        "store",
        &[
            "fail_open",
            "fail_closed",
            "on_failure",
            "on_error",
            "failure_mode",
            "fallback",
            "timeout",
        ],
        "write when_down = \"local_share\", \"allow\" or \"refuse\", and how long to wait in answer_within = \"20ms\"",
    ),
    (
        "identities",
        &[
            "header",
            "cookie",
            "query",
            "bearer",
            "jwt_claim",
            "source",
            "from",
            "field",
            "type",
        ],
        "write key = \"header:x-api-key\", key = \"cookie:sid\", key = \"query:key\" or key = \"bearer\"",
    ),
];

/// Words that a choice does not have: the key, the words, and the correct word.
const WORDS: [(&str, &[&str], &str); 9] = [
    (
        "algorithm",
        &["leaky_bucket", "leaky-bucket", "leaky", "shaping"],
        "write algorithm = \"token_bucket\": with burst = 1 it spaces requests as a leaky bucket does, and max_wait = \"2s\" holds them until their turn",
    ),
    (
        "algorithm",
        &["gcra", "cell", "generic_cell_rate"],
        "write algorithm = \"token_bucket\": the same rule as GCRA",
    ),
    (
        "algorithm",
        &["fixed", "window", "counter"],
        "write algorithm = \"fixed_window\"",
    ),
    (
        "algorithm",
        &["sliding", "rolling", "rolling_window", "sliding_counter"],
        "write algorithm = \"sliding_window\", or \"sliding_log\", which is exact",
    ),
    (
        "mode",
        &[
            "dry_run", "dryrun", "log", "log_only", "report", "monitor", "observe",
        ],
        "write mode = \"shadow\": it counts and never refuses",
    ),
    (
        "mode",
        &["on", "enabled", "block", "active"],
        "write mode = \"enforce\"",
    ),
    (
        "when_down",
        &["open", "fail_open", "fail-open", "pass"],
        "write when_down = \"allow\"",
    ),
    (
        "when_down",
        &["closed", "fail_closed", "fail-closed", "deny", "block"],
        "write when_down = \"refuse\"",
    ),
    (
        "when_down",
        &["local", "memory", "fallback"],
        "write when_down = \"local_share\"",
    ),
];

/// The correct key for an unknown key in the table at `path`.
pub(crate) fn of_key(path: &[String], key: &str) -> Option<&'static str> {
    let section = path
        .first()
        .map_or("", |first| first.split('[').next().unwrap_or_default());
    // `[limits.NAME]`, not `[limits.NAME.window]`.
    let depth = match section {
        "" => 0,
        "limits" | "upstreams" | "identities" => 2,
        _ => 1,
    };
    let here = path.len() == depth;
    let folded = key.to_ascii_lowercase().replace('-', "_");
    let slip = KEYS
        .iter()
        .find(|(table, words, _)| here && *table == section && words.contains(&folded.as_str()));
    slip.map(|(_, _, help)| *help)
}

/// The correct word for an unknown word of the choice at `path`.
pub(crate) fn of_word(path: &[String], word: &str) -> Option<&'static str> {
    let key = path.last()?;
    let folded = word.to_ascii_lowercase();
    let slip = WORDS
        .iter()
        .find(|(name, words, _)| name == key && words.contains(&folded.as_str()));
    slip.map(|(_, _, help)| *help)
}

/// The correct value for a value of the wrong type at `path`.
pub(crate) fn of_value(path: &[String], value: &DeValue<'_>) -> Option<String> {
    let whole: Vec<&str> = path.iter().map(String::as_str).collect();
    Some(match (whole.as_slice(), value) {
        ([list @ ("routes" | "tests")], DeValue::Table(_)) => {
            format!("write [[{list}]], with two brackets: it is a list, and each entry begins so")
        }
        ([named @ ("limits" | "identities" | "upstreams" | "tiers")], DeValue::Array(_)) => {
            format!("write [{named}.NAME], with one bracket and a name of its own for each")
        }
        (["server", "listen"], DeValue::Integer(port)) => {
            format!("write the address with the port: listen = \"0.0.0.0:{port}\"")
        }
        (["limits", _, "window"], DeValue::String(period)) => {
            format!("the period is a part of the rate: rate = \"100/{period}\"; `window` says where windows begin")
        }
        (["limits", _, "window"], DeValue::Integer(_)) => {
            "the period is a part of the rate: rate = \"100/60s\"; `window` says where windows begin".to_owned()
        }
        (["limits", _, "per"], DeValue::Integer(_)) => {
            "the period is a part of the rate: rate = \"100/minute\"; `per` says who has a bucket of its own".to_owned()
        }
        (_, DeValue::String(text)) if text.parse::<u64>().is_ok() || *text == "true" || *text == "false" => {
            format!("write {} = {text}, without quotes", whole.last()?)
        }
        _ => return None,
    })
}

/// The correct value in `per` for a word that names no identity.
pub(crate) fn of_scope(word: &str) -> Option<&'static str> {
    let folded = word.trim_start_matches('$').to_ascii_lowercase();
    Some(match folded.as_str() {
        "ip" | "client_ip" | "ip_address" | "remote_addr" | "binary_remote_addr" | "client"
        | "remote_address" | "source_ip" | "client_address" => "write per = \"address\"",
        "all" | "global" | "total" | "any" | "service" | "none" | "server" => {
            "write per = \"everyone\": one bucket for all"
        }
        "api_key" | "api-key" | "apikey" | "x-api-key" | "key" | "consumer" | "header" => {
            "write where the key stands: per = \"header:x-api-key\", and when_missing = \"use:address\""
        }
        "user" | "token" | "jwt" | "authorization" => {
            "write per = \"bearer\" for the token as it is, or define an identity with key = \"jwt:sub\""
        }
        "path" | "url" | "uri" | "endpoint" => "write per = \"route\"",
        "second" | "minute" | "hour" | "day" => {
            "the period is a part of the rate: rate = \"100/minute\"; `per` says who has a bucket of its own"
        }
        _ => return None,
    })
}

/// A rate in other products' syntax, converted to ours: `10r/s`, `1.5/second`, `100 per minute`,
/// `100rpm`.
pub(crate) fn of_rate(text: &str) -> Option<String> {
    let folded = text
        .trim()
        .to_ascii_lowercase()
        .replace(" per ", "/")
        .replace('_', "");
    let folded = match folded.as_bytes() {
        [.., b'r', b'p', unit @ (b's' | b'm' | b'h' | b'd')] => {
            format!("{}/{}", &folded[..folded.len() - 3], char::from(*unit))
        }
        _ => folded,
    };
    let (amount, period) = folded.split_once('/')?;
    let number = amount
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(amount.len());
    let (number, word) = amount.split_at(number);
    let units = [
        "", "r", "req", "reqs", "request", "requests", "hit", "hits", "call", "calls", "times",
        "token", "tokens",
    ];
    if !units.contains(&word.trim()) {
        return None;
    }
    let period = match period.trim() {
        "s" | "sec" | "second" | "seconds" | "1s" => "second",
        "m" | "min" | "minute" | "minutes" | "1m" => "minute",
        "h" | "hr" | "hour" | "hours" | "1h" => "hour",
        "d" | "day" | "days" | "1d" => "day",
        other => other,
    };
    let Some((whole, decimals)) = number.split_once('.') else {
        return Some(format!("{number}/{period}"));
    };
    // 1.5 a second is 3 in 2 seconds: the same rate in whole numbers.
    let scale = 10_u64.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let amount = format!("{whole}{decimals}").parse::<u64>().ok()?;
    let shared = gcd(amount, scale);
    let (amount, scale) = (amount / shared, scale / shared);
    let unit = match period {
        "second" => "s",
        "minute" => "m",
        "hour" => "h",
        "day" => "d",
        _ => return None,
    };
    Some(if scale == 1 {
        format!("{amount}/{period}")
    } else {
        format!("{amount}/{scale}{unit}")
    })
}

fn gcd(one: u64, other: u64) -> u64 {
    if other == 0 {
        one.max(1)
    } else {
        gcd(other, one % other)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rate::rate;

    #[test]
    fn rates_of_other_products_become_rates() {
        for (written, ours) in [
            ("10r/s", "10/second"),
            ("30r/m", "30/minute"),
            ("1.5/second", "3/2s"),
            ("0.25/s", "1/4s"),
            ("2.0/minute", "2/minute"),
            ("100 per minute", "100/minute"),
            ("100 requests per hour", "100/hour"),
            ("100 req/s", "100/second"),
            ("100rpm", "100/minute"),
            ("5rps", "5/second"),
        ] {
            assert_eq!(of_rate(written).as_deref(), Some(ours), "{written}");
            assert!(rate(ours).is_ok(), "{ours}");
        }
        for none in ["", "fast", "ten/s", "1.5.5/s", "1.5/fortnight"] {
            let read = of_rate(none).filter(|ours| rate(ours).is_ok());
            assert_eq!(read, None, "{none}");
        }
    }

    #[test]
    fn slips_belong_to_their_tables() {
        let path = |parts: &[&str]| {
            parts
                .iter()
                .map(|part| (*part).to_owned())
                .collect::<Vec<_>>()
        };
        assert!(of_key(&[], "port").is_some());
        assert!(of_key(&path(&["routes[0]"]), "proxy_pass").is_some());
        assert!(of_key(&path(&["limits", "a"]), "Requests-Per-Second").is_some());
        assert!(of_key(&path(&["limits", "a", "window"]), "period").is_none());
        assert!(of_key(&path(&["log"]), "port").is_none());
    }
}

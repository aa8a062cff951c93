//! The whole vocabulary of the file, in one file that must be right; and every TOML fence of the documents.

use std::path::Path;

use tollgate_config::{Config, ConfigError};
use tollgate_limit::{Kind, Placement, Timestamp};

const NOW: Timestamp = Timestamp::from_micros(1_767_225_600_000_000);

fn environment(name: &str) -> Option<String> {
    (name == "TOLLGATE_KEY_SECRET").then(|| "0123456789abcdef0123456789abcdef".to_owned())
}

/// Everything product documentation names, with the files it refers to beside it.
const EVERYTHING: &str = r#"
include = ["conf.d/*.toml"]

[server]
listen = ["http://0.0.0.0:8080", "https://0.0.0.0:8443", "unix:tollgate.sock"]
certificates = [{ certificate = "site.pem", key = "site.key", hosts = ["*.example.com"] }]
client_ca = "clients.pem"
client_certificates = "optional"
cold_start = "full"
state_file = "tollgate.state"
proxy_protocol = false
workers = "auto"
upgrades = ["websocket"]
egress = false
via = "edge"
encoded_slash = "refuse"
body_facts = "128KiB"
compressed_bodies = "skip"
[server.timeouts]
header_read = "10s"
body_idle = "30s"
keep_alive = "75s"
drain = "30s"
drain_delay = "0s"
tls_handshake = "10s"
upgrade_idle = "5m"
[server.bounds]
connections = 10000
connections_per_address = 100
requests = 5000
header_bytes = "64KiB"
headers = 100
body = "unlimited"
http2_streams = 100
body_rate = 100

[admin]
listen = "127.0.0.1:9180"
hosts = ["tollgate.internal"]
webhook = { url = "https://hooks.example.com/tollgate", events = ["reload"], secret = "${TOLLGATE_KEY_SECRET}", timeout = "5s", attempts = 8 }

[traces]
url = "http://127.0.0.1:4318/v1/traces"
sample = "1% of requests"
service = "edge"
token = "${TOLLGATE_KEY_SECRET}"
timeout = "5s"

[log]
access = "stdout"
format = "json"
sample = "10% of requests"
keys = "hashed"
query = false
level = "info"
operations = "text"

[address]
trusted_proxies = ["10.0.0.0/8"]
trust_unix = true
header = "either"
ipv6_prefix = 64
exempt = ["192.0.2.0/24"]

[identities.tenant]
key = ["header:x-api-key"]
when_missing = "use:address"
when_unknown = "refuse"
[identities.tenant.callers]
"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08" = { name = "acme", tier = "pro" }

[identities.partner]
key = "bearer"
when_missing = "skip"
when_unknown = "accept"
callers = "callers.toml"

[identities.user]
key = ["jwt:sub"]
jwt = { keys = "jwks.json", issuer = "https://id.example.com", audience = "api", algorithms = ["ES256"], leeway = "10s" }
when_missing = "refuse"

[identities.session]
key = ["cookie:sid", "query:key", "address", "path:index", "client_certificate", "basic"]
when_missing = "use:tenant"

[tiers.pro]
search = { rate = "1000/minute", burst = 100 }
month = "1000000/month"
total = "unlimited"
heavy_jobs = { in_flight = 50 }

[limits.search]
rate = "100/minute"
burst = 20
algorithm = "token_bucket"
per = "tenant"
cost = { header = "x-cost", default = 1, min = 1, max = 15 }
debt = 10
max_wait = "0s"
mode = "enforce"
enforce_for = "25% of keys"
candidate = { rate = "60/minute" }
store = "shared"
when_down = "local_share"
on_failover = "keep"
refund_on = ["502", "503"]

[limits.tokens]
rate = "100000/hour"
per = ["user", "address"]
settle = { from = "json:usage.total_tokens", estimate = 500, max = 20000 }
refuse_status = 402

[limits.login]
rate = "5/minute"
algorithm = "sliding_log"
per = "address"
count = "failures"
memory = "64MiB"

[limits.month]
rate = "10000/month"
algorithm = "fixed_window"
window = { align = "calendar", zone = "Europe/Berlin", anchor_day = 1 }
per = "partner"

[limits.steps]
rate = "10/10s"
algorithm = "interval"
per = "session"

[limits.smooth]
rate = "10/second"
algorithm = "sliding_window"
per = "everyone"

[limits.total]
rate = "100/second"
per = "everyone"
lease = true
mode = "shadow"

[limits.cold]
rate = "100/second"
per = "everyone"
store = "local"
warm_up = "30s"

[limits.gentle]
rate = "100/minute"
follow_upstream = { least = "10/minute", obey_quota = false }
per = "address"
store = "local"

[limits.found]
in_flight = { adaptive = true, least = 5, most = 200 }
per = "everyone"
store = "local"

[limits.heavy_jobs]
in_flight = 10
per = "tenant"

[store]
kind = "redis"
url = "redis://127.0.0.1:6379/0"
answer_within = "20ms"
when_down = "local_share"
replicas = "auto"
key_secret = "${TOLLGATE_KEY_SECRET}"
audit = "warn"

[upstreams.app]
servers = ["http://10.0.0.1:3000", { url = "http://10.0.0.2:3000/base", weight = 2 }, "unix:app.sock"]
balance = "least_requests"
health = { path = "/healthz", every = "5s", timeout = "1s", healthy_after = 2, unhealthy_after = 3 }
eject = { failures = 5, wait = "10s" }
timeouts = { connect = "1s", response = "30s", idle = "60s", total = "5m" }
retries = { attempts = 2, on = ["connect_failure", "refused_stream"] }
host = "keep"
http2 = false
early_hints = true
connections = 100
idle_connections = 10
pending = 10
pending_timeout = "1s"
resolve_every = "5s"
slow_start = "10s"
proxy_protocol = "off"

[upstreams.private]
servers = "https://10.0.0.3"
server_name = "app.internal"
pinned_sha256 = "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"

[[routes]]
match = "/private"
upstream = "private"

[[routes]]
match = "POST /v1/search/{index}"
upstream = "app"
limits = ["search", { limit = "heavy_jobs", cost = 2 }, "tokens", "login", "month", "steps", "smooth", "total", "cold", "gentle", "found"]
strip_prefix = "/v1"
add_prefix = "/api"
body = "1MiB"
request_headers = { set = { x-tier = "{tier}", x-id = "{path:index}" }, remove = ["x-internal"] }
response_headers = { remove = "server" }
refusal = { body = "slow down\n", content_type = "text/plain" }

[[routes]]
name = "by header"
match = { methods = ["GET", "HEAD"], host = "*.example.com", path = "/x/**", headers = { x-kind = "a", x-any = "*" }, body = { "json:method" = "tools/call", "form:user" = "*", "graphql:operation" = "Top" } }
respond = { status = 204, body = "", content_type = "text/plain" }

[[routes]]
match = "example.com/old/{rest}"
redirect = { to = "https://example.com/new/{path:rest}", status = 301 }

[responses]
headers = ["ratelimit", "x-ratelimit"]
reset = "seconds"
refusal = { body_file = "refusal.txt", content_type = "text/plain" }

[[tests]]
name = "a burst"
send = ["21 x POST /v1/search/a as tenant:acme from 192.0.2.1 at 0s", "GET /nowhere at 1s every 10ms"]
headers = { x-cost = "1" }
expect = { status = 404, limit = "search", retry_after = "1s" }
"#;

const JWKS: &str = r#"{"keys":[{"kty":"EC","crv":"P-256","kid":"1","use":"sig",
"x":"f83OJ3D2xF1Bg8vub9tLe1gHMzV76e8Tus9uPHvRVEU","y":"x_FEzRu9m36HLN_tue659LNpXW6pCyStikYjKIWI5a0"}]}"#;

fn beside(files: &[(&str, &str)]) -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a directory for the test");
    for (name, text) in files {
        let path = home.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("a directory");
        std::fs::write(path, text).expect("a file");
    }
    home
}

fn load(home: &Path) -> Result<Config, ConfigError> {
    tollgate_config::load(&home.join("gateway.toml"), &environment, NOW)
}

#[test]
fn every_key_of_the_vocabulary_is_understood() {
    let home = beside(&[
        ("gateway.toml", EVERYTHING),
        ("site.pem", "pem"),
        ("site.key", "pem"),
        ("clients.pem", "pem"),
        ("refusal.txt", "no"),
        ("jwks.json", JWKS),
        (
            "callers.toml",
            "\"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"zed\" }",
        ),
        (
            "conf.d/more.toml",
            "[[routes]]\nmatch = \"/more\"\nupstream = \"http://10.0.0.9\"\n[limits.more]\nrate = \"1/second\"\nper = \"everyone\"\n",
        ),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(config.policy.routes.len(), 5);
    assert_eq!(config.policy.rules.len(), 12);
    let placed = |name: &str| {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| &*rule.name == name)
            .expect("a limit of the file");
        (rule.live.algorithm.kind(), rule.live.placement)
    };
    assert_eq!(placed("search"), (Kind::TokenBucket, Placement::Shared));
    assert_eq!(placed("cold"), (Kind::TokenBucket, Placement::Local));
    assert_eq!(placed("month"), (Kind::FixedWindow, Placement::Shared));
    assert_eq!(placed("heavy_jobs").0, Kind::InFlight);
    for name in [
        "gateway.toml",
        "callers.toml",
        "jwks.json",
        "site.key",
        "refusal.txt",
        "conf.d/more.toml",
    ] {
        assert!(
            config.files_read.contains(&home.path().join(name)),
            "{name} is watched: {:?}",
            config.files_read
        );
    }
    assert_eq!(config.caller_files.len(), 1);
    assert_eq!(config.tests[0].sent.len(), 2);
    assert_eq!(
        config.tests[0].sent[0]
            .caller
            .as_ref()
            .map(|caller| caller.index),
        Some(0)
    );
    let said = tollgate_config::report(&config);
    for words in [
        "tier pro",
        "for each tenant",
        "candidate, only counted",
        "counts only responses with 401, 403",
        "month in Europe/Berlin",
        "leased",
    ] {
        assert!(said.contains(words), "`{words}` in\n{said}");
    }
}

#[test]
fn what_a_candidate_or_a_tier_does_not_say_is_as_in_the_limit() {
    let text = "[tiers.pro]\nrated = { rate = \"60/minute\" }\nburst = { burst = 5 }\n\
                [limits.rated]\nper = \"address\"\nrate = \"10/minute\"\nburst = 77\n\
                candidate = { rate = \"60/minute\" }\n\
                [limits.burst]\nper = \"address\"\nrate = \"10/minute\"\nburst = 77\n\
                candidate = { burst = 5 }\n\
                [[routes]]\nmatch = \"/**\"\nlimits = [\"rated\", \"burst\"]\nupstream = \"builtin:echo\"\n";
    let config = tollgate_config::parse(text, "gateway.toml", &environment, NOW)
        .unwrap_or_else(|error| panic!("{error}"));
    for (name, numbers) in [("rated", (60, 77)), ("burst", (10, 5))] {
        let rule = config
            .policy
            .rules
            .iter()
            .find(|rule| &*rule.name == name)
            .expect("defined");
        let others = rule
            .candidate
            .iter()
            .chain(rule.tiers.iter().map(|(_, limit)| limit));
        let others: Vec<_> = others
            .filter_map(|limit| limit.algorithm.quota())
            .map(|quota| (quota.amount, quota.burst))
            .collect();
        assert_eq!(others, [numbers; 2], "{name}");
    }
}

#[test]
fn a_caller_list_is_read_again_by_itself() {
    let key = "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08";
    let gateway = "[identities.k]\nkey = \"header:x\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"refuse\"\ncallers = \"callers.toml\"\n\
                   [limits.l]\nrate = \"1/second\"\nper = \"k\"\n[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"l\"]\n";
    let home = beside(&[
        ("gateway.toml", gateway),
        (
            "callers.toml",
            &format!("\"{key}\" = {{ name = \"acme\" }}\n"),
        ),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    let (identity, file) = &config.caller_files[0];
    std::fs::write(file, format!("\"{key}\" = {{ name = \"apex\" }}\n")).expect("a writable file");
    let callers = tollgate_config::load_callers(file, &config.policy, &environment)
        .unwrap_or_else(|error| panic!("{error}"));
    config.policy.identities[*identity].replace_callers(callers);
    let found = config.policy.identities[*identity]
        .callers
        .as_ref()
        .expect("listed")
        .load()
        .find(b"test")
        .cloned();
    assert_eq!(
        found.map(|caller| caller.name.to_string()),
        Some("apex".to_owned())
    );
    std::fs::write(file, format!("\"{key}\" = {{ nmae = \"apex\" }}\n")).expect("a writable file");
    let error =
        tollgate_config::load_callers(file, &config.policy, &environment).expect_err("a mistake");
    assert!(
        error.to_string().contains("did you mean `name`?"),
        "{error}"
    );
}

#[test]
fn a_missing_file_is_told_and_secrets_come_from_files() {
    let home = beside(&[]);
    let error = load(home.path()).expect_err("there is none");
    assert!(error.to_string().contains("No such file"), "{error}");
    let gateway = "[store]\nkind = \"postgres\"\nurl_file = \"url\"\nwhen_down = \"refuse\"\nkey_secret_file = \"secret\"\n\
                   [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n";
    let home = beside(&[
        ("gateway.toml", gateway),
        ("url", "postgres://a:b@c/d\n"),
        ("secret", "0123456789abcdef\n"),
    ]);
    let config = load(home.path()).unwrap_or_else(|error| panic!("{error}"));
    let store = config.store.expect("a store");
    assert_eq!(
        (store.url.expose(), store.key_secret.expose()),
        ("postgres://a:b@c/d", "0123456789abcdef")
    );
    assert!(
        !format!("{store:?}").contains("a:b@c"),
        "secrets are not shown"
    );
}

/// Documents show files, or parts of files: a part is right when nothing but its surroundings is missing.
#[test]
fn every_toml_fence_of_the_readme_is_right() {
    let readme = include_str!("../../../README.md");
    let mut fences = 0;
    for fence in readme.split("```toml\n").skip(1) {
        let text = fence.split("```").next().unwrap_or_default();
        fences += 1;
        let surroundings = if text.contains("[[routes]]") {
            ""
        } else {
            "[[routes]]\nmatch = \"/surroundings\"\nupstream = \"builtin:echo\"\n"
        };
        let whole = format!("{text}\n{surroundings}");
        if let Err(error) = tollgate_config::parse(
            &whole,
            "README.md",
            &|_| Some("0123456789abcdef0123456789abcdef".to_owned()),
            NOW,
        ) {
            let only_names = error.lines().iter().all(|line| {
                line.contains("unknown limit")
                    || line.contains("unknown identity")
                    || line.contains("cannot read")
            });
            assert!(only_names, "{text}\n{error}");
        }
    }
    assert!(fences > 0);
}

#[test]
fn environment_gives_numbers_and_switches() {
    let text = "[server]\nproxy_protocol = \"${PROXY:-false}\"\nworkers = \"${WORKERS}\"\n[server.bounds]\nconnections = \"${CONNECTIONS}\"\n\
        [limits.a]\nrate = \"${AMOUNT}/minute\"\nburst = \"${AMOUNT}\"\nper = \"address\"\n\
        [limits.b]\nin_flight = \"${AMOUNT}\"\nper = \"address\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\", \"b\"]\n";
    let environment = |name: &str| match name {
        "AMOUNT" => Some("7".to_owned()),
        "WORKERS" => Some("2".to_owned()),
        "CONNECTIONS" => Some(" 500 ".to_owned()),
        _ => None,
    };
    let config = tollgate_config::parse(text, "gateway.toml", &environment, NOW).expect("right");
    assert_eq!(config.server.workers, Some(2));
    assert_eq!(config.server.bounds.connections, 500);
    assert!(!config.server.proxy_protocol);
    let words: Vec<String> = config
        .policy
        .limits
        .iter()
        .map(|limit| limit.algorithm.words())
        .collect();
    assert!(words[0].starts_with("7 at once"), "{words:?}");
    assert!(words[1].contains('7'), "{words:?}");
}

#[test]
fn sources_that_limits_name_are_shared_where_they_mean_the_same() {
    let limit = |name: &str, when_missing: &str| {
        format!(
            "[limits.{name}]\nrate = \"1/s\"\nper = \"header:x-api-key\"\nwhen_missing = {when_missing}\n"
        )
    };
    let text = [
        "[tiers]\nanonymous = { a = \"1/minute\" }\n".to_owned(),
        limit("a", "\"use:address\""),
        limit("b", "\"use:address\""),
        limit("c", "\"refuse\""),
        limit("d", "{ use = \"address\", tier = \"anonymous\" }"),
        "[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\", \"b\", \"c\", \"d\"]\n"
            .to_owned(),
    ];
    let config = tollgate_config::parse(&text.concat(), "gateway.toml", &|_| None, NOW);
    let config = config.expect("right");
    let names: Vec<&str> = config
        .policy
        .identities
        .iter()
        .map(|identity| &*identity.name)
        .collect();
    assert_eq!(
        names,
        [
            "header:x-api-key",
            "header:x-api-key@c",
            "header:x-api-key@d"
        ]
    );
}

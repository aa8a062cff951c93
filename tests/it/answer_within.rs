//! A request whose decision asks the shared store several times: its response comes within `answer_within` all the same.

use std::time::{Duration, Instant};

use serde_json::json;

use crate::harness::{Connection, Gateway, Upstream, eventually};
use crate::rls::stores::{Shared, StoreKind};
use crate::servers::SlowNetwork;

/// `answer_within` of the files here; one visit to the slow store takes nearly as long.
const WITHIN: Duration = Duration::from_secs(1);
const VISIT: Duration = Duration::from_millis(900);
/// Less than two visits take, and far more than a busy machine adds to `answer_within`.
const MOST: Duration = Duration::from_millis(1_500);

/// Two gateways on one server: the second one reaches it over a slow network. What the first has used up, the second does
/// not know, so it has to ask.
struct Slow {
    quick: Gateway,
    slow: Gateway,
    _shared: Shared,
}

impl Slow {
    /// `use_up` is done at the gateway that is not slow. `None`: there is no Redis here.
    fn of(config: &str, use_up: impl Fn(&Gateway)) -> Option<Self> {
        let shared = Shared::new(StoreKind::Redis.start()?);
        let port = shared.port();
        let network = SlowNetwork::to(port, VISIT);
        let table = shared.table.replace("\"2s\"", "\"1s\"");
        assert!(table.contains("answer_within = \"1s\""), "{table}");
        let start = |port: u16, table: &str| {
            let table = table.replace(&format!(":{}", shared.port()), &format!(":{port}"));
            Gateway::start_in_real_time(&format!("{config}\n{table}"))
        };
        let quick = start(port, &table);
        let slow = start(network.port, &table);
        use_up(&quick);
        eventually("a connection of the slow gateway", || {
            slow.admin_get("/readyz").status == 200
        });
        network.delay();
        Some(Self {
            quick,
            slow,
            _shared: shared,
        })
    }
}

/// Fails if `ask` takes as long as two visits to the store.
fn in_time<T>(what: &str, ask: impl FnOnce() -> T) -> T {
    #[expect(
        clippy::disallowed_methods,
        reason = "the deadline is one of real time"
    )]
    let start = Instant::now();
    let response = ask();
    let took = start.elapsed();
    println!("{what}: {took:?}");
    assert!(took < MOST, "{what}: {took:?}, and {WITHIN:?} are promised");
    response
}

#[test]
fn store_slow_three_targets_are_asked_within_one_deadline() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    let config = format!(
        "[limits.a]\nrate = \"1/day\"\nper = \"everyone\"\n[limits.b]\nrate = \"1/day\"\nper = \"everyone\"\n\
         [limits.c]\nrate = \"9/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"a\"]\n\
         over_limit = [{{ instead_of = \"a\", upstream = \"{url}\", limits = [\"b\"] }}, \
         {{ instead_of = \"b\", upstream = \"{url}\", limits = [\"c\"] }}]\n"
    );
    let use_up = |quick: &Gateway| {
        for _ in 0..2 {
            assert_eq!(quick.get("/").status, 200);
        }
    };
    let Some(gateways) = Slow::of(&config, use_up) else {
        return;
    };
    let response = in_time("three targets", || gateways.slow.get("/"));
    // The first target refuses. The second was not asked in time, and `when_down` says no.
    assert_eq!(response.status, 503, "{response:?}");
    assert_eq!(gateways.quick.get("/").status, 200);
}

#[test]
fn store_slow_look_before_a_token_is_checked_shares_the_deadline_of_the_draw() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("written");
    let config = format!(
        "[identities.user]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         jwt = {{ secret_file = '{}', algorithms = [\"HS256\"] }}\n\
         [limits.clients]\nrate = \"9/day\"\nper = \"address\"\n\
         [limits.users]\nrate = \"9/day\"\nper = \"user\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"clients\", \"users\"]\n",
        secret.display()
    );
    let Some(gateways) = Slow::of(&config, |_| {}) else {
        return;
    };
    let token = (
        "authorization",
        "Bearer eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.AAAA",
    );
    let response = in_time("a token", || gateways.slow.request("GET", "/", &[token]));
    assert!([401, 503].contains(&response.status), "{response:?}");
}

#[test]
fn store_slow_penalty_is_imposed_within_the_deadline_of_the_draw() {
    let config = "[limits.all]\nrate = \"1/day\"\nper = \"everyone\"\n\
         penalty = { after = \"1 refusals in 1h\", block = \"1h\" }\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"all\"]\n";
    let use_up = |quick: &Gateway| assert_eq!(quick.get("/").status, 200);
    let Some(gateways) = Slow::of(config, use_up) else {
        return;
    };
    let refused = in_time("a penalty", || gateways.slow.get("/"));
    assert_eq!(refused.status, 429, "{refused:?}");
    assert!(refused.text().contains("refused too often"), "{refused:?}");
}

#[test]
fn store_slow_descriptors_with_a_penalty_are_decided_within_one_deadline() {
    let config = "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\n\
         [limits.all]\nrate = \"1/day\"\nper = \"descriptor\"\n\
         penalty = { after = \"1 refusals in 1h\", block = \"1h\" }\n\
         [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{ key = \"all\" }]\nlimits = [\"all\"]\n";
    let use_up = |quick: &Gateway| {
        if let Some(mut client) = crate::rls::Client::of(quick) {
            assert!(crate::rls::is_ok(&client.ask(&["all=1"])));
        }
    };
    let Some(gateways) = Slow::of(config, use_up) else {
        return;
    };
    let Some(mut client) = crate::rls::Client::of(&gateways.slow) else {
        return;
    };
    let refused = in_time("descriptors", || client.ask(&["all=1"]));
    assert!(!crate::rls::is_ok(&refused), "{refused}");
}

#[test]
fn store_slow_quotas_are_looked_at_and_drawn_from_within_one_deadline() {
    let rule = |key: &str| {
        format!(
            "[limits.{key}]\nrate = \"1/day\"\nper = \"descriptor\"\n\
             [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"{key}\" }}]\nlimits = [\"{key}\"]\nquota_mode = true\n"
        )
    };
    let config = format!(
        "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\n{}{}",
        rule("one"),
        rule("two")
    );
    let Some(gateways) = Slow::of(&config, |_| {}) else {
        return;
    };
    let Some(mut client) = crate::rls::Client::of(&gateways.slow) else {
        return;
    };
    in_time("quotas", || client.ask(&["one=1", "two=1"]));
}

#[test]
fn store_slow_requests_that_a_program_names_are_decided_beside_each_other() {
    let config = "[decide]\nlisten = \"127.0.0.1:0\"\ntrusted = [\"127.0.0.1\"]\n\
         [limits.a]\nrate = \"9/day\"\nper = \"everyone\"\n[limits.b]\nrate = \"9/day\"\nper = \"everyone\"\n\
         [limits.c]\nrate = \"9/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"a\", \"b\", \"c\"]\n";
    let Some(gateways) = Slow::of(config, |_| {}) else {
        return;
    };
    let requests = ["a", "b", "c"].map(|limit| json!({ "limit": limit }));
    let body = json!({ "requests": requests }).to_string();
    let head = format!(
        "POST /v1/decide HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = Connection::open(gateways.slow.deciding());
    let response = in_time("three requests", || {
        connection.send(format!("{head}{body}"));
        connection.answer("POST")
    });
    assert_eq!(response.status, 200, "{response:?}");
    let decisions = response.json()["decisions"].clone();
    assert_eq!(decisions.as_array().map(Vec::len), Some(3), "{decisions}");
}

#[test]
fn store_frozen_ten_limits_on_three_targets_are_decided_within_one_deadline() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let shared = Shared::new(server);
    let upstream = Upstream::hello();
    let url = upstream.url();
    let mut config = String::new();
    let names: Vec<String> = (0..30).map(|place| format!("limit-{place}")).collect();
    for name in &names {
        config.push_str(&format!(
            "[limits.{name}]\nrate = \"1/day\"\nper = \"everyone\"\nwhen_down = \"local_share\"\n"
        ));
    }
    let list = |from: usize| {
        let quoted = names[from..from + 10]
            .iter()
            .map(|name| format!("\"{name}\""));
        quoted.collect::<Vec<_>>().join(", ")
    };
    config.push_str(&format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [{}]\n\
         over_limit = [{{ instead_of = [{}], upstream = \"{url}\", limits = [{}] }}, \
         {{ instead_of = [{}], upstream = \"{url}\", limits = [{}] }}]\n{}",
        list(0),
        list(0),
        list(10),
        list(10),
        list(20),
        shared.table.replace("\"2s\"", "\"1s\"")
    ));
    let gateway = Gateway::start_in_real_time(&config);
    eventually("a connection to the store", || {
        gateway.admin_get("/readyz").status == 200
    });
    shared.signal("-STOP");
    // The shares of the three targets, and then nothing is left.
    for status in [200, 200, 200, 429] {
        let response = in_time("an outage", || gateway.get("/"));
        assert_eq!(response.status, status, "{response:?}");
    }
    shared.signal("-CONT");
}

//! Envoy's rate limit service, asked by grpcio: descriptors, hits, shadow, quotas, overrides, the store down, health and
//! reflection.

mod operators;
pub(crate) mod stores;

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::{Gateway, Peers};

/// A client of the service.
pub(crate) struct Client(Peers);

impl Client {
    /// `None`: there is no Python with grpcio here.
    pub(crate) fn of(gateway: &Gateway) -> Option<Self> {
        let address = gateway.deciding().to_string();
        let mut peers = Peers::start(
            "grpc, google.protobuf",
            "tests/it/rls_peers.py",
            &[Path::new(&address)],
        )?;
        assert_eq!(peers.hear(), "ready");
        Some(Self(peers))
    }

    /// The response about descriptors, each written `key=value key=value`.
    pub(crate) fn ask(&mut self, descriptors: &[&str]) -> Value {
        let descriptors: Vec<Value> = descriptors.iter().map(|text| descriptor(text)).collect();
        self.request(json!({"domain": "edge", "descriptors": descriptors}))
    }

    fn request(&mut self, request: Value) -> Value {
        self.0.tell(&json!({"do": "ask", "request": request}))
    }

    /// Whether a request about a descriptor is admitted, with these members beside its entries.
    fn admits(&mut self, text: &str, more: &Value) -> bool {
        let mut one = descriptor(text);
        let more = more.as_object().expect("members").clone();
        one.as_object_mut().expect("members").extend(more);
        is_ok(&self.request(json!({"domain": "edge", "descriptors": [one]})))
    }
}

fn descriptor(text: &str) -> Value {
    let entries = text.split(' ').map(|entry| {
        let (key, value) = entry.split_once('=').expect("key=value");
        json!({"key": key, "value": value})
    });
    json!({ "entries": entries.collect::<Vec<Value>>() })
}

pub(crate) fn is_ok(response: &Value) -> bool {
    match response["overallCode"].as_str() {
        Some("OK") => true,
        Some("OVER_LIMIT") => false,
        _ => panic!("{response}"),
    }
}

fn header<'r>(response: &'r Value, name: &str) -> Option<&'r str> {
    let headers = response["responseHeadersToAdd"].as_array()?;
    let found = headers.iter().find(|header| header["key"] == name)?;
    found["value"].as_str()
}

/// A gateway that only decides, with limits of an hour so that no test depends on the time.
const CONFIG: &str = r#"
[server]
workers = 2

[decide]
listen = "grpc://127.0.0.1:0"
overrides = ["5/hour"]

[limits.login]
rate = "2/hour"
per = "descriptor"

[limits.total]
rate = "4/hour"
per = "everyone"

[limits.address]
rate = "3/hour"
per = "address"

[limits.tried]
rate = "1/hour"
per = "descriptor"
mode = "shadow"

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "user" }, { key = "path", value = "/login*" }]
limits = ["login"]
name = "logins"

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "all" }]
limits = ["total"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "remote_address" }]
limits = ["address"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "tried" }]
limits = ["tried"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "vip" }]
limits = []
replaces = ["logins"]

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "first" }]
limits = ["login"]
quota_mode = true

[[decide.rules]]
domain = "edge"
descriptor = [{ key = "second" }]
limits = ["login"]
quota_mode = true
"#;

#[test]
fn rls_all_descriptors_of_a_request_are_charged_or_none() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let login = "user=ann path=/login/a";
    for left in [1, 0] {
        let response = client.ask(&[login, "all=1"]);
        assert!(is_ok(&response), "{response}");
        let status = &response["statuses"][0];
        assert_eq!(status["limitRemaining"], left, "{response}");
        let limit = json!({"name": "logins", "requestsPerUnit": 2, "unit": "HOUR"});
        assert_eq!(status["currentLimit"], limit);
        assert_eq!(response["statuses"][1]["currentLimit"]["name"], "total");
    }
    let response = client.ask(&[login, "all=1"]);
    assert!(!is_ok(&response), "{response}");
    assert_eq!(response["statuses"][0]["code"], "OVER_LIMIT");
    // The other one is not charged: two of its four units are left.
    let other = &response["statuses"][1];
    assert_eq!(
        (&other["code"], &other["limitRemaining"]),
        (&json!("OK"), &json!(2))
    );
    // Another user, and another path that the pattern matches, have buckets of their own.
    assert!(is_ok(&client.ask(&["user=bob path=/login/a"])));
    assert!(is_ok(&client.ask(&["user=ann path=/login/b"])));
    // No rule is for these: the order and the number of entries count.
    for none in [
        "path=/login/a user=ann",
        "user=ann",
        "user=ann path=/logout",
    ] {
        let response = client.ask(&[none]);
        assert!(is_ok(&response) && response["statuses"][0].get("currentLimit").is_none());
    }
}

#[test]
fn rls_refusal_has_the_headers_and_the_body_of_a_route() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let login = "user=ann path=/login";
    let response = client.ask(&[login]);
    assert_eq!(
        header(&response, "ratelimit-policy"),
        Some("\"login\";q=2;w=3600")
    );
    assert_eq!(header(&response, "retry-after"), None);
    client.ask(&[login]);
    let response = client.ask(&[login]);
    let wait: u64 = header(&response, "retry-after")
        .expect("a wait")
        .parse()
        .expect("seconds");
    assert!(
        (1_700..=1_800).contains(&wait),
        "one unit each half hour: {wait}"
    );
    assert!(
        header(&response, "ratelimit").is_some_and(|value| value.starts_with("\"login\";r=0;t="))
    );
    let body: Value =
        serde_json::from_str(response["rawBody"].as_str().expect("text")).expect("JSON");
    assert_eq!(body["violated-policies"], json!(["login"]));
    let until = response["statuses"][0]["durationUntilReset"]
        .as_str()
        .expect("a duration");
    let until: f64 = until.trim_end_matches('s').parse().expect("seconds");
    let millis = body["retry_after_ms"].as_f64().expect("a number");
    assert!((until * 1_000.0 - millis).abs() <= 1.0, "{until} {millis}");
}

#[test]
fn rls_hits_are_added_looked_for_and_given_back() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let (plain, look) = (json!({}), json!({"hitsAddend": 0}));
    let one = "remote_address=192.0.2.1";
    for _ in 0..4 {
        assert!(client.admits(one, &look), "a look takes nothing");
    }
    assert!(client.admits(one, &json!({"hitsAddend": 3})));
    assert!(!client.admits(one, &look), "no unit is left");
    assert!(!client.admits(one, &plain));
    let back = json!({"hitsAddend": 2, "isNegativeHits": true});
    assert!(client.admits(one, &back));
    assert!(client.admits(one, &json!({"hitsAddend": 2})));
    assert!(!client.admits(one, &plain));
    // The hits of the request are those of descriptors without their own; a bucket is never more than full.
    assert!(client.admits(
        "remote_address=192.0.2.2",
        &json!({"hitsAddend": 99, "isNegativeHits": true})
    ));
    let two = json!({"domain": "edge", "hitsAddend": 3, "descriptors": [descriptor("remote_address=192.0.2.2")]});
    assert!(is_ok(&client.request(two.clone())));
    assert!(!is_ok(&client.request(two)));
}

/// Envoy AI Gateway looks before a request and reports its tokens after the response. A past defect: a
/// report above what was left charged nothing, so that a budget never refused.
#[test]
fn rls_report_above_what_is_left_is_charged_and_the_next_look_refuses() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = "domain: files\ndescriptors:\n- key: user\n  rate_limit: { unit: year, requests_per_unit: 1000 }\n";
    std::fs::write(folder.path().join("files.yaml"), file).expect("written");
    let files = format!("[decide]\nenvoy = '{}/*.yaml'\n", folder.path().display());
    let tokens = "[limits.tokens]\nrate = \"1000/hour\"\nper = \"descriptor\"\n\
                  [limits.window]\nrate = \"1000/hour\"\nper = \"descriptor\"\nalgorithm = \"sliding_window\"\n";
    let rules = ["tokens", "window"].map(|limit| {
        format!("[[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{{ key = \"{limit}\" }}]\nlimits = [\"{limit}\"]\n")
    });
    let config = CONFIG.replace("[decide]\n", &files) + tokens + &rules.concat();
    let gateway = Gateway::start(&config);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let mut asks = |domain: &str, entry: &str, hits: u64| {
        let mut one = descriptor(entry);
        one["hitsAddend"] = json!(hits);
        client.request(json!({"domain": domain, "descriptors": [one]}))
    };
    for (domain, entry) in [
        ("files", "user=ann"),
        ("edge", "tokens=a"),
        ("edge", "window=a"),
    ] {
        let mut passed = 0;
        for _ in 0..20 {
            if is_ok(&asks(domain, entry, 0)) {
                passed += 1;
                let reported = asks(domain, entry, 300);
                assert_eq!(is_ok(&reported), passed < 4, "{reported}");
            }
        }
        assert_eq!(passed, 4, "{entry}");
    }
    // Streams at the same time: each looked before the first report, and the debt is one burst at most.
    for _ in 0..50 {
        asks("edge", "tokens=b", 300);
    }
    let refused = asks("edge", "tokens=b", 0);
    assert!(!is_ok(&refused));
    gateway.advance(Duration::from_secs(3_600));
    assert!(!is_ok(&asks("edge", "tokens=b", 0)), "the debt is not paid");
    gateway.advance(Duration::from_secs(4));
    assert!(is_ok(&asks("edge", "tokens=b", 0)));
}

#[test]
fn rls_report_is_charged_on_every_limit_although_one_refuses() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let login = "user=ann path=/login";
    assert!(is_ok(&client.ask(&[login])) && is_ok(&client.ask(&[login])));
    let report = json!({"domain": "edge", "hitsAddend": 3, "descriptors": [descriptor(login), descriptor("all=1")]});
    let refused = client.request(report.clone());
    assert!(!is_ok(&refused), "{refused}");
    // The wait is that after the charge: one unit each half hour, and three below zero.
    let wait = header(&refused, "retry-after").map(str::to_owned);
    assert_eq!(client.ask(&["all=1"])["statuses"][0]["limitRemaining"], 0);
    assert!(!is_ok(&client.ask(&[login])));
    assert_eq!(wait, None, "three of two never fit: {refused}");
    // A request of one hit is charged on all limits or on none.
    gateway.advance(Duration::from_secs(3_600));
    assert!(!is_ok(&client.ask(&[login, "all=1"])));
    assert_eq!(client.ask(&["all=1"])["statuses"][0]["limitRemaining"], 3);
}

#[test]
fn rls_shadow_replaced_and_unlimited_rules_do_not_refuse() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    for _ in 0..3 {
        assert!(is_ok(&client.ask(&["tried=1"])));
    }
    let login = "user=ann path=/login";
    for _ in 0..3 {
        let response = client.ask(&[login, "vip=1"]);
        assert!(is_ok(&response));
        assert!(
            response["statuses"][0].get("currentLimit").is_none(),
            "{response}"
        );
        assert_eq!(response["statuses"][1]["limitRemaining"], u32::MAX);
    }
    // Nothing was charged there.
    assert!(is_ok(&client.ask(&[login])) && is_ok(&client.ask(&[login])));
    assert!(!is_ok(&client.ask(&[login])));
}

#[test]
fn rls_quotas_refuse_only_together_and_then_charge_nothing() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let both = ["first=a", "second=a", "all=1"];
    assert!(is_ok(&client.ask(&["first=a"])) && is_ok(&client.ask(&["first=a"])));
    assert!(!is_ok(&client.ask(&["first=a"])), "alone it refuses");
    for _ in 0..2 {
        let response = client.ask(&both);
        assert!(is_ok(&response), "{response}");
        assert_eq!(response["statuses"][0]["code"], "OVER_LIMIT");
    }
    let response = client.ask(&both);
    assert!(!is_ok(&response), "{response}");
    // Each request was decided once.
    let metrics = gateway.admin_get("/metrics").text();
    let allowed = r#"tollgate_limit_decisions_total{limit="total",outcome="allow"} 3"#;
    assert!(metrics.contains(allowed), "{metrics}");
    // The two admitted requests were charged, the refused one was not.
    assert_eq!(client.ask(&["all=1"])["statuses"][0]["limitRemaining"], 1);
}

#[test]
fn rls_quotas_used_up_are_waited_for_until_the_first_has_units() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let spend = |client: &mut Client, quota: &str| {
        assert!(is_ok(&client.ask(&[quota])) && is_ok(&client.ask(&[quota])));
    };
    // One unit comes back every 30 minutes.
    spend(&mut client, "first=a");
    gateway.advance(Duration::from_secs(600));
    spend(&mut client, "second=a");
    let both = ["first=a", "second=a", "all=1"];
    let refused = client.ask(&both);
    assert!(!is_ok(&refused), "{refused}");
    assert_eq!(header(&refused, "retry-after"), Some("1200"), "{refused}");
    for quota in 0..2 {
        assert_eq!(
            refused["statuses"][quota]["code"], "OVER_LIMIT",
            "{refused}"
        );
    }
    gateway.advance(Duration::from_secs(1_199));
    assert!(!is_ok(&client.ask(&both)));
    gateway.advance(Duration::from_secs(1));
    let admitted = client.ask(&both);
    assert!(is_ok(&admitted), "{admitted}");
    assert_eq!(admitted["statuses"][2]["limitRemaining"], 3, "{admitted}");
    assert!(!is_ok(&client.ask(&both)), "its unit is spent");
}

#[test]
fn rls_override_is_taken_if_the_file_lists_it_and_refills_no_bucket() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let login = "user=ann path=/login";
    let listed = json!({"limit": {"requestsPerUnit": 5, "unit": "HOUR"}});
    let other = json!({"limit": {"requestsPerUnit": 500, "unit": "HOUR"}});
    assert!(client.admits(login, &json!({})) && client.admits(login, &json!({})));
    assert!(!client.admits(login, &other), "it is not in the file");
    let admitted = (0..9)
        .filter(|_| client.admits("user=bob path=/login", &listed))
        .count();
    assert_eq!(admitted, 5);
    assert!(
        !client.admits("user=bob path=/login", &json!({})),
        "one bucket"
    );
    // Larger numbers do not fill a bucket that is used up.
    assert!(!client.admits(login, &listed));
}

#[test]
fn rls_override_holds_for_a_descriptor_without_a_rule() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let rate = |requests: u32| json!({"limit": {"requestsPerUnit": requests, "unit": "HOUR"}});
    let mut admitted =
        |text: &str, more: &Value| (0..9).filter(|_| client.admits(text, more)).count();
    assert_eq!(admitted("plan=a", &rate(5)), 5);
    assert_eq!(
        admitted("plan=b", &rate(5)),
        5,
        "a bucket for each descriptor"
    );
    assert_eq!(
        admitted("plan=c", &rate(7)),
        5,
        "a rate that is not in the file"
    );
    assert_eq!(admitted("plan=c", &json!({})), 9, "no rule and no rate");
}

/// After an error Envoy admits the request where `failure_mode_deny` is false, its default.
#[test]
fn rls_what_cannot_be_read_is_refused_and_unknown_domains_are_counted() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    for request in [
        json!({"domain": "", "descriptors": [descriptor("all=1")]}),
        json!({"domain": "edge", "descriptors": []}),
    ] {
        assert_eq!(client.request(request)["error"], "INVALID_ARGUMENT");
    }
    let users = |count| {
        (0..count)
            .map(|user| descriptor(&format!("tried={user}")))
            .collect::<Vec<_>>()
    };
    for descriptors in [vec![descriptor("all=1"); 65], users(17)] {
        let refused = client.request(json!({"domain": "edge", "descriptors": descriptors}));
        assert!(!is_ok(&refused), "{refused}");
    }
    // edge, { { all, FF } }: no UTF-8; then a message that ends early, and one that is no message.
    for message in [
        "0a0465646765120a0a080a03616c6c1201ff",
        "0a0465646765120d",
        "ffff",
    ] {
        let refused = client.0.tell(&json!({"do": "raw", "hex": message}));
        assert!(!is_ok(&refused), "{message}: {refused}");
    }
    // Two headers of 40 KB, and more than a server of gRPC for Go reads.
    let long = |bytes: usize| json!({"domain": "edge", "descriptors": [{"entries": [{"key": "tried", "value": "x".repeat(bytes)}]}]});
    let two = json!({"domain": "edge", "descriptors": [descriptor("all=1"), long(80_000)["descriptors"][0]]});
    assert!(is_ok(&client.request(two)));
    assert!(!is_ok(&client.request(long(5 << 20))));
    let elsewhere = json!({"domain": "elsewhere", "descriptors": [descriptor("all=1")]});
    assert!(is_ok(&client.request(elsewhere)));
    assert_eq!(client.ask(&["all=1"])["statuses"][0]["limitRemaining"], 2);
    let metrics = gateway.admin_get("/metrics").text();
    for (outcome, count) in [
        ("unknown_domain", 1),
        ("ok", 2),
        ("over_limit", 0),
        ("unreadable", 6),
    ] {
        let line =
            format!("tollgate_rate_limit_service_requests_total{{outcome=\"{outcome}\"}} {count}");
        assert!(
            metrics.lines().any(|found| found == line),
            "{line}\n{metrics}"
        );
    }
}

#[test]
fn rls_untrusted_peer_may_not_ask_and_sees_the_health() {
    let config = CONFIG.replace("overrides", "trusted = [\"192.0.2.0/24\"]\noverrides");
    let gateway = Gateway::start(&config);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let response = client.ask(&["all=1"]);
    assert_eq!(response["error"], "PERMISSION_DENIED", "{response}");
    assert_eq!(client.0.tell(&json!({"do": "health"})), "SERVING");
    gateway.reload(CONFIG).expect("valid");
    assert_eq!(client.ask(&["all=1"])["statuses"][0]["limitRemaining"], 3);
}

#[test]
fn rls_health_and_reflection_follow_grpc() {
    let gateway = Gateway::start(CONFIG);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let mut tell = |what: Value| client.0.tell(&what);
    let name = "envoy.service.ratelimit.v3.RateLimitService";
    assert_eq!(tell(json!({"do": "health", "service": name})), "SERVING");
    assert_eq!(
        tell(json!({"do": "health", "service": "other"}))["error"],
        "NOT_FOUND"
    );
    for version in ["v1", "v1alpha"] {
        let services = tell(json!({"do": "services", "version": version}));
        let names = [name, "grpc.health.v1.Health"].map(Value::from);
        let list = services.as_array().expect("a list");
        assert!(names.iter().all(|name| list.contains(name)), "{services}");
    }
    for (symbol, known) in [
        (
            "envoy.service.ratelimit.v3.RateLimitService.ShouldRateLimit",
            true,
        ),
        (
            "envoy.service.ratelimit.v3.RateLimitResponse.RateLimit.Unit",
            true,
        ),
        ("envoy.service.ratelimit.v3.Other", false),
    ] {
        assert_eq!(
            tell(json!({"do": "symbol", "name": symbol})),
            known,
            "{symbol}"
        );
    }
    assert_eq!(tell(json!({"do": "watch"})), "SERVING");
    gateway.announce_drain();
    assert_eq!(tell(json!({"do": "next"})), "NOT_SERVING");
    assert_eq!(tell(json!({"do": "health"})), "NOT_SERVING");
    assert_eq!(tell(json!({"do": "next"}))["error"], "UNAVAILABLE");
}

/// The files of envoyproxy/ratelimit, read as they are, and again when they change.
#[test]
fn rls_files_of_envoy_are_read_as_they_are_and_reloaded() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("edge.yaml");
    let yaml = |number: u32| {
        format!(
            "domain: edge\ndescriptors:\n\
             - key: user\n  rate_limit: {{ unit: year, requests_per_unit: {number}, name: users }}\n\
             - key: user\n  value: bot*\n  share_threshold: true\n  rate_limit: {{ unit: year, requests_per_unit: 1 }}\n\
             - key: user\n  value: root\n  rate_limit: {{ unlimited: true }}\n\
             - key: user\n  value: free\n\
             - key: user\n  value: banned\n  rate_limit: {{ unit: second, requests_per_unit: 0 }}\n\
             - key: kind\n  value: slow\n  descriptors:\n  - key: path\n    rate_limit: {{ unit: year, requests_per_unit: 1 }}\n    shadow_mode: true\n"
        )
    };
    std::fs::write(&file, yaml(2)).expect("written");
    let config = format!(
        "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\nenvoy = '{}/*.yaml'\n",
        folder.path().display()
    );
    let gateway = Gateway::start(&config);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let mut count = |descriptor: &str| (0..4).filter(|_| is_ok(&client.ask(&[descriptor]))).count();
    assert_eq!(count("user=ann"), 2);
    assert_eq!(
        (count("user=bot1"), count("user=bot2")),
        (1, 0),
        "they share a bucket"
    );
    assert_eq!(count("user=root"), 4);
    assert_eq!(count("user=free"), 4, "without `rate_limit` it is exempt");
    assert_eq!(count("user=banned"), 0);
    assert_eq!(count("kind=slow path=/a"), 4);
    let response = client.ask(&["user=ann"]);
    let limit = json!({"name": "users", "requestsPerUnit": 2, "unit": "YEAR"});
    assert_eq!(response["statuses"][0]["currentLimit"], limit);
    assert!(
        header(&response, "ratelimit").is_some_and(|value| value.starts_with("\"edge.user\";r=0"))
    );

    std::fs::write(&file, yaml(3)).expect("written");
    gateway.reload(&config).expect("valid");
    let mut count = |descriptor: &str| (0..4).filter(|_| is_ok(&client.ask(&[descriptor]))).count();
    assert!(count("user=ann") <= 1, "a reload refills no bucket");
    assert_eq!(count("user=bob"), 3);

    std::fs::write(&file, "domain: edge\ndescriptors:\n- key: user\n  rate_limit: { unit: eon, requests_per_unit: 1 }\n").expect("written");
    let refused = gateway.reload(&config).expect_err("the unit is wrong");
    assert!(
        refused.contains("edge.yaml:4:3") && refused.contains("1 per eon"),
        "{refused}"
    );

    let mut many = String::from("domain: edge\ndescriptors:\n");
    for value in 0..=10_000 {
        many += &format!(
            "- {{ key: user, value: u{value}, rate_limit: {{ unit: year, requests_per_unit: 1 }} }}\n"
        );
    }
    std::fs::write(&file, many).expect("written");
    let refused = gateway.reload(&config).expect_err("too many");
    assert!(
        refused.contains("10001 descriptors are too many: at most 10000"),
        "{refused}"
    );
}

/// The clock of the test stands still, so what is admitted is exactly the burst.
#[test]
fn rls_token_bucket_is_exact_under_load() {
    let config = "[server]\nworkers = 2\n[decide]\nlisten = \"grpc://127.0.0.1:0\"\n\
                  [limits.edge]\nrate = \"10/second\"\nburst = 10\nper = \"descriptor\"\n\
                  [[decide.rules]]\ndomain = \"edge\"\ndescriptor = [{ key = \"all\" }]\nlimits = [\"edge\"]\n";
    let gateway = Gateway::start(config);
    let Some(mut client) = Client::of(&gateway) else {
        return;
    };
    let request = json!({"domain": "edge", "descriptors": [descriptor("all=1")]});
    for _ in 0..3 {
        let flood = json!({"do": "flood", "threads": 64, "each": 5, "request": request});
        let counts = client.0.tell(&flood);
        assert_eq!(counts, json!({"OK": 10, "OVER_LIMIT": 310, "error": 0}));
        gateway.advance(std::time::Duration::from_secs(1));
    }
}

//! Requests that limits of a route refuse, and that another upstream takes: charged on its limits, and nothing twice.

use std::time::Duration;

use serde_json::json;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, Upstream, eventually};

/// A big budget of two, a cheap one of three, a last one of one, and a limit of six by address for all of them.
fn config(upstreams: [&Upstream; 3]) -> String {
    let [dear, cheap, last] = upstreams.map(Upstream::url);
    format!(
        "[limits.caller]\nrate = \"6/hour\"\nalgorithm = \"fixed_window\"\nper = \"address\"\n\
         [limits.big]\nrate = \"2/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefuse_status = 402\n\
         [limits.cheap]\nrate = \"3/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefuse_status = 402\n\
         [limits.last]\nrate = \"1/10s\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         [upstreams.dear]\nservers = [\"{dear}\"]\n\
         [upstreams.cheaper]\nservers = [\"{cheap}\"]\n\
         [upstreams.cheapest]\nservers = [\"{last}\"]\n\
         [[routes]]\nname = \"llm\"\nmatch = \"/**\"\nupstream = \"dear\"\nlimits = [\"caller\", \"big\"]\n\
         over_limit = [{{ instead_of = \"big\", upstream = \"cheaper\", limits = [\"cheap\"] }},\n\
         {{ instead_of = \"cheap\", upstream = \"cheapest\", limits = [\"last\"] }}]\n"
    )
}

/// The name and the units left of each limit that a response tells.
fn left(answer: &Answer) -> Vec<String> {
    let field = answer.header("ratelimit").unwrap_or_default();
    let limits = field.split(", ").map(|limit| {
        let end = limit.find(";t=").unwrap_or(limit.len());
        limit[..end].replace('"', "")
    });
    limits.collect()
}

#[test]
fn over_limit_next_target_takes_what_the_budget_refuses_and_nothing_is_charged_twice() {
    let upstreams = ["dear", "cheaper", "cheapest"]
        .map(|name| Upstream::start(move |_| crate::harness::Reply::ok(name)));
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n[log]\naccess = '{}'\n{}",
        log.display(),
        config([&upstreams[0], &upstreams[1], &upstreams[2]])
    ));
    let got: Vec<(u16, String, Vec<String>)> = (0..6)
        .map(|_| {
            let answer = gateway.get("/v1?model=big");
            (answer.status, answer.text(), left(&answer))
        })
        .collect();
    let row =
        |name: &str, quota: [&str; 2]| (200, name.to_owned(), quota.map(str::to_owned).to_vec());
    assert_eq!(
        got,
        [
            row("dear", ["caller;r=5", "big;r=1"]),
            row("dear", ["caller;r=4", "big;r=0"]),
            row("cheaper", ["caller;r=3", "cheap;r=2"]),
            row("cheaper", ["caller;r=2", "cheap;r=1"]),
            row("cheaper", ["caller;r=1", "cheap;r=0"]),
            row("cheapest", ["caller;r=0", "last;r=0"]),
        ]
    );
    let line = upstreams[1].last().line().to_owned();
    assert_eq!(
        line, "GET /v1?model=big HTTP/1.1",
        "it is forwarded unchanged"
    );
    // The limit that all targets share is not dodged, although a budget has units again.
    gateway.advance(Duration::from_secs(10));
    let refused = gateway.get("/");
    assert_eq!(refused.status, 429, "{refused:?}");
    assert_eq!(refused.json()["violated-policies"], json!(["caller"]));
    assert_eq!(refused.header("retry-after"), Some("3590"));

    let metrics = gateway.admin_get("/metrics").text();
    let counted = "tollgate_over_limit_requests_total{route=\"llm\"} 4";
    assert!(metrics.contains(counted), "{metrics}");
    eventually("the log has all lines", || {
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let count = |what: &str| text.lines().filter(|line| line.contains(what)).count();
        count("\"upstream\":\"cheaper\",\"over_limit\":1,") == 3
            && count("\"upstream\":\"cheapest\",\"over_limit\":2,") == 1
            && count("\"upstream\":\"dear\",\"upstream_us\"") == 2
    });
}

#[test]
fn over_limit_refusal_of_all_targets_is_the_one_that_ends_first() {
    let upstream = Upstream::hello();
    let text = config([&upstream; 3]).replace("6/hour", "60/hour");
    let gateway = Gateway::start(&text);
    assert_eq!([(); 6].map(|()| gateway.get("/").status), [200; 6]);
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("10")),
        "neither budget, which are full again tomorrow"
    );
    assert_eq!(refused.json()["violated-policies"], json!(["last"]));
    gateway.advance(Duration::from_micros(9_999_999));
    assert_eq!(gateway.get("/").status, 429, "a microsecond too early");
    gateway.advance(Duration::from_micros(1));
    assert_eq!(gateway.get("/").status, 200);
    // A refused request charged nothing: the address has paid for those that were admitted.
    let refused = gateway.get("/");
    assert_eq!(refused.status, 429);
    gateway.advance(Duration::from_secs(10));
    assert_eq!(left(&gateway.get("/")), ["caller;r=52", "last;r=0"]);
}

#[test]
fn over_limit_decision_for_a_proxy_counts_only_its_own_upstream() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\n{}",
        config([&upstream; 3])
    ));
    let ask = || {
        let headers = [
            ("X-Original-Method", "GET"),
            ("X-Original-URI", "/"),
            ("X-Forwarded-Host", "x"),
            ("X-Forwarded-Proto", "http"),
            ("X-Forwarded-For", "192.0.2.1"),
        ];
        let mut connection = Connection::open(gateway.deciding());
        let answer = connection.request("GET", "/check", &headers);
        answer.status
    };
    assert_eq!([ask(), ask()], [200, 200]);
    // The proxy would send it to the upstream whose budget is used up.
    assert_eq!(ask(), 402);
    assert_eq!(gateway.get("/").text(), "hello", "the gateway passes it on");
}

#[test]
fn over_limit_look_before_a_token_is_checked_counts_no_refusal_twice() {
    let folder = tempfile::tempdir().expect("a folder");
    let (secret, upstream) = (folder.path().join("secret"), Upstream::hello());
    std::fs::write(&secret, crate::spending::SECRET).expect("written");
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[identities.user]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         jwt = {{ secret_file = '{}', algorithms = [\"HS256\"] }}\n\
         [limits.users]\nrate = \"100/hour\"\nper = \"user\"\n\
         [limits.big]\nrate = \"1/day\"\nper = \"address\"\n[limits.cheap]\nrate = \"2/day\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"users\", \"big\"]\n\
         over_limit = {{ instead_of = \"big\", upstream = \"{url}\", limits = [\"cheap\"] }}\n",
        secret.display()
    ));
    // There is no look for a token that was verified before, so each request has one of its own.
    let users = std::cell::Cell::new(0);
    let get = || {
        let user = format!("user-{}", users.replace(users.get() + 1));
        let token = crate::spending::token(crate::spending::SECRET, &user);
        let headers = [("authorization", &*format!("Bearer {token}"))];
        gateway.request("GET", "/", &headers).status
    };
    let counted = |limit: &str, outcome: &str| {
        let metrics = gateway.admin_get("/metrics").text();
        let name =
            format!("tollgate_limit_decisions_total{{limit=\"{limit}\",outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.map_or(0, |count| count.parse().expect("a number"))
    };
    assert_eq!(get(), 200);
    // The look finds the first target refusing and the second one open; then both are drawn from.
    assert_eq!([get(), get()], [200, 200]);
    assert_eq!((counted("big", "deny"), counted("cheap", "deny")), (2, 0));
    // The look finds that no target takes it: no draw follows.
    assert_eq!(get(), 429);
    assert_eq!((counted("big", "deny"), counted("cheap", "deny")), (3, 1));
    assert_eq!((counted("big", "allow"), counted("cheap", "allow")), (1, 2));
}

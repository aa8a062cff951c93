//! `/check`: how a proxy describes the request it asks about, and the response it gets.

use crate::harness::client::Answer;
use crate::harness::frames::Frames;
use crate::harness::{Connection, Gateway, eventually};
use crate::rls::stores::each_server;
use crate::servers::{Maria, Postgres, Redis, available};

/// A gateway that decides; `more` follows its table.
pub(crate) fn gateway(decide: &str, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[decide]\nlisten = \"127.0.0.1:0\"\n{decide}\n{more}"
    ))
}

/// A limit of two requests an hour for each address, on every path.
const TWO: &str = "[limits.per_caller]\nrate = \"2/hour\"\nper = \"address\"\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"per_caller\"]\n";

/// Asks as a proxy does.
pub(crate) fn check(gateway: &Gateway, headers: &[(&str, &str)]) -> Answer {
    Connection::open(gateway.deciding()).request("GET", "/check", headers)
}

/// How NGINX states a request by `client`, with the lines of the book.
pub(crate) fn nginx<'a>(method: &'a str, uri: &'a str, client: &'a str) -> Vec<(&'a str, &'a str)> {
    vec![
        ("X-Original-Method", method),
        ("X-Original-URI", uri),
        ("X-Forwarded-Host", "api.example.com"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-For", client),
    ]
}

#[test]
fn check_draws_from_the_buckets_of_requests_that_are_forwarded() {
    let gateway = gateway("", TWO);
    let ask = |client| check(&gateway, &nginx("GET", "/x?y", client));
    let first = ask("127.0.0.1");
    assert_eq!((first.status, first.text()), (200, String::new()));
    assert_eq!(
        first.header("ratelimit-policy"),
        Some("\"per_caller\";q=2;w=3600")
    );
    assert!(
        first
            .header("ratelimit")
            .is_some_and(|left| left.contains("r=1"))
    );
    assert_eq!(first.header("x-tollgate-permit"), None);
    assert_eq!(
        gateway.get("/").status,
        200,
        "the same address, as a client"
    );
    assert_eq!(gateway.get("/").status, 429);
    let refused = ask("127.0.0.1");
    assert_eq!(refused.status, 429);
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    assert_eq!(refused.header("x-tollgate-status"), None);
    assert_eq!(first.header("x-tollgate-decision"), None);
    assert_eq!(
        refused.header("x-tollgate-decision"),
        refused.json()["decision_id"].as_str()
    );
    assert_eq!(refused.json()["violated-policies"][0], "per_caller");
    assert_eq!(ask("192.0.2.7").status, 200);
    // Nothing is charged for one that no limit admits.
    assert_eq!(
        (ask("192.0.2.7").status, ask("192.0.2.7").status),
        (200, 429)
    );
}

#[test]
fn check_is_stated_by_the_headers_of_each_proxy() {
    let limits = "[limits.reads]\nrate = \"100/hour\"\nper = \"address\"\n\
        [limits.writes]\nrate = \"1/hour\"\nper = \"address\"\n\
        [[routes]]\nmatch = \"api.example.com/things/{id}\"\nupstream = \"builtin:echo\"\nlimits = [\"reads\"]\n\
        [[routes]]\nmatch = \"POST api.example.com/things/{id}\"\nupstream = \"builtin:echo\"\nlimits = [\"writes\"]\n";
    let gateway = gateway("", limits);
    let ingress = [
        ("X-Original-URL", "https://api.example.com/things/a%20b?c=d"),
        ("X-Original-Method", "POST"),
        ("X-Real-IP", "192.0.2.2"),
        ("X-Forwarded-For", "192.0.2.2"),
        ("X-Auth-Request-Redirect", "/things/a%20b?c=d"),
    ];
    // As Traefik adds them, after the headers of the request.
    let traefik = [
        ("Host", "127.0.0.1"),
        ("User-Agent", "curl"),
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Proto", "wss"),
        ("X-Forwarded-Port", "443"),
        ("X-Forwarded-Host", "api.example.com"),
        ("X-Forwarded-Uri", "/things/1"),
        ("X-Forwarded-For", "192.0.2.3"),
        ("X-Real-Ip", "192.0.2.3"),
    ];
    let caddy = [
        ("Host", "api.example.com"),
        ("X-Forwarded-For", "192.0.2.4"),
        ("X-Forwarded-Host", "api.example.com"),
        ("X-Forwarded-Method", "POST"),
        ("X-Forwarded-Proto", "https"),
        ("X-Forwarded-Uri", "/things/1?x=%2F"),
    ];
    let nginx = nginx("POST", "/things/1", "192.0.2.1");
    let stated: [&[(&str, &str)]; 4] = [&nginx, &ingress, &traefik, &caddy];
    for headers in stated {
        let answers = [check(&gateway, headers), check(&gateway, headers)];
        let statuses = answers.each_ref().map(|answer| answer.status);
        assert_eq!(statuses, [200, 429], "{headers:?}");
        let policy = answers[0].header("ratelimit-policy").unwrap_or_default();
        assert!(policy.contains("writes"), "{headers:?}: {policy}");
    }
}

#[test]
fn check_address_is_found_by_the_rules_of_the_file() {
    let gateway = gateway(
        "",
        &format!("[address]\ntrusted_proxies = [\"10.0.0.0/8\"]\n{TWO}"),
    );
    let ask = |more: &[(&str, &str)]| {
        let fixed = [("X-Original-Method", "GET"), ("X-Original-URI", "/")];
        check(&gateway, &[&fixed[..], more].concat()).status
    };
    // The same client, by way of a trusted proxy and of none.
    assert_eq!(ask(&[("X-Forwarded-For", "192.0.2.1, 10.0.0.1")]), 200);
    assert_eq!(ask(&[("X-Real-IP", "192.0.2.1")]), 200);
    assert_eq!(ask(&[("X-Forwarded-For", "203.0.113.9, 192.0.2.1")]), 429);
    assert_eq!(ask(&[("Forwarded", "for=192.0.2.1")]), 429);
    for unclear in [
        &[][..],
        &[("X-Forwarded-For", "192.0.2.1"), ("X-Real-IP", "192.0.2.2")],
        &[
            ("X-Forwarded-For", "192.0.2.1"),
            ("Forwarded", "for=192.0.2.2"),
        ],
        &[("X-Real-IP", "192.0.2.2"), ("X-Real-IP", "192.0.2.2")],
        &[("X-Real-IP", "unix:")],
        &[("X-Forwarded-For", "unknown"), ("X-Real-IP", "192.0.2.2")],
        &[("X-Forwarded-For", "")],
    ] {
        assert_eq!(ask(unclear), 400, "{unclear:?}");
    }
}

#[test]
fn check_missing_repeated_or_contradicting_facts_are_refused() {
    let gateway = gateway("", TWO);
    let client = ("X-Real-IP", "192.0.2.1");
    let (get, root) = (("X-Original-Method", "GET"), ("X-Original-URI", "/"));
    for (headers, word) in [
        (&[root, client][..], "method"),
        (&[get, get, root, client], "method"),
        (
            &[get, ("X-Forwarded-Method", "POST"), root, client],
            "method",
        ),
        (&[("X-Original-Method", "CONNECT"), root, client], "method"),
        (&[("X-Original-Method", "G T"), root, client], "method"),
        (&[("X-Original-Method", ""), root, client], "method"),
        (&[("X-Original-Method", "get"), root, client], "capitals"),
        (&[get, client], "target"),
        (&[get, root, root, client], "target"),
        (
            &[get, root, ("X-Forwarded-Uri", "/other"), client],
            "target",
        ),
        (
            &[get, root, ("X-Original-URL", "http://a/other"), client],
            "target",
        ),
        (&[get, ("X-Original-URI", "relative"), client], "target"),
        (
            &[get, ("X-Original-URI", "http://a/absolute"), client],
            "target",
        ),
        (&[get, ("X-Original-URI", "/a#b"), client], "target"),
        (&[get, ("X-Original-URI", "/a b"), client], "target"),
        (&[get, ("X-Original-URI", ""), client], "target"),
        (&[get, ("X-Original-URI", "*"), client], "target"),
        (&[get, ("X-Original-URL", "ftp://a/"), client], "target"),
        (&[get, ("X-Original-URL", "/path"), client], "target"),
        (&[get, ("X-Original-URI", "/%zz"), client], "path"),
        (&[get, ("X-Original-URI", "/a/%00"), client], "path"),
        (
            &[
                get,
                ("X-Original-URL", "http://a/"),
                ("X-Forwarded-Host", "b"),
                client,
            ],
            "host",
        ),
        (&[get, root, ("X-Forwarded-Host", "a, b"), client], "Host"),
        (&[get, root, ("X-Forwarded-Host", "u@a"), client], "Host"),
        (
            &[
                get,
                root,
                ("X-Forwarded-Host", "a"),
                ("X-Forwarded-Host", "a"),
                client,
            ],
            "host",
        ),
        (
            &[get, root, ("X-Forwarded-Proto", "gopher"), client],
            "scheme",
        ),
        (
            &[
                get,
                ("X-Original-URL", "http://a/"),
                ("X-Forwarded-Proto", "https"),
                client,
            ],
            "scheme",
        ),
    ] {
        let answer = check(&gateway, headers);
        assert_eq!(answer.status, 400, "{headers:?}");
        let detail = answer.json()["detail"].to_string();
        assert!(detail.contains(word), "{headers:?}: {detail}");
    }
    // None of them was charged.
    let whole = [get, root, client];
    assert_eq!(
        [
            check(&gateway, &whole).status,
            check(&gateway, &whole).status
        ],
        [200, 200]
    );
    // The same fact twice over is no contradiction.
    let twice = [
        get,
        ("X-Forwarded-Method", "GET"),
        root,
        ("X-Forwarded-Uri", "/"),
        ("X-Real-IP", "192.0.2.9"),
    ];
    assert_eq!(check(&gateway, &twice).status, 200);
}

#[test]
fn check_refuse_status_replaces_all_refusals_but_401() {
    let more = "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
        [limits.one]\nrate = \"1/hour\"\nper = \"tenant\"\n\
        [[routes]]\nmatch = \"/x\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
    let gateway = gateway("refuse_status = 403", more);
    let ask = |uri: &str, key: &[(&str, &str)]| {
        let answer = check(
            &gateway,
            &[&nginx("GET", uri, "192.0.2.1")[..], key].concat(),
        );
        let meant = answer.header("x-tollgate-status").map(str::to_owned);
        (answer.status, meant)
    };
    let key = [("x-api-key", "k")];
    assert_eq!(ask("/x", &key), (200, None));
    assert_eq!(ask("/x", &key), (403, Some("429".to_owned())));
    assert_eq!(ask("/y", &key), (403, Some("404".to_owned())));
    assert_eq!(ask("relative", &key), (403, Some("400".to_owned())));
    assert_eq!(ask("/x", &[]), (401, None));
    let refused = check(
        &gateway,
        &[&nginx("GET", "/x", "192.0.2.1")[..], &key].concat(),
    );
    assert!(refused.header("retry-after").is_some());
    assert!(refused.header("ratelimit").is_some());
    assert_eq!(refused.json()["status"], 429);
}

#[test]
fn check_refusal_of_a_grpc_call_is_no_200() {
    let gateway = gateway("", TWO);
    let mut headers = nginx("POST", "/pkg.Service/Call", "192.0.2.1");
    headers.extend([("Content-Type", "application/grpc"), ("TE", "trailers")]);
    let statuses = [(); 3].map(|()| check(&gateway, &headers).status);
    assert_eq!(statuses, [200, 200, 429]);
}

#[test]
fn check_headers_of_the_question_are_none_of_the_request() {
    let more = "[identities.by_host]\nkey = \"header:x-original-method\"\nwhen_missing = \"refuse\"\n\
        [limits.one]\nrate = \"1/hour\"\nper = \"by_host\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
    let gateway = gateway("", more);
    assert_eq!(check(&gateway, &nginx("GET", "/", "192.0.2.1")).status, 401);
}

#[test]
fn check_preflight_is_decided_without_a_key() {
    let more = "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
        [limits.one]\nrate = \"1/hour\"\nper = \"tenant\"\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n";
    let gateway = gateway("", more);
    let mut headers = nginx("OPTIONS", "/x", "192.0.2.1");
    assert_eq!(check(&gateway, &headers).status, 401);
    headers.extend([
        ("Origin", "https://app.example.com"),
        ("Access-Control-Request-Method", "PUT"),
    ]);
    assert_eq!(check(&gateway, &headers).status, 200);
}

#[test]
fn check_preflight_costs_what_a_body_of_unknown_length_costs() {
    let more = "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
        [limits.one]\nrate = \"1/hour\"\nper = \"tenant\"\n\
        [limits.bytes]\nrate = \"1000/hour\"\nburst = 1000\nper = \"everyone\"\n\
        cost = { content_length = true, per = \"1KiB\", max = 400 }\n\
        [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\", \"bytes\"]\n";
    let gateway = gateway("", more);
    let mut headers = nginx("OPTIONS", "/x", "192.0.2.1");
    headers.extend([
        ("Origin", "https://app.example.com"),
        ("Access-Control-Request-Method", "PUT"),
    ]);
    let told = [(); 3].map(|()| check(&gateway, &headers).status);
    assert_eq!(told, [200, 200, 429]);
}

#[test]
fn check_head_and_large_heads_are_handled() {
    let gateway = gateway("", TWO);
    let headers = nginx("GET", "/", "192.0.2.1");
    let ask = |method: &str| {
        let mut connection = Connection::open(gateway.deciding());
        let first = connection.request(method, "/check", &headers);
        // The connection goes on after it.
        assert_eq!(connection.request("GET", "/none", &[]).status, 404);
        first.status
    };
    assert_eq!([ask("HEAD"), ask("POST"), ask("HEAD")], [200, 200, 429]);
    let long = "x".repeat(60_000);
    let mut large = nginx("GET", "/", "192.0.2.2");
    large.push(("X-Large", &long));
    assert_eq!(check(&gateway, &large).status, 200);
    let longer = "x".repeat(70_000);
    large.push(("X-Larger", &longer));
    assert_eq!(check(&gateway, &large).status, 431);
    let path = format!("/{}", "a".repeat(40_000));
    assert_eq!(
        check(&gateway, &nginx("GET", &path, "192.0.2.2")).status,
        200
    );
}

#[test]
fn check_is_decided_over_http2() {
    let gateway = gateway("", TWO);
    let mut connection = Frames::open(gateway.deciding(), &[]);
    let headers = [
        ("x-original-method", "GET"),
        ("x-original-uri", "/"),
        ("x-real-ip", "192.0.2.1"),
    ];
    let mut ask = |stream: u32, headers: &[(&str, &str)]| {
        connection.ask(stream, "GET", "/check", headers);
        connection.fate(stream).status
    };
    assert_eq!([ask(1, &headers), ask(3, &headers)], [Some(200); 2]);
    assert_eq!(ask(5, &headers), Some(429));
    assert_eq!(ask(7, &headers[1..]), Some(400));
}

#[test]
fn check_counts_in_a_shared_store_with_other_gateways() {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, "0123456789abcdef0123456789abcdef").expect("written");
    let shared = |kind: &str, url: &str| {
        let store = format!(
            "[store]\nkind = \"{kind}\"\nurl = \"{url}\"\nwhen_down = \"refuse\"\nanswer_within = \"10s\"\n\
             key_secret_file = '{}'\n{TWO}",
            secret.display()
        );
        let gateways = [gateway("", &store), gateway("", &store)];
        let ask = |place: usize| check(&gateways[place], &nginx("GET", "/", "127.0.0.1")).status;
        assert_eq!([ask(0), ask(1)], [200, 200], "{kind}");
        assert_eq!([ask(0), ask(1)], [429, 429], "{kind}");
        assert_eq!(gateways[0].get("/").status, 429, "{kind}");
    };
    if available("redis-server") {
        let redis = Redis::start();
        shared("redis", &format!("redis://127.0.0.1:{}", redis.port));
    }
    if Postgres::available() {
        let postgres = Postgres::start_with(&[]);
        shared("postgres", &postgres.url());
    }
    if Maria::available() {
        let maria = Maria::start();
        shared("mysql", &maria.url());
    }
}

#[test]
fn check_store_down_or_slow_is_decided_by_when_down_and_limits_again_afterwards() {
    each_server(|mut shared| {
        let limit = |name: &str, more: &str| {
            format!(
                "[limits.{name}]\nrate = \"2/hour\"\nper = \"address\"\n{more}\n\
                 [[routes]]\nmatch = \"/{name}\"\nupstream = \"builtin:echo\"\nlimits = [\"{name}\"]\n"
            )
        };
        // A store's deadline is one of the gateway's clock.
        let gateway = Gateway::start_in_real_time(&format!(
            "[decide]\nlisten = \"127.0.0.1:0\"\nrefuse_status = 403\n{}{}{}",
            limit("strict", ""),
            limit("open", "when_down = \"allow\""),
            shared.table
        ));
        let ask_of = |client, path: &str| check(&gateway, &nginx("GET", path, client));
        let ask = |path: &str| ask_of("192.0.2.1", path);
        // The status that the client would get.
        let meant = |answer: &Answer| answer.header("x-tollgate-status").map(str::to_owned);
        let limits = || {
            for path in ["/strict", "/open"] {
                eventually("the store decides", || {
                    meant(&ask(path)).as_deref() == Some("429")
                });
            }
        };
        let undecided = || {
            // (A refusal stands without the store, so another caller asks.)
            let refused = ask_of("192.0.2.2", "/strict");
            assert_eq!(
                (refused.status, meant(&refused).as_deref()),
                (403, Some("503")),
                "{refused:?}"
            );
            assert_eq!(ask_of("192.0.2.2", "/open").status, 200);
        };
        limits();
        shared.stop();
        undecided();
        shared.run();
        limits();
        shared.signal("-STOP");
        undecided();
        shared.signal("-CONT");
        limits();
    });
}

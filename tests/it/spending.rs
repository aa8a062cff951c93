//! What a caller can bring about is never credited to him: deadlines, broken uploads and streams, upgrades that come to
//! nothing, requests that make an upstream hang up, tokens that are not valid, questions of browsers.

use std::time::Duration;

use crate::harness::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, HEADERS, RST_STREAM, block, frame, request,
};
use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};
use crate::servers::free_port;

/// Three units for an hour, given back after what counts as an upstream's failure.
pub(crate) const REFUNDS: [&str; 4] = [
    "refund_on = [\"400\", \"408\", \"413\", \"501\", \"502\", \"503\", \"504\"]",
    "refund_on = [\"4xx\", \"5xx\"]",
    "count = \"failures\"",
    "count = [\"2xx\"]",
];

pub(crate) fn three(numbers: &str, upstream: &str, more: &str) -> String {
    format!(
        "[limits.it]\nrate = \"3/hour\"\nburst = 3\nper = \"address\"\n{numbers}\n\
         [upstreams.app]\nservers = [\"{upstream}\"]\n{more}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"it\"]\n"
    )
}

/// How many of ten such requests are admitted; those that a limit refuses say so by 429, or by gRPC's status 8.
pub(crate) fn admitted(gateway: &Gateway, mut ask: impl FnMut(&mut Connection)) -> usize {
    let before = decided(gateway);
    for _ in 0..10 {
        ask(&mut gateway.connect());
    }
    eventually("ten are decided", || {
        decided(gateway).iter().sum::<u64>() == before.iter().sum::<u64>() + 10
    });
    usize::try_from(decided(gateway)[0] - before[0]).expect("a few")
}

/// How many requests the limit has admitted, and refused.
fn decided(gateway: &Gateway) -> [u64; 2] {
    let metrics = gateway.admin_get("/metrics").text();
    ["allow", "deny"].map(|outcome| {
        let start =
            format!("tollgate_limit_decisions_total{{limit=\"it\",outcome=\"{outcome}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&start));
        line.map_or(0, |count| count.parse().expect("a count"))
    })
}

#[test]
fn refund_after_a_deadline_of_the_caller_is_not_made() {
    for refund in REFUNDS {
        let upstream = Upstream::start(|_| Reply::Silence);
        let gateway = Gateway::start(&three(refund, &upstream.url(), ""));
        let call = [
            ("content-type", "application/grpc"),
            ("content-length", "0"),
            ("grpc-timeout", "100m"),
        ];
        let count = admitted(&gateway, |connection| {
            let answer = connection.request("POST", "/", &call);
            assert!(
                matches!(answer.header("grpc-status"), Some("4" | "8")),
                "{answer:?}"
            );
        });
        assert_eq!(count, 3, "{refund}");
        // On a busy machine the deadline of one may pass before it is sent on.
        assert!(upstream.seen().len() <= 3, "{refund}");
    }
}

#[test]
fn refund_after_a_request_that_makes_the_upstream_hang_up_is_not_made() {
    for refund in REFUNDS {
        for reply in [
            Reply::Close(Vec::new()),
            Reply::Close(b"HTTP/1.1 200 OK\r\nContent-".to_vec()),
            Reply::Close(b"no HTTP at all\r\n\r\n".to_vec()),
            Reply::Close(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n".to_vec()),
            Reply::Close(b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: other\r\n\r\n".to_vec()),
        ] {
            let upstream = Upstream::start({
                let reply = reply.clone();
                move |_| reply.clone()
            });
            let gateway = Gateway::start(&three(refund, &upstream.url(), ""));
            let upgrade = [("connection", "upgrade"), ("upgrade", "websocket"), ("sec-websocket-version", "13")];
            let count = admitted(&gateway, |connection| {
                let answer = connection.request("GET", "/", &upgrade);
                assert!(matches!(answer.status, 502 | 429), "{answer:?}");
            });
            assert_eq!(count, 3, "{refund} {reply:?}");
        }
    }
}

#[test]
fn refund_after_an_upload_that_is_slow_broken_off_or_malformed_is_not_made() {
    let sent = |framing: &str, body: &str| {
        format!("POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{body}")
    };
    let ways: [(&str, String, bool); 5] = [
        ("stalled", sent("Content-Length: 10", "x"), true),
        (
            "stalled behind its head",
            sent("Content-Length: 10\r\nExpect: 100-continue", ""),
            true,
        ),
        ("broken off", sent("Content-Length: 10", "x"), false),
        (
            "malformed",
            sent("Transfer-Encoding: chunked", "1\r\nx\r\nnonsense\r\n"),
            true,
        ),
        (
            "too large",
            sent(
                "Transfer-Encoding: chunked",
                &format!("64\r\n{}\r\n", "x".repeat(100)),
            ),
            true,
        ),
    ];
    for refund in REFUNDS {
        for (way, bytes, waits) in &ways {
            let upstream = Upstream::start(|_| Reply::Silence);
            let server = "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\n[server.timeouts]\nbody_idle = \"50ms\"\n\
                          [server.bounds]\nbody = \"50B\"\n";
            let gateway =
                Gateway::start(&format!("{server}{}", three(refund, &upstream.url(), "")));
            let count = admitted(&gateway, |connection| {
                connection.send(bytes);
                if *waits {
                    // A malformed or abandoned upload may be cut off without an answer.
                    _ = connection.try_answer("POST");
                }
            });
            assert_eq!(count, 3, "{refund}: {way}");
        }
    }
}

#[test]
fn refund_after_a_total_that_the_upload_took_part_of_is_not_made() {
    for refund in REFUNDS {
        let upstream = Upstream::start(|_| Reply::Silence);
        let config = three(refund, &upstream.url(), "timeouts = { total = \"60ms\" }");
        let gateway = Gateway::start(&config);
        let count = admitted(&gateway, |connection| {
            connection.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3\r\n\r\nx");
            assert!(matches!(connection.answer("POST").status, 504 | 429));
        });
        assert_eq!(count, 3, "{refund}");
    }
}

#[test]
fn refund_for_failures_of_the_upstream_alone_is_made() {
    let silent = Upstream::start(|_| Reply::Silence);
    let dead = format!("127.0.0.1:{}", free_port());
    for upstream in [silent.url(), format!("http://{dead}")] {
        for refund in &REFUNDS[..2] {
            let gateway = Gateway::start(&three(
                refund,
                &upstream,
                "timeouts = { response = \"30ms\" }",
            ));
            let count = admitted(&gateway, |connection| {
                assert!(matches!(
                    connection.request("GET", "/", &[]).status,
                    502 | 504
                ));
            });
            assert_eq!(count, 10, "{refund} {upstream}");
        }
    }
}

/// `CONNECT` with a `:protocol` (RFC 8441) on a connection of its own.
fn extended_connect(gateway: &Gateway) -> Option<u16> {
    let mut frames = Frames::open(gateway.address(), &[]);
    let fields = [
        (":method", "CONNECT"),
        (":protocol", "websocket"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/"),
        ("sec-websocket-version", "13"),
    ];
    frames.send(frame(HEADERS, END_HEADERS, 1, block(&fields)));
    frames.fate(1).status
}

#[test]
fn refund_of_a_tunnel_to_a_plain_resource_is_not_made() {
    for refund in REFUNDS {
        let upstream = Upstream::hello();
        let gateway = Gateway::start(&three(refund, &upstream.url(), ""));
        let told: Vec<Option<u16>> = (0..10).map(|_| extended_connect(&gateway)).collect();
        assert_eq!(upstream.seen().len(), 3, "{refund}: {told:?}");
        assert_eq!(told[..3], [Some(502); 3], "{refund}");
    }
}

#[test]
fn body_of_a_tunnel_is_not_waited_for() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server.timeouts]\nbody_idle = \"1h\"\n\
         [limits.calls]\nrate = \"1/hour\"\nper = \"json:model\"\nwhen_missing = \"refuse\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"calls\"]\n",
        upstream.url()
    ));
    let status = extended_connect(&gateway).expect("a response");
    assert!((400..500).contains(&status), "{status}: it names no model");
    assert!(upstream.seen().is_empty());
}

fn settled(upstream: &str, more: &str) -> String {
    format!(
        "[limits.it]\nrate = \"1000/day\"\nburst = 1000\nper = \"everyone\"\n\
         settle = {{ from = \"json:usage.total_tokens\", estimate = 10, max = 300{more} }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"it\"]\n"
    )
}

/// An event stream of 120 bytes and its usage, or as much of it as the path says.
fn events() -> Upstream {
    let said = format!("data: {{\"text\":\"{}\"}}\n\n", "x".repeat(120 - 19));
    let usage = "data: {\"usage\":{\"total_tokens\":200}}\n\n";
    let chunk = |text: &str| format!("{:x}\r\n{text}\r\n", text.len());
    let head =
        "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
    Upstream::start(move |seen| {
        let early = chunk("data: {\"usage\":{\"total_tokens\":1}}\n\n");
        let body = match seen.line().split(' ').nth(1) {
            Some("/silent") => return Reply::Silence,
            Some("/begun") => chunk(&said),
            Some("/told") => chunk(&said) + &early,
            Some("/said") => chunk(&said) + &chunk("data: [DONE]\n\n"),
            Some("/done") => chunk(&said) + &chunk(usage) + &chunk("data: [DONE]\n\n"),
            Some("/broken") => return Reply::Close(format!("{head}{}", chunk(&said)).into_bytes()),
            _ => chunk(&said) + &chunk(usage) + &chunk("data: [DONE]\n\n") + "0\r\n\r\n",
        };
        Reply::Bytes(format!("{head}{body}").into_bytes())
    })
}

/// How many requests have ended, and so are settled.
fn ended(gateway: &Gateway) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let lines = metrics
        .lines()
        .filter(|line| line.starts_with("tollgate_requests_total{"));
    lines
        .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
        .sum()
}

/// What a request to `path` costs whose caller leaves as soon as `seen` has come.
#[track_caller]
fn charged_for_leaving(settle: &str, method: &str, path: &str, seen: &str) -> u64 {
    let upstream = events();
    let gateway = Gateway::start(&settled(&upstream.url(), settle));
    let mut leaver = gateway.connect();
    leaver.send(format!("{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n"));
    eventually("it is asked", || upstream.seen().len() == 1);
    leaver.until(seen);
    drop(leaver);
    eventually("it is settled", || ended(&gateway) == 1);
    let left = gateway.get("/look").left();
    1000 - 10 - left.expect("quota headers")
}

#[test]
fn settle_stream_broken_off_costs_the_most_unless_its_cost_had_arrived() {
    for (path, seen, cost, why) in [
        ("/whole", "0\r\n\r\n", 200, "who stays pays what it cost"),
        ("/silent", "", 300, "before the head"),
        ("/begun", "xxx", 300, "before its usage"),
        (
            "/told",
            "\"total_tokens\":1}",
            300,
            "behind a first word of its usage",
        ),
        (
            "/done",
            "[DONE]",
            200,
            "behind the event that says that all is said",
        ),
        (
            "/said",
            "[DONE]",
            300,
            "behind a text like that event, before its usage",
        ),
        ("/broken", "xxx", 300, "an upstream can be made to hang up"),
    ] {
        assert_eq!(
            charged_for_leaving("", "GET", path, seen),
            cost,
            "{path}: {why}"
        );
    }
}

#[test]
fn settle_stream_broken_off_costs_its_bytes_where_the_file_says_so() {
    for (per, path, seen, cost, why) in [
        ("1B", "/begun", "xxx\"}\n\n", 120, "what was sent"),
        ("1B", "/silent", "", 10, "never less than the estimate"),
        ("4B", "/begun", "xxx\"}\n\n", 30, "of four bytes a unit"),
    ] {
        let per = format!(", broken_off_per = \"{per}\"");
        assert_eq!(
            charged_for_leaving(&per, "GET", path, seen),
            cost,
            "{path}: {why}"
        );
    }
}

#[test]
fn settle_stream_reset_over_http2_costs_the_most() {
    let upstream = events();
    let gateway = Gateway::start(&settled(&upstream.url(), ""));
    let mut frames = Frames::open(gateway.address(), &[]);
    frames.send(frame(
        HEADERS,
        END_STREAM | END_HEADERS,
        1,
        request("GET", "/begun", &[]),
    ));
    while !matches!(frames.frame().expect("in time"), Some((DATA, ..))) {}
    frames.send(frame(RST_STREAM, 0, 1, 8_u32.to_be_bytes()));
    eventually("it is settled", || ended(&gateway) == 1);
    assert_eq!(gateway.get("/look").left(), Some(690));
}

#[test]
fn settle_of_a_response_that_the_caller_asked_to_be_without_its_cost_is_not_cheaper() {
    let upstream = Upstream::start(|seen| {
        let asked_for_part = ["range", "if-none-match", "if-modified-since"]
            .iter()
            .any(|name| seen.header(name).is_some());
        let json = [("content-type", "application/json")];
        match seen.line().split(' ').next() {
            Some("HEAD") => Reply::Bytes(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n"
                    .to_vec(),
            ),
            _ if asked_for_part => Reply::new(206, &json, "{\"text\":\"x\""),
            _ => Reply::new(
                200,
                &json,
                "{\"text\":\"x\",\"usage\":{\"total_tokens\":200}}",
            ),
        }
    });
    for header in [
        "range: bytes=0-9",
        "if-none-match: \"x\"",
        "if-modified-since: Thu, 01 Jan 1970 00:00:00 GMT",
    ] {
        let gateway = Gateway::start(&settled(&upstream.url(), ""));
        let mut connection = gateway.connect();
        let header = header.split_once(": ").expect("a header");
        assert_eq!(
            connection.request("GET", "/", &[header]).status,
            200,
            "{header:?}"
        );
        let left = connection.request("GET", "/", &[]).left();
        assert_eq!(left, Some(790), "{header:?}");
    }
    let gateway = Gateway::start(&settled(&upstream.url(), ""));
    let mut connection = gateway.connect();
    assert_eq!(connection.request("HEAD", "/", &[]).status, 200);
    let left = connection.request("GET", "/", &[]).left();
    assert_eq!(left, Some(690), "HEAD");
}

const ORIGIN: [(&str, &str); 2] = [
    ("origin", "https://app.example"),
    ("access-control-request-method", "POST"),
];

#[test]
fn preflight_escapes_the_limits_of_identities_and_no_others() {
    let identity = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n\
                    [identities.place]\nkey = \"address\"\nwhen_missing = \"refuse\"\n";
    for (per, admitted) in [
        ("address", 3),
        ("everyone", 3),
        ("place", 3),
        ("tenant", 10),
    ] {
        let upstream = Upstream::hello();
        let gateway = Gateway::start(&format!(
            "{identity}[limits.it]\nrate = \"3/hour\"\nburst = 3\nper = \"{per}\"\n\
             [[routes]]\nmatch = \"POST /v1\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        ));
        let told: Vec<u16> = (0..10)
            .map(|_| gateway.request("OPTIONS", "/v1", &ORIGIN).status)
            .collect();
        assert_eq!(upstream.seen().len(), admitted, "{per}: {told:?}");
        assert!(
            told[..admitted].iter().all(|status| *status == 200),
            "{per}: {told:?}"
        );
        assert!(
            told[admitted..].iter().all(|status| *status == 429),
            "{per}: {told:?}"
        );
    }
}

/// A route for callers with tokens, and a limit of three by `per`.
fn tokens(per: &str, numbers: &str, upstream: &str) -> (tempfile::TempDir, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let secret = folder.path().join("secret");
    std::fs::write(&secret, SECRET).expect("written");
    let config = format!(
        "[identities.user]\nkey = \"jwt:sub\"\nwhen_missing = \"refuse\"\n\
         jwt = {{ secret_file = '{}', algorithms = [\"HS256\"] }}\n\
         [limits.users]\nrate = \"100/hour\"\nper = \"user\"\n\
         [limits.it]\nrate = \"3/hour\"\nburst = 3\nper = \"{per}\"\n{numbers}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"users\", \"it\"]\n",
        secret.display()
    );
    (folder, config)
}

pub(crate) const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

pub(crate) fn token(secret: &[u8], sub: &str) -> String {
    use jsonwebtoken::{EncodingKey, Header, encode};
    let claims = serde_json::json!({ "sub": sub, "exp": 1_900_000_000 });
    encode(
        &Header::default(),
        &claims,
        &EncodingKey::from_secret(secret),
    )
    .expect("a token")
}

#[test]
fn limits_by_address_and_for_everyone_decide_before_a_token_is_verified() {
    for per in ["address", "everyone"] {
        for numbers in [
            "",
            "count = \"failures\"",
            "count = [\"401\"]",
            "refund_on = [\"4xx\", \"5xx\"]",
        ] {
            let upstream = Upstream::hello();
            let (_folder, config) = tokens(per, numbers, &upstream.url());
            let gateway = Gateway::start(&config);
            let ask = |token: &str| {
                gateway
                    .request("GET", "/", &[("authorization", &format!("Bearer {token}"))])
                    .status
            };
            let told: Vec<u16> = (0..5)
                .map(|n| ask(&token(&[7; 32], &n.to_string())))
                .collect();
            assert_eq!(told, [401, 401, 401, 429, 429], "{per} {numbers}");
            assert_eq!(ask("no-token"), 429, "{per} {numbers}");
            assert_eq!(
                gateway.get("/").status,
                429,
                "{per} {numbers}: no token at all"
            );
            assert_eq!(
                ask(&token(SECRET, "ann")),
                429,
                "{per} {numbers}: a good one that is new"
            );
            gateway.advance(Duration::from_secs(3600));
            assert_eq!(ask(&token(SECRET, "ann")), 200, "{per} {numbers}");
            assert_eq!(upstream.seen().len(), 1);
        }
    }
}

#[test]
fn limits_that_do_not_count_401_are_not_charged_for_a_bad_token() {
    let upstream = Upstream::hello();
    let (_folder, config) = tokens("address", "count = [\"404\"]", &upstream.url());
    let gateway = Gateway::start(&config);
    for n in 0..5 {
        let bearer = format!("Bearer {}", token(&[7; 32], &n.to_string()));
        assert_eq!(
            gateway
                .request("GET", "/", &[("authorization", &bearer)])
                .status,
            401
        );
    }
}

#[test]
fn a_good_token_is_charged_once_on_every_limit_or_on_none() {
    let upstream = Upstream::hello();
    let (_folder, config) = tokens("address", "", &upstream.url());
    let gateway = Gateway::start(&config.replace("100/hour", "1/hour"));
    let ask = |sub: &str| {
        let bearer = format!("Bearer {}", token(SECRET, sub));
        gateway
            .request("GET", "/", &[("authorization", &bearer)])
            .status
    };
    assert_eq!(ask("ann"), 200);
    assert_eq!(
        [ask("ann"), ask("ann"), ask("ann")],
        [429; 3],
        "ann's own limit refuses, and the address pays nothing"
    );
    assert_eq!(
        [ask("bob"), ask("cat"), ask("dan")],
        [200, 200, 429],
        "three from this address"
    );
}

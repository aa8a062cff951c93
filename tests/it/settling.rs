//! What a request costs, and what its answer makes of that: costs, estimates, failures given back, holding back.

use std::time::Duration;

use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};
use crate::process::Process;
use crate::servers::free_port;

/// An upstream whose answer's status is the last segment of the path.
fn statuses() -> Upstream {
    Upstream::start(|seen| {
        let path = seen.line().split(' ').nth(1).unwrap_or_default();
        let status = path.rsplit('/').next().and_then(|last| last.parse().ok());
        Reply::new(status.unwrap_or(200), &[], "said")
    })
}

fn limited(numbers: &str, upstream: &str) -> String {
    format!(
        "[limits.it]\n{numbers}\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"it\"]\n"
    )
}

/// What `RateLimit` says is left, after a request on this connection: one connection, so that the answer before has been
/// settled.
fn left_after(connection: &mut Connection, path: &str, headers: &[(&str, &str)]) -> Option<u64> {
    connection.request("GET", path, headers).left()
}

#[test]
fn only_failures_count_where_that_is_asked() {
    let upstream = statuses();
    let gateway = Gateway::start(&limited(
        "rate = \"2/hour\"\nalgorithm = \"fixed_window\"\ncount = \"failures\"",
        &upstream.url(),
    ));
    let mut connection = gateway.connect();
    for _ in 0..5 {
        assert_eq!(connection.request("GET", "/200", &[]).status, 200);
    }
    assert_eq!(connection.request("GET", "/401", &[]).status, 401);
    assert_eq!(connection.request("GET", "/403", &[]).status, 403);
    assert_eq!(
        connection.request("GET", "/200", &[]).status,
        429,
        "two failures are all there is"
    );
    assert_eq!(upstream.seen().len(), 7);
}

#[test]
fn settle_failure_of_the_upstream_is_given_back() {
    let upstream = statuses();
    let dead = format!("127.0.0.1:{}", free_port());
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"2/hour\"\nburst = 2\nper = \"address\"\nrefund_on = [\"5xx\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n\
         [[routes]]\nmatch = \"/dead\"\nupstream = \"http://{dead}\"\nlimits = [\"it\"]\n",
        upstream.url()
    ));
    let mut connection = gateway.connect();
    for _ in 0..3 {
        assert_eq!(connection.request("GET", "/503", &[]).status, 503);
        assert_eq!(connection.request("GET", "/dead", &[]).status, 502);
        // To a gRPC call a dead upstream is a 200 with a status of its own; it costs no more for that.
        let call = connection.request(
            "POST",
            "/dead",
            &[
                ("content-type", "application/grpc"),
                ("content-length", "0"),
            ],
        );
        assert_eq!((call.status, call.header("grpc-status")), (200, Some("14")));
    }
    assert_eq!(connection.request("GET", "/200", &[]).status, 200);
    assert_eq!(connection.request("GET", "/404", &[]).status, 404);
    assert_eq!(connection.request("GET", "/200", &[]).status, 429);
}

#[test]
fn settle_estimate_is_corrected_from_the_body_of_the_response() {
    let upstream = Upstream::start(|_| {
        let body = format!(
            "{{\"id\":1,\"usage\":{{\"total_tokens\":400}},\"text\":\"{}\"}}",
            "x".repeat(9_000)
        );
        Reply::new(
            200,
            &[("content-type", "application/json"), ("x-units", "70")],
            body,
        )
    });
    for (from, real) in [
        ("json:usage.total_tokens", 400),
        ("header:x-units", 70),
        ("bytes", 9),
    ] {
        let gateway = Gateway::start(&limited(
            &format!(
                "rate = \"1000/hour\"\nburst = 1000\nsettle = {{ from = \"{from}\", estimate = 10, max = 500 }}"
            ),
            &upstream.url(),
        ));
        let mut connection = gateway.connect();
        assert_eq!(
            left_after(&mut connection, "/", &[]),
            Some(990),
            "{from}: the estimate"
        );
        assert_eq!(
            left_after(&mut connection, "/", &[]),
            Some(990 - real),
            "{from}: what it really cost, and an estimate"
        );
    }
}

/// One caller, one request after the other, is forgiven nothing: 100 a second and answers of 1000 once let 6000 through in six
/// seconds.
#[test]
fn settle_response_dearer_than_the_limit_is_paid_by_later_requests() {
    let upstream = Upstream::start(|_| Reply::new(200, &[("x-units", "1000")], "said"));
    for algorithm in [
        "token_bucket",
        "interval",
        "fixed_window",
        "sliding_window",
        "sliding_log",
    ] {
        let gateway = Gateway::start(&limited(
            &format!(
                "rate = \"100/second\"\nalgorithm = \"{algorithm}\"\n\
                 settle = {{ from = \"header:x-units\", estimate = 1, max = 1000 }}"
            ),
            &upstream.url(),
        ));
        let mut connection = gateway.connect();
        let mut used = 0;
        for _ in 0..60 {
            if connection.request("GET", "/", &[]).status == 200 {
                used += 1000;
            }
            gateway.advance(Duration::from_millis(100));
        }
        assert!(
            (1000..=1000 + 100 + 600).contains(&used),
            "{algorithm}: {used}"
        );
        gateway.advance(Duration::from_secs(10));
        assert_eq!(
            connection.request("GET", "/", &[]).status,
            200,
            "{algorithm}: it is paid"
        );
    }
}

#[test]
fn an_estimate_of_nothing_is_corrected_like_any_other() {
    let upstream = Upstream::start(|_| Reply::new(200, &[("x-units", "900")], "said"));
    let settle = "rate = \"1000/hour\"\nsettle = { from = \"header:x-units\", estimate = 0 }";
    let gateway = Gateway::start(&limited(settle, &upstream.url()));
    let mut connection = gateway.connect();
    let admitted = (0..50)
        .filter(|_| connection.request("GET", "/", &[]).status == 200)
        .count();
    assert_eq!(admitted, 2, "900, then 100 are left to begin on");
}

#[test]
fn settled_cost_is_logged_and_counted() {
    let upstream = Upstream::start(|_| Reply::new(200, &[("x-units", "25")], "said"));
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let settle =
        "rate = \"1000/hour\"\nsettle = { from = \"header:x-units\", estimate = 10, max = 500 }";
    let config = format!("[log]\naccess = '{}'\n", log.display());
    let gateway = Gateway::start(&(config + &limited(settle, &upstream.url())));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gateway.get("/").status, 200);
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("the log is written", || lines().lines().count() == 2);
    for line in lines().lines() {
        let line: serde_json::Value = serde_json::from_str(line).expect("a line of JSON");
        let limit = &line["limits"][0];
        assert_eq!(
            (&limit["cost"], &limit["settled"]),
            (&10.into(), &25.into())
        );
    }
    let metrics = gateway.admin_get("/metrics").text();
    for line in [
        "tollgate_limit_settled_total{limit=\"it\"} 2\n",
        "tollgate_limit_settled_units_total{limit=\"it\"} 50\n",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

#[test]
fn settle_response_without_a_cost_is_counted() {
    let upstream = statuses();
    for from in ["header:x-units", "json:usage.total"] {
        let settle =
            format!("rate = \"1000/hour\"\nsettle = {{ from = \"{from}\", estimate = 10 }}");
        let gateway = Gateway::start(&limited(&settle, &upstream.url()));
        let mut connection = gateway.connect();
        for path in ["/200", "/201", "/503"] {
            connection.request("GET", path, &[]);
        }
        assert_eq!(
            left_after(&mut connection, "/500", &[]),
            Some(960),
            "{from}: the estimates stand"
        );
        let line = "tollgate_limit_unsettled_total{limit=\"it\"} 2";
        let metrics = gateway.admin_get("/metrics").text();
        assert!(
            metrics.contains(line),
            "{from}: an error seldom says what it cost: {metrics}"
        );
    }
}

/// The unreadable one may be the larger.
#[test]
fn settle_by_headers_of_which_one_is_unreadable_has_no_cost_stated() {
    let upstream = Upstream::start(|_| {
        let units = [("x-units", "1"), ("x-units", "+200")];
        Reply::new(200, &units, "said")
    });
    for (untold, cost) in [("estimate", 10), ("max", 500)] {
        let gateway = Gateway::start(&limited(
            &format!(
                "rate = \"1000/hour\"\nsettle = {{ from = \"header:x-units\", estimate = 10, max = 500, untold = \"{untold}\" }}"
            ),
            &upstream.url(),
        ));
        let mut connection = gateway.connect();
        connection.request("GET", "/", &[]);
        let left = left_after(&mut connection, "/", &[]);
        assert_eq!(left, Some(1000 - 10 - cost), "{untold}");
    }
}

/// What the gateway charges, what `explain` says and what a test of the file counts.
#[test]
fn a_length_costs_the_same_in_service_explained_and_tested() {
    let folder = tempfile::tempdir().expect("a folder");
    for (length, cost) in [
        (None, 1),
        (Some("0"), 1),
        (Some("1024"), 1),
        (Some("3000"), 3),
    ] {
        let limits = "[limits.it]\nrate = \"20/hour\"\nper = \"address\"\n\
             cost = { content_length = true, per = \"1KiB\", max = 20 }\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n";
        let gateway = Gateway::start(limits);
        let mut connection = gateway.connect();
        let field = length.map_or_else(String::new, |length| {
            format!("Content-Length: {length}\r\n")
        });
        let body = "x".repeat(length.map_or(0, |length| length.parse().expect("a length")));
        connection.send(format!("POST / HTTP/1.1\r\nHost: x\r\n{field}\r\n{body}"));
        let answer = connection.answer("POST");
        assert_eq!(answer.left(), Some(20 - cost), "{length:?}: {answer:?}");

        let sent = length.map_or_else(String::new, |length| {
            format!("headers = {{ content-length = \"{length}\" }}\n")
        });
        let admitted = 20 / cost;
        let test = format!(
            "[[tests]]\nsend = \"21 x POST /\"\n{sent}expect = {{ allowed = {admitted}, refused = {} }}\n",
            21 - admitted
        );
        std::fs::write(
            folder.path().join("gateway.toml"),
            format!("{limits}{test}"),
        )
        .expect("a writable folder");
        let run = |words: &[&str]| {
            let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
            let output = command
                .current_dir(folder.path())
                .args(words)
                .output()
                .expect("it runs");
            String::from_utf8_lossy(&output.stdout).into_owned()
        };
        assert!(
            run(&["check"]).contains("1 test passed, 0 failed"),
            "{length:?}: {}",
            run(&["check"])
        );
        let header = length.map_or_else(
            || "x-none: 1".to_owned(),
            |length| format!("content-length: {length}"),
        );
        let told: serde_json::Value = serde_json::from_str(&run(&[
            "explain", "POST /", "-H", &header, "--format", "json",
        ]))
        .expect("JSON");
        assert_eq!(told["limits"][0]["cost"], cost, "{length:?}");
    }
}

#[test]
fn a_cost_comes_with_the_request_or_from_the_route() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"20/hour\"\nburst = 20\nper = \"address\"\n\
         cost = {{ header = \"x-cost\", default = 2, min = 1, max = 30 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"it\"]\n\
         [[routes]]\nmatch = \"/dear\"\nupstream = \"{url}\"\nlimits = [{{ limit = \"it\", cost = 7 }}]\n",
        url = upstream.url()
    ));
    let mut connection = gateway.connect();
    assert_eq!(
        left_after(&mut connection, "/", &[]),
        Some(18),
        "the default"
    );
    assert_eq!(
        left_after(&mut connection, "/", &[("x-cost", "3")]),
        Some(15)
    );
    assert_eq!(
        left_after(&mut connection, "/dear", &[]),
        Some(8),
        "the route's"
    );
    let never = connection.request("GET", "/", &[("x-cost", "25")]);
    assert_eq!(
        (never.status, never.header("retry-after")),
        (429, None),
        "no wait would help"
    );
    assert!(
        never.json()["detail"]
            .as_str()
            .is_some_and(|words| words.contains("will not help")),
        "{never:?}"
    );
    let later = connection.request("GET", "/", &[("x-cost", "9")]);
    assert_eq!(
        (later.status, later.header("retry-after")),
        (429, Some("180")),
        "{later:?}"
    );
}

#[test]
fn a_request_is_held_until_its_token_is_due() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&limited(
        "rate = \"1/minute\"\nburst = 1\nmax_wait = \"2m\"",
        &upstream.url(),
    ));
    assert_eq!(gateway.get("/").status, 200);
    let mut held = [gateway.connect(), gateway.connect()];
    for (place, connection) in held.iter_mut().enumerate() {
        connection.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        let line = format!(
            "tollgate_limit_decisions_total{{limit=\"it\",outcome=\"allow\"}} {}",
            place + 2
        );
        eventually("it is decided", || {
            gateway.admin_get("/metrics").text().contains(&line)
        });
    }
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("60")),
        "three minutes are too long to hold"
    );
    gateway.advance(Duration::from_micros(59_999_999));
    assert_eq!(upstream.seen().len(), 1, "no request goes early");
    for connection in &mut held {
        gateway.advance(Duration::from_micros(1));
        assert_eq!(
            connection.answer("GET").status,
            200,
            "in order, each at its moment"
        );
        gateway.advance(Duration::from_micros(59_999_999));
    }
    assert_eq!(upstream.seen().len(), 3);
}

#[test]
fn settle_stream_without_its_usage_is_hinted_at_in_the_log() {
    let upstream = Upstream::start(|_| {
        let stream = "data: {\"choices\":[]}\n\ndata: [DONE]\n\n";
        Reply::new(200, &[("content-type", "text/event-stream")], stream)
    });
    let mut process = Process::with(
        &format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n[admin]\nlisten = \"off\"\n[log]\naccess = \"off\"\n{}",
            limited(
                "rate = \"1000/day\"\nsettle = { usage = [\"openai\"], estimate = 10, max = 100 }",
                &upstream.url()
            )
        ),
        1024,
    );
    let answer = Connection::open(process.address).request("GET", "/", &[]);
    assert_eq!(answer.status, 200);
    let line = process.line("a response does not state its cost");
    for words in ["limit=\"it\"", "stream_options", "include_usage"] {
        assert!(line.contains(words), "no {words} in {line}");
    }
}

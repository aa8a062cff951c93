//! Bodies that are refused because they are ambiguous, too long or too late, and what they are charged.

use tollgate_testkit::eventually;

use super::*;

#[test]
fn body_that_servers_could_read_differently_is_refused() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let mut connection = gateway.connect();
    for (fields, body, status) in [
        (
            "",
            r#"{"method":"tools/call","params":{"name":"a","name":"b"}}"#,
            400,
        ),
        ("", r#"{"method":"tools/list","params":{"Name":"b"}}"#, 400),
        ("", r#"{"method":"tools/call","params":["a"]}"#, 400),
        ("", r#"{"method":"tools/call","params":{"name":1.5}}"#, 400),
        ("", r#"{"method":"tools/call","params":{"name":"a"}"#, 400),
        (
            "",
            r#"[{"params":{"name":"a"}},{"params":{"name":"b"}}]"#,
            400,
        ),
        ("Content-Type: text/plain\r\n", "{params:{name:'a'}}", 400),
        (
            "Content-Type: application/json; charset=utf-16\r\n",
            "{}",
            415,
        ),
        ("Content-Encoding: gzip\r\n", "xx", 415),
    ] {
        let answer = post(&mut connection, "/mcp", fields, body);
        assert_eq!(answer.status, status, "{fields}{body}");
        assert!(
            answer.text().contains("urn:problem-type:tollgate:"),
            "{}",
            answer.text()
        );
    }
    let deep = format!("{}{}", "[".repeat(30_000), "]".repeat(30_000));
    assert_eq!(post(&mut connection, "/mcp", "", &deep).status, 400);
    let wide = format!("[{}1]", "1,".repeat(30_000));
    assert_eq!(post(&mut connection, "/mcp", "", &wide).status, 413);
    assert!(upstream.seen().is_empty() && searches.seen().is_empty());
    let answer = post(&mut connection, "/mcp", "", &call("a"));
    assert_eq!(
        answer.left_of("total"),
        Some(100 - 11 - 1),
        "a refused body is charged for everyone"
    );
}

#[test]
fn body_longer_than_its_bound_is_refused_where_the_route_depends_on_it() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let long = format!("{}{}", call("search"), " ".repeat(64 << 10));
    let answer = post(&mut gateway.connect(), "/mcp", "", &long);
    assert_eq!(answer.status, 413, "{}", answer.text());
    let chunked = format!(
        "POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
        long.len()
    );
    let mut connection = gateway.connect();
    connection.send(chunked);
    assert_eq!(connection.answer("POST").status, 413);
    assert!(searches.seen().is_empty());
}

#[test]
fn body_longer_than_its_bound_or_compressed_is_a_body_without_the_key() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[server]
body_facts = "1KiB"
compressed_bodies = "skip"

[limits.model]
rate = "100/day"
per = "json:model"
when_missing = "refuse"

[limits.units]
rate = "100/day"
per = "everyone"
cost = {{ json = "max_tokens", times = "n", default = 3, max = 40, plus = "body_bytes / 100" }}

[[routes]]
match = "/units"
upstream = "{0}"
limits = ["units"]

[[routes]]
match = "/model"
upstream = "{0}"
limits = ["model"]
"#,
        upstream.url()
    ));
    let mut connection = gateway.connect();
    let model = |connection: &mut Connection, fields: &str, body: &str| {
        post(connection, "/model", fields, body).status
    };
    assert_eq!(model(&mut connection, "", r#"{"model":"a"}"#), 200);
    let long = format!(r#"{{"model":"a","x":"{}"}}"#, "x".repeat(2000));
    assert_eq!(model(&mut connection, "", &long), 400);
    assert_eq!(
        model(&mut gateway.connect(), "Content-Encoding: gzip\r\n", "xx"),
        400
    );
    // The number of its calls would decide, and a caller would choose that it is not read.
    let batch = format!(r#"{}[{{"model":"a"}},{{"model":"a"}}]"#, " ".repeat(2000));
    assert_eq!(model(&mut gateway.connect(), "", &batch), 413);

    let mut connection = gateway.connect();
    let mut units = |fields: &str, body: &str| {
        let answer = post(&mut connection, "/units", fields, body);
        answer.left_of("units").expect("it is told")
    };
    assert_eq!(units("", r#"{"max_tokens":6,"n":2}"#), 100 - 13);
    assert_eq!(units("", "{}"), 87 - 4);
    assert_eq!(
        units("", r#"[{"max_tokens":5},{}]"#),
        83 - 9,
        "a sum, of 5 and the default"
    );
    assert_eq!(
        units("", r#"{"max_tokens":"5"}"#),
        74 - 40,
        "what is no number costs the most"
    );
    let before = 34;
    assert_eq!(units("", r#"{"max_tokens":null}"#), before - 4);
    connection = gateway.connect();
    let answer = post(&mut connection, "/units", "", &long);
    assert_eq!(answer.status, 429, "the most: {}", answer.text());
}

#[test]
fn body_that_is_refused_is_charged_by_address_and_for_everyone() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[limits.model]
rate = "100/day"
per = "json:model"
when_missing = "refuse"

[limits.client]
rate = "3/day"
per = "address"

[limits.errors]
rate = "2/day"
per = "everyone"
count = ["415"]

[[routes]]
match = "/**"
upstream = "{}"
limits = ["model", "client", "errors"]
"#,
        upstream.url()
    ));
    let ask = |fields: &str, body: &str| post(&mut gateway.connect(), "/", fields, body).status;
    assert_eq!(ask("", "{"), 400);
    assert_eq!(ask("Content-Encoding: gzip\r\n", "xx"), 415);
    assert_eq!(ask("", r#"{"model":"a","model":"b"}"#), 400);
    let refused = post(&mut gateway.connect(), "/", "", "{");
    assert_eq!(refused.status, 429, "{}", refused.text());
    assert_eq!(refused.left_of("client"), Some(0));
    assert_eq!(refused.left_of("errors"), None, "400 is not counted there");
    assert_eq!(
        ask("", r#"{"model":"a"}"#),
        429,
        "the same for a body that is read"
    );
    assert!(upstream.seen().is_empty());
}

#[test]
fn body_that_stalls_before_the_decision_is_refused_in_time() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let config = format!(
        "[server.timeouts]\nbody_idle = \"100ms\"\n{}",
        tools(&upstream, &searches)
    );
    let gateway = Gateway::start(&config);
    let mut connection = gateway.connect();
    connection.send("POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    assert_eq!(connection.answer("POST").status, 408);
    let mut gone = gateway.connect();
    gone.send("POST /mcp HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{");
    drop(gone);
    let mut connection = gateway.connect();
    let mut seen = 0;
    eventually("the charge for the client that left", || {
        let answer = post(&mut connection, "/mcp", "", &call(&format!("tool-{seen}")));
        seen += 1;
        answer.left_of("total") == Some(100 - 2 - seen)
    });
    assert_eq!(upstream.seen().len() as u64, seen);
}

#[test]
fn bodies_held_for_decisions_are_bounded_over_all_connections() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[server.bounds]
held_bodies = "1MiB"

[limits.model]
rate = "1000/day"
per = "json:model"
when_missing = "refuse"

[[routes]]
match = "/model"
upstream = "{}"
limits = ["model"]
"#,
        upstream.url()
    ));
    let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(40_000));
    let status = || post(&mut gateway.connect(), "/model", "", &body).status;
    assert_eq!(status(), 200);
    // Each sends nearly all of a body, and then nothing.
    let mut unfinished = Vec::new();
    eventually("a further body is refused", || {
        let mut connection = gateway.connect();
        let start = &body[..body.len() - 1];
        connection.send(format!(
            "POST /model HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{start}",
            body.len()
        ));
        unfinished.push(connection);
        status() == 503
    });
    assert!(unfinished.len() > 20, "{} were held", unfinished.len());
    let held = || {
        let metrics = gateway.admin_get("/metrics").text();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tollgate_held_bodies_bytes "));
        let rejected = "tollgate_rejections_total{reason=\"held_bodies\"}";
        assert!(metrics.contains(rejected), "{metrics}");
        line.expect("a gauge").parse::<f64>().expect("a number")
    };
    assert!(held() > 900_000.0, "{}", held());
    drop(unfinished);
    eventually("their memory is free again", || status() == 200);
    eventually("the gauge says so", || held() == 0.0);
}

#[test]
fn body_of_a_request_that_waits_is_held_until_it_is_forwarded() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[limits.model]
rate = "10/second"
burst = 1
max_wait = "250ms"
per = "json:model"
when_missing = "refuse"

[[routes]]
match = "/model"
upstream = "{}"
limits = ["model"]
"#,
        upstream.url()
    ));
    let body = format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(40_000));
    assert_eq!(
        post(&mut gateway.connect(), "/model", "", &body).status,
        200
    );
    let metrics_have = |line: &str| {
        let line = format!("\n{line}\n");
        eventually(&line, || {
            gateway.admin_get("/metrics").text().contains(&line)
        });
    };
    metrics_have("tollgate_held_bodies_bytes 0.0");
    let mut waiting = gateway.connect();
    waiting.send(format!(
        "POST /model HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    // Its body has been read and decided about; it waits for its unit.
    metrics_have("tollgate_requests_held 1.0");
    metrics_have(&format!("tollgate_held_bodies_bytes {}.0", body.len()));
    gateway.advance(std::time::Duration::from_millis(100));
    assert_eq!(waiting.answer("POST").status, 200);
    metrics_have("tollgate_held_bodies_bytes 0.0");
    assert_eq!(upstream.seen()[1].body, body.as_bytes());
}

#[test]
fn body_longer_than_its_route_admits_is_charged_for_everyone() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[identities.tool]
key = "json:tool"
when_missing = "skip"

[limits.tool]
rate = "10/day"
per = "tool"

[limits.total]
rate = "100/day"
per = "everyone"

[limits.served]
rate = "100/day"
per = "address"
count = ["2xx"]

[[routes]]
match = "POST /plain"
upstream = "{0}"
limits = ["total", "served"]
body = "20B"

[[routes]]
match = "POST /read"
upstream = "{0}"
limits = ["tool", "total", "served"]
body = "20B"

[[routes]]
match = {{ methods = "POST", path = "/of_body", body = {{ "json:tool" = "a" }} }}
upstream = "{0}"
limits = ["tool", "total", "served"]
body = "20B"
"#,
        upstream.url()
    ));
    let long = format!("{{\"tool\":\"a\"}}{}", " ".repeat(20));
    let chunked = |path: &str| {
        let mut connection = gateway.connect();
        connection.send(format!(
            "POST {path} HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n{:x}\r\n{long}\r\n0\r\n\r\n",
            long.len()
        ));
        connection.answer("POST").status
    };
    let announced = |path: &str| post(&mut gateway.connect(), path, "", &long).status;
    let left = || {
        let answer = post(&mut gateway.connect(), "/plain", "", "{}");
        (answer.left_of("total"), answer.left_of("served"))
    };
    assert_eq!(left(), (Some(99), Some(99)));
    for path in ["/plain", "/read", "/of_body"] {
        assert_eq!(announced(path), 413, "{path}");
    }
    assert_eq!(left(), (Some(95), Some(98)), "each is charged once");
    for path in ["/read", "/of_body"] {
        assert_eq!(chunked(path), 413, "{path}");
    }
    // hyper's server ends such a response before `count` has seen all of it.
    assert_eq!(left().0, Some(92), "each is charged once");
    let seen = upstream.seen();
    assert!(seen.iter().all(|request| request.body == b"{}"), "{seen:?}");
}

#[test]
fn body_that_lacks_what_the_route_needs_is_refused_by_the_name_of_the_cause() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nbody_facts = \"1KiB\"\ncompressed_bodies = \"skip\"\n\
         [prices.models]\nsmall = {{ input = \"1\", output = \"2\" }}\n\
         [limits.tool]\nrate = \"10/day\"\nper = \"json:params.name\"\nwhen_missing = \"refuse\"\n\
         [limits.budget]\nrate = \"1 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\nprices = \"json:model\"\n\
         cost = {{ usage = \"openai\", default = 1, max = 10 }}\nsettle = {{ usage = \"openai\" }}\n\
         [[routes]]\nmatch = \"/tool\"\nupstream = \"{0}\"\nlimits = [\"tool\"]\n\
         [[routes]]\nmatch = \"/ask\"\nupstream = \"{0}\"\nlimits = [\"budget\"]\n",
        upstream.url()
    ));
    let mut connection = gateway.connect();
    let json = "Content-Type: application/json\r\n";
    let gzip = "Content-Type: application/json\r\nContent-Encoding: gzip\r\n";
    let long = format!(r#"{{"model":"small","pad":"{}"}}"#, "x".repeat(2_000));
    for (path, fields, body, detail) in [
        (
            "/tool",
            json,
            "{}",
            "The body lacks a value of `json:params.name`.",
        ),
        (
            "/tool",
            json,
            r#"{"params":{"name":null}}"#,
            "The body lacks a value of `json:params.name`.",
        ),
        (
            "/tool",
            json,
            &long,
            "The body has 2026 bytes; `json:params.name` is read from a body of at most 1024 bytes.",
        ),
        (
            "/tool",
            gzip,
            "{}",
            "The body is compressed, so that `json:params.name` is not read from it.",
        ),
        (
            "/tool",
            "",
            "",
            "The body lacks a value of `json:params.name`.",
        ),
        (
            "/ask",
            json,
            "{}",
            "The body lacks a value of `json:model`.",
        ),
        (
            "/ask",
            json,
            &long,
            "The body has 2026 bytes; `json:model` is read from a body of at most 1024 bytes.",
        ),
        (
            "/ask",
            json,
            r#"{"model":"se\"cret"}"#,
            "The model that `json:model` names has no price here.",
        ),
    ] {
        let refused = post(&mut connection, path, fields, body);
        assert_eq!(refused.status, 400, "{path} {body}");
        let told = refused.json();
        assert_eq!(told["detail"], detail, "{path} {body}");
        assert_eq!(told["type"], "urn:problem-type:tollgate:malformed-request");
    }
    // A client of gRPC is told the same.
    let call = post(
        &mut connection,
        "/tool",
        "Content-Type: application/grpc\r\nTE: trailers\r\n",
        "",
    );
    let message = call.header("grpc-message").expect("a message");
    assert_eq!(message, "The body lacks a value of `json:params.name`.");
}

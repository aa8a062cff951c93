//! Bodies that are longer than a route admits or than is read of them.

use super::*;

#[test]
fn body_longer_than_its_bound_is_refused_where_the_route_depends_on_it() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let long = format!("{}{}", call("search"), " ".repeat(64 << 10));
    let answer = post(&mut gateway.connect(), "/mcp", "", &long);
    assert_eq!(answer.status, 413, "{}", answer.text());
    assert_eq!(post_chunked(&gateway, "/mcp", &long), 413);
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

{1}
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
        upstream.url(),
        of_model("rate = \"100/day\"")
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
        74,
        "what is no number is refused"
    );
    let before = 74;
    assert_eq!(units("", r#"{"max_tokens":null}"#), before - 4);
    connection = gateway.connect();
    let answer = post(&mut connection, "/units", "", &long);
    assert_eq!(answer.status, 429, "the most: {}", answer.text());
}

#[test]
fn body_longer_than_its_route_admits_is_charged_for_everyone() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
{1}
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
        upstream.url(),
        of_tool("tool")
    ));
    let long = format!("{{\"tool\":\"a\"}}{}", " ".repeat(20));
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
        assert_eq!(post_chunked(&gateway, path, &long), 413, "{path}");
    }
    let (total, served) = left();
    assert_eq!(total, Some(92), "each is charged once");
    assert_eq!(served, Some(97), "a 413 is not counted");
    let seen = upstream.seen();
    assert!(seen.iter().all(|request| request.body == b"{}"), "{seen:?}");
}

#[test]
fn body_longer_than_its_route_admits_is_429_where_no_units_are_left() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.two]\nrate = \"2/day\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"two\"]\nbody = \"20B\"\n",
        upstream.url()
    ));
    let traced = gateway.connect().request("TRACE", "/", &[]);
    assert_eq!(traced.status, 405, "it is not charged");
    let long = " ".repeat(21);
    let statuses = [(); 3].map(|()| post(&mut gateway.connect(), "/", "", &long).status);
    assert_eq!(statuses, [413, 413, 429]);
    assert!(upstream.seen().is_empty());
}

/// A route for bulk calls takes longer bodies than the route for the others.
#[test]
fn body_longer_than_another_route_admits_is_for_its_own_route_to_judge() {
    let (upstream, bulk) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&format!(
        r#"
[limits.general]
rate = "100/day"
per = "everyone"

[limits.bulk]
rate = "100/day"
per = "everyone"

[[routes]]
match = "POST /rpc"
upstream = "{}"
limits = ["general"]
body = "100B"

[[routes]]
match = {{ methods = "POST", path = "/rpc", body = {{ "json:method" = "bulk" }} }}
upstream = "{}"
limits = ["bulk"]
body = "1KiB"
"#,
        upstream.url(),
        bulk.url()
    ));
    let call = |method: &str, length: usize| format!("{{\"method\":\"{method}\"}}{:length$}", "");
    let announced = |body: &str| post(&mut gateway.connect(), "/rpc", "", body);
    let (general, long) = (call("one", 0), call("bulk", 500));
    for _ in 0..2 {
        let answer = announced(&long);
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert_eq!(post_chunked(&gateway, "/rpc", &long), 200);
    }
    assert_eq!(bulk.seen().len(), 4);
    let left = |body: &str, limit: &str| announced(body).left_of(limit);
    assert_eq!(left(&general, "general"), Some(99), "it was not charged");
    assert_eq!(left(&call("bulk", 0), "bulk"), Some(95));
    assert_eq!(announced(&call("one", 500)).status, 413, "by its own bound");
    assert_eq!(left(&general, "general"), Some(97));

    // No route takes it, so its body is not waited for.
    let mut connection = gateway.connect();
    send(&mut connection, "/rpc", "", "", 2000);
    assert_eq!(connection.answer("POST").status, 413);
    assert_eq!(left(&general, "general"), Some(95));
}

#[test]
fn body_of_an_egress_request_decides_whether_its_host_is_listed() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[server]
egress = true

[[routes]]
match = "POST /rpc"
upstream = "{0}"

[[routes]]
match = {{ methods = "POST", host = "api.example.com", path = "/rpc", body = {{ "json:method" = "known" }} }}
upstream = "{0}"
"#,
        upstream.url()
    ));
    let ask = |method: &str| {
        let body = format!("{{\"method\":\"{method}\"}}");
        let mut connection = gateway.connect();
        connection.send(format!(
            "POST http://api.example.com/rpc HTTP/1.1\r\nHost: api.example.com\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        connection.answer("POST").status
    };
    assert_eq!(ask("known"), 200);
    assert_eq!(ask("other"), 421, "no route with its host takes it");
    assert_eq!(upstream.seen().len(), 1);
}

//! Keys, routes and costs that the body of a request says, and the body that is forwarded afterwards.

use std::process::Command;

use tollgate_testkit::eventually;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, Upstream};

/// Calls of tools: each tool has ten calls, searches go elsewhere, and the rest has a limit of its own.
fn tools(upstream: &Upstream, searches: &Upstream) -> String {
    format!(
        r#"
[identities.tool]
key = "json:params.name"
when_missing = "skip"

[limits.tool]
rate = "10/day"
per = "tool"

[limits.total]
rate = "100/day"
per = "everyone"

[[routes]]
match = "POST /mcp"
upstream = "{}"
limits = ["tool", "total"]

[[routes]]
match = {{ methods = "POST", path = "/mcp", body = {{ "json:method" = "tools/call", "json:params.name" = "search" }} }}
upstream = "{}"
limits = ["tool"]

[[routes]]
match = "/plain"
upstream = "{}"
"#,
        upstream.url(),
        searches.url(),
        upstream.url()
    )
}

fn call(tool: &str) -> String {
    format!(
        r#"{{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{{"name":"{tool}","arguments":{{}}}}}}"#
    )
}

fn post(connection: &mut Connection, path: &str, fields: &str, body: &str) -> Answer {
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}

/// The units of the limit `name` that an answer says are left.
fn left(answer: &Answer, name: &str) -> Option<u64> {
    let field = answer.header("ratelimit")?;
    let of_limit = field.split(&format!("\"{name}\";r=")).nth(1)?;
    let digits = of_limit
        .split(|letter: char| !letter.is_ascii_digit())
        .next()?;
    digits.parse().ok()
}

#[test]
fn body_member_is_a_key_and_a_route_and_the_body_is_forwarded_unchanged() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let mut connection = gateway.connect();
    for (tool, units) in [("read", 9), ("read", 8), ("write", 9)] {
        let answer = post(&mut connection, "/mcp", "", &call(tool));
        assert_eq!(
            (answer.status, left(&answer, "tool")),
            (200, Some(units)),
            "{tool}"
        );
    }
    let answer = post(&mut connection, "/mcp", "", &call("search"));
    assert_eq!((answer.status, left(&answer, "total")), (200, None));
    assert_eq!(searches.last().body, call("search").as_bytes());
    let listed = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let answer = post(&mut connection, "/mcp", "", listed);
    assert_eq!((answer.status, left(&answer, "total")), (200, Some(96)));
    assert_eq!(upstream.last().body, listed.as_bytes());
    // Escapes and blanks spell the same tool.
    let spelt = "{ \"params\" : { \"n\\u0061me\" : \"re\\u0061d\" }, \"method\" : \"tools/call\" }";
    let answer = post(
        &mut connection,
        "/mcp",
        "Content-Type: text/plain\r\n",
        spelt,
    );
    assert_eq!((answer.status, left(&answer, "tool")), (200, Some(7)));
    assert_eq!(upstream.last().body, spelt.as_bytes());
    // A request without a body, and a route that asks nothing of it.
    assert_eq!(post(&mut connection, "/mcp", "", "").status, 200);
    assert_eq!(post(&mut connection, "/plain", "", "{not json").status, 200);
}

#[test]
fn body_in_pieces_with_trailers_or_awaited_is_forwarded_whole() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let text = format!("{}{}", call("search"), " ".repeat(20_000));
    let mut connection = gateway.connect();
    connection.send(
        "POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n",
    );
    for piece in text.as_bytes().chunks(777) {
        connection.send(format!("{:x}\r\n", piece.len()));
        connection.send(piece);
        connection.send("\r\n");
    }
    connection.send("0\r\nX-Sum: 7\r\n\r\n");
    assert_eq!(connection.answer("POST").status, 200);
    let seen = searches.last();
    assert_eq!(seen.body, text.as_bytes());
    assert_eq!(seen.trailers.join(",").to_lowercase(), "x-sum: 7");

    let short = call("read");
    connection.send(format!(
        "POST /mcp HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        short.len()
    ));
    assert_eq!(connection.interim(), 100, "the decision needs the body");
    connection.send(&short);
    assert_eq!(connection.answer("POST").status, 200);
    assert_eq!(upstream.last().body, short.as_bytes());
}

#[test]
fn body_over_http2_is_read_and_forwarded_whole() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let text = format!("{}{}", call("search"), " ".repeat(40_000));
    let url = format!("http://{}/mcp", gateway.address());
    let sent = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "-d", &text, &url])
        .output()
        .expect("curl runs");
    assert_eq!(String::from_utf8_lossy(&sent.stdout), "hello", "{sent:?}");
    assert_eq!(searches.last().body, text.as_bytes());
}

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
    assert_eq!(post(&mut connection, "/mcp", "", &wide).status, 400);
    assert!(upstream.seen().is_empty() && searches.seen().is_empty());
    let answer = post(&mut connection, "/mcp", "", &call("a"));
    assert_eq!(
        left(&answer, "total"),
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
        left(&answer, "units").expect("it is told")
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
fn body_batch_is_charged_for_each_of_its_calls() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let batch = format!("[{}]", vec![call("read"); 4].join(","));
    let mut connection = gateway.connect();
    for units in [6, 2] {
        let answer = post(&mut connection, "/mcp", "", &batch);
        assert_eq!(left(&answer, "tool"), Some(units));
    }
    assert_eq!(post(&mut connection, "/mcp", "", &batch).status, 429);
    let searched = format!("[{}]", vec![call("search"); 2].join(","));
    assert_eq!(post(&mut connection, "/mcp", "", &searched).status, 200);
    assert_eq!(searches.last().body, searched.as_bytes());
}

#[test]
fn body_batch_of_a_hundred_calls_costs_a_hundred() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[limits.method]\nrate = \"250/day\"\nalgorithm = \"fixed_window\"\nper = \"json:method\"\nwhen_missing = \"refuse\"\n\
         [limits.units]\nrate = \"100000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ json = \"params.units\", default = 7, max = 50 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"method\", \"units\"]\n",
        upstream.url()
    ));
    let calls: Vec<String> = (0..100)
        .map(|id| match id % 2 {
            0 => format!(r#"{{"id":{id},"method":"m","params":{{"units":3}}}}"#),
            _ => format!(r#"{{"id":{id},"method":"m"}}"#),
        })
        .collect();
    let batch = format!("[{}]", calls.join(","));
    let mut connection = gateway.connect();
    for (method, units) in [(150, 99_500), (50, 99_000)] {
        let answer = post(&mut connection, "/", "", &batch);
        assert_eq!(left(&answer, "method"), Some(method));
        assert_eq!(left(&answer, "units"), Some(units), "50 of 3 and 50 of 7");
    }
    assert_eq!(post(&mut connection, "/", "", &batch).status, 429);
    assert_eq!(upstream.seen().len(), 2, "all of a batch, or none of it");
}

#[test]
fn body_form_and_graphql_operation_are_keys() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[limits.user]
rate = "1/day"
per = "form:user"
when_missing = "refuse"

[limits.operation]
rate = "1/day"
per = "graphql:operation"
when_missing = "refuse"

[[routes]]
match = "/login"
upstream = "{0}"
limits = ["user"]

[[routes]]
match = "/graphql"
upstream = "{0}"
limits = ["operation"]
"#,
        upstream.url()
    ));
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let mut connection = gateway.connect();
    let mut send = |path: &str, fields: &str, body: &str| {
        let status = post(&mut connection, path, fields, body).status;
        connection = gateway.connect();
        status
    };
    assert_eq!(send("/login", form, "user=ann&password=x"), 200);
    assert_eq!(send("/login", form, "password=y&us%65r=%61nn"), 429);
    assert_eq!(send("/login", form, "user=bob"), 200);
    assert_eq!(send("/login", form, "user=ann&user=bob"), 400);
    assert_eq!(
        send("/login", "", "user=bob"),
        429,
        "some servers read a form"
    );
    assert_eq!(
        send("/login", "Content-Type: text/plain\r\n", "user=bob"),
        400,
        "no form"
    );
    assert_eq!(send("/graphql", "", r#"{"query":"query Top { a }"}"#), 200);
    assert_eq!(send("/graphql", "", r#"{"query":"query Top { b }"}"#), 429);
    assert_eq!(send("/graphql", "", r#"{"query":"{ b }"}"#), 400);
    let pretended = r#"{"query":"query Top { b }","operationName":"Other"}"#;
    assert_eq!(send("/graphql", "", pretended), 400);
    // Many servers prefer the target's parameters to the body.
    let cheap = r#"{"query":"query Cheap { a }"}"#;
    let beside = "/graphql?query=query+Costly+%7B+a+%7D";
    assert_eq!(send(beside, "", cheap), 400);
    assert_eq!(send("/graphql?x=1", "", cheap), 200);
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
    assert_eq!(left(&refused, "client"), Some(0));
    assert_eq!(left(&refused, "errors"), None, "400 is not counted there");
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
        left(&answer, "total") == Some(100 - 2 - seen)
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

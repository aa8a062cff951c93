//! Bodies that are refused because they are ambiguous or lack what the route needs, and what they are charged.

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
fn body_that_is_refused_is_charged_by_address_and_for_everyone() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
{}
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
        of_model("rate = \"100/day\""),
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
    // A client of gRPC gets the same words.
    let call = post(
        &mut connection,
        "/tool",
        "Content-Type: application/grpc\r\nTE: trailers\r\n",
        "",
    );
    let message = call.header("grpc-message").expect("a message");
    assert_eq!(message, "The body lacks a value of `json:params.name`.");
}

/// A new user got one sentence for all of these, and looked for a value that was given twice.
#[test]
fn body_of_graphql_whose_operation_is_not_clear_is_refused_by_the_name_of_the_cause() {
    let gateway = Gateway::start(
        "[limits.operation]\nrate = \"100/day\"\nper = \"graphql:operation\"\nwhen_missing = \"skip\"\n\
         [[routes]]\nmatch = \"/graphql\"\nupstream = \"builtin:echo\"\nlimits = [\"operation\"]\n",
    );
    let mut connection = gateway.connect();
    let two = r#"{"query":"query A { a } query B { b }"}"#;
    for (query, body, words) in [
        ("", r#"{"query":"query A { a"}"#, "`query` is not GraphQL"),
        (
            "",
            r##"{"query":"# nothing"}"##,
            "`query` has no operation.",
        ),
        ("", two, "`query` has several operations"),
        (
            "",
            r#"{"query":"query A { a }","operationName":"B"}"#,
            "`query` does not have the operation",
        ),
        ("", r#"{"query":""}"#, "`query` is missing or empty"),
        ("", r#"{"extensions":{}}"#, "`query` is missing or empty"),
        (
            "",
            r#"{"query":"query A { a }","id":"7"}"#,
            "`query` is not the only document",
        ),
        (
            "?operationName=A",
            r#"{"query":"query A { a }"}"#,
            "must not be parameters of the URL",
        ),
        (
            "",
            r#"{"query":"query A { a }","query":"query B { b }"}"#,
            "is given twice",
        ),
    ] {
        let refused = post(&mut connection, &format!("/graphql{query}"), "", body);
        assert_eq!(refused.status, 400, "{query} {body}");
        let told = refused.json();
        let detail = told["detail"].as_str().expect("a text");
        assert!(detail.contains(words), "{query} {body}: {detail}");
    }
}

//! Keys and costs of batches, forms and GraphQL operations.

use super::*;

#[test]
fn body_batch_is_charged_for_each_of_its_calls() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let batch = format!("[{}]", vec![call("read"); 4].join(","));
    let mut connection = gateway.connect();
    for units in [6, 2] {
        let answer = post(&mut connection, "/mcp", "", &batch);
        assert_eq!(answer.left_of("tool"), Some(units));
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
        assert_eq!(answer.left_of("method"), Some(method));
        assert_eq!(answer.left_of("units"), Some(units), "50 of 3 and 50 of 7");
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
    assert_eq!(send("/login?user=bob", form, "user=eve"), 400, "servlets");
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

//! The form of a refusal: problem documents, gRPC, browsers, HEAD, configured bodies.

use crate::harness::{Gateway, Upstream};

/// Two limits of which the first refuses the second request, on routes with refusals of several kinds.
fn gateway(upstream: &Upstream, responses: &str) -> Gateway {
    let url = upstream.url();
    Gateway::start(&format!(
        "[responses]\n{responses}\n\
         [limits.tight]\nrate = \"1/minute\"\nburst = 1\nper = \"address\"\n\
         [limits.wide]\nrate = \"100/hour\"\nburst = 10\nper = \"everyone\"\n\
         [limits.login]\nrate = \"1/minute\"\nburst = 1\nper = \"address\"\n\
         [limits.silent]\nrate = \"9/minute\"\nper = \"address\"\nmode = \"shadow\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"wide\", \"tight\", \"silent\"]\n\
         [[routes]]\nmatch = \"/login\"\nupstream = \"{url}\"\nlimits = [\"login\"]\n\
         refusal = {{ body = '{{\"slow\":\"{{limits}}\",\"wait\":{{retry_after}},\"id\":\"{{decision_id}}\"}}', \
         content_type = \"application/json\" }}\n"
    ))
}

#[test]
fn ratelimit_policy_names_every_limit_and_ratelimit_only_those_that_refused() {
    let upstream = Upstream::hello();
    let gateway = gateway(&upstream, "headers = [\"ratelimit\", \"x-ratelimit\"]");
    let admitted = gateway.get("/");
    let all = Some("\"wide\";q=10;w=360, \"tight\";q=1;w=60");
    assert_eq!(admitted.header("ratelimit-policy"), all);
    assert_eq!(
        admitted.header("ratelimit"),
        Some("\"wide\";r=9;t=324, \"tight\";r=0;t=60")
    );
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("60"))
    );
    assert_eq!(refused.header("ratelimit-policy"), all);
    assert_eq!(refused.header("ratelimit"), Some("\"tight\";r=0;t=60"));
    assert_eq!(refused.header("x-ratelimit-limit"), Some("1"));
    assert_eq!(refused.header("x-ratelimit-remaining"), Some("0"));
    assert_eq!(refused.header("x-ratelimit-reset"), Some("60"));
    assert!(
        refused.json()["decision_id"]
            .as_str()
            .is_some_and(|id| id.len() == 16),
        "{refused:?}"
    );
}

#[test]
fn refusal_body_example_of_the_schema_is_json_with_and_without_a_time() {
    let schema = tollgate_config::schema();
    let example = schema
        .pointer("/$defs/RawRefusal/properties/body/examples/0")
        .and_then(serde_json::Value::as_str)
        .expect("an example");
    let gateway = Gateway::start(&format!(
        "[responses]\nrefusal = {{ body = '{example}', content_type = \"application/json\" }}\n\
         [limits.few]\nrate = \"1/minute\"\nper = \"everyone\"\n\
         cost = {{ header = \"x-cost\", default = 1, max = 9 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"few\"]\n"
    ));
    let mut connection = gateway.connect();
    let never = connection.request("GET", "/", &[("x-cost", "9")]);
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.json()["retry_after"], serde_json::Value::Null);
    assert_eq!(connection.request("GET", "/", &[]).status, 200);
    let later = connection.request("GET", "/", &[]);
    assert_eq!(later.status, 429);
    assert!(later.json()["retry_after"].is_u64(), "{later:?}");
}

#[test]
fn refusal_of_head_has_the_headers_and_no_body() {
    let upstream = Upstream::hello();
    let gateway = gateway(&upstream, "");
    assert_eq!(gateway.get("/").status, 200);
    let body = gateway.get("/").body.len();
    let mut connection = gateway.connect();
    let refused = connection.request("HEAD", "/", &[]);
    assert_eq!(
        (refused.status, refused.header("retry-after")),
        (429, Some("60"))
    );
    assert_eq!(
        refused.header("content-length").map(str::to_owned),
        Some(body.to_string())
    );
    assert_eq!(
        connection.request("GET", "/login", &[]).status,
        200,
        "the connection goes on"
    );
}

#[test]
fn a_grpc_call_is_refused_in_its_own_words() {
    let upstream = Upstream::hello();
    let gateway = gateway(&upstream, "");
    assert_eq!(gateway.get("/").status, 200);
    let call = [
        ("content-type", "application/grpc+proto"),
        ("te", "trailers"),
        ("content-length", "0"),
    ];
    let refused = gateway.request("POST", "/pkg.Service/Method", &call);
    assert_eq!(
        (refused.status, refused.header("grpc-status")),
        (200, Some("8"))
    );
    assert_eq!(refused.header("grpc-retry-pushback-ms"), Some("60000"));
    assert_eq!(
        refused.header("content-type"),
        Some("application/grpc+proto")
    );
    assert!(refused.body.is_empty() && refused.header("grpc-message").is_some());
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn a_script_can_read_a_refusal_across_origins() {
    let upstream = Upstream::hello();
    let gateway = gateway(&upstream, "");
    assert_eq!(gateway.get("/").status, 200);
    let refused = gateway.request(
        "GET",
        "/",
        &[("origin", "https://app.example"), ("cookie", "sid=1")],
    );
    assert_eq!(refused.status, 429);
    assert_eq!(
        refused.header("access-control-allow-origin"),
        Some("https://app.example")
    );
    assert_eq!(
        refused.header("access-control-allow-credentials"),
        Some("true"),
        "it was sent with a cookie"
    );
    assert_eq!(refused.header("vary"), Some("Origin"));
    let exposed = refused
        .header("access-control-expose-headers")
        .unwrap_or_default();
    for name in ["Retry-After", "RateLimit", "RateLimit-Policy"] {
        assert!(
            exposed.split(", ").any(|exposed| exposed == name),
            "{name} in {exposed}"
        );
    }
    assert_eq!(
        gateway.get("/").header("access-control-allow-origin"),
        None,
        "only a request from another origin gets the header"
    );
}

#[test]
fn a_route_and_the_file_refuse_in_words_of_their_own() {
    let upstream = Upstream::hello();
    let own = "refusal = { body = \"<p>Come back in {retry_after} s ({code})</p>\", content_type = \"text/html\" }";
    let gateway = gateway(&upstream, own);
    assert_eq!(
        [gateway.get("/").status, gateway.get("/login").status],
        [200, 200]
    );
    let refused = gateway.get("/");
    assert_eq!(
        (refused.status, refused.header("content-type")),
        (429, Some("text/html"))
    );
    assert_eq!(refused.text(), "<p>Come back in 60 s (denied)</p>");
    assert_eq!(
        refused.header("retry-after"),
        Some("60"),
        "its fields are those of every refusal"
    );
    let refused = gateway.get("/login");
    assert_eq!(refused.header("content-type"), Some("application/json"));
    let json = refused.json();
    assert_eq!(
        (json["slow"].as_str(), json["wait"].as_u64()),
        (Some("login"), Some(60)),
        "the route's own wins"
    );
}

//! docs/openapi.json and the admin listener: every resource is described, and responses are as described.
//!
//! A new endpoint is an entry of `ENDPOINTS` in src/admin/routes.rs. The first test then asks for its path in
//! docs/openapi.json, and the second one for a response of it: add an exchange to `exchanges`. Schemas of
//! documents stand in `components.schemas`, with every member that the document can have.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate::admin::routes::ENDPOINTS;

use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway, Peers, Reply, Upstream, eventually, repository};

const FILE: &str = "docs/openapi.json";

/// The description in this file.
pub(crate) fn document(file: &str) -> Value {
    let text = std::fs::read_to_string(repository().join(file));
    serde_json::from_str(&text.expect("it is there")).expect("JSON")
}

/// The operations of the document: method and path.
pub(crate) fn described(document: &Value) -> BTreeSet<(String, String)> {
    let paths = document["paths"].as_object().expect("paths");
    let of_path = |(path, operations): (&String, &Value)| -> Vec<(String, String)> {
        let methods = operations.as_object().expect("operations").keys();
        methods
            .map(|method| (method.to_uppercase(), path.clone()))
            .collect()
    };
    paths.iter().flat_map(of_path).collect()
}

#[test]
fn openapi_describes_every_resource_of_the_router_and_no_other() {
    let routed = ENDPOINTS.iter();
    let routed: BTreeSet<(String, String)> = routed
        .map(|one| (one.method.to_owned(), one.path.to_owned()))
        .collect();
    assert_eq!(described(&document(FILE)), routed);
    let gateway = Gateway::start("[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n");
    let served = gateway.admin_get("/api/v1/openapi.json");
    assert_eq!(served.header("content-type"), Some("application/json"));
    assert_eq!(served.json(), document(FILE));
}

/// One exchange: the path in the document, and what was sent and received.
pub(crate) struct Exchange {
    pub(crate) method: &'static str,
    pub(crate) template: &'static str,
    pub(crate) answer: Answer,
    pub(crate) request: Option<Value>,
}

/// The token is `test`; the other one's is `read`.
const OPERATORS: &str = "operators = [\n\
    { name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" },\n\
    { name = \"bob\", token = \"sha256:3316348dbadfb7b11c7c2ea235949419e23f9fa898ad2c198f999617912a9925\", level = \"read\" },\n]\n";

fn start(upstream: &Upstream) -> Gateway {
    Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n{OPERATORS}\
         [identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
         [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\ncandidate = {{ rate = \"1/hour\" }}\n\
         [limits.pair]\nrate = \"1/hour\"\nper = [\"tenant\", \"address\"]\n\
         [limits.month]\nrate = \"1000/30d\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\n\
         [limits.all]\nrate = \"1000/hour\"\nper = \"everyone\"\n\
         [tiers.pro]\nsearch = \"100/hour\"\n\
         [upstreams.app]\nservers = [\"{}\"]\neject = {{ failures = 1, wait = \"1h\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"all\", \"month\"]\n\
         [[routes]]\nmatch = \"/pair\"\nupstream = \"builtin:echo\"\nlimits = [\"pair\"]\n\
         [[routes]]\nmatch = \"/app\"\nupstream = \"app\"\n",
        upstream.url(),
    ))
}

/// Sends a request to the admin listener; `body`: a change, by the first operator unless `token` is another one.
fn ask(
    gateway: &Gateway,
    method: &str,
    path: &str,
    body: Option<&str>,
    token: Option<&str>,
) -> Answer {
    let mut connection = Connection::open(gateway.admin());
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: localhost\r\n");
    if let Some(token) = token {
        head.push_str(&format!("authorization: Bearer {token}\r\n"));
    }
    if let Some(body) = body {
        let length = body.len();
        head.push_str(&format!(
            "content-type: application/json\r\ncontent-length: {length}\r\n"
        ));
    }
    connection.send(format!("{head}\r\n{}", body.unwrap_or_default()));
    connection.answer(method)
}

/// Responses of every resource: at least one that is good, and errors where there are some.
fn exchanges(gateway: &Gateway) -> Vec<Exchange> {
    let tenant = |path: &str| gateway.request("GET", path, &[("x-api-key", "k")]);
    let statuses = [
        tenant("/").status,
        tenant("/").status,
        tenant("/pair").status,
        tenant("/pair").status,
    ];
    assert_eq!(statuses, [200, 200, 200, 429]);
    let refused = tenant("/");
    assert_eq!((refused.status, tenant("/app").status), (429, 502));
    let id = refused.json()["decision_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let decision = format!("/api/v1/decisions/{id}");
    let listed = gateway.admin_get("/api/v1/keys/tenant/k").json();
    let named = format!("/api/v1/keys/{}", listed["name"].as_str().expect("a name"));
    eventually("a server is ejected", || {
        tenant("/app");
        gateway.admin_get("/api/v1/figures").json()["exact"]["upstreams_out"] != json!([])
    });
    let mut all = Vec::new();
    let reset = json!({ "reason": "a test", "limit": "search" });
    let level = json!({ "level": "debug", "reason": "a test", "for": "10m", "dry_run": true });
    let unlogged = json!({ "level": "debug", "reason": "a test" });
    for (template, path) in [
        ("/", "/"),
        ("/livez", "/livez"),
        ("/readyz", "/readyz?verbose"),
        ("/metrics", "/metrics"),
        ("/api/v1/status", "/api/v1/status"),
        ("/api/v1/openapi.json", "/api/v1/openapi.json"),
        ("/api/v1/log-level", "/api/v1/log-level"),
        ("/api/v1/limits", "/api/v1/limits"),
        ("/api/v1/limits/{name}/keys", "/api/v1/limits/search/keys"),
        (
            "/api/v1/limits/{name}/keys",
            "/api/v1/limits/search/keys?near&sort=last&most=5",
        ),
        (
            "/api/v1/limits/{name}/keys",
            "/api/v1/limits/search/keys?bogus",
        ),
        ("/api/v1/limits/{name}/keys", "/api/v1/limits/bogus/keys"),
        ("/api/v1/keys/{identity}", "/api/v1/keys/everyone"),
        ("/api/v1/keys/{identity}", "/api/v1/keys/bogus"),
        ("/api/v1/keys/{identity}", &*named),
        ("/api/v1/keys/{identity}", "/api/v1/keys/0000000000000000"),
        (
            "/api/v1/keys/{identity}/{value}",
            "/api/v1/keys/descriptor/edge/user=a",
        ),
        ("/api/v1/keys/{identity}/{value}", "/api/v1/keys/tenant/k"),
        ("/api/v1/keys/{identity}/{value}", "/api/v1/keys/bogus/k"),
        ("/api/v1/keys/{identity}/{value}", "/api/v1/keys/tenant/%ff"),
        (
            "/api/v1/buckets/{limit}/{key}",
            "/api/v1/buckets/all/-?cost=3",
        ),
        ("/api/v1/buckets/{limit}/{key}", "/api/v1/buckets/bogus/-"),
        (
            "/api/v1/buckets/{limit}/{key}",
            "/api/v1/buckets/all/nothex",
        ),
        ("/api/v1/decisions/{id}", &*decision),
        (
            "/api/v1/decisions/{id}",
            "/api/v1/decisions/0000000000000000",
        ),
        ("/api/v1/audit", "/api/v1/audit"),
        ("/api/v1/figures", "/api/v1/figures"),
        ("/api/v1/events", "/api/v1/events?bogus"),
    ] {
        all.push(Exchange {
            method: "GET",
            template,
            answer: ask(gateway, "GET", path, None, None),
            request: None,
        });
    }
    const RESET: &str = "/api/v1/keys/{identity}/{value}/reset";
    const GRANT: &str = "/api/v1/keys/{identity}/{value}/grant";
    const OVERRIDE: &str = "/api/v1/keys/{identity}/{value}/override";
    let faster = json!({ "reason": "a test", "limit": "search", "rate": "10/hour", "for": "1h" });
    let lift = json!({ "reason": "a test", "limit": "search", "dry_run": true });
    let grant = json!({ "reason": "a test", "limit": "month", "units": "20" });
    let granted = "/api/v1/keys/tenant/k/grant";
    let over = "/api/v1/keys/tenant/k/override";
    for (method, template, path, body, token) in [
        (
            "POST",
            RESET,
            "/api/v1/keys/tenant/k/reset",
            &reset,
            Some("test"),
        ),
        ("POST", RESET, "/api/v1/keys/tenant/k/reset", &reset, None),
        (
            "POST",
            RESET,
            "/api/v1/keys/tenant/k/reset",
            &reset,
            Some("read"),
        ),
        (
            "POST",
            RESET,
            "/api/v1/keys/tenant/k/reset",
            &json!({}),
            Some("test"),
        ),
        (
            "POST",
            RESET,
            "/api/v1/keys/bogus/k/reset",
            &reset,
            Some("test"),
        ),
        ("POST", GRANT, granted, &grant, Some("test")),
        ("POST", GRANT, granted, &json!({}), Some("test")),
        ("PUT", OVERRIDE, over, &faster, Some("test")),
        ("PUT", OVERRIDE, over, &faster, None),
        ("PUT", OVERRIDE, over, &json!({}), Some("test")),
        ("DELETE", OVERRIDE, over, &lift, Some("test")),
        (
            "PUT",
            "/api/v1/log-level",
            "/api/v1/log-level",
            &level,
            Some("test"),
        ),
        (
            "PUT",
            "/api/v1/log-level",
            "/api/v1/log-level",
            &unlogged,
            Some("test"),
        ),
        (
            "PUT",
            "/api/v1/log-level",
            "/api/v1/log-level",
            &json!({ "level": "loud" }),
            Some("test"),
        ),
        (
            "PUT",
            "/api/v1/log-level",
            "/api/v1/log-level",
            &level,
            None,
        ),
    ] {
        all.push(Exchange {
            method,
            template,
            answer: ask(gateway, method, path, Some(&body.to_string()), token),
            request: Some(body.clone()),
        });
    }
    // With the entries of the changes.
    for (method, template, path) in [
        ("GET", "/api/v1/overrides", "/api/v1/overrides"),
        ("GET", "/api/v1/audit", "/api/v1/audit"),
        ("POST", "/-/reload", "/-/reload"),
    ] {
        all.push(Exchange {
            method,
            template,
            answer: ask(gateway, method, path, None, None),
            request: None,
        });
    }
    all
}

/// Compares exchanges with the description in `file`; returns the operations that had a good response. `None`: there is
/// no Python with jsonschema here.
pub(crate) fn compare(file: &str, exchanges: Vec<Exchange>) -> Option<BTreeSet<(String, String)>> {
    let path = repository().join(file);
    let mut checker = Peers::start("jsonschema", "tests/it/openapi_check.py", &[path.as_path()])?;
    let mut good = BTreeSet::new();
    for exchange in exchanges {
        let Exchange {
            method,
            template,
            answer,
            request,
        } = exchange;
        let kind = answer.header("content-type").unwrap_or_default().to_owned();
        let body = if kind.ends_with("json") {
            answer.json()
        } else {
            answer.text().into()
        };
        let told = json!({
            "method": method, "path": template, "status": answer.status, "type": kind, "body": body, "request": request,
        });
        assert_eq!(checker.tell(&told), json!([]), "{}", answer.text());
        if [200, 204].contains(&answer.status) {
            good.insert((method.to_owned(), template.to_owned()));
        }
    }
    Some(good)
}

#[test]
fn openapi_describes_the_responses_of_a_running_gateway() {
    let upstream = Upstream::start(|_| Reply::Close(Vec::new()));
    let gateway = start(&upstream);
    let Some(good) = compare(FILE, exchanges(&gateway)) else {
        return;
    };
    let mut missing = described(&document(FILE));
    missing.retain(|operation| !good.contains(operation));
    // A stream, which the tests of events read.
    missing.remove(&("GET".to_owned(), "/api/v1/events".to_owned()));
    assert_eq!(
        missing,
        BTreeSet::new(),
        "operations without a good response here"
    );
}

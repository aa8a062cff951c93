//! docs/openapi-decide.json and the listeners of `[decide]`: every resource is described, and responses are as described.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use tollgate_gateway::decide::RESOURCES;

use crate::decisions::{check, gateway};
use crate::harness::{Connection, Gateway};
use crate::openapi::{Exchange, compare, described, document};
use crate::permits::{headers, post, send};

const FILE: &str = "docs/openapi-decide.json";

#[test]
fn openapi_decide_describes_every_resource_and_no_other() {
    let listed = RESOURCES.map(|(method, path)| (method.to_owned(), path.to_owned()));
    assert_eq!(described(&document(FILE)), BTreeSet::from(listed));
    let gateway = gateway("", LIMITS);
    let status = |method: &str, path: &str| {
        Connection::open(gateway.deciding())
            .request(method, path, &[])
            .status
    };
    for (method, path) in RESOURCES {
        assert_ne!(status(method, path), 404, "{path}");
        if method == "POST" {
            assert_eq!(status("GET", path), 405, "{path}");
        }
    }
    for other in [
        "/",
        "/v1",
        "/v1/",
        "/v1/decide/",
        "/v1/other",
        "/openapi.json",
    ] {
        assert_eq!(status("GET", other), 404, "{other}");
    }
}

const LIMITS: &str = "permits = 2\n\
    [identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
    [limits.it]\nrate = \"9/hour\"\nper = \"address\"\n\
    [limits.one]\nrate = \"1/hour\"\nper = \"everyone\"\n\
    [limits.tokens]\nrate = \"100/hour\"\nper = \"address\"\nsettle = { from = \"header:x-cost\", estimate = 10, max = 50 }\n\
    [limits.tenants]\nrate = \"10/hour\"\nper = \"tenant\"\n\
    [[routes]]\nmatch = \"/x\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n\
    [[routes]]\nmatch = \"GET /one\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n\
    [[routes]]\nmatch = \"/tenants\"\nupstream = \"builtin:echo\"\nlimits = [\"tenants\"]\n\
    [[routes]]\nmatch = \"/tokens\"\nupstream = \"builtin:echo\"\nlimits = [\"tokens\"]\n";

/// Responses of `/check`.
fn checks(gateway: &Gateway, exchanges: &mut Vec<Exchange>) -> Vec<u16> {
    let uris = [
        "/x", "/one", "/one", "/tenants", "/other", "/tokens", "/tokens", "/tokens", "relative",
    ];
    let answers = uris.map(|uri| check(gateway, &headers(uri, "192.0.2.1")));
    let statuses = answers.iter().map(|answer| answer.status).collect();
    exchanges.extend(answers.map(|answer| Exchange {
        method: "GET",
        template: "/check",
        answer,
        request: None,
    }));
    statuses
}

#[test]
fn openapi_decide_is_what_a_running_gateway_responds_with() {
    let gateway = gateway("", LIMITS);
    let mut exchanges = Vec::new();
    let statuses = checks(&gateway, &mut exchanges);
    assert_eq!(statuses, [200, 200, 429, 401, 404, 200, 200, 503, 400]);
    let permits = exchanges
        .iter()
        .filter_map(|exchange| exchange.answer.header("x-tollgate-permit"));
    let permits: Vec<String> = permits.map(str::to_owned).collect();
    let [first, second] = &permits[..] else {
        panic!("{permits:?}");
    };

    let plain = json!({ "method": "GET", "path": "/x?a=b", "client": "192.0.2.2", "host": "a.example", "scheme": "https",
        "headers": { "x-a": "1", "x-b": ["1", "2"] } });
    let refused = json!({ "method": "GET", "path": "/one", "client": "192.0.2.2" });
    let tokens = json!({ "method": "GET", "path": "/tokens", "client": "192.0.2.3" });
    let by_limit = json!({ "limit": "it", "key": "192.0.2.2", "cost": 2 });
    let full = json!({ "limit": "one" });
    let strange = json!({ "limit": "tenants", "key": ["a", "b"] });
    let never = json!({ "limit": "it", "key": "192.0.2.2", "cost": 99 });
    let bodies = [
        (
            "/v1/settle",
            json!({ "permit": first, "status": 200, "units": 20 }),
            200,
        ),
        ("/v1/settle", json!({ "permit": first, "status": 200 }), 404),
        ("/v1/settle", json!({ "permit": second }), 400),
        ("/v1/give-back", json!({ "permit": second }), 204),
        ("/v1/give-back", json!({ "permit": second }), 404),
        ("/v1/give-back", json!({ "permit": second, "more": 1 }), 400),
        (
            "/v1/decide",
            json!({ "requests": [plain, refused, tokens, by_limit, full, strange, never] }),
            200,
        ),
        (
            "/v1/decide",
            json!({ "requests": [plain, by_limit], "together": true }),
            200,
        ),
        (
            "/v1/decide",
            json!({ "requests": [plain, full], "together": true }),
            200,
        ),
        (
            "/v1/decide",
            json!({ "requests": [plain, { "method": "GET", "path": "/other" }], "together": true }),
            200,
        ),
        (
            "/v1/decide",
            json!({ "requests": [tokens], "together": true }),
            200,
        ),
        ("/v1/decide", json!({ "requests": [] }), 400),
    ];
    for (path, body, status) in bodies {
        let answer = post(&gateway, path, &body);
        assert_eq!(answer.status, status, "{body}: {}", answer.text());
        exchanges.push(Exchange {
            method: "POST",
            template: path,
            answer,
            request: Some(body),
        });
    }
    for (headers, status) in [
        (&[("Content-Type", "text/plain")][..], 400),
        (
            &[
                ("Content-Type", "application/json"),
                ("Origin", "http://127.0.0.1"),
            ],
            403,
        ),
    ] {
        let answer = send(&gateway, "/v1/decide", headers, "{}");
        assert_eq!(answer.status, status);
        exchanges.push(Exchange {
            method: "POST",
            template: "/v1/decide",
            answer,
            request: None,
        });
    }
    let Some(good) = compare(FILE, exchanges) else {
        return;
    };
    assert_eq!(good, described(&document(FILE)));
}

/// A schema that describes nothing would agree with everything.
#[test]
fn openapi_decide_schemas_close_their_documents() {
    let document = document(FILE);
    let schemas = document["components"]["schemas"]
        .as_object()
        .expect("schemas");
    let objects = schemas
        .iter()
        .filter(|(_, schema)| schema["type"] == "object");
    for (name, schema) in objects {
        assert!(
            schema["properties"]
                .as_object()
                .is_some_and(|members| !members.is_empty()),
            "{name}"
        );
        assert_ne!(schema["description"], Value::Null, "{name}");
    }
}

//! Decisions of `/v1/decide` in the access log, and permits that are open when the gateway stops.

use std::path::Path;

use serde_json::{Value, json};

use crate::decisions::gateway;
use crate::harness::{Connection, Gateway, eventually};
use crate::permits::{admitted, headers, left_of, post};

fn lines(log: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(log).unwrap_or_default();
    text.lines()
        .map(|line| serde_json::from_str(line).expect("a line of JSON"))
        .collect()
}

#[test]
fn draw_by_limit_or_together_has_a_line_in_the_access_log() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let gateway = gateway(
        "",
        &format!(
            "[log]\naccess = '{}'\nkeys = \"plain\"\n\
             [limits.it]\nrate = \"3/hour\"\nper = \"address\"\n\
             [limits.all]\nrate = \"100/hour\"\nper = \"everyone\"\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\", \"all\"]\n",
            log.display()
        ),
    );
    let decide = |document: &Value| {
        let answer = post(&gateway, "/v1/decide", document);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    };
    let by_limit = json!({ "limit": "it", "key": "192.0.2.1", "cost": 2 });
    let by_request = json!({ "method": "GET", "path": "/x", "client": "192.0.2.1" });
    // Two lines: each entry of a batch is a decision of its own.
    decide(&json!({ "requests": [by_limit, by_request] }));
    // One line for all entries.
    let refused = decide(&json!({ "requests": [by_request, by_limit], "together": true }));
    assert_eq!(refused["together"]["status"], 429);
    // One line for the entry that is refused before anything is drawn.
    let lost = json!({ "method": "GET", "path": "/%zz" });
    let lost = decide(&json!({ "requests": [by_limit, lost], "together": true }));
    assert_eq!(lost["together"]["status"], 400);
    // No decision, so no line.
    let unknown = json!({ "requests": [{ "limit": "other" }], "together": true });
    assert_eq!(post(&gateway, "/v1/decide", &unknown).status, 400);
    decide(&json!({ "requests": [by_limit] }));

    eventually("the log is written", || lines(&log).len() == 5);
    let logged = lines(&log);
    let told = |line: &Value| {
        let charges = line["limits"].as_array().into_iter().flatten();
        let charges: Vec<String> = charges
            .map(|one| {
                let word = |name: &str| one[name].as_str().expect("a word").to_owned();
                format!("{} {} {}", word("name"), one["cost"], word("outcome"))
            })
            .collect();
        let asked = format!(
            "{} {} {}",
            line["method"].as_str().expect("a method"),
            line["path"].as_str().expect("a path"),
            line["status"]
        );
        (asked, charges.join(", "))
    };
    let expected = [
        ("POST /v1/decide 200", "it 2 allow"),
        ("GET /x 200", "it 1 allow, all 1 allow"),
        ("POST /v1/decide 429", "it 3 deny, all 1 allow"),
        ("POST /v1/decide 400", ""),
        ("POST /v1/decide 429", "it 2 deny"),
    ];
    // Lines of two workers may be out of order.
    let mut found: Vec<(String, String)> = logged.iter().map(told).collect();
    let mut expected = expected.map(|(asked, charges)| (asked.to_owned(), charges.to_owned()));
    found.sort();
    expected.sort();
    assert_eq!(found, expected);
    let line = |id: &Value| {
        let line = logged.iter().find(|line| line["id"] == *id);
        line.unwrap_or_else(|| panic!("no line of {id}"))
    };
    let denied = &refused["together"];
    assert_eq!(line(&denied["decision_id"])["refused"], true);
    assert_eq!(
        line(&denied["decision_id"])["retry_after_ms"],
        denied["retry_after_ms"]
    );
    assert_eq!(
        line(&lost["together"]["body"]["decision_id"])["status"],
        400
    );
    // An operator finds the refusal by its id.
    let id = denied["decision_id"].as_str().expect("an id");
    let found = gateway.admin_get(&format!("/api/v1/decisions/{id}"));
    assert_eq!(
        (found.status, &found.json()["request"]["path"]),
        (200, &json!("/v1/decide"))
    );
}

#[test]
fn permit_open_when_the_gateway_stops_ends_as_at_its_expiry() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nstate_file = '{}'\n[decide]\nlisten = \"127.0.0.1:0\"\n\
         [limits.kept]\nrate = \"100/hour\"\nper = \"address\"\nsettle = {{ from = \"header:x-cost\", estimate = 10, max = 50 }}\n\
         [limits.most]\nrate = \"100/hour\"\nper = \"address\"\nsettle = {{ from = \"header:x-cost\", estimate = 10, max = 50, untold = \"max\" }}\n\
         [limits.places]\nin_flight = 1\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"kept\", \"most\", \"places\"]\n",
        folder.path().join("tollgate.state").display()
    );
    let first = Gateway::start(&config);
    let permit = admitted(&first, "/");
    assert_eq!(
        ["kept", "most"].map(|limit| left_of(&first, limit)),
        [90, 90]
    );
    first.shutdown();
    let second = Gateway::start(&config);
    assert_eq!(
        ["kept", "most"].map(|limit| left_of(&second, limit)),
        [90, 50]
    );
    let report = json!({ "permit": permit, "units": 0 });
    assert_eq!(post(&second, "/v1/settle", &report).status, 404);
    assert_eq!(left_of(&second, "kept"), 90, "nothing is credited later");
    // The place is free.
    admitted(&second, "/");
}

#[test]
fn permit_is_reported_over_a_kept_connection_while_the_gateway_drains() {
    let gateway = gateway(
        "",
        "[limits.it]\nrate = \"100/hour\"\nper = \"address\"\nsettle = { from = \"header:x-cost\", estimate = 10, max = 50 }\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n",
    );
    let mut connection = Connection::open(gateway.deciding());
    let answer = connection.request("GET", "/check", &headers("/", "192.0.2.1"));
    let permit = answer.header("x-tollgate-permit").expect("a permit");
    let body = json!({ "permit": permit, "units": 4 }).to_string();
    gateway.drain();
    connection.send(format!(
        "POST /v1/settle HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let settled = connection.answer("POST");
    assert_eq!(settled.status, 200, "{settled:?}");
    assert_eq!(settled.json()["charged"]["it"], 4);
}

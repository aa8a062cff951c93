//! Overrides over the admin listener: what they do, that they refill nothing, who may set them, and their end.

use std::time::Duration;

use serde_json::{Value, json};

use crate::events::Reader;
use crate::harness::client::Answer;
use crate::harness::{Connection, Gateway};

/// Two operators: the first one's token is `test`, the second one's `read`.
const OPERATORS: &str = "operators = [\n\
    { name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" },\n\
    { name = \"bob\", token = \"sha256:3316348dbadfb7b11c7c2ea235949419e23f9fa898ad2c198f999617912a9925\", level = \"read\" },\n]\n";

const LIMITS: &str = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\n\
    [limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n\
    [limits.jobs]\nin_flight = 5\nper = \"tenant\"\n\
    [limits.tried]\nrate = \"100/hour\"\nper = \"tenant\"\nmode = \"shadow\"\n\
    [limits.pair]\nrate = \"100/hour\"\nper = [\"tenant\", \"address\"]\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"jobs\", \"tried\", \"pair\"]\n";

const BEARER: (&str, &str) = ("authorization", "Bearer test");
const JSON: (&str, &str) = ("content-type", "application/json");

fn start(admin: &str) -> Gateway {
    Gateway::start(&config("", admin))
}

fn config(server: &str, admin: &str) -> String {
    format!("{server}[admin]\nlisten = \"127.0.0.1:0\"\n{admin}{LIMITS}")
}

fn ask_as(gateway: &Gateway, key: &str) -> Answer {
    gateway.request("GET", "/", &[("x-api-key", key)])
}

/// The status of a request by tenant `k`.
fn ask(gateway: &Gateway) -> u16 {
    ask_as(gateway, "k").status
}

/// How many of `most` requests are admitted.
fn admitted(gateway: &Gateway, most: usize) -> usize {
    (0..most).filter(|_| ask(gateway) == 200).count()
}

fn send(
    gateway: &Gateway,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &str,
) -> Answer {
    let mut connection = Connection::open(gateway.admin());
    let mut head = format!(
        "{method} /api/v1/keys/{path} HTTP/1.1\r\ncontent-length: {}\r\n",
        body.len()
    );
    if !headers.iter().any(|(name, _)| *name == "host") {
        head.push_str("host: localhost\r\n");
    }
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    connection.send(format!("{head}\r\n{body}"));
    connection.answer(method)
}

fn put(gateway: &Gateway, body: &Value) -> Answer {
    send(
        gateway,
        "PUT",
        "tenant/k/override",
        &[BEARER, JSON],
        &body.to_string(),
    )
}

fn lift(gateway: &Gateway, body: &Value) -> Answer {
    send(
        gateway,
        "DELETE",
        "tenant/k/override",
        &[BEARER, JSON],
        &body.to_string(),
    )
}

fn overrides(gateway: &Gateway) -> Value {
    gateway.admin_get("/api/v1/overrides").json()["overrides"].clone()
}

#[test]
fn override_unlimited_admits_at_once_ends_by_itself_and_is_audited() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("audit.log");
    let gateway = start(&format!("{OPERATORS}audit = '{}'\n", file.display()));
    let mut events = Reader::ready(&gateway);
    assert_eq!(admitted(&gateway, 4), 2);
    let body = json!({ "reason": " ticket 4711 ", "limit": "search", "unlimited": true, "for": "1m", "dry_run": true });
    let tried = put(&gateway, &body);
    assert_eq!(tried.status, 200, "{}", tried.text());
    assert_eq!(tried.json()["limits"][0]["after"]["unlimited"], true);
    assert_eq!(ask(&gateway), 429, "a dry run changes nothing");
    assert_eq!(overrides(&gateway), json!([]));

    let body =
        json!({ "reason": " ticket 4711 ", "limit": "search", "unlimited": true, "for": "1m" });
    let done = put(&gateway, &body);
    assert_eq!(done.status, 200, "{}", done.text());
    let done = done.json();
    assert_eq!(done["limits"][0]["before"], Value::Null);
    assert_eq!(done["limits"][0]["after"]["operator"], "ann");
    assert_eq!(admitted(&gateway, 10), 10);
    assert_eq!(ask_as(&gateway, "other").status, 200);
    let listed = overrides(&gateway);
    assert_eq!(listed[0]["limit"], "search");
    assert_eq!(listed[0]["reason"], "ticket 4711");
    assert_eq!(listed[0]["why_not"], Value::Null);
    assert!(
        !listed.to_string().contains("\"k\""),
        "no key in clear: {listed}"
    );
    let shown = gateway.admin_get("/api/v1/keys/tenant/k").json();
    assert_eq!(
        shown["buckets"][0]["override"]["unlimited"], true,
        "{shown}"
    );
    // It was refused before, and is admitted now.
    let refused = gateway.admin_get("/api/v1/limits/search/keys?refused");
    let refused = refused.json()["keys"][0].clone();
    assert_eq!(refused["count"], 3, "{refused}");
    assert_eq!(refused["now"]["level"]["admits"], true, "{refused}");

    gateway.advance(Duration::from_secs(59));
    assert_eq!(ask(&gateway), 200);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(ask(&gateway), 429, "its end refills nothing");
    assert_eq!(overrides(&gateway), json!([]));
    let (_, ended) = events.next("override_ended");
    assert_eq!(
        (&ended["limit"], &ended["lifted"]),
        (&json!("search"), &json!(false))
    );
    let text = std::fs::read_to_string(&file).expect("the audit");
    let lines = text.lines().map(serde_json::from_str);
    let lines: Vec<Value> = lines.collect::<Result<_, _>>().expect("lines of JSON");
    let [set, end] = &lines[..] else {
        panic!("the change and its end: {text}");
    };
    assert_eq!(set["action"], "override");
    assert_eq!(set["override_after"]["unlimited"], true);
    assert!(set["until"].is_string(), "{set}");
    assert_eq!(end["action"], "end");
    assert!(!text.contains("\"k\""), "{text}");
}

#[test]
fn override_numbers_raise_and_lower_without_refilling() {
    let gateway = start(OPERATORS);
    assert_eq!(admitted(&gateway, 4), 2);
    let raise =
        json!({ "reason": "r", "limit": "search", "rate": "3600/hour", "burst": 50, "for": "1h" });
    let done = put(&gateway, &raise);
    assert_eq!(done.status, 200, "{}", done.text());
    assert_eq!(ask(&gateway), 429, "nothing is refilled");
    gateway.advance(Duration::from_secs(10));
    assert_eq!(admitted(&gateway, 20), 10, "one each second");
    // Set again, lifted and set again: not a unit more.
    assert_eq!(put(&gateway, &raise).status, 200);
    assert_eq!(ask(&gateway), 429);
    assert_eq!(lift(&gateway, &json!({ "reason": "done" })).status, 200);
    assert_eq!(ask(&gateway), 429);
    assert_eq!(put(&gateway, &raise).status, 200);
    assert_eq!(ask(&gateway), 429);
    gateway.advance(Duration::from_secs(200));
    let lower = json!({ "reason": "r", "limit": "search", "burst": 1, "for": "1h" });
    let lowered = put(&gateway, &lower);
    assert_eq!(lowered.status, 200, "{}", lowered.text());
    assert_eq!(lowered.json()["limits"][0]["before"]["burst"], 50);
    assert_eq!(admitted(&gateway, 5), 1);
    assert_eq!(ask_as(&gateway, "other").status, 200);
    assert_eq!(lift(&gateway, &json!({ "reason": "done" })).status, 200);
    assert!(
        admitted(&gateway, 5) <= 1,
        "what the smaller burst cut off does not come back"
    );
    assert_eq!(lift(&gateway, &json!({ "reason": "done" })).status, 404);
    let entries = gateway.admin_get("/api/v1/audit").json()["entries"].clone();
    let actions: Vec<&str> = entries
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|entry| entry["action"].as_str())
        .collect();
    assert_eq!(
        actions,
        [
            "lift", "override", "override", "lift", "override", "override"
        ]
    );
}

#[test]
fn override_block_refuses_by_a_problem_of_its_own_until_its_end() {
    let gateway = start(OPERATORS);
    let block = json!({ "reason": "scans", "limit": "search", "block": true, "for": "10m" });
    assert_eq!(put(&gateway, &block).status, 200);
    gateway.advance(Duration::from_secs(30));
    let refused = ask_as(&gateway, "k");
    assert_eq!(refused.status, 429);
    assert_eq!(refused.header("retry-after"), Some("570"));
    let document = refused.json();
    assert_eq!(document["type"], "urn:problem-type:tollgate:blocked");
    assert_eq!(document["violated-policies"], json!(["search"]));
    let id = document["decision_id"].as_str().expect("an id");
    let why = gateway.admin_get(&format!("/api/v1/decisions/{id}")).json();
    assert_eq!(why["reason"], "blocked", "{why}");
    assert_eq!(why["limits"][0]["override"]["block"], true);
    assert_eq!(why["limits"][0]["outcome"], "deny");
    assert_eq!(why["limits"][1]["outcome"], "unasked");
    let metrics = gateway.admin_get("/metrics").text();
    assert!(metrics.contains("tollgate_overrides 1"), "{metrics}");
    assert!(metrics.contains("reason=\"blocked\"} 1"), "{metrics}");
    let busy = gateway
        .admin_get("/api/v1/limits/search/keys?refused")
        .json();
    assert_eq!(busy["found"], 1, "{busy}");
    // A longer block: the end that the refusal told is not the end any more.
    let longer = json!({ "reason": "scans", "limit": "search", "block": true, "for": "570s" });
    gateway.advance(Duration::from_secs(30));
    let longer = put(&gateway, &longer).json();
    let path = "/api/v1/limits/search/keys?refused";
    let busy = gateway.admin_get(path).json()["keys"][0].clone();
    let end = &longer["limits"][0]["after"]["until"];
    assert_eq!((&busy["count"], &busy["until"]), (&json!(1), end), "{busy}");
    gateway.advance(Duration::from_secs(569));
    assert_eq!(ask(&gateway), 429);
    gateway.advance(Duration::from_secs(1));
    assert_eq!(admitted(&gateway, 4), 2, "what was blocked was not charged");
}

/// The bucket knows nothing of a block or of `unlimited`: the level that is shown and explained does.
#[test]
fn override_unlimited_or_block_decides_the_level_that_is_shown() {
    let gateway = start(OPERATORS);
    let level = || {
        let told = gateway.admin_get("/api/v1/keys/tenant/k").json();
        let bucket = told["buckets"][0].clone();
        assert_eq!(bucket["limit"], "search", "{told}");
        let level = &bucket["now"]["level"];
        ["remaining", "admits", "admits_in_ms", "admits_at"].map(|member| level[member].clone())
    };
    assert_eq!(level(), [json!(2), json!(true), Value::Null, Value::Null]);
    let block = json!({ "reason": "r", "limit": "search", "block": true, "for": "10m" });
    let done = put(&gateway, &block);
    assert_eq!(done.status, 200, "{}", done.text());
    gateway.advance(Duration::from_secs(60));
    let [remaining, admits, wait, at] = level();
    let end = &overrides(&gateway)[0]["until"];
    assert_eq!(
        (remaining, admits, wait),
        (json!(2), json!(false), json!(540_000))
    );
    assert_eq!(at, *end, "the end of the block");
    assert_eq!(lift(&gateway, &json!({ "reason": "r" })).status, 200);
    assert_eq!(admitted(&gateway, 3), 2);
    let [remaining, admits, wait, _] = level();
    assert_eq!((remaining, admits), (json!(0), json!(false)));
    assert!(wait.as_u64() > Some(0), "{wait}");
    let unlimited = json!({ "reason": "r", "limit": "search", "unlimited": true, "for": "10m" });
    assert_eq!(put(&gateway, &unlimited).status, 200);
    assert_eq!(level(), [json!(0), json!(true), Value::Null, Value::Null]);
    gateway.advance(Duration::from_secs(600));
    assert_eq!(level()[1], json!(false), "it has ended");
}

#[test]
fn override_of_a_caller_without_a_limit_named_blocks_by_all_that_refuse() {
    let gateway = start(OPERATORS);
    let done = put(
        &gateway,
        &json!({ "reason": "r", "block": true, "for": "1h" }),
    )
    .json();
    let limits: Vec<&str> = done["limits"]
        .as_array()
        .expect("a list")
        .iter()
        .filter_map(|limit| limit["limit"].as_str())
        .collect();
    assert_eq!(limits, ["search", "jobs"]);
    assert_eq!(ask(&gateway), 429);
    // A reload that removes one leaves the other in force, and says so.
    let without = LIMITS
        .replace("[limits.search]\nrate = \"2/hour\"\nper = \"tenant\"\n", "")
        .replace("\"search\", ", "");
    let config = format!("[admin]\nlisten = \"127.0.0.1:0\"\n{OPERATORS}{without}");
    gateway.reload(&config).expect("a good file");
    assert_eq!(ask(&gateway), 429);
    let listed = overrides(&gateway);
    assert!(
        listed[0]["why_not"]
            .as_str()
            .is_some_and(|why| why.contains("no limit")),
        "{listed}"
    );
    assert_eq!(listed[1]["why_not"], Value::Null);
    let done = lift(&gateway, &json!({ "reason": "r" })).json();
    assert_eq!(done["limits"].as_array().map(Vec::len), Some(2), "{done}");
    assert_eq!(ask(&gateway), 200);
}

#[test]
fn override_of_a_local_limit_outlives_a_restart_and_refills_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = format!(
        "[server]\nstate_file = '{}'\n",
        folder.path().join("state").display()
    );
    let gateway = Gateway::start(&config(&server, OPERATORS));
    let raise = json!({ "reason": "r", "limit": "search", "burst": 10, "for": "1h" });
    assert_eq!(put(&gateway, &raise).status, 200);
    assert_eq!(admitted(&gateway, 20), 10);
    let block = json!({ "reason": "r", "limit": "search", "block": true, "for": "1h" });
    let blocked = send(
        &gateway,
        "PUT",
        "tenant/bad/override",
        &[BEARER, JSON],
        &block.to_string(),
    );
    assert_eq!(blocked.status, 200);
    let file = folder.path().join("state.overrides");
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(!text.contains("\"bad\""), "{text}");
    use std::os::unix::fs::PermissionsExt;
    let mode = std::fs::metadata(&file)
        .expect("there")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    gateway.shutdown();
    let gateway = Gateway::start(&config(&server, OPERATORS));
    assert_eq!(ask_as(&gateway, "bad").status, 429);
    assert_eq!(
        admitted(&gateway, 20),
        0,
        "the larger burst is not granted again"
    );
    assert_eq!(ask_as(&gateway, "other").status, 200);
}

#[test]
fn override_file_that_cannot_be_read_is_kept_for_the_operator() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = |name: &str| folder.path().join(name);
    let server = format!("[server]\nstate_file = '{}'\n", path("state").display());
    let of_a_later_version = b"{\"version\":99,\"blocks\":[\"a\"]}";
    for unreadable in [&of_a_later_version[..], b"no text: \xff\xfe", b""] {
        std::fs::write(path("state.overrides"), unreadable).expect("written");
        let gateway = Gateway::start(&config(&server, OPERATORS));
        let raise = json!({ "reason": "r", "limit": "search", "burst": 10, "for": "1h" });
        assert_eq!(put(&gateway, &raise).status, 200);
        let kept = std::fs::read(path("state.overrides.unreadable"));
        assert_eq!(kept.expect("set aside"), unreadable);
    }
}

#[test]
fn override_without_permission_is_refused_and_changes_nothing() {
    let gateway = start(OPERATORS);
    let good = json!({ "reason": "r", "block": true, "for": "1h" }).to_string();
    for method in ["PUT", "DELETE"] {
        for (headers, status) in [
            (&[JSON][..], 401),
            (&[JSON, ("authorization", "Bearer wrong")], 401),
            (&[JSON, ("authorization", "Bearer read")], 403),
            (&[JSON, BEARER, ("origin", "http://localhost:9180")], 403),
            (&[JSON, BEARER, ("sec-fetch-site", "same-origin")], 403),
            (&[JSON, BEARER, ("host", "evil.example")], 421),
            (&[BEARER], 415),
        ] {
            let answer = send(&gateway, method, "tenant/k/override", headers, &good);
            assert_eq!(
                answer.status,
                status,
                "{method} {headers:?}: {}",
                answer.text()
            );
        }
    }
    let answer = send(
        &gateway,
        "POST",
        "tenant/k/override",
        &[BEARER, JSON],
        &good,
    );
    assert_eq!(
        (answer.status, answer.header("allow")),
        (405, Some("PUT, DELETE"))
    );
    assert_eq!(ask(&gateway), 200);
    let without = start("");
    let answer = put(
        &without,
        &json!({ "reason": "r", "block": true, "for": "1h" }),
    );
    assert_eq!(answer.status, 403);
    assert_eq!(ask(&without), 200);
    assert_eq!(overrides(&without), json!([]));
}

#[test]
fn override_that_makes_no_sense_is_refused_with_the_reason() {
    let gateway = start(OPERATORS);
    // One of several gateways, which may have nothing to lift.
    let typo = json!({ "reason": "r", "limit": "serach", "in_store": true });
    let lifted = lift(&gateway, &typo);
    assert_eq!(lifted.status, 404);
    let words = "no limit is called `serach`: did you mean `search`?";
    assert!(lifted.text().contains(words), "{}", lifted.text());
    let numbers = |more: Value| {
        let mut body = json!({ "reason": "r", "limit": "search", "rate": "10/hour", "for": "1h" });
        let members = more.as_object().expect("an object").clone();
        body.as_object_mut().expect("an object").extend(members);
        body
    };
    for (path, body, status, words) in [
        (
            "tenant/k",
            json!({ "block": true, "for": "1h" }),
            400,
            "reason",
        ),
        (
            "tenant/k",
            json!({ "reason": " ", "block": true, "for": "1h" }),
            400,
            "`reason`",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "for": "1h" }),
            400,
            "nothing is to be changed: an override has exactly one of: `rate`",
        ),
        (
            "tenant/k",
            numbers(json!({ "block": true })),
            400,
            "exactly one of: `rate`",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "unlimited": true, "for": "1h" }),
            400,
            "exactly one of",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true }),
            400,
            "exactly one of `for` and `until`",
        ),
        (
            "tenant/k",
            numbers(json!({ "until": "2099-01-01T00:00:00Z" })),
            400,
            "exactly one of `for` and `until`",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "until": "2001-01-01T00:00:00Z" }),
            400,
            "`2001-01-01T00:00:00Z` is past, it is 2027-01-15T08:00:00.000Z here",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "until": "tomorrow" }),
            400,
            "`until` is a time",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "for": "soon" }),
            400,
            "`for` is a duration",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "for": "0s" }),
            400,
            "in the future",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "block": true, "for": "31d" }),
            400,
            "30 days at most",
        ),
        (
            "tenant/k",
            numbers(json!({ "rate": "fast" })),
            400,
            "not a rate",
        ),
        (
            "tenant/k",
            numbers(json!({ "rate": "100" })),
            400,
            "write it as \\\"100/minute\\\"",
        ),
        (
            "tenant/k",
            numbers(json!({ "limit": "serch" })),
            404,
            "no limit is called `serch`: did you mean `search`?",
        ),
        (
            "tenants/k",
            numbers(json!({})),
            404,
            "no identity is called `tenants`: did you mean `tenant`?",
        ),
        (
            "user/k",
            numbers(json!({})),
            404,
            "no identity is called `user`: known are",
        ),
        ("tenant/k", numbers(json!({ "burst": 0 })), 400, "burst"),
        (
            "tenant/k",
            numbers(json!({ "limits": "x" })),
            400,
            "unknown field",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "rate": "10/hour", "for": "1h" }),
            400,
            "name it with `limit`",
        ),
        (
            "tenant/k",
            numbers(json!({ "limit": "no" })),
            404,
            "no limit is called",
        ),
        (
            "tenant/k",
            numbers(json!({ "limit": "jobs" })),
            409,
            "places",
        ),
        (
            "tenant/k",
            numbers(json!({ "limit": "pair" })),
            404,
            "not by this identity alone",
        ),
        (
            "tenant/k",
            json!({ "reason": "r", "limit": "tried", "block": true, "for": "1h" }),
            409,
            "only counts",
        ),
        (
            "unknown/k",
            numbers(json!({})),
            404,
            "no identity is called",
        ),
        ("address/k", numbers(json!({})), 404, "not an IP address"),
    ] {
        let path = format!("{path}/override");
        let answer = send(&gateway, "PUT", &path, &[BEARER, JSON], &body.to_string());
        assert_eq!(answer.status, status, "{path} {body}: {}", answer.text());
        assert!(answer.text().contains(words), "{words}: {}", answer.text());
    }
    assert_eq!(overrides(&gateway), json!([]));
    assert_eq!(
        gateway.admin_get("/api/v1/audit").json()["entries"],
        json!([])
    );
    assert_eq!(ask(&gateway), 200);
}

//! What a running gateway tells of its decisions and buckets.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::harness::Gateway;

const TENANTS: &str = "[identities.tenant]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"use:address\"\n\
    [limits.search]\nrate = \"1/minute\"\nburst = 2\nper = \"tenant\"\ncost = { header = \"x-cost\", default = 1, max = 2 }\n\
    [limits.all]\nrate = \"100/minute\"\nper = \"everyone\"\n\
    [[routes]]\nmatch = \"/v1/{rest}\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"all\"]\n";

#[test]
fn decision_of_a_refusal_explains_it_and_charges_nothing() {
    let gateway = Gateway::start(TENANTS);
    let key = [("x-api-key", "k-secret")];
    for _ in 0..2 {
        assert_eq!(gateway.request("GET", "/v1/a?q=private", &key).status, 200);
    }
    let refused = gateway.request("GET", "/v1/a?q=private", &key);
    assert_eq!(refused.status, 429);
    let id = refused.json()["decision_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let told = gateway.admin_get(&format!("/api/v1/decisions/{id}"));
    assert_eq!(told.status, 200, "{}", told.text());
    assert!(!told.text().contains("secret") && !told.text().contains("private"));
    let told = told.json();
    assert_eq!(told["status"], 429);
    assert_eq!(told["reason"], "denied");
    assert_eq!(told["route"], "/v1/{rest}");
    assert_eq!(told["request"]["path"], "/v1/a");
    assert_eq!(told["request"]["client"], "127.0.0.1");
    assert_eq!(told["retry_after_ms"], refused.json()["retry_after_ms"]);
    let search = &told["limits"][0];
    assert_eq!(search["limit"], "search");
    assert_eq!(search["outcome"], "deny");
    assert_eq!(search["key"], "a key");
    assert_eq!(search["then"]["remaining"], 0);
    assert_eq!(search["then"]["admits_in_ms"], told["retry_after_ms"]);
    assert_eq!(told["until"], search["then"]["admits_at"]);
    assert_eq!(told["limits"][1]["outcome"], "allow");
    assert_eq!(told["limits"][1]["now"]["level"]["remaining"], 98, "{told}");

    gateway.advance(Duration::from_secs(30));
    let now = |gateway: &Gateway| {
        let told = gateway.admin_get(&format!("/api/v1/decisions/{id}")).json();
        told["limits"][0]["now"]["level"].clone()
    };
    assert_eq!(now(&gateway)["admits"], false);
    assert_eq!(now(&gateway)["admits_in_ms"], 30_000);
    gateway.advance(Duration::from_secs(30));
    for _ in 0..5 {
        assert_eq!(now(&gateway)["admits"], true, "to look charges nothing");
    }
    assert_eq!(gateway.request("GET", "/v1/a", &key).status, 200);
    assert_eq!(gateway.request("GET", "/v1/a", &key).status, 429);
}

#[test]
fn decision_that_is_not_kept_is_404_with_the_reason() {
    let gateway = Gateway::start(TENANTS);
    let unknown = gateway.admin_get("/api/v1/decisions/0123456789abcdef");
    assert_eq!(unknown.status, 404);
    assert_eq!(
        unknown.header("content-type"),
        Some("application/problem+json")
    );
    assert!(unknown.text().contains("none has happened yet"));
    let id = gateway.get("/nowhere").json()["decision_id"].clone();
    let path = format!("/api/v1/decisions/{}", id.as_str().expect("an id"));
    assert_eq!(gateway.admin_get(&path).status, 404, "no limit refused it");
    assert_eq!(gateway.admin_get("/api/v1/nothing").status, 404);
}

#[test]
fn decision_survives_a_reload_and_says_when_its_limit_is_gone() {
    let gateway = Gateway::start(TENANTS);
    let key = [("x-api-key", "k"), ("x-cost", "2")];
    gateway.request("GET", "/v1/a", &key);
    let refused = gateway.request("GET", "/v1/a", &key);
    let id = refused.json()["decision_id"].clone();
    let path = format!("/api/v1/decisions/{}", id.as_str().expect("an id"));
    gateway
        .reload(&TENANTS.replace("search", "other"))
        .expect("good");
    let told = gateway.admin_get(&path).json();
    assert_eq!(told["limits"][0]["limit"], "search");
    assert_eq!(told["limits"][0]["then"]["remaining"], 0);
    let now = &told["limits"][0]["now"];
    assert!(now["level"].is_null(), "{now}");
    assert_eq!(now["why_not"], "the limit is no longer in force");
}

#[test]
fn why_prints_what_the_gateway_knows() {
    let gateway = Gateway::start(TENANTS);
    let key = [("x-api-key", "k"), ("x-cost", "2")];
    gateway.request("GET", "/v1/a", &key);
    let refused = gateway.request("GET", "/v1/a", &key);
    let id = refused.json()["decision_id"].clone();
    let id = id.as_str().expect("an id");
    let other = Gateway::start(TENANTS);
    // A fleet: the first gateway does not know the decision.
    let fleet = format!("{},{}", other.admin(), gateway.admin());
    let (code, out, err) = tollgate(&["why", id, "--admin", &fleet]);
    assert_eq!(code, Some(0), "{err}");
    for words in [
        "decision   ",
        "request    GET localhost/v1/a\n",
        "refused    429 denied: again from 2027-",
        "limit      search",
        "then: 0 units left: refused for 2 min",
        "now: 0 units left: refused until ",
    ] {
        assert!(out.contains(words), "{words}: {out}");
    }
    assert!(err.is_empty(), "{err}");
    let alone = other.admin().to_string();
    let (code, _, err) = tollgate(&["why", id, "--admin", &alone]);
    assert_eq!(code, Some(1));
    assert!(
        err.contains("no refusal by a limit has this decision id"),
        "{err}"
    );
    let (code, _, err) = tollgate(&["why", "nonsense", "--admin", &alone]);
    assert_eq!(code, Some(2), "{err}");
}

#[test]
fn names_of_keys_are_the_same_after_a_restart_and_in_explain() {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    let text = format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\nstate_file = '{}'\n{TENANTS}",
        folder.path().join("state").display()
    );
    std::fs::write(&file, &text).expect("written");
    let name = || {
        let gateway = Gateway::start(&text);
        let key = [("x-api-key", "k"), ("x-cost", "2")];
        gateway.request("GET", "/v1/a", &key);
        let refused = gateway.request("GET", "/v1/a", &key);
        let id = refused.json()["decision_id"].clone();
        let path = format!("/api/v1/decisions/{}", id.as_str().expect("an id"));
        let told = gateway.admin_get(&path).json();
        gateway.shutdown();
        told["limits"][0]["name"]
            .as_str()
            .expect("a name")
            .to_owned()
    };
    let first = name();
    assert_eq!(first.len(), 16);
    assert_eq!(name(), first);
    let file = file.to_str().expect("a path");
    let (_, out, _) = tollgate(&["explain", "GET /v1/a", "-H", "x-api-key: k", file]);
    assert!(
        out.contains(&format!("({first} in logs)")),
        "{first}: {out}"
    );
    std::fs::remove_file(folder.path().join("state.names")).expect("it is there");
    assert_ne!(name(), first, "another secret gives other names");
}

/// Runs the program; returns its exit code and what it printed.
fn tollgate(args: &[&str]) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .current_dir(Path::new("/"))
        .env_remove("TOLLGATE_ADMIN")
        .env_remove("TOLLGATE_CONFIG")
        .output()
        .expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

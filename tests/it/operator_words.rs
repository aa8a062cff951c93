//! What operators are told before and after a change: money without its unit, callers that are not listed, and whether
//! a caller is refused now.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::harness::Gateway;
use crate::harness::client::Answer;

/// The token is `test`, and so is the key of `bolt`; that of `acme` is not used.
const CONFIG: &str = "[admin]\nlisten = \"127.0.0.1:0\"\n\
    operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
    [prices.models]\n\"*\" = { input = \"1\", output = \"1\" }\n\
    [identities.customer]\nkey = [\"header:x-api-key\"]\nwhen_missing = \"refuse\"\nwhen_unknown = \"WHEN\"\n\
    [identities.customer.callers]\n\
    \"sha256:27e8e8c9a0b2ad5b3e7b4a1b8a3b5ad2b0a3c1a57e6ac1eb8f9e0d4a4fd1e0aa\" = { name = \"acme\" }\n\
    \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"bolt\" }\n\
    [limits.search]\nrate = \"600/hour\"\nburst = 4\nper = \"customer\"\n\
    [limits.daily]\nrate = \"10/day\"\nalgorithm = \"fixed_window\"\nper = \"customer\"\n\
    [limits.budget]\nrate = \"1 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"customer\"\nprices = \"json:model\"\n\
    cost = { json = \"max_tokens\", default = 1, max = 10 }\nsettle = { usage = [\"openai\"] }\nrefuse_status = 402\n\
    [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\", \"daily\"]\n\
    [[routes]]\nmatch = \"POST /ask\"\nupstream = \"builtin:echo\"\nlimits = [\"budget\"]\n";

fn start(when_unknown: &str) -> Gateway {
    Gateway::start(&CONFIG.replace("WHEN", when_unknown))
}

/// A change for a caller.
fn change(gateway: &Gateway, method: &str, path: &str, body: &Value) -> Answer {
    gateway.change(method, &format!("customer/{path}"), body)
}

fn put(gateway: &Gateway, body: &Value) -> Answer {
    change(gateway, "PUT", "bolt/override", body)
}

/// The units that are left to bolt under a limit.
fn left(gateway: &Gateway, limit: &str) -> u64 {
    let told = gateway.admin_get("/api/v1/keys/customer/bolt").json();
    let buckets = told["buckets"].as_array().expect("a list");
    let bucket = buckets.iter().find(|bucket| bucket["limit"] == limit);
    let bucket = bucket.expect("its bucket");
    bucket["now"]["level"]["remaining"]
        .as_u64()
        .expect("a number")
}

/// The status of a request by bolt.
fn ask(gateway: &Gateway) -> u16 {
    gateway.request("GET", "/", &[("x-api-key", "test")]).status
}

fn notes(answer: &Answer) -> String {
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["notes"].to_string()
}

/// The exit code, the standard output and the standard error of the program.
fn tollgate(gateway: &Gateway, args: &[&str]) -> (Option<i32>, String, String) {
    asking(&gateway.admin().to_string(), args)
}

/// The same, where `TOLLGATE_ADMIN` names these gateways.
fn asking(gateways: &str, args: &[&str]) -> (Option<i32>, String, String) {
    let environment = [("TOLLGATE_ADMIN", gateways), ("TOLLGATE_TOKEN", "test")];
    program(args, &environment)
}

/// The same; of the program's own variables only those of `environment` are set.
pub(crate) fn program(
    args: &[&str],
    environment: &[(&str, &str)],
) -> (Option<i32>, String, String) {
    let output = Command::new(env!("CARGO_BIN_EXE_tollgate"))
        .args(args)
        .current_dir(Path::new("/"))
        .env_remove("TOLLGATE_ADMIN")
        .env_remove("TOLLGATE_CONFIG")
        .env_remove("TOLLGATE_TOKEN")
        .envs(environment.iter().copied())
        .output()
        .expect("it runs");
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    (
        output.status.code(),
        text(&output.stdout),
        text(&output.stderr),
    )
}

/// What `explain --live` says of a request of `bolt`, asking these gateways.
fn explain_live(gateways: &str) -> (Option<i32>, String, String) {
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, CONFIG.replace("WHEN", "refuse")).expect("written");
    let file = file.to_string_lossy();
    let request = ["explain", "GET /", "-H", "x-api-key: test"];
    asking(gateways, &[&request[..], &["--live", "-c", &file]].concat())
}

#[test]
fn override_rate_of_a_budget_without_the_unit_of_money_is_refused() {
    let gateway = start("refuse");
    for (rate, words) in [
        ("80/day", "write `80 USD/day`"),
        ("80 EUR/day", "`[prices]` is in USD"),
    ] {
        let raise = json!({ "reason": "r", "limit": "budget", "rate": rate, "for": "1h" });
        let refused = put(&gateway, &raise);
        assert_eq!(refused.status, 400, "{}", refused.text());
        assert!(refused.text().contains(words), "{}", refused.text());
        assert_eq!(left(&gateway, "budget"), 1_000_000);
    }
    let (code, _, err) = tollgate(
        &gateway,
        &[
            "key", "raise", "customer", "bolt", "--limit", "budget", "--rate", "80/day", "--for",
            "1h", "--reason", "r",
        ],
    );
    assert_eq!(code, Some(1), "{err}");
    assert!(err.contains("the unit of money is missing"), "{err}");
    let wrong = json!({ "reason": "r", "limit": "search", "rate": "8 USD/day", "for": "1h" });
    assert_eq!(put(&gateway, &wrong).status, 400);
    let good = json!({ "reason": "r", "limit": "budget", "rate": "80 USD/day", "for": "1h" });
    assert_eq!(notes(&put(&gateway, &good)), "[]");
    assert_eq!(left(&gateway, "budget"), 80_000_000);
}

#[test]
fn override_numbers_of_a_window_count_what_was_used() {
    let gateway = start("refuse");
    assert_eq!([ask(&gateway), ask(&gateway)], [200, 200]);
    for (rate, remains) in [("20/day", 18), ("2/day", 0)] {
        let set = json!({ "reason": "r", "limit": "daily", "for": "1h", "rate": rate });
        assert_eq!(notes(&put(&gateway, &set)), "[]");
        assert_eq!(left(&gateway, "daily"), remains);
    }
    let lift = json!({ "reason": "r" });
    let lifted = change(&gateway, "DELETE", "bolt/override", &lift);
    assert_eq!(lifted.status, 200);
    assert_eq!(left(&gateway, "daily"), 8);
}

#[test]
fn change_of_a_caller_that_is_not_listed_is_refused_and_names_no_other() {
    let block = json!({ "reason": "r", "limit": "search", "block": true, "for": "1h" });
    let reset = json!({ "reason": "r" });
    for when_unknown in ["refuse", "use:address"] {
        let gateway = start(when_unknown);
        for answer in [
            change(&gateway, "PUT", "bollt/override", &block),
            change(&gateway, "POST", "bollt/reset", &reset),
            gateway.admin_get("/api/v1/keys/customer/bollt"),
        ] {
            assert_eq!(answer.status, 404, "{}", answer.text());
            let detail = answer.json()["detail"].to_string();
            assert!(
                detail.contains("`bollt` is no caller of `customer`, and"),
                "{detail}"
            );
            assert!(!detail.contains("`bolt`"), "{detail}");
        }
        assert_eq!(
            gateway.admin_get("/api/v1/overrides").json()["overrides"],
            json!([])
        );
    }
    let gateway = start("accept");
    let done = change(&gateway, "PUT", "bollt/override", &block);
    let words = "`bollt` is not in the list of callers of `customer`, and is taken for a key";
    assert!(notes(&done).contains(words), "{}", done.text());
    let (code, out, err) = tollgate(&gateway, &["key", "show", "customer", "bollt"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains(&format!("note       {words}\n")), "{out}");
    assert_eq!(put(&gateway, &block).json()["notes"], json!([]));
}

#[test]
fn override_of_a_caller_that_was_removed_from_the_list_is_lifted_by_its_name_in_logs() {
    let gateway = start("refuse");
    let blocked = json!({ "reason": "r", "block": true, "for": "1h" });
    assert_eq!(put(&gateway, &blocked).status, 200);
    let config = CONFIG.replace("WHEN", "refuse");
    let without: Vec<&str> = config
        .lines()
        .filter(|line| !line.contains("name = \"bolt\""))
        .collect();
    gateway.reload(&without.join("\n")).expect("it is valid");
    let listed = gateway.admin_get("/api/v1/overrides").json();
    let name = listed["overrides"][0]["name"].as_str().expect("a name");
    let (code, _, err) = tollgate(&gateway, &["key", "lift", name, "--reason", "gone"]);
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(
        gateway.admin_get("/api/v1/overrides").json()["overrides"],
        json!([])
    );
    // No other change is made for a caller that is not listed.
    assert_eq!(put(&gateway, &blocked).status, 404);
}

#[test]
fn caller_that_is_blocked_is_called_refused_by_every_verb() {
    let gateway = start("refuse");
    let (code, out, err) = tollgate(
        &gateway,
        &[
            "key", "block", "customer", "bolt", "--limit", "search", "--for", "1h", "--reason",
            "abuse",
        ],
    );
    assert_eq!(code, Some(0), "{err}");
    let refused = gateway.request("GET", "/", &[("x-api-key", "test")]);
    assert_eq!(refused.status, 429);
    let id = refused.json()["decision_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    let show = tollgate(&gateway, &["key", "show", "customer", "bolt"]).1;
    let why = tollgate(&gateway, &["why", &id]).1;
    let (_, explain, _) = explain_live(&gateway.admin().to_string());
    for text in [&out, &show, &why, &explain] {
        assert!(text.contains("now: refused: blocked until "), "{text}");
        assert!(
            text.contains(", by ann: abuse (the bucket has 4 units)\n"),
            "{text}"
        );
    }
    let unlimited = json!({ "reason": "r", "limit": "search", "unlimited": true, "for": "1h" });
    assert_eq!(put(&gateway, &unlimited).status, 200);
    let (_, out, _) = tollgate(&gateway, &["key", "show", "customer", "bolt"]);
    assert!(out.contains("now: admitted: unlimited until "), "{out}");
    // A limit that has come to count only blocks nothing any more.
    assert_eq!(
        put(
            &gateway,
            &json!({ "reason": "r", "limit": "search", "block": true, "for": "1h" })
        )
        .status,
        200
    );
    let shadow = CONFIG
        .replace("WHEN", "refuse")
        .replace("burst = 4", "burst = 4\nmode = \"shadow\"");
    gateway.reload(&shadow).expect("a good file");
    assert_eq!(ask(&gateway), 200);
    let (_, out, _) = tollgate(&gateway, &["key", "show", "customer", "bolt"]);
    assert!(out.contains("units left: admitted"), "{out}");
    assert!(
        out.contains("it changes nothing: the limit only counts"),
        "{out}"
    );
}

#[test]
fn audit_prints_each_change_with_its_operator_and_reason() {
    let gateway = start("refuse");
    let (code, out, err) = tollgate(&gateway, &["audit"]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("change     none since its start"), "{out}");
    let block = json!({ "reason": "abuse", "limit": "search", "block": true, "for": "1h" });
    assert_eq!(put(&gateway, &block).status, 200);
    let reset = json!({ "reason": "ticket 4711", "limit": "daily" });
    assert_eq!(change(&gateway, "POST", "bolt/reset", &reset).status, 200);
    let (code, out, err) = tollgate(&gateway, &["audit"]);
    assert_eq!(code, Some(0), "{err}");
    let lines: Vec<&str> = out.lines().collect();
    assert!(
        lines[1].contains(" ann filled caller bolt under daily (before: "),
        "{out}"
    );
    assert_eq!(lines[2], "           reason: ticket 4711", "{out}");
    assert!(
        lines[3].starts_with("           limit daily (local), caller bolt ("),
        "{out}"
    );
    assert!(
        lines[4].contains(" ann blocked caller bolt under search until "),
        "{out}"
    );
    assert_eq!(lines[5], "           reason: abuse", "{out}");
}

#[test]
fn health_and_explain_live_take_several_gateways() {
    let (one, two) = (start("refuse"), start("refuse"));
    let both = format!("{},{}", one.admin(), two.admin());
    let (code, out, err) = asking(&both, &["health"]);
    assert_eq!(code, Some(0), "{out}{err}");
    for gateway in [&one, &two] {
        assert!(
            out.contains(&format!("gateway    {}\n", gateway.admin())),
            "{out}"
        );
    }
    let silent = format!("{},127.0.0.1:1", one.admin());
    assert_eq!(asking(&silent, &["health"]).0, Some(1));
    let (_, out, err) = explain_live(&both);
    assert!(out.contains("now: 4 units left: admitted"), "{out}{err}");
    assert!(err.contains("of 2 gateways the first is asked"), "{err}");
}

/// Requests without a key are limited by their address, in a bucket that an operator reaches by it.
#[test]
fn operator_reaches_the_bucket_of_an_address_that_counts_for_a_missing_key() {
    let gateway = Gateway::start(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n\
         [identities.customer]\nkey = \"header:x-api-key\"\nwhen_missing = { use = \"address\", tier = \"anonymous\" }\n\
         [tiers.anonymous]\nsearch = { rate = \"1/hour\", burst = 1 }\n\
         [limits.search]\nrate = \"600/hour\"\nburst = 4\nper = \"customer\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"search\"]\n",
    );
    let statuses = || [(); 2].map(|()| gateway.get("/").status);
    assert_eq!(statuses(), [200, 429]);
    let shown = gateway.admin_get("/api/v1/keys/address/127.0.0.1").json();
    let bucket = &shown["buckets"][0];
    assert_eq!(
        (&bucket["limit"], &bucket["tier"]),
        (&json!("search"), &json!("anonymous")),
        "{shown}"
    );
    let put = |body: &Value| gateway.change("PUT", "address/127.0.0.1/override", body);
    let unlimited = json!({ "limit": "search", "unlimited": true, "for": "1h", "reason": "r" });
    assert_eq!(put(&unlimited).status, 200);
    assert_eq!(statuses(), [200, 200]);
    let block = json!({ "block": true, "for": "1h", "reason": "r" });
    assert_eq!(put(&block).status, 200);
    assert_eq!(statuses(), [429, 429]);
    let keyed = |key: &str| gateway.request("GET", "/", &[("x-api-key", key)]).status;
    assert_eq!(keyed("a"), 200, "a caller with a key has another bucket");
}

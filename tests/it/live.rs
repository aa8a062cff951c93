//! What a running gateway tells of its decisions and buckets.

use std::time::Duration;

use crate::harness::Gateway;
use crate::operator_words::program;

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
fn why_prints_the_recorded_refusal() {
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
    let names = folder.path().join("state.names");
    std::fs::remove_file(&names).expect("it is there");
    let second = name();
    assert_ne!(second, first, "another secret gives other names");
    // A crash cut it off: the gateway starts all the same.
    std::fs::write(&names, b"cut off").expect("written");
    assert_ne!(name(), second);
    let left: Vec<_> = std::fs::read_dir(folder.path())
        .expect("a folder")
        .map(|entry| entry.expect("readable").file_name())
        .filter(|name| name.to_string_lossy().starts_with("state.names"))
        .collect();
    assert_eq!(left, ["state.names"], "no temporary file stays");
}

#[test]
fn live_refused_keys_are_listed_with_lost_requests_until_admitted() {
    let gateway = Gateway::start(TENANTS);
    for (key, requests) in [("a", 5), ("b", 3), ("c", 1)] {
        for _ in 0..requests {
            gateway.request("GET", "/v1/x", &[("x-api-key", key)]);
        }
    }
    let path = "/api/v1/limits/search/keys?refused";
    let told = gateway.admin_get(path).json();
    let keys = told["keys"].as_array().expect("a list");
    let lost: Vec<_> = keys.iter().map(|key| key["count"].as_u64()).collect();
    assert_eq!(lost, [Some(3), Some(1)], "{told}");
    assert_eq!((&told["unseen"], &told["found"]), (&0.into(), &2.into()));
    for key in keys {
        assert_eq!(key["count_error"], 0);
        assert_eq!(key["since"], "2027-01-15T08:00:00.000Z");
        assert_eq!(key["until"], "2027-01-15T08:01:00.000Z");
        assert_eq!(key["now"]["level"]["admits_at"], key["until"]);
        assert_eq!(key["now"]["level"]["remaining"], 0);
    }
    assert_ne!(keys[0]["name"], keys[1]["name"]);
    let one = gateway
        .admin_get("/api/v1/limits/search/keys?most=1")
        .json();
    assert_eq!(one["keys"].as_array().map(Vec::len), Some(1));
    assert_eq!(one["found"], 2);
    // At the moment that was told they are admitted, and listed no more.
    gateway.advance(Duration::from_secs(60));
    assert_eq!(gateway.admin_get(path).json()["found"], 0);
    let key = [("x-api-key", "a")];
    assert_eq!(gateway.request("GET", "/v1/x", &key).status, 200);
    for wrong in ["sort=no", "most=0", "most=x", "all"] {
        let path = format!("/api/v1/limits/search/keys?{wrong}");
        assert_eq!(gateway.admin_get(&path).status, 400, "{wrong}");
    }
    assert_eq!(gateway.admin_get("/api/v1/limits/no/keys").status, 404);
}

#[test]
fn live_refusals_between_reads_and_reloads_are_counted_once() {
    let gateway = Gateway::start(TENANTS);
    let mut lost = 0;
    let mut refuse = |times: u64| {
        for _ in 0..times {
            let refused = gateway.request("GET", "/v1/x", &[("x-api-key", "a")]);
            lost += u64::from(refused.status == 429);
        }
        lost
    };
    let counted = || {
        let path = "/api/v1/limits/search/keys?refused";
        let told = gateway.admin_get(path).json();
        told["keys"][0]["count"].as_u64()
    };
    assert_eq!(refuse(12), 10);
    assert_eq!(counted(), Some(10));
    assert_eq!(counted(), Some(10), "a second look counts nothing");
    // More refusals than a chunk of the ring has room for.
    assert_eq!(refuse(390), 400);
    // The ring forgets the refusals of all policies before the last two; the counts stay.
    for reload in 1..=4 {
        let changed = TENANTS.replace("100/minute", &format!("{}/minute", 100 + reload));
        gateway.reload(&changed).expect("a good file");
        assert_eq!(refuse(10), 400 + 10 * reload);
    }
    assert_eq!(counted(), Some(440));
}

#[test]
fn keys_are_sorted_as_the_query_says() {
    let gateway = Gateway::start(TENANTS);
    let refuse = |key: &str, times: usize| {
        for _ in 0..times {
            gateway.request("GET", "/v1/x", &[("x-api-key", key)]);
        }
        gateway.advance(Duration::from_secs(1));
    };
    // Two requests are admitted to each, in the order of their first refusals: c, a, b.
    for (key, requests) in [("c", 3), ("a", 5), ("b", 4), ("a", 1)] {
        refuse(key, requests);
    }
    let counts = |sort: &str| {
        let told = gateway.admin_get(&format!("/api/v1/limits/search/keys?{sort}"));
        let told = told.json();
        let keys = told["keys"].as_array().expect("a list").clone();
        keys.iter()
            .map(|key| key["count"].as_u64())
            .collect::<Vec<_>>()
    };
    // The counts tell them apart: c has one, b two, a four.
    assert_eq!(counts("sort=count"), [Some(4), Some(2), Some(1)]);
    assert_eq!(counts("sort=since"), [Some(1), Some(4), Some(2)]);
    assert_eq!(counts("sort=last"), [Some(4), Some(2), Some(1)]);
    refuse("c", 1);
    assert_eq!(counts("sort=last"), [Some(2), Some(4), Some(2)]);
}

#[test]
fn keys_that_have_used_four_fifths_are_near() {
    let gateway = Gateway::start(
        "[limits.one]\nrate = \"10/minute\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"one\"]\n",
    );
    let near = || gateway.admin_get("/api/v1/limits/one/keys?near").json();
    for _ in 0..7 {
        gateway.get("/");
    }
    assert_eq!(near()["found"], 0, "seven of ten");
    gateway.get("/");
    let told = near();
    assert_eq!(told["keys"][0]["key"], "address 127.0.0.1", "{told}");
    assert_eq!(told["keys"][0]["now"]["level"]["remaining"], 2);
    gateway.advance(Duration::from_secs(6));
    assert_eq!(near()["found"], 0, "it has three again");
}

#[test]
fn limits_are_listed_with_their_counts() {
    let gateway = Gateway::start(&TENANTS.replace(
        "[limits.all]",
        "[limits.search.candidate]\nrate = \"1/hour\"\nburst = 1\n[limits.all]",
    ));
    for _ in 0..3 {
        gateway.request("GET", "/v1/x", &[("x-api-key", "a")]);
    }
    let told = gateway.admin_get("/api/v1/limits").json();
    let of = |limit: &str, candidate: bool| {
        let all = told["limits"].as_array().expect("a list");
        all.iter()
            .find(|one| one["limit"] == limit && one["candidate"] == candidate)
            .unwrap_or_else(|| panic!("{limit}: {told}"))
            .clone()
    };
    let search = of("search", false);
    assert_eq!(
        (&search["allowed"], &search["refused"]),
        (&2.into(), &1.into())
    );
    assert_eq!(search["per"], serde_json::json!(["tenant"]));
    assert_eq!(
        (&search["store"], &search["mode"]),
        (&"local".into(), &"enforce".into())
    );
    assert!(search["agreement"].is_null());
    let candidate = of("search", true);
    assert_eq!(
        candidate["agreement"]["only_candidate_refuses"], 1,
        "{candidate}"
    );
    assert_eq!(of("all", false)["per"], serde_json::json!([]));
}

#[test]
fn live_buckets_of_a_caller_are_found_by_key_name_or_address() {
    let listed = "[identities.tenant.callers]\n\
        \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = { name = \"acme\", tier = \"pro\" }\n\
        [tiers.pro]\nsearch = { rate = \"1/minute\", burst = 10 }\n\
        [limits.both]\nrate = \"1/minute\"\nper = [\"tenant\", \"address\"]\nburst = 1\n";
    let config = TENANTS
        .replace(
            "[limits.search]",
            &format!("when_unknown = \"accept\"\n{listed}[limits.search]"),
        )
        .replace("[\"search\", \"all\"]", "[\"search\", \"all\", \"both\"]");
    let gateway = Gateway::start(&config);
    let ask = |key: &str| {
        gateway
            .request("GET", "/v1/x", &[("x-api-key", key)])
            .status
    };
    assert_eq!((ask("test"), ask("test")), (200, 429), "`both` refuses");
    let level = |path: &str| {
        let told = gateway.admin_get(&format!("/api/v1/keys/{path}")).json();
        (
            told["buckets"][0]["now"]["level"]["remaining"].clone(),
            told,
        )
    };
    for known in ["tenant/acme", "tenant/test", "tenant/%74est"] {
        let (left, told) = level(known);
        assert_eq!(left, 9, "{known}: {told}");
        assert_eq!(
            (&told["caller"], &told["tier"]),
            (&"acme".into(), &"pro".into())
        );
        let partly = &told["partly"][0];
        assert_eq!(partly["limit"], "both");
        assert_eq!(
            partly["refused"][0]["key"],
            "caller acme + address 127.0.0.1"
        );
    }
    assert_eq!(level("tenant/unseen").0, 2, "a new key has the whole burst");
    assert_eq!(level("everyone").0, 99);
    let by_address = level("address/127.0.0.1").1;
    assert_eq!(
        by_address["buckets"][0]["limit"], "search",
        "the address counts where the key is missing: {by_address}"
    );
    for (wrong, status) in [
        ("unknown/x", 404),
        ("address/here", 404),
        ("tenant/a/b", 404),
        ("tenant/%zz", 400),
        ("tenant/%+1", 400),
    ] {
        let told = gateway.admin_get(&format!("/api/v1/keys/{wrong}"));
        assert_eq!(told.status, status, "{wrong}: {}", told.text());
    }
    assert_eq!(ask("test"), 429, "to look changed nothing");
}

#[test]
fn key_show_and_explain_live_print_the_level() {
    let gateway = Gateway::start(TENANTS);
    gateway.request("GET", "/v1/x", &[("x-api-key", "k")]);
    let admin = gateway.admin().to_string();
    let (code, out, err) = tollgate(&["key", "show", "tenant", "k", "--admin", &admin]);
    assert_eq!(code, Some(0), "{err}");
    assert!(out.contains("limit      search (local)\n"), "{out}");
    assert!(out.contains("now: 1 unit left: admitted"), "{out}");
    let silent = format!("{admin},127.0.0.1:1");
    let (code, out, err) = tollgate(&["key", "show", "everyone", "--admin", &silent]);
    assert_eq!(code, Some(1), "one gateway is silent");
    assert!(
        out.contains("99 units left") && err.contains("127.0.0.1:1: no response"),
        "{out}{err}"
    );

    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("gateway.toml");
    std::fs::write(&file, TENANTS).expect("written");
    let file = file.to_str().expect("a path");
    let ask = [
        "explain",
        "GET /v1/x",
        file,
        "-H",
        "x-api-key: k",
        "-H",
        "x-cost: 2",
    ];
    let live = [&ask[..], &["--live", "--admin", &admin]].concat();
    let (code, out, err) = tollgate(&live);
    assert_eq!(code, Some(0), "{err}");
    assert!(
        out.contains("2 units from bucket")
            && out.contains("now: 1 unit left: refused until 2027-"),
        "{out}"
    );
    assert!(out.contains("now: 99 units left: admitted"), "{out}");
    let (_, out, _) = tollgate(&ask);
    assert!(!out.contains("now:"), "{out}");
    let (_, out, _) = tollgate(&[&live[..], &["--format", "json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&out).expect("JSON");
    assert_eq!(told["limits"][0]["now"]["level"]["remaining"], 1, "{told}");
}

/// Runs the program; returns its exit code and what it printed.
fn tollgate(args: &[&str]) -> (Option<i32>, String, String) {
    program(args, &[])
}

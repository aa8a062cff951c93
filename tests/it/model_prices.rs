//! Prices by model where a client, or a proxy in front, keeps the gateway from knowing the model.

use serde_json::json;

use crate::decisions::{check, gateway as deciding};
use crate::harness::llm::{End, Tokens};
use crate::harness::{Connection, Gateway, Llm, Reply, Upstream, eventually};
use crate::money::spent;
use crate::permits::{headers, post};

/// Prices of 1 and 2, and of 10 and 30, for a token of input and of output; unknown models cost the low ones.
const PRICES: &str = "[prices.models]\n\
    small = { input = \"1\", output = \"2\" }\n\
    large = { input = \"10\", output = \"30\" }\n";

/// A budget of so much money for everyone.
fn budget(amount: &str) -> String {
    format!(
        "{PRICES}[limits.budget]\nrate = \"{amount}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         prices = \"json:model\"\nunknown_model = \"small\"\nrefuse_status = 402\n\
         cost = {{ json = \"max_tokens\", default = 100, max = 1000 }}\n\
         settle = {{ usage = \"openai\" }}\n"
    )
}

fn chat(gateway: &Gateway, headers: &str, body: &str) -> u16 {
    let mut connection: Connection = gateway.connect();
    connection.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST").status
}

#[test]
fn prices_body_that_the_client_made_unreadable_reserves_nothing_and_is_refused() {
    let tokens = Tokens::new(100, 10);
    let model = Llm::start(move |_| (tokens, End::Whole));
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 2\nbody_facts = \"1KiB\"\ncompressed_bodies = \"skip\"\n\
         [admin]\nlisten = \"127.0.0.1:0\"\n{}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\n",
        budget("1 USD"),
        model.url()
    ));
    let body = |pad: usize| {
        json!({"model": "large", "max_tokens": 50, "pad": "x".repeat(pad)}).to_string()
    };
    let mut expected = 0;
    for (headers, body, cost) in [
        ("", r#"{"model":"small"}"#.to_owned(), 100 + 10 * 2),
        ("", r#"{"model":"other"}"#.to_owned(), 100 + 10 * 2),
        ("", body(1), 100 * 10 + 10 * 30),
        ("", body(2000), 0),
        ("Content-Encoding: x-none\r\n", body(1), 0),
    ] {
        let status = if cost > 0 { 200 } else { 402 };
        assert_eq!(chat(&gateway, headers, &body), status, "{headers}{body}");
        expected += cost;
        eventually("it is settled", || spent(&gateway) >= expected);
        assert_eq!(spent(&gateway), expected, "{headers}{body}");
    }
}

#[test]
fn prices_decision_for_a_proxy_reserves_the_dearest_price_until_it_reports_the_cost() {
    let upstream = Upstream::hello();
    // 64 KiB of input and 1000 tokens of output at the dearest prices are 685360.
    let gateway = deciding(
        "",
        &format!(
            "{}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\n",
            budget("1 USD"),
            upstream.url()
        ),
    );
    let ask = || {
        let mut headers = headers("/", "192.0.2.1");
        headers[0].1 = "POST";
        check(&gateway, &headers)
    };
    let first = ask();
    assert_eq!(first.status, 200, "{first:?}");
    assert_eq!(first.left(), Some(314_640));
    assert_eq!(ask().status, 429, "the rest is only reserved");
    let permit = first.header("x-tollgate-permit").expect("a permit");
    let report = json!({"permit": permit, "status": 200, "units": 1300});
    let settled = post(&gateway, "/v1/settle", &report);
    assert_eq!(settled.status, 200, "{settled:?}");
    let next = ask();
    assert_eq!(next.status, 200, "{next:?}");
    assert_eq!(next.left(), Some(313_340));
}

#[test]
fn prices_model_that_the_next_target_refuses_does_not_pass_on() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    let budget = budget("1 USD").replace("unknown_model = \"small\"\n", "");
    let gateway = Gateway::start(&format!(
        "{budget}[limits.calls]\nrate = \"1/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{url}\"\nlimits = [\"calls\"]\n\
         over_limit = {{ instead_of = \"calls\", upstream = \"{url}/\", limits = [\"budget\"] }}\n"
    ));
    let other = r#"{"model":"other"}"#;
    assert_eq!(chat(&gateway, "", other), 200);
    // The budget would charge nothing for a model that it refuses.
    assert_eq!(chat(&gateway, "", other), 429);
    assert_eq!(chat(&gateway, "", r#"{"model":"small"}"#), 200);
    assert_eq!(upstream.seen().len(), 2);
}

#[test]
fn prices_test_of_the_file_sends_a_body_and_explain_says_its_money() {
    let folder = tempfile::tempdir().expect("a folder");
    let run = |file: &str, words: &[&str]| {
        std::fs::write(folder.path().join("gateway.toml"), file).expect("written");
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_tollgate"));
        let output = command.current_dir(folder.path()).args(words).output();
        let output = output.expect("it runs");
        String::from_utf8_lossy(&output.stdout).into_owned()
    };
    // 43 bytes and 500 tokens of output at the prices of `large` are 15430 units.
    let body = r#"{"model":"large","max_tokens":500,"user":1}"#;
    let file = |length: usize, expect: &str| {
        let budget = budget("0.031 USD").replace("unknown_model = \"small\"\n", "");
        format!(
            "{budget}[limits.cheap]\nrate = \"1/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
             [[routes]]\nmatch = \"POST /\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"budget\"]\n\
             over_limit = {{ instead_of = \"budget\", upstream = \"http://127.0.0.1:2\", limits = [\"cheap\"] }}\n\
             [[tests]]\nsend = \"4 x POST /\"\nbody = '{}'\nexpect = {expect}\n",
            &body[..length]
        )
    };
    let whole = body.len();
    let told = run(
        &file(whole, "{ allowed = 3, refused = 1, over_limit = 1 }"),
        &["check"],
    );
    assert!(told.contains("1 test passed, 0 failed"), "{told}");
    let told = run(&file(whole, "{ allowed = 4, refused = 0 }"), &["check"]);
    assert!(told.contains("expected 4, got 3"), "{told}");
    let told = run(
        &file(whole - 1, "{ allowed = 0, refused = 0, status = 400 }"),
        &["check"],
    );
    assert!(told.contains("1 test passed, 0 failed"), "not JSON: {told}");

    let explained = [
        "explain",
        "POST /",
        "-H",
        "content-type: application/json",
        "--body",
        body,
    ];
    let told = run(&file(whole, "{ allowed = 3 }"), &explained);
    assert!(told.contains("0.01543 USD from bucket"), "{told}");
    let json = [&explained[..], &["--format", "json"]].concat();
    let told: serde_json::Value =
        serde_json::from_str(&run(&file(whole, "{ allowed = 3 }"), &json)).expect("JSON");
    assert_eq!(told["limits"][0]["cost"], 15430, "{told}");
    let over = &told["over_limit"][0];
    assert_eq!(over["instead_of"], json!(["budget"]), "{told}");
    assert_eq!(over["limits"][0]["limit"], "cheap", "{told}");
    let other = body.replace("large", "other");
    let told = run(
        &file(whole, "{ allowed = 3 }"),
        &["explain", "POST /", "--body", &other],
    );
    assert!(told.contains("answered 400"), "{told}");
}

#[test]
fn prices_response_that_names_a_dearer_model_costs_the_dearer_price() {
    let usage = r#""usage":{"prompt_tokens":100,"completion_tokens":10}"#;
    let body = r#"{"model":"small","max_tokens":50,"x":1}"#;
    let reserved = body.len() as u64 + 50 * 2;
    for (response, cost) in [
        (format!(r#"{{"model":"small-2024",{usage}}}"#), 120),
        (format!(r#"{{"model":"other",{usage}}}"#), 120),
        (format!(r#"{{"model":"LARGE",{usage}}}"#), 1300),
        // What it used is not known: what was reserved, at the other price.
        (r#"{"model":"large"}"#.to_owned(), reserved * 15),
    ] {
        let said = response.clone();
        let upstream = Upstream::start(move |_| {
            Reply::new(200, &[("content-type", "application/json")], &said)
        });
        let gateway = Gateway::start(&format!(
            "{}[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\n",
            budget("1 USD"),
            upstream.url()
        ));
        assert_eq!(chat(&gateway, "", body), 200);
        let mut sent = 0;
        eventually("each is settled at its cost", || {
            sent += 1;
            let mut connection: Connection = gateway.connect();
            connection.send(format!(
                "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
                body.len()
            ));
            let answer = connection.answer("POST");
            let left = answer.left().expect("a number");
            1_000_000 - reserved - left == sent * cost
        });
    }
}

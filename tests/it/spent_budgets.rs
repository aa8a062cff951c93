//! What operators and callers are told of a budget of money: amounts in its currency, what is left, and which upstream's budget
//! refused.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use crate::decisions::gateway as deciding;
use crate::harness::client::Answer;
use crate::harness::llm::{End, Tokens};
use crate::harness::{Gateway, Llm, Reply, Upstream, eventually};
use crate::money::spent;
use crate::permits::post;

/// Prices of 1 and 2 for a token of input and of output.
const PRICES: &str = "[prices.models]\nsmall = { input = \"1\", output = \"2\" }\n";

/// A budget of so much money, by address or for everyone.
fn budget(amount: &str, per: &str) -> String {
    format!(
        "{PRICES}[limits.budget]\nrate = \"{amount}/day\"\nalgorithm = \"fixed_window\"\nper = \"{per}\"\n\
         prices = \"json:model\"\nrefuse_status = 402\n\
         cost = {{ usage = \"openai\", default = 100, max = 1000 }}\nsettle = {{ usage = \"openai\" }}\n"
    )
}

/// The gateway in front of a model that uses 100 tokens of input and 10 of output.
fn gateway(file: &str) -> (Gateway, Llm) {
    let model = Llm::start(|_| (Tokens::new(100, 10), End::Whole));
    let route = format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\nrefusal = \"json-rpc\"\n",
        model.url()
    );
    (deciding("", &format!("{file}{route}")), model)
}

fn send(gateway: &Gateway, kind: &str, body: &str) -> Answer {
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: {kind}\r\nTE: trailers\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}

/// A body of 51 bytes that reserves 51 + 2 x `most` millionths.
fn body(most: u64) -> String {
    let body = format!(r#"{{"model":"small","max_tokens":{most},"pad":""}}"#);
    let pad = "x".repeat(51 - body.len());
    body.replace("\"\"}", &format!("\"{pad}\"}}"))
}

#[test]
fn spent_budget_refusal_says_the_budget_what_is_left_and_when_it_resets() {
    let (gateway, _model) = gateway(&budget("0.001 USD", "address"));
    let json = "application/json";
    assert_eq!(send(&gateway, json, &body(1)).status, 200);
    eventually("it is settled", || spent(&gateway) == 120);
    let refused = send(&gateway, json, &body(450));
    assert_eq!(refused.status, 402, "{refused:?}");
    let document = refused.json();
    let budget = &document["budgets"][0];
    let reset = budget["reset_ms"].as_u64().expect("a time");
    assert!(reset > 0 && reset <= 86_400_000, "{document}");
    assert_eq!(
        budget,
        &json!({"policy": "budget", "quota": "0.001 USD per day", "left": "0.00088 USD", "cost": "0.000951 USD", "reset_ms": reset})
    );
    let call = send(&gateway, "application/grpc", &body(450));
    let message = call.header("grpc-message").expect("a message").to_owned();
    assert!(
        message.ends_with(
            "budget is 0.001 USD per day, 0.00088 USD left, the request costs 0.000951 USD."
        ),
        "{message}"
    );
    // Without a body that names the call, JSON-RPC's refusals are problem documents.
    let call = body(450).replace(r#""pad":"#, r#""id":1,"method":"m","pad":"#);
    let error = send(&gateway, json, &call).json();
    let told = error["error"]["message"].as_str().expect("a message");
    assert!(told.contains("0.00088 USD left"), "{error}");
    assert_eq!(error["error"]["data"]["budgets"][0]["policy"], "budget");
    // More than the budget ever grants, which is not used up.
    let never = send(&gateway, json, &body(600)).json();
    assert_eq!(never["budgets"][0]["cost"], "0.001251 USD", "{never}");
    assert_eq!(
        never["title"], "The budget does not cover the request",
        "{never}"
    );
    assert_eq!(
        never["detail"],
        "This request costs more than the budget can ever grant. A retry will not help."
    );
    let asked = json!({"requests": [{"limit": "budget", "key": "127.0.0.1", "cost": 950}], "together": true});
    let decided = post(&gateway, "/v1/decide", &asked).json();
    assert_eq!(
        decided["together"]["budgets"][0]["left"], "0.00088 USD",
        "{decided}"
    );
}

#[test]
fn spent_budget_of_all_callers_does_not_say_what_others_left() {
    let (gateway, _model) = gateway(&budget("0.001 USD", "everyone"));
    assert_eq!(send(&gateway, "application/json", &body(1)).status, 200);
    eventually("it is settled", || spent(&gateway) == 120);
    let refused = send(&gateway, "application/json", &body(450)).json();
    let budget = &refused["budgets"][0];
    assert_eq!(budget["quota"], "0.001 USD per day", "{refused}");
    assert_eq!(budget.get("left"), None, "{refused}");
    assert_eq!(budget["cost"], "0.000951 USD", "{refused}");
}

/// Runs the program; its output.
fn tollgate(gateway: &Gateway, folder: &Path, words: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollgate"));
    command.args(words).current_dir(folder);
    command.env("TOLLGATE_ADMIN", gateway.admin().to_string());
    let output = command.output().expect("it runs");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn money_is_shown_in_its_currency_by_every_verb() {
    let file = budget("0.001 USD", "address");
    let (gateway, _model) = gateway(&file);
    let folder = tempfile::tempdir().expect("a folder");
    let run = |words: &[&str]| tollgate(&gateway, folder.path(), words);
    assert_eq!(send(&gateway, "application/json", &body(1)).status, 200);
    eventually("it is settled", || spent(&gateway) == 120);
    let shown = run(&["key", "show", "address", "127.0.0.1"]);
    assert!(
        shown.contains("0.00088 USD of 0.001 USD left: admitted"),
        "{shown}"
    );
    assert!(shown.contains("0.001 USD per day, counted"), "{shown}");
    let refused = send(&gateway, "application/json", &body(450));
    let id = refused.json()["decision_id"].clone();
    let why = run(&["why", id.as_str().expect("an id")]);
    assert!(why.contains("0.000951 USD from bucket"), "{why}");
    assert!(
        why.contains("then: 0.00088 USD of 0.001 USD left: refused"),
        "{why}"
    );
    // Another address is near its end: it has reserved 0.000851 USD.
    let asked = json!({"requests": [{"limit": "budget", "key": "192.0.2.1", "cost": 851}], "together": true});
    assert_eq!(post(&gateway, "/v1/decide", &asked).json()["allowed"], true);
    let top = run(&["top", "--once"]);
    assert!(top.contains("0.000149 USD of 0.001 USD"), "{top}");
    for shown in [&shown, &why, &top] {
        assert!(!shown.contains("units left"), "{shown}");
    }
    let checked = format!(
        "[server]\nbody_facts = \"64KiB\"\n{}[limits.jobs]\nin_flight = 4\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"http://127.0.0.1:1\"\nlimits = [\"budget\", \"jobs\"]\n",
        file.replace("0.001 USD", "1 USD")
    );
    std::fs::write(folder.path().join("gateway.toml"), checked).expect("written");
    let checked = run(&["check"]);
    // 64 KiB of input and 1000 tokens of output are 65536 + 2000 millionths.
    for words in [
        "1 USD per day, counted from the first request",
        "counts money, to a millionth of a USD",
        "14 requests that may each cost 0.067536 USD with a body of 64 KiB reserve all",
        "4 requests under way with bodies of 64 KiB reserve at most 0.270144 USD of the 1 USD of budget",
    ] {
        assert!(checked.contains(words), "{words}: {checked}");
    }
}

/// A response may cost more than was reserved for it: what is owed is shown below zero.
#[test]
fn debt_is_shown_below_zero_by_every_verb_and_by_the_refusal() {
    let (gateway, _model) = gateway(&budget("0.0001 USD", "address"));
    let folder = tempfile::tempdir().expect("a folder");
    assert_eq!(send(&gateway, "application/json", &body(1)).status, 200);
    eventually("it is settled", || spent(&gateway) == 120);
    let refused = send(&gateway, "application/json", &body(1));
    assert_eq!(refused.status, 402, "{refused:?}");
    assert_eq!(refused.json()["budgets"][0]["left"], "-0.00002 USD");
    let run = |words: &[&str]| tollgate(&gateway, folder.path(), words);
    let owed = "-0.00002 USD of 0.0001 USD";
    let shown = run(&["key", "show", "address", "127.0.0.1"]);
    assert!(shown.contains(&format!("{owed} left: refused")), "{shown}");
    let level =
        gateway.admin_get("/api/v1/keys/address/127.0.0.1").json()["buckets"][0]["now"]["level"]
            .clone();
    assert_eq!(
        (&level["remaining"], &level["owed"]),
        (&json!(0), &json!(20)),
        "{level}"
    );
}

#[test]
fn decision_names_the_upstream_whose_budget_refused() {
    let upstream = Upstream::hello();
    let url = upstream.url();
    let gateway = Gateway::start(&format!(
        "[limits.big]\nrate = \"1/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefuse_status = 402\n\
         [limits.small]\nrate = \"1/hour\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nrefuse_status = 402\n\
         [upstreams.dear]\nservers = [\"{url}\"]\n[upstreams.cheaper]\nservers = [\"{url}\"]\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"dear\"\nlimits = [\"big\"]\n\
         over_limit = {{ instead_of = \"big\", upstream = \"cheaper\", limits = [\"small\"] }}\n"
    ));
    assert_eq!([(); 2].map(|()| gateway.get("/").status), [200; 2]);
    let named = |gateway: &Gateway| {
        let id = gateway.get("/").json()["decision_id"].clone();
        let id = id.as_str().expect("an id").to_owned();
        let path = format!("/api/v1/decisions/{id}");
        let told: Value = gateway.admin_get(&path).json();
        let folder = std::env::temp_dir();
        let why = tollgate(gateway, &folder, &["why", &id]);
        let upstream = told["upstream"].as_str().expect("an upstream").to_owned();
        assert!(why.contains(&format!("upstream   {upstream}")), "{why}");
        (upstream, told["limits"][0]["limit"].clone())
    };
    // Of both refusals the one that ends first is sent: the hour's.
    assert_eq!(named(&gateway), ("cheaper".to_owned(), json!("small")));
}

#[test]
fn output_maximum_is_read_as_each_format_states_it() {
    let upstream =
        Upstream::start(|_| Reply::new(200, &[("content-type", "application/json")], "{}"));
    let gateway = Gateway::start(&format!(
        "[limits.tokens]\nrate = \"100000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ usage = [\"openai\", \"anthropic\"], max = 5000 }}\nsettle = {{ from = \"json:used\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        upstream.url()
    ));
    let mut left = 100_000;
    for (body, cost) in [
        (r#"{"max_tokens":10}"#, 10),
        (r#"{"max_completion_tokens":10,"max_tokens":20}"#, 20),
        (r#"{"max_output_tokens":30}"#, 30),
        (r#"{"max_tokens":10,"n":3}"#, 30),
        (r#"{"max_tokens":10,"n":3,"best_of":5}"#, 50),
        (r#"{"max_tokens":10,"best_of":5,"n":null}"#, 50),
        // The upstream chooses.
        (r#"{"n":2}"#, 10_000),
    ] {
        let answer = send(&gateway, "application/json", body);
        assert_eq!(answer.status, 200, "{body}: {answer:?}");
        left -= cost;
        assert_eq!(answer.left(), Some(left), "{body}");
    }
    // The upstream may read another number.
    for body in [r#"{"max_tokens":10,"n":"3"}"#, r#"{"max_tokens":1e1}"#] {
        let answer = send(&gateway, "application/json", body);
        assert_eq!(answer.status, 429, "{body}: {answer:?}");
        assert_eq!(answer.header("retry-after"), None, "{body}");
    }
}

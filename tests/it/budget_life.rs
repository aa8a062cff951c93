//! What makes budgets of language models livable: refusals that their clients print, agents that are stopped in a loop,
//! fields that say what they count, and streams whose usage the gateway asks for.

use serde_json::{Value, json};

use crate::harness::client::Answer;
use crate::harness::llm::{End, Tokens};
use crate::harness::{Gateway, Llm, Upstream, eventually};

fn post(gateway: &Gateway, path: &str, headers: &str, body: &str) -> Answer {
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{headers}Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.answer("POST")
}

#[test]
fn refusal_for_clients_of_language_models_has_a_message_for_every_reason() {
    let upstream = Upstream::hello();
    let file = |form: &str, route: &str| {
        format!(
            "{form}[prices.models]\nsmall = {{ input = \"1\", output = \"2\" }}\n\
             [identities.tenant]\nkey = \"bearer\"\nwhen_missing = \"refuse\"\n\
             [limits.budget]\nrate = \"1 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nprices = \"json:model\"\n\
             refuse_status = 402\ncost = {{ usage = \"openai\", max = 400000 }}\nsettle = {{ usage = \"openai\" }}\n\
             [limits.calls]\nrate = \"1/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\n\
             [[routes]]\nmatch = \"POST /v1/**\"\nupstream = \"{}\"\nlimits = [\"budget\", \"calls\"]\nbody = \"1KiB\"\n{route}\n",
            upstream.url()
        )
    };
    let whole = file("[responses]\nrefusal = \"openai\"\n", "");
    for file in [whole, file("", "refusal = \"openai\"")] {
        let gateway = Gateway::start(&file);
        let key = |name: &str| format!("Authorization: Bearer {name}\r\n");
        let body = |most: u64| json!({"model": "small", "max_tokens": most}).to_string();
        assert_eq!(post(&gateway, "/v1/x", &key("b"), &body(1)).status, 200);
        for (status, headers, sent, word) in [
            (
                400,
                key("a"),
                json!({"model": "other"}).to_string(),
                "model",
            ),
            (400, key("a"), "{".to_owned(), "JSON"),
            (401, String::new(), body(1), "key"),
            (402, key("a"), body(400_000), "0."),
            (
                413,
                key("a"),
                format!("{{\"model\":\"small\",\"x\":\"{}\"}}", "x".repeat(2000)),
                "large",
            ),
            (429, key("b"), body(1), "calls"),
        ] {
            if status == 402 {
                // It leaves too little for another.
                assert_eq!(
                    post(&gateway, "/v1/x", &key("c"), &body(300_000)).status,
                    200
                );
            }
            let refused = post(&gateway, "/v1/x", &headers, &sent);
            assert_eq!(refused.status, status, "{refused:?}");
            assert_eq!(
                refused.header("content-type"),
                Some("application/json"),
                "{status}"
            );
            let document = refused.json();
            assert_eq!(document["status"], status, "{document}");
            let message = document["error"]["message"].as_str().unwrap_or_default();
            assert!(message.contains(word), "{status}: {document}");
            assert_eq!(document["error"]["code"], document["error"]["type"]);
            assert!(document["decision_id"].is_string(), "{document}");
        }
    }
}

#[test]
fn identical_calls_of_a_run_are_stopped_and_different_ones_are_not() {
    let gateway = Gateway::start(
        "[limits.same_call]\nrate = \"3/hour\"\nalgorithm = \"fixed_window\"\n\
         per = [\"address\", \"header:x-session-id\", \"json-digest:params.arguments\"]\nwhen_missing = \"skip\"\n\
         [limits.all]\nrate = \"1000/hour\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/mcp\"\nupstream = \"builtin:echo\"\nlimits = [\"same_call\", \"all\"]\n",
    );
    let call = |run: &str, id: u64, arguments: &str| {
        let body = format!(
            r#"{{"jsonrpc":"2.0","id":{id},"method":"tools/call","params":{{"name":"t","arguments":{arguments}}}}}"#
        );
        post(&gateway, "/mcp", &format!("X-Session-Id: {run}\r\n"), &body)
    };
    let spellings = [
        r#"{"q":"a","n":1}"#,
        r#"{ "n": 1.0, "q": "\u0061" }"#,
        r#"{"n":1,"q":"a"}"#,
    ];
    for (id, arguments) in (0..).zip(spellings) {
        assert_eq!(call("one", id, arguments).status, 200, "{arguments}");
    }
    assert_eq!(
        call("one", 9, spellings[1]).status,
        429,
        "the fourth identical call"
    );
    assert_eq!(call("two", 9, spellings[1]).status, 200, "another run");
    for number in 0..20 {
        assert_eq!(call("one", number, &format!("[{number}]")).status, 200);
    }
    assert_eq!(
        call("one", 0, "null").status,
        200,
        "a call without arguments is not counted"
    );
}

#[test]
fn ratelimit_fields_say_what_they_count_and_which_bucket_it_is() {
    let model = Llm::start(|_| (Tokens::new(1, 1), End::Whole));
    let gateway = Gateway::start(&format!(
        "[prices.models]\n\"*\" = {{ input = \"1\", output = \"2\" }}\n\
         [limits.money]\nrate = \"1 USD/day\"\nper = \"everyone\"\nprices = \"json:model\"\n\
         cost = {{ usage = \"openai\", max = 1000 }}\nsettle = {{ usage = \"openai\" }}\n\
         [limits.tokens]\nrate = \"9000/day\"\nper = \"everyone\"\nsettle = {{ usage = \"openai\", estimate = 10 }}\n\
         [limits.bytes]\nrate = \"9000/day\"\nper = \"everyone\"\nsettle = {{ from = \"bytes\", per = \"1B\", estimate = 10 }}\n\
         [limits.calls]\nrate = \"9000/day\"\nper = [\"address\", \"json:model\"]\nwhen_missing = \"skip\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"money\", \"tokens\", \"bytes\", \"calls\"]\n",
        model.url()
    ));
    let fields = |name: &str| {
        let body = json!({"model": name}).to_string();
        let answer = post(&gateway, "/v1/chat/completions", "", &body);
        assert_eq!(answer.status, 200, "{answer:?}");
        let policy = answer
            .header("ratelimit-policy")
            .expect("a field")
            .to_owned();
        for unit in [
            "\"money\";q=1000000;qu=\"USD-millionths\";w=86400",
            "\"tokens\";q=9000;qu=\"tokens\";w=86400",
            "\"bytes\";q=9000;qu=\"content-bytes\";w=86400",
            "\"calls\";q=9000;w=86400",
        ] {
            assert!(policy.contains(unit), "{unit}: {policy}");
        }
        let state = answer.header("ratelimit").expect("a field").to_owned();
        let calls = state
            .split("\"calls\"")
            .nth(1)
            .expect("the last")
            .to_owned();
        assert_eq!(state.matches(";pk=:").count(), 1, "{state}");
        calls[calls.find(";pk=").expect("a key")..].to_owned()
    };
    let (one, other) = (fields("a"), fields("b"));
    assert_ne!(one, other);
    assert_eq!(fields("a"), one);
    assert_eq!(one.len(), ";pk=::".len() + 12);
}

/// The texts of the events of a stream.
fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let data = text
        .split("\n\n")
        .filter_map(|event| event.strip_prefix("data: "));
    data.filter_map(|event| serde_json::from_str(event).ok())
        .collect()
}

#[test]
fn usage_of_a_stream_is_asked_for_and_taken_out_where_the_client_did_not_ask() {
    let model = Llm::start(|_| (Tokens::new(100, 20), End::Whole));
    let gateway = Gateway::start(&format!(
        "[limits.tokens]\nrate = \"100000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ usage = \"openai\", max = 1000, plus = \"body_bytes\" }}\nsettle = {{ usage = \"openai\", ask = true }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\nbody = \"100B\"\n",
        model.url()
    ));
    let mut left = 100_000;
    let mut settles = |path: &str, body: &Value, cost: Option<u64>| {
        let answer = post(&gateway, path, "", &body.to_string());
        assert_eq!(answer.status, 200, "{answer:?}");
        let reserved = 1000 + body.to_string().len() as u64;
        left -= cost.unwrap_or(reserved);
        let probe = json!({"max_tokens": 1}).to_string();
        eventually("it is settled", || {
            // A 404 states no cost, and stays charged.
            left -= 1 + probe.len() as u64;
            post(&gateway, "/nothing", "", &probe).left() == Some(left)
        });
        answer
    };
    let call = |options: Option<Value>| {
        let mut body = json!({"model": "m", "stream": true});
        if let Some(options) = options {
            body["stream_options"] = options;
        }
        body
    };
    let chat = "/v1/chat/completions";
    let quiet = settles(chat, &call(None), Some(120));
    let sent: Value = serde_json::from_slice(&model.upstream().seen()[0].body).expect("JSON");
    assert_eq!(sent, call(Some(json!({"include_usage": true}))));
    assert!(quiet.text().ends_with("data: [DONE]\n\n"));
    let quiet = events(&quiet);
    assert!(
        quiet.iter().all(|event| event["choices"] != json!([])),
        "{quiet:?}"
    );

    let loud = settles(chat, &call(Some(json!({"include_usage": true}))), Some(120));
    let last = events(&loud).pop().expect("an event");
    assert_eq!(
        (&last["choices"], &last["usage"]["total_tokens"]),
        (&json!([]), &json!(120))
    );
    assert_eq!(
        events(&loud).len(),
        quiet.len() + 1,
        "the same but for the usage"
    );

    // What the client says of it stands, another format is not changed, and a document states its usage anyway.
    let declined = call(Some(json!({"include_usage": false})));
    settles(chat, &declined, None);
    settles(chat, &call(Some(Value::Null)), None);
    settles("/v1/responses", &call(None), Some(120));
    settles(chat, &json!({"model": "m"}), Some(120));
    // What the gateway adds does not count against the bound of the body.
    let mut longest = call(None);
    longest["x"] = "x".repeat(93 - longest.to_string().len()).into();
    assert_eq!(longest.to_string().len(), 100);
    settles(chat, &longest, Some(120));
    let bodies: Vec<Value> = model
        .upstream()
        .seen()
        .iter()
        .filter(|seen| !seen.line().contains("/nothing"))
        .map(|seen| serde_json::from_slice(&seen.body).expect("JSON"))
        .collect();
    let plain = json!({"model": "m"});
    let null = call(Some(Value::Null));
    assert_eq!(bodies[2..6], [declined, null, call(None), plain]);
}

#[test]
fn budget_that_is_only_reserved_is_429_for_seconds_and_402_once_it_is_spent() {
    let model = Llm::start(|call| {
        let output = call.body["uses"].as_u64().unwrap_or(0);
        (Tokens::new(0, output), End::Whole)
    });
    let gateway = Gateway::start(&format!(
        "[prices.models]\n\"*\" = {{ input = \"0\", output = \"1\" }}\n\
         [limits.budget]\nrate = \"25 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"address\"\nprices = \"json:model\"\n\
         refuse_status = 402\ncost = {{ usage = \"openai\", max = 9000000 }}\nsettle = {{ usage = \"openai\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\"]\n",
        model.url()
    ));
    let call = |most: u64, uses: u64| {
        let body = json!({"model": "m", "max_tokens": most, "uses": uses}).to_string();
        post(&gateway, "/v1/chat/completions", "", &body)
    };
    let settled = |calls: u64| {
        eventually("it is settled", || {
            let metrics = gateway.admin_get("/metrics").text();
            metrics.contains(&format!(
                "tollgate_limit_settled_total{{limit=\"budget\"}} {calls}\n"
            ))
        });
    };
    assert_eq!(call(6_000_000, 5_000_000).status, 200);
    settled(1);
    model.hold();
    std::thread::scope(|scope| {
        let held: Vec<_> = (0..3)
            .map(|_| scope.spawn(|| call(6_000_000, 200_000)))
            .collect();
        eventually("three are under way", || model.used().len() == 4);
        let refused = call(6_000_000, 1);
        assert_eq!(refused.status, 429, "{refused:?}");
        let wait: u64 = refused
            .header("retry-after")
            .and_then(|wait| wait.parse().ok())
            .expect("a wait");
        assert!((1..=600).contains(&wait), "{wait}");
        let document = refused.json();
        let budget = &document["budgets"][0];
        assert_eq!(budget["used"], "5 USD", "{document}");
        assert_eq!(budget["reserved"], "18 USD", "{document}");
        assert_eq!(budget["left"], "2 USD", "{document}");
        assert!(
            document["detail"]
                .as_str()
                .is_some_and(|detail| detail.contains("reserved")),
            "{document}"
        );
        model.release();
        assert!(
            held.into_iter()
                .all(|call| call.join().expect("no panic").status == 200)
        );
    });
    settled(4);
    // 5 and three times 0.20 are used.
    assert_eq!(call(9_000_000, 9_000_000).status, 200);
    settled(5);
    assert_eq!(call(9_000_000, 9_000_000).status, 200);
    settled(6);
    let spent = call(6_000_000, 1);
    assert_eq!(spent.status, 402, "{spent:?}");
    assert_eq!(spent.json()["budgets"][0]["reserved"], Value::Null);
}

#[test]
fn budget_that_is_only_reserved_is_no_402_beside_other_limits_nor_in_debt() {
    let model = Llm::start(|_| (Tokens::new(0, 1), End::Whole));
    let gateway = Gateway::start(&format!(
        "[admin]\nlisten = \"127.0.0.1:0\"\n\
         operators = [{{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }}]\n\
         [identities.tenant]\nkey = \"header:x-tenant\"\nwhen_missing = \"refuse\"\n\
         [prices.models]\n\"*\" = {{ input = \"0\", output = \"1\" }}\n\
         [limits.budget]\nrate = \"10 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\nprices = \"json:model\"\n\
         refuse_status = 402\ncost = {{ usage = \"openai\", max = 9000000 }}\nsettle = {{ usage = \"openai\" }}\n\
         [limits.calls]\nrate = \"1/hour\"\nper = \"header:x-calls\"\nwhen_missing = \"skip\"\n\
         [limits.slots]\nin_flight = 1\nper = \"header:x-slots\"\nwhen_missing = \"skip\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\", \"calls\", \"slots\"]\n",
        model.url()
    ));
    let call = |headers: &str| {
        let headers = format!("X-Tenant: k\r\n{headers}");
        let body = json!({"model": "m", "max_tokens": 6_000_000}).to_string();
        post(&gateway, "/v1/chat/completions", &headers, &body)
    };
    let wait = |refused: &Answer| {
        assert_eq!(refused.status, 429, "{refused:?}");
        let wait = refused.header("retry-after")?;
        wait.parse::<u64>().ok()
    };
    model.hold();
    std::thread::scope(|scope| {
        let held = scope.spawn(|| call("X-Calls: a\r\nX-Slots: a\r\n"));
        eventually("it is under way", || model.used().len() == 1);
        let seconds = wait(&call("")).expect("a wait");
        assert!((1..=600).contains(&seconds), "{seconds}");
        let seconds = wait(&call("X-Calls: a\r\n")).expect("the wait of the other limit");
        assert!(seconds > 3000, "{seconds}");
        let refused = call("X-Slots: a\r\n");
        assert_eq!(wait(&refused), None, "nobody knows when a place is free");
        assert!(refused.text().contains("concurrent"), "{refused:?}");

        let lower = |rate: &str| {
            let body = json!({"reason": rate, "limit": "budget", "rate": rate, "for": "1h"});
            let answer = gateway.change("PUT", "tenant/k/override", &body);
            assert_eq!(answer.status, 200, "{}", answer.text());
        };
        lower("8 USD/day");
        let refused = call("");
        assert!(wait(&refused).is_some(), "{refused:?}");
        let budget = &refused.json()["budgets"][0];
        assert_eq!(
            (&budget["used"], &budget["reserved"], &budget["left"]),
            (&json!("0 USD"), &json!("6 USD"), &json!("2 USD"))
        );
        lower("5 USD/day");
        let owes = call("");
        assert_eq!(owes.status, 402, "{owes:?}");
        model.release();
        assert_eq!(held.join().expect("no panic").status, 200);
    });
}

#[test]
fn usage_of_each_request_is_logged_and_added_up_by_caller() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = folder.path().join("access.log");
    let tokens = Tokens {
        input: 600,
        cached_input: 400,
        cache_write: 0,
        output: 70,
        reasoning: 30,
    };
    let model = Llm::start(move |_| (tokens, End::Whole));
    // The key of `acme` is `test`; another key has no name.
    let gateway = Gateway::start(&format!(
        "[log]\naccess = '{}'\n\
         [prices.models]\n\"gpt-*\" = {{ input = \"1\", cached_input = \"0.5\", output = \"2\" }}\n\
         [identities.tenant]\nkey = \"bearer\"\nwhen_missing = \"refuse\"\nwhen_unknown = \"accept\"\n\
         callers = {{ \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" = {{ name = \"acme\" }} }}\n\
         [limits.budget]\nrate = \"1 USD/day\"\nalgorithm = \"fixed_window\"\nper = \"tenant\"\nprices = \"json:model\"\n\
         cost = {{ usage = \"openai\", max = 1000 }}\nsettle = {{ usage = \"openai\" }}\n\
         [limits.tokens]\nrate = \"100000/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ usage = \"openai\", max = 1000, plus = \"body_bytes\" }}\nsettle = {{ usage = \"openai\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"budget\", \"tokens\"]\n",
        log.display(),
        model.url()
    ));
    for key in ["test", "test", "other"] {
        let key = format!("Authorization: Bearer {key}\r\n");
        let body = json!({"model": "gpt-9", "max_tokens": 100}).to_string();
        let answer = post(&gateway, "/v1/chat/completions", &key, &body);
        assert_eq!(answer.status, 200, "{answer:?}");
    }
    let lines = || std::fs::read_to_string(&log).unwrap_or_default();
    eventually("all are logged", || lines().lines().count() == 3);
    let first: Value = serde_json::from_str(lines().lines().next().expect("a line")).expect("JSON");
    // 600 + 400 x 0.5 + 100 x 2.
    let usage = json!({"model": "gpt-9", "input": 600, "cached_input": 400, "output": 70, "reasoning": 30,
        "cost": 1000, "currency": "USD"});
    assert_eq!(first["usage"], usage, "{first}");
    let metrics = gateway.admin_get("/metrics").text();
    for line in [
        "tollgate_limit_caller_units_total{limit=\"budget\",caller=\"acme\"} 2000",
        "tollgate_limit_caller_units_total{limit=\"budget\",caller=\"\"} 1000",
        "tollgate_limit_caller_units_total{limit=\"tokens\",caller=\"acme\"} 2200",
        "tollgate_limit_caller_tokens_total{limit=\"budget\",caller=\"acme\",kind=\"reasoning\"} 60",
        "tollgate_limit_caller_tokens_total{limit=\"tokens\",caller=\"\",kind=\"input\"} 600",
    ] {
        assert!(metrics.contains(line), "{line}: {metrics}");
    }
}

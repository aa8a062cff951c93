//! Budgets of money: the gateway of the book's page, with its file, in front of a model that speaks
//! both formats.

use serde_json::{Value, json};

use crate::harness::client::Answer;
use crate::harness::llm::{End, Tokens};
use crate::harness::{Connection, Gateway, Llm, eventually, repository, servers::Postgres};

/// The file of the page, with these servers.
fn page(model: &Llm) -> String {
    let path = repository().join("docs/src/do/llm-gateway.md");
    let text = std::fs::read_to_string(path).expect("the page");
    let start = text.find("```toml\n").expect("its file") + "```toml\n".len();
    let end = start + text[start..].find("```").expect("its end");
    let mut file = text[start..end].to_owned();
    for provider in ["https://api.openai.com", "https://api.anthropic.com"] {
        assert!(file.contains(provider));
        file = file.replace(provider, &model.url());
    }
    let store = "postgres://tollgate@127.0.0.1:5432/tollgate";
    assert!(file.contains(store));
    file = file.replace(store, "${DATABASE_URL}");
    let written = file.lines().filter(|line| !line.is_empty()).count();
    assert!(written <= 40, "the page promises a short file: {written}");
    // The gateway of the tests adds the tables that a file does not name. They would come before its first keys.
    let tables = "# [server], [admin] and [log] are written as keys.\n";
    let keys = "server.listen = \"127.0.0.1:0\"\nserver.workers = 2\nadmin.listen = \"127.0.0.1:0\"\nlog.access = \"off\"\n";
    format!("{tables}{keys}{file}")
}

fn body(model: &str, stream: bool) -> Value {
    let mut body = json!({"model": model, "max_tokens": 30_000, "stream": stream,
        "messages": [{"role": "user", "content": "Say token."}]});
    if stream {
        body["stream_options"] = json!({"include_usage": true});
    }
    body
}

fn send(connection: &mut Connection, path: &str, key: &str, body: &Value) {
    let body = body.to_string();
    connection.send(format!(
        "POST {path} HTTP/1.1\r\nHost: x\r\n{key}\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
}

fn ask(gateway: &Gateway, path: &str, key: &str, body: &Value) -> Answer {
    let mut connection = gateway.connect();
    send(&mut connection, path, key, body);
    connection.answer("POST")
}

/// What the responses have cost so far, in millionths.
pub(crate) fn spent(gateway: &Gateway) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let start = "tollgate_limit_settled_units_total{limit=\"budget\"";
    let lines = metrics.lines().filter(|line| line.starts_with(start));
    let units = lines.filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok());
    units.sum()
}

const ACME: &str = "Authorization: Bearer acme-key";

#[test]
fn money_gateway_of_the_book_charges_what_both_formats_state_and_never_exceeds_its_budget() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    let model = Llm::start(|call| {
        let untold = call.body["user"] == "untold";
        let tokens = Tokens {
            input: 600,
            cached_input: 400,
            cache_write: 0,
            output: 70,
            reasoning: 30,
        };
        (tokens, if untold { End::Untold } else { End::Whole })
    });
    let file = page(&model);
    let gateway = start(&server, &file);
    let mut expected = 0;
    // 600 x 2.50 + 400 x 1.25 + 100 x 10; 600 x 0.15 + 400 x 0.075 + 100 x 0.60; 600 x 3 + 400 x 0.30 + 100 x 15.
    for (path, name, cost) in [
        ("/v1/chat/completions", "gpt-4o", 3_000),
        ("/v1/responses", "gpt-4o-2024-08-06", 3_000),
        ("/v1/responses", "gpt-4o-mini", 180),
        ("/v1/messages", "claude-sonnet-4-5", 3_420),
    ] {
        for stream in [false, true] {
            let key = match path {
                "/v1/messages" => "X-Api-Key: acme-key",
                _ => ACME,
            };
            let answer = ask(&gateway, path, key, &body(name, stream));
            assert_eq!(answer.status, 200, "{path}: {answer:?}");
            expected += cost;
            eventually("it is settled", || spent(&gateway) >= expected);
            assert_eq!(spent(&gateway), expected, "{path} {name} {stream}");
        }
    }
    let seen = model.upstream().seen();
    assert_eq!(seen[0].header("authorization"), Some("Bearer of-openai"));
    let last = seen.last().expect("a request");
    assert_eq!(last.header("x-api-key"), Some("of-anthropic"));
    // No price, no request.
    let answer = ask(&gateway, "/v1/responses", ACME, &body("o9-ultra", false));
    assert_eq!(answer.status, 400, "{answer:?}");
    assert!(answer.text().contains("price"), "{answer:?}");
    assert_eq!(model.upstream().seen().len(), seen.len());

    // Another price reaches only later requests.
    model.hold();
    let mut under_way = gateway.connect();
    send(
        &mut under_way,
        "/v1/chat/completions",
        ACME,
        &body("gpt-4o", true),
    );
    under_way.until("data: ");
    let dearer = file.replace("input = \"2.50\"", "input = \"5.00\"");
    let dearer = dearer.replace("50 USD/month", "0.40 USD/month");
    gateway.reload(&dearer).expect("a good file");
    model.release();
    under_way.until("[DONE]");
    expected += 3_000;
    eventually("it is settled", || spent(&gateway) >= expected);
    assert_eq!(
        spent(&gateway),
        expected,
        "at the price it was admitted with"
    );

    // 0.30 USD are reserved for what may be written, and kept: a second time they are not there.
    let mut untold = body("gpt-4o", true);
    untold["user"] = json!("untold");
    let answer = ask(&gateway, "/v1/chat/completions", ACME, &untold);
    assert_eq!(answer.status, 200, "{answer:?}");
    let answer = ask(&gateway, "/v1/chat/completions", ACME, &untold);
    assert_eq!(answer.status, 402, "{answer:?}");
    let lab = "Authorization: Bearer lab-key";
    let answer = ask(
        &gateway,
        "/v1/chat/completions",
        lab,
        &body("gpt-4o", false),
    );
    assert_eq!(answer.status, 200, "another tenant has its own: {answer:?}");
    expected += 600 * 5 + 400 * 5 / 4 + 1_000;
    eventually("it is settled", || spent(&gateway) >= expected);
    assert_eq!(spent(&gateway), expected, "at the price of the new file");
}

/// The gateway of the page with this file.
fn start(server: &Postgres, file: &str) -> Gateway {
    let url = server.url();
    Gateway::start_with_environment(file, move |name| {
        Some(match name {
            "DATABASE_URL" => url.clone(),
            "TOLLGATE_KEY_SECRET" => "sixteen-or-more-characters".to_owned(),
            "OPENAI_API_KEY" => "of-openai".to_owned(),
            "ANTHROPIC_API_KEY" => "of-anthropic".to_owned(),
            _ => return None,
        })
    })
}

#[test]
fn money_gateway_of_the_book_lets_a_call_wait_in_line_for_a_slow_provider() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    let model = Llm::start(|_| (Tokens::new(100, 10), End::Whole));
    // A call reserves 0.30 USD.
    let file = page(&model).replace("50 USD/month", "0.40 USD/month");
    let file = file.replace(
        "refuse_status = 402",
        "refuse_status = 402\nmax_wait = \"60s\"",
    );
    let gateway = start(&server, &file);
    model.hold();
    let mut calls = [gateway.connect(), gateway.connect()];
    let chat = "/v1/chat/completions";
    send(&mut calls[0], chat, ACME, &body("gpt-4o", true));
    calls[0].until("data: ");
    send(&mut calls[1], chat, ACME, &body("gpt-4o", false));
    eventually("the second waits", || {
        let metrics = gateway.admin_get("/metrics").text();
        metrics.contains("\ntollgate_requests_held 1.0\n")
    });
    assert_eq!(model.upstream().seen().len(), 1);
    model.release();
    calls[0].until("[DONE]");
    assert_eq!(calls[1].answer("POST").status, 200);
}

#[test]
fn money_team_of_the_book_gets_more_for_the_month_and_operators_see_it() {
    if !Postgres::available() {
        return;
    }
    let server = Postgres::start_with(&[]);
    let model = Llm::start(|_| (Tokens::new(600, 100), End::Whole));
    // The token of the operator is `test`, the key of the team `design-key`.
    let operators = "admin.operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";
    let team = "\"sha256:d42c26cff329a22bef7dcf43cec5c15542ac0d60be9bcd6b56108fd9a50e1a78\" = { name = \"design\" }\n";
    let file = page(&model).replace("server.workers", &format!("{operators}server.workers"));
    let file = file.replace("\n[limits.budget]", &format!("{team}\n[limits.budget]"));
    let gateway = start(&server, &file);
    let key = "Authorization: Bearer design-key";
    let answer = ask(
        &gateway,
        "/v1/chat/completions",
        key,
        &body("gpt-4o", false),
    );
    assert_eq!(answer.status, 200, "{answer:?}");
    // 600 x 2.50 + 100 x 10.
    eventually("it is settled", || spent(&gateway) == 2_500);
    let admin = gateway.admin().to_string();
    let run = |args: &[&str]| {
        let environment = [("TOLLGATE_ADMIN", &*admin), ("TOLLGATE_TOKEN", "test")];
        let (code, out, err) = crate::operator_words::program(args, &environment);
        assert_eq!(code, Some(0), "{out}{err}");
        out + &err
    };
    let shown = run(&["key", "show", "tenant", "design"]);
    assert!(shown.contains("49.9975 USD of 50 USD"), "{shown}");
    let granted = run(&["key", "grant", "tenant", "design", "20", "--in", "budget"]);
    assert!(granted.contains("70 USD/month"), "{granted}");
    let shown = run(&["key", "show", "tenant", "design"]);
    assert!(shown.contains("69.9975 USD of 70 USD"), "{shown}");
    // The page of the admin listener shows these documents.
    let overrides = gateway.admin_get("/api/v1/overrides").text();
    assert!(
        overrides.contains("70 USD/month") && overrides.contains("design"),
        "{overrides}"
    );
}

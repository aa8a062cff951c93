//! Reservations: a request is charged the most that it may come to, and its response settles it down.

use serde_json::json;

use crate::harness::client::Answer;
use crate::harness::llm::{End, Tokens};
use crate::harness::{Connection, Gateway, Llm, eventually};

pub(crate) const BUDGET: u64 = 100_000;

/// A model whose calls use what their bodies say.
pub(crate) fn obedient() -> Llm {
    Llm::start(|call| {
        let number = |name: &str| call.body[name].as_u64().unwrap_or(0);
        let end = match call.body["end"].as_str() {
            Some("untold") => End::Untold,
            Some("cut") => End::Cut,
            _ => End::Whole,
        };
        (Tokens::new(number("input"), number("output")), end)
    })
}

pub(crate) fn gateway(model: &Llm, more: &str) -> Gateway {
    Gateway::start(&format!(
        "[limits.tokens]\nrate = \"{BUDGET}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ json = \"max_tokens\", default = 500, max = 20000, plus = \"body_bytes\" }}\n\
         settle = {{ from = \"json:usage.total_tokens\" }}\n{more}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        model.url()
    ))
}

/// The body of a call, and what is reserved for it.
pub(crate) fn call(most: u64, input: u64, output: u64, end: &str) -> (String, u64) {
    let body = json!({
        "model": "m", "max_tokens": most, "input": input, "output": output, "end": end,
        "stream": true, "stream_options": {"include_usage": true},
    });
    let body = body.to_string();
    let reserved = most + body.len() as u64;
    (body, reserved)
}

pub(crate) fn send(connection: &mut Connection, body: &str) {
    connection.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
}

fn left(answer: &Answer) -> u64 {
    answer.left().expect("units")
}

/// What is charged so far, as the response to another call says.
pub(crate) fn charged(gateway: &Gateway) -> u64 {
    let (body, reserved) = call(1_000, 0, 0, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    let answer = connection.answer("POST");
    assert_eq!(answer.status, 200);
    BUDGET - left(&answer) - reserved
}

/// A sample of the metrics.
fn metric(gateway: &Gateway, name: &str) -> u64 {
    let text = gateway.admin_get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(name));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {text}"))
}

/// Waits until so many requests have ended, and so are settled.
pub(crate) fn settled(gateway: &Gateway, requests: u64) {
    eventually("it is settled", || {
        let text = gateway.admin_get("/metrics").text();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("tollgate_requests_total{"));
        let ended: u64 = lines
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum();
        ended == requests
    });
}

#[test]
fn reservation_is_held_while_the_response_is_under_way_and_settled_by_it() {
    let model = obedient();
    let gateway = gateway(&model, "");
    model.hold();
    let (body, reserved) = call(5_000, 300, 700, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    eventually("it is under way", || model.used().len() == 1);
    model.release();
    let answer = connection.answer("POST");
    assert_eq!(
        (answer.status, left(&answer)),
        (200, BUDGET - reserved),
        "what may be used is not there for others"
    );
    settled(&gateway, 1);
    assert_eq!(charged(&gateway), 1_000, "what was used");
    assert_eq!(
        metric(&gateway, "tollgate_limit_over_reserved_units_total"),
        0
    );
}

#[test]
fn reservation_is_kept_whole_where_the_response_does_not_state_its_cost() {
    for end in ["untold", "cut"] {
        let model = obedient();
        let gateway = gateway(&model, "refund_on = [\"503\"]");
        let (body, reserved) = call(5_000, 300, 700, end);
        let mut connection = gateway.connect();
        send(&mut connection, &body);
        let _ = connection.try_answer("POST");
        settled(&gateway, 1);
        assert_eq!(charged(&gateway), reserved, "{end}");
    }
}

#[test]
fn reservation_is_kept_whole_where_the_client_leaves() {
    let model = obedient();
    let gateway = gateway(&model, "");
    model.hold();
    let (body, reserved) = call(5_000, 300, 700, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    connection.until("data: ");
    drop(connection);
    settled(&gateway, 1);
    model.release();
    assert_eq!(charged(&gateway), reserved);
}

#[test]
fn reservation_is_not_made_for_a_request_that_is_refused_before_it_is_admitted() {
    let model = obedient();
    let gateway = Gateway::start(&format!(
        "[identities.tenant]\nkey = \"header:x-api-key\"\nwhen_missing = \"refuse\"\n\
         [limits.tokens]\nrate = \"{BUDGET}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ json = \"max_tokens\", default = 500, max = 20000 }}\n\
         settle = {{ from = \"json:usage.total_tokens\" }}\n\
         [limits.tenant]\nrate = \"100/day\"\nper = \"tenant\"\n\
         [limits.client]\nrate = \"4/day\"\nper = \"address\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\", \"tenant\", \"client\"]\n",
        model.url()
    ));
    let ask = |fields: &str, body: &str| {
        let mut connection = gateway.connect();
        connection.send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\n{fields}Content-Length: {}\r\n\r\n{body}",
            body.len()
        ));
        connection.answer("POST")
    };
    assert_eq!(ask("", "{").status, 400);
    assert_eq!(ask("", r#"{"max_tokens":20000}"#).status, 401);
    let mut preflight = gateway.connect();
    preflight.send(
        "OPTIONS / HTTP/1.1\r\nHost: x\r\nOrigin: https://a.example\r\n\
         Access-Control-Request-Method: POST\r\nContent-Length: 0\r\n\r\n",
    );
    preflight.answer("OPTIONS");
    let answer = ask("X-Api-Key: a\r\n", r#"{"max_tokens":1000}"#);
    assert_eq!(left(&answer), BUDGET - 1_000);
    assert_eq!(
        ask("", "{").status,
        429,
        "the limit by address counts them all"
    );
}

#[test]
fn reservation_exceeded_by_the_response_is_charged_in_full_and_counted() {
    let model = obedient();
    let gateway = gateway(&model, "");
    let (body, reserved) = call(5_000, 300, 49_700, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    assert_eq!(connection.answer("POST").status, 200);
    settled(&gateway, 1);
    assert_eq!(charged(&gateway), 50_000, "what was used");
    assert_eq!(
        metric(&gateway, "tollgate_limit_over_reserved_units_total"),
        50_000 - reserved
    );
}

/// A response costs three budgets, and the next request is refused; what the first request reserved,
/// and the refusal.
fn used_up(gateway: &Gateway) -> (u64, Answer) {
    let (body, reserved) = call(5_000, 0, 3 * BUDGET, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    assert_eq!(connection.answer("POST").status, 200);
    settled(gateway, 1);
    let (body, _) = call(1, 0, 1, "");
    send(&mut connection, &body);
    let refused = connection.answer("POST");
    assert_eq!((refused.status, left(&refused)), (429, 0));
    (reserved, refused)
}

#[test]
fn reservation_exceeded_beyond_the_budget_is_a_debt_of_later_windows() {
    let model = obedient();
    let gateway = gateway(&model, "");
    let (_, refused) = used_up(&gateway);
    let wait = refused
        .header("retry-after")
        .and_then(|wait| wait.parse::<u64>().ok());
    assert!(wait.is_some_and(|wait| wait > 2 * 86_400), "{refused:?}");
}

#[test]
fn reservation_exceeded_by_a_response_that_the_client_breaks_off_is_charged_and_counted() {
    // Its first event states the tokens of the prompt, and one of output.
    let model = Llm::start(|_| (Tokens::new(50_000, 100), End::Whole));
    let gateway = Gateway::start(&format!(
        "[limits.tokens]\nrate = \"{BUDGET}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\n\
         cost = {{ json = \"max_tokens\", default = 500, max = 20000, plus = \"body_bytes\" }}\n\
         settle = {{ usage = \"anthropic\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        model.url()
    ));
    model.hold();
    let (body, reserved) = call(5_000, 0, 0, "");
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST /v1/messages HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    connection.until("input_tokens");
    drop(connection);
    settled(&gateway, 1);
    model.release();
    assert_eq!(charged(&gateway), 50_001);
    assert_eq!(
        metric(&gateway, "tollgate_limit_over_reserved_units_total"),
        50_001 - reserved
    );
}

#[test]
fn ceiling_of_weighted_tokens_is_never_exceeded_by_what_its_requests_use() {
    let model = obedient();
    let gateway = Gateway::start(&format!(
        "[limits.tokens]\nrate = \"{BUDGET}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nceiling = true\n\
         cost = {{ json = \"max_tokens\", times = \"n\", default = 20000, max = 20000, plus = \"body_bytes\" }}\n\
         settle = {{ usage = \"openai\", weights = {{ input = 2, output = 5 }} }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        model.url()
    ));
    model.hold();
    // Every response uses all that its request allows.
    let (body, reserved) = call(9_000, 100, 9_000, "");
    let units = 9_000 * 5 + (reserved - 9_000) * 2;
    let mut under_way: Vec<Connection> = (0..2).map(|_| gateway.connect()).collect();
    for (place, connection) in under_way.iter_mut().enumerate() {
        send(connection, &body);
        eventually("it is under way", || model.used().len() == place + 1);
    }
    let mut third = gateway.connect();
    send(&mut third, &body);
    let refused = third.answer("POST");
    assert_eq!((refused.status, left(&refused)), (429, BUDGET - 2 * units));
    model.release();
    for connection in &mut under_way {
        assert_eq!(connection.answer("POST").status, 200);
    }
    // The third request, which was refused, has ended too.
    settled(&gateway, 3);
    send(&mut third, &body);
    let refused = third.answer("POST");
    let used = 2 * (100 * 2 + 9_000 * 5);
    assert_eq!((refused.status, left(&refused)), (429, BUDGET - used));
    assert_eq!(
        metric(&gateway, "tollgate_limit_over_reserved_units_total"),
        0
    );
}

#[test]
fn ceiling_request_that_reserves_nothing_is_charged_what_its_response_uses() {
    let model = obedient();
    let gateway = Gateway::start(&format!(
        "[limits.tokens]\nrate = \"{BUDGET}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nceiling = true\n\
         cost = {{ json = \"max_tokens\", default = 20000, min = 0, max = 20000 }}\n\
         settle = {{ from = \"json:usage.total_tokens\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"tokens\"]\n",
        model.url()
    ));
    let (body, _) = call(0, 300, 700, "");
    let mut connection = gateway.connect();
    send(&mut connection, &body);
    assert_eq!(connection.answer("POST").status, 200);
    settled(&gateway, 1);
    send(&mut connection, &body);
    let answer = connection.answer("POST");
    assert_eq!((answer.status, left(&answer)), (200, BUDGET - 1_000));
}

#[test]
fn ceiling_response_that_costs_more_than_the_bucket_holds_empties_it_and_leaves_no_debt() {
    let model = obedient();
    let gateway = gateway(&model, "ceiling = true");
    let (reserved, _) = used_up(&gateway);
    assert_eq!(
        metric(&gateway, "tollgate_limit_over_reserved_units_total"),
        3 * BUDGET - reserved
    );
}

#[test]
fn ceiling_cost_above_the_highest_or_unreadable_never_fits_and_says_why() {
    let model = obedient();
    let gateway = gateway(&model, "ceiling = true");
    let mut connection = gateway.connect();
    for body in [
        r#"{"max_tokens":20001}"#,
        r#"{"max_tokens":"9"}"#,
        r#"{"max_tokens":-1}"#,
        r#"{"max_tokens":99999999999999999999}"#,
        &format!(r#"{{"max_tokens":1,"text":"{}"}}"#, "x".repeat(20_000)),
    ] {
        send(&mut connection, body);
        let refused = connection.answer("POST");
        assert_eq!(refused.status, 429, "{body}");
        assert_eq!(refused.header("retry-after"), None, "{body}");
        let detail = refused.json()["detail"]
            .as_str()
            .unwrap_or_default()
            .to_owned();
        assert!(detail.contains("cost"), "{detail}");
    }
    assert_eq!(model.used().len(), 0);
    assert_eq!(charged(&gateway), 0);
}

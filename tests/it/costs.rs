//! What a request costs: said by the request within bounds, or learnt from the answer and settled.

use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};

fn one_limit(numbers: &str, upstream: &Upstream) -> String {
    format!(
        "[limits.units]\n{numbers}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"units\"]\n",
        upstream.url()
    )
}

/// The status and what is left, on this connection: an answer has been settled before the next request is read.
fn ask(connection: &mut Connection, path: &str, headers: &[(&str, &str)]) -> (u16, u64) {
    let answer = connection.request("GET", path, headers);
    let left = answer.left().unwrap_or_else(|| panic!("{answer:?}"));
    (answer.status, left)
}

#[test]
fn a_header_prices_a_request_within_the_files_bounds() {
    let upstream = Upstream::hello();
    let cost = "cost = { header = \"x-cost\", default = 2, min = 1, max = 5 }";
    let gateway = Gateway::start(&one_limit(&format!("rate = \"23/day\"\n{cost}"), &upstream));
    let mut connection = gateway.connect();
    assert_eq!(ask(&mut connection, "/", &[]), (200, 21));
    assert_eq!(ask(&mut connection, "/", &[("x-cost", "4")]), (200, 17));
    assert_eq!(
        ask(&mut connection, "/", &[("x-cost", "0")]),
        (200, 16),
        "no caller is cheaper than the least"
    );
    assert_eq!(
        ask(&mut connection, "/", &[("x-cost", "999999999999999999999")]),
        (200, 11),
        "nor dearer than the most"
    );
    assert_eq!(
        ask(&mut connection, "/", &[("x-cost", "-3")]),
        (200, 6),
        "what is no number costs the most"
    );
    assert_eq!(
        ask(&mut connection, "/", &[("x-cost", "1"), ("x-cost", "3")]),
        (200, 3),
        "of two the dearer"
    );
    assert_eq!(
        ask(&mut connection, "/", &[("x-cost", "4")]),
        (429, 3),
        "a refusal takes nothing"
    );
    assert_eq!(ask(&mut connection, "/", &[("x-cost", "3")]), (200, 0));
}

#[test]
fn a_length_prices_a_request_and_an_unknown_one_costs_the_most() {
    let upstream = Upstream::hello();
    let cost = "cost = { content_length = true, per = \"1KiB\", max = 8 }";
    let gateway = Gateway::start(&one_limit(&format!("rate = \"20/day\"\n{cost}"), &upstream));
    let mut connection = gateway.connect();
    let mut post = |framing: &str, body: &str| {
        connection.send(format!(
            "POST / HTTP/1.1\r\nHost: x\r\n{framing}\r\n\r\n{body}"
        ));
        let answer = connection.answer("POST");
        (answer.status, answer.left() == Some(17))
    };
    assert_eq!(
        post("Content-Length: 2049", &"x".repeat(2049)),
        (200, true),
        "three begun KiB"
    );
    assert_eq!(
        post("Transfer-Encoding: chunked", "1\r\nx\r\n0\r\n\r\n"),
        (200, false)
    );
    assert_eq!(
        ask(&mut connection, "/", &[]),
        (200, 8),
        "8 of 17 for the unknown length, 1 for none"
    );
}

/// An answer for each way of telling a cost.
fn telling() -> Upstream {
    let events = "data: {\"delta\":\"a\"}\n\ndata: {\"usage\":{\"total_tokens\":3}}\n\n\
                  data: {\"usage\":{\"total_tokens\":17}}\n\ndata: [DONE]\n\n";
    Upstream::start(move |seen| match seen.line().split(' ').nth(1) {
        Some("/header") => Reply::new(200, &[("x-units", "12")], "x"),
        Some("/nonsense") => Reply::new(200, &[("x-units", "many")], "x"),
        Some("/endless") => Reply::new(200, &[("x-units", "18446744073709551616")], "x"),
        Some("/escaped") => Reply::new(
            200,
            &[("content-type", "application/json")],
            "{\"us\\u0061ge\":{\"total\\u005Ftokens\":22}}",
        ),
        Some("/lines") => {
            let lines = [
                "data: {\"usage\":",
                "data: {\"total_tokens\":",
                "data: 23}}",
                "",
                "data: [DONE]",
                "",
                "",
            ];
            Reply::new(
                200,
                &[("content-type", "text/event-stream")],
                lines.join("\r\n"),
            )
        }
        Some("/dear") => Reply::new(200, &[("x-units", "999999")], "x"),
        Some("/body") => Reply::new(200, &[], "x".repeat(2_500)),
        Some("/json") => Reply::new(
            200,
            &[("content-type", "application/json; charset=utf-8")],
            "{\"text\":\"total_tokens\", \"other\":{\"total_tokens\":99}, \"usage\":{\"in\":[1,2],\"total_tokens\":2}}",
        ),
        Some("/events") => Reply::new(200, &[("content-type", "text/event-stream")], events),
        Some("/401") => Reply::new(401, &[], "x"),
        Some("/slow") => Reply::Silence,
        _ => Reply::ok("x"),
    })
}

#[test]
fn settle_estimate_is_corrected_by_the_response() {
    for (from, path, left) in [
        // 100, less the actual cost, less the estimate of the request that looks.
        ("header:x-units", "/header", 100 - 12 - 5),
        ("header:x-units", "/nonsense", 100 - 5 - 5),
        ("header:x-units", "/plain", 100 - 5 - 5),
        ("header:x-units", "/dear", 100 - 50 - 5),
        ("header:x-units", "/endless", 100 - 50 - 5),
        ("json:usage.total_tokens", "/escaped", 100 - 22 - 5),
        ("json:usage.total_tokens", "/lines", 100 - 23 - 5),
        ("bytes", "/body", 100 - 3 - 5),
        ("json:usage.total_tokens", "/json", 100 - 2 - 5),
        ("json:usage.total_tokens", "/events", 100 - 17 - 5),
        ("json:usage.total_tokens", "/plain", 100 - 5 - 5),
    ] {
        let upstream = telling();
        let settle = format!("settle = {{ from = \"{from}\", estimate = 5, max = 50 }}");
        let gateway = Gateway::start(&one_limit(
            &format!("rate = \"100/day\"\n{settle}"),
            &upstream,
        ));
        let mut connection = gateway.connect();
        assert_eq!(
            ask(&mut connection, path, &[("accept-encoding", "gzip")]),
            (200, 95),
            "{from} {path}: the estimate"
        );
        assert_eq!(ask(&mut connection, path, &[]).1, left, "{from} {path}");
        let asked = upstream.seen()[0]
            .header("accept-encoding")
            .map(str::to_owned);
        assert_eq!(
            asked.is_none(),
            from.starts_with("json"),
            "a body that is read comes as plain text"
        );
    }
}

#[test]
fn settle_debt_is_bounded_and_paid_by_waiting() {
    let upstream = telling();
    let settle = "settle = { from = \"header:x-units\", estimate = 5, max = 300 }";
    let gateway = Gateway::start(&one_limit(
        &format!("rate = \"100/day\"\n{settle}"),
        &upstream,
    ));
    let mut connection = gateway.connect();
    assert_eq!(ask(&mut connection, "/dear", &[]).0, 200);
    let refused = connection.request("GET", "/plain", &[]);
    assert_eq!(refused.status, 429);
    // What an answer may cost at most, whatever it said, in full: 200 below nothing and the estimate, 864 s each.
    assert_eq!(refused.json()["retry_after_ms"], 205 * 864_000);
}

#[test]
fn only_failed_logins_count_and_a_client_that_leaves_does_not_evade_the_count() {
    for count in ["\"failures\"", "[\"401\", \"403\"]"] {
        let upstream = telling();
        let gateway = Gateway::start(&one_limit(
            &format!("rate = \"3/day\"\ncount = {count}"),
            &upstream,
        ));
        let mut connection = gateway.connect();
        for _ in 0..10 {
            assert_eq!(ask(&mut connection, "/plain", &[]), (200, 2));
        }
        assert_eq!(ask(&mut connection, "/401", &[]), (401, 2));
        assert_eq!(ask(&mut connection, "/401", &[]), (401, 1));
        let asked = upstream.seen().len();
        let mut leaver = gateway.connect();
        leaver.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
        eventually("it is asked", || upstream.seen().len() == asked + 1);
        drop(leaver);
        assert_eq!(
            ask(&mut connection, "/401", &[]).0,
            429,
            "a client that leaves before the response has tried, too"
        );
    }
}

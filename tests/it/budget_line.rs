//! The waiting line of a budget (`max_wait`): who is refused only because of what others have reserved waits for it, in
//! order, and the budget is never exceeded.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::json;

use crate::harness::llm::{End, Tokens};
use crate::harness::{Connection, Gateway, Llm, Reply, Upstream, eventually};
use crate::rls::stores::each_server;

/// A budget of so much for everyone, at 1 and 2 for a token of input and of output.
fn budget(amount: &str, max_wait: &str, upstream: &str, more: &str) -> String {
    format!(
        "[prices.models]\nsmall = {{ input = \"1\", output = \"2\" }}\n\
         [limits.budget]\nrate = \"{amount}/day\"\nalgorithm = \"fixed_window\"\nper = \"everyone\"\nprices = \"json:model\"\n\
         refuse_status = 402\nmax_wait = \"{max_wait}\"\nceiling = true\n\
         cost = {{ usage = \"openai\", max = 4000000 }}\nsettle = {{ usage = \"openai\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{upstream}\"\nlimits = [\"budget\"]\n{more}"
    )
}

/// In the process, a ceiling holds only if a crash does not fill its buckets: the test moves past that.
fn local(amount: &str, max_wait: &str, upstream: &str) -> Gateway {
    let file = budget(amount, max_wait, upstream, "");
    Gateway::start(&file.replace("ceiling = true\n", ""))
}

fn send(connection: &mut Connection, most: u64) {
    let body = json!({"model": "small", "max_tokens": most}).to_string();
    connection.send(format!(
        "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
}

fn number(gateway: &Gateway, name: &str) -> u64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = metrics
        .lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    // A refusal has an example behind its number.
    let number = line.and_then(|line| line.split(' ').next());
    let number = number.map(|number| number.trim_end_matches(".0"));
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}

fn waiting(gateway: &Gateway) -> u64 {
    number(gateway, "tollgate_requests_held")
}

/// A provider whose calls cost 0.20 USD, and the most of them that were under way at the same time.
fn provider() -> (Upstream, Arc<AtomicU64>) {
    let (under_way, most) = (AtomicU64::new(0), Arc::new(AtomicU64::new(0)));
    let peak = Arc::clone(&most);
    let upstream = Upstream::start(move |_| {
        let now = under_way.fetch_add(1, Ordering::SeqCst) + 1;
        peak.fetch_max(now, Ordering::SeqCst);
        // So that calls overlap.
        std::thread::sleep(Duration::from_millis(5));
        under_way.fetch_sub(1, Ordering::SeqCst);
        let usage = json!({"usage": {"prompt_tokens": 0, "completion_tokens": 100_000}});
        Reply::new(
            200,
            &[("content-type", "application/json")],
            usage.to_string(),
        )
    });
    (upstream, most)
}

/// Eight agents that reserve 6 USD and spend 0.20 at a time, five times each.
fn agents(gateway: &Gateway) {
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                let mut connection = gateway.connect();
                for _ in 0..5 {
                    send(&mut connection, 2_999_900);
                    let answer = connection.answer("POST");
                    assert_eq!(answer.status, 200, "{answer:?}");
                }
            });
        }
    });
    assert_eq!(crate::money::spent(gateway), 40 * 200_000);
    assert_eq!(waiting(gateway), 0);
}

#[test]
fn budget_line_serves_agents_that_reserve_all_without_a_refusal() {
    let (upstream, most) = provider();
    agents(&local("25 USD", "60s", &upstream.url()));
    let most = most.load(Ordering::SeqCst);
    assert!(
        (1..=4).contains(&most),
        "{most} calls of 6 USD at once in a budget of 25 USD"
    );
}

#[test]
fn budget_line_on_shared_stores_is_exact_and_asks_only_after_settlements() {
    each_server(|shared| {
        let (upstream, most) = provider();
        let gateway = Gateway::start(&budget("25 USD", "60s", &upstream.url(), &shared.table));
        agents(&gateway);
        let most = most.load(Ordering::SeqCst);
        assert!(
            most <= 4,
            "{most} calls of 6 USD at once in a budget of 25 USD"
        );
        // A draw for each request, and one for each settlement at most.
        let asked = number(&gateway, "tollgate_store_requests_total");
        assert!((40..=80).contains(&asked), "{asked} draws");
    });
}

/// A model that stops in the middle of its calls, and a gateway with 10 USD in front of it.
fn held(max_wait: &str) -> (Llm, Gateway) {
    let model = Llm::start(|_| (Tokens::new(0, 10), End::Whole));
    model.hold();
    let gateway = local("10 USD", max_wait, &model.url());
    (model, gateway)
}

/// Sends a request that reserves 6 USD, and waits until `held` requests wait.
fn queue(gateway: &Gateway, held: u64) -> Connection {
    let mut connection = gateway.connect();
    send(&mut connection, 2_999_900);
    eventually("it waits", || waiting(gateway) == held);
    connection
}

#[test]
fn budget_line_lets_requests_on_in_order_and_a_client_that_leaves_frees_its_place() {
    let (model, gateway) = held("60s");
    let mut running = queue(&gateway, 0);
    eventually("it is asked", || model.upstream().seen().len() == 1);
    let mut first = queue(&gateway, 1);
    let leaver = queue(&gateway, 2);
    // It would fit, and does not overtake.
    let mut small = gateway.connect();
    send(&mut small, 1);
    eventually("it waits", || waiting(&gateway) == 3);
    drop(leaver);
    eventually("it left", || waiting(&gateway) == 2);
    assert_eq!(model.upstream().seen().len(), 1, "nothing was settled");
    model.release();
    for connection in [&mut running, &mut first, &mut small] {
        assert_eq!(connection.answer("POST").status, 200);
    }
    let seen = model.upstream().seen();
    assert_eq!(
        seen.len(),
        3,
        "the provider never saw the request of the client that left"
    );
}

#[test]
fn budget_line_ends_with_the_refusal_of_reservations_and_counts_it_once() {
    let (model, gateway) = held("30s");
    let mut running = queue(&gateway, 0);
    eventually("it is asked", || model.upstream().seen().len() == 1);
    let mut waits = queue(&gateway, 1);
    gateway.advance(Duration::from_secs(29));
    assert_eq!(waiting(&gateway), 1);
    gateway.advance(Duration::from_secs(1));
    let refused = waits.answer("POST");
    assert_eq!(refused.status, 429, "{refused:?}");
    // Of the reservations of all it says only that they are there: when the first of them ends at the latest.
    assert!(refused.header("retry-after").is_some(), "{refused:?}");
    let name = "tollgate_limit_decisions_total{limit=\"budget\",outcome=\"deny\"}";
    assert_eq!(number(&gateway, name), 1);
    model.release();
    assert_eq!(running.answer("POST").status, 200);
}

#[test]
fn budget_line_does_not_hold_a_request_whose_money_is_spent() {
    let (upstream, _) = provider();
    let gateway = local("0.3 USD", "60s", &upstream.url());
    let mut connection = gateway.connect();
    send(&mut connection, 100_000);
    assert_eq!(connection.answer("POST").status, 200);
    eventually("it is settled", || crate::money::spent(&gateway) == 200_000);
    send(&mut connection, 100_000);
    let refused = connection.answer("POST");
    assert_eq!(refused.status, 402, "{refused:?}");
}

#[test]
fn budget_line_goes_on_when_the_next_window_begins() {
    let (model, gateway) = held("1h");
    let file = budget("10 USD", "1h", &model.url(), "").replace("ceiling = true\n", "");
    drop(gateway);
    let gateway = Gateway::start(&file.replace("/day", "/minute"));
    let mut running = queue(&gateway, 0);
    eventually("it is asked", || model.upstream().seen().len() == 1);
    let _first = queue(&gateway, 1);
    let _second = queue(&gateway, 2);
    gateway.advance(Duration::from_secs(60));
    eventually("the first has units of the new window", || {
        model.upstream().seen().len() == 2
    });
    eventually("the second waits for the first", || waiting(&gateway) == 1);
    model.release();
    assert_eq!(running.answer("POST").status, 200);
    eventually("the second goes on", || model.upstream().seen().len() == 3);
}

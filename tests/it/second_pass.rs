//! The suite once more, with hyper's own HTTP/1 server in front of the same gateway instead of ours: what the gateway does
//! must not depend on which server reads the request.

use std::process::Command;

use tollgate_testkit::front::FRONT;

/// Tests that do not go through that server, or are about what only ours does: names, or how names begin, each with the
/// reason.
const LEFT_OUT: &[(&str, &str)] = &[
    ("operator_words::", "asks the admin listener"),
    ("overrides::", "asks the admin listener"),
    ("overrides_hostile::", "asks the admin listener"),
    ("penalties::", "asks the admin listener"),
    ("key_names::", "asks the admin listener"),
    ("webhook::", "asks the admin listener"),
    ("second_pass::", "this one"),
    ("admin::", "asks the admin listener"),
    (
        "budgets::budget_used_up_is_402",
        "asks the admin listener and the one for decisions",
    ),
    ("budgets::budget_used_up_over_http2", "HTTP/2"),
    ("budgets::json_rpc_refusal_over_http2", "HTTP/2"),
    ("cli::", "runs the program"),
    ("bodies::forwarded::body_over_http2", "HTTP/2"),
    ("container::", "runs the program"),
    ("documents::", "reads documents"),
    ("encrypted::", "TLS and HTTP/2 of our listener"),
    ("envoy::", "HTTP/2 of our listener"),
    ("events::", "asks the admin listener"),
    ("grpc::", "HTTP/2 of our listener"),
    ("hostile::", "runs the program"),
    ("idle::", "memory and time limits of our connections"),
    ("listening::", "listening sockets and the PROXY protocol"),
    ("log_level::", "runs the program"),
    ("openapi::", "asks the admin listener"),
    ("otlp::", "asks the admin listener"),
    (
        "over_limit::over_limit_next_target",
        "asks the admin listener",
    ),
    (
        "over_limit::over_limit_decision",
        "asks the listener for decisions",
    ),
    ("model_prices::prices_body", "asks the admin listener"),
    (
        "model_prices::prices_decision",
        "asks the listener for decisions",
    ),
    ("page::", "asks the admin listener"),
    ("reservation_ends::reservation_over_http2", "HTTP/2"),
    ("reservation_ends::reservation_of_a_grpc_call", "HTTP/2"),
    (
        "spent_budgets::spent_budget_",
        "asks the listener for decisions",
    ),
    ("spent_budgets::money_", "asks the admin listener"),
    ("spent_budgets::decision_", "asks the admin listener"),
    ("process::", "runs the program"),
    (
        "spellings::target_with_raw_quotes",
        "hyper's server refuses such a target",
    ),
    ("restart::", "runs the program"),
    ("rls::", "HTTP/2 of our listener"),
    ("scrape::", "counts our connections"),
    ("shutdown::", "drains our connections"),
    ("stopping::", "runs the program"),
    ("streaming::", "runs the program"),
    ("streams::", "HTTP/2 of our listener"),
    ("tools::", "attacks our server's time limits and bounds"),
    ("top::", "asks the admin listener"),
    ("trying_out::", "runs the program"),
    ("upgrade::", "hands our sockets over"),
    ("upstream_http2::", "runs the program"),
    ("wire::", "the very bytes that our server writes"),
    (
        "causes::upstream_certificate",
        "a gateway of ours that speaks TLS is the upstream",
    ),
    (
        "causes::upstream_pinned",
        "a gateway of ours that speaks TLS is the upstream",
    ),
    (
        "causes::upstream_server_name",
        "a gateway of ours that speaks TLS is the upstream",
    ),
    (
        "duplex::",
        "clients that read nothing for long: time limits of our connections",
    ),
    ("exchange::an_extended_connect", "HTTP/2"),
    (
        "exchange::interim_responses",
        "hyper's server has no call for a 103",
    ),
    (
        "failures::too_much_is_refused_by_its_kind",
        "bounds on a head are our server's",
    ),
    (
        "forwarding::echo_sends_100_continue",
        "hyper's server sends 100 Continue only when the body is read",
    ),
    (
        "journal::malformed_request",
        "what our server refuses before it is a request",
    ),
    (
        "journal::access_log_has_a_line_for_input_that_is_no_request",
        "what our server refuses before it is a request",
    ),
    (
        "wall_clock::wall_clock_that_is_set_dates_input_that_is_no_request",
        "what our server refuses before it is a request",
    ),
    ("journal::access_log_names_the_host_of_an_http2", "HTTP/2"),
    (
        "journal::malformed_chunks",
        "hyper's server says no more of a body than that it broke off",
    ),
    (
        "shaping::who_leaves_in_the_middle_of_a_body",
        "hyper's server does not see a client leave while no task reads its body",
    ),
    (
        "smuggling::smuggling_bytes_after_a_refused_request",
        "hyper's server takes a bare LF for the end of a line",
    ),
    ("spellings::expect_repeated", "sends HTTP/2 too"),
    ("spellings::method_not_in_capitals", "sends HTTP/2 too"),
    ("spending::refund_of_a_tunnel", "HTTP/2"),
    ("spending::body_of_a_tunnel", "HTTP/2"),
    ("spending::settle_stream_reset_over_http2", "HTTP/2"),
    ("traces::trace_context_over_http2", "HTTP/2"),
    ("unfinished::refund_of_a_stream_left_open", "HTTP/2"),
    (
        "unfinished::refund_of_a_failure_after_a_whole_stream",
        "HTTP/2",
    ),
    (
        "websocket::websocket_gets_a_close_frame",
        "drains our connections",
    ),
    (
        "websocket::a_websocket_lives_through_a_reload",
        "counts our connections",
    ),
];

#[test]
fn service_through_hypers_server_passes_the_suite() {
    if std::env::var_os(FRONT).is_some() {
        return;
    }
    let tests = std::env::current_exe().expect("the tests themselves");
    let skipped = LEFT_OUT.iter().flat_map(|(name, _)| ["--skip", *name]);
    let pass = Command::new(tests)
        .env(FRONT, "hyper")
        .args(skipped)
        .output()
        .expect("the second pass runs");
    let told = String::from_utf8_lossy(&pass.stdout);
    assert!(
        pass.status.success(),
        "{told}\n{}",
        String::from_utf8_lossy(&pass.stderr)
    );
    let passed = told
        .split_once("test result: ok. ")
        .and_then(|(_, rest)| rest.split_once(" passed"))
        .and_then(|(count, _)| count.parse::<u32>().ok());
    assert!(
        passed.is_some_and(|passed| passed > 90),
        "most of the suite takes part: {told}"
    );
}

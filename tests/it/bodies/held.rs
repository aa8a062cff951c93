//! Bodies that are held until the decision: for how long, how many, and in how much memory.

use tollgate_testkit::eventually;

use super::*;

/// A body of a model, longer than one read.
fn long_body() -> String {
    format!(r#"{{"model":"m","text":"{}"}}"#, "x".repeat(40_000))
}

#[test]
fn body_that_stalls_before_the_decision_is_refused_in_time() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let config = format!(
        "[server.timeouts]\nbody_idle = \"100ms\"\n{}",
        tools(&upstream, &searches)
    );
    let gateway = Gateway::start(&config);
    let mut connection = gateway.connect();
    send(&mut connection, "/mcp", "", "{", 100);
    assert_eq!(connection.answer("POST").status, 408);
    let mut gone = gateway.connect();
    send(&mut gone, "/mcp", "", "{", 100);
    drop(gone);
    let mut connection = gateway.connect();
    let mut seen = 0;
    eventually("the charge for the client that left", || {
        let answer = post(&mut connection, "/mcp", "", &call(&format!("tool-{seen}")));
        seen += 1;
        answer.left_of("total") == Some(100 - 2 - seen)
    });
    assert_eq!(upstream.seen().len() as u64, seen);
}

#[test]
fn bodies_held_for_decisions_are_bounded_over_all_connections() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
[server.bounds]
held_bodies = "1MiB"

{}
[[routes]]
match = "/model"
upstream = "{}"
limits = ["model"]
"#,
        of_model("rate = \"1000/day\""),
        upstream.url()
    ));
    let body = long_body();
    let status = || post(&mut gateway.connect(), "/model", "", &body).status;
    assert_eq!(status(), 200);
    // Each sends nearly all of a body, and then nothing.
    let mut unfinished = Vec::new();
    eventually("a further body is refused", || {
        let mut connection = gateway.connect();
        let start = &body[..body.len() - 1];
        send(&mut connection, "/model", "", start, body.len());
        unfinished.push(connection);
        status() == 503
    });
    assert!(unfinished.len() > 20, "{} were held", unfinished.len());
    let held = || {
        let metrics = gateway.admin_get("/metrics").text();
        let line = metrics
            .lines()
            .find_map(|line| line.strip_prefix("tollgate_held_bodies_bytes "));
        let rejected = "tollgate_rejections_total{reason=\"held_bodies\"}";
        assert!(metrics.contains(rejected), "{metrics}");
        line.expect("a gauge").parse::<f64>().expect("a number")
    };
    assert!(held() > 900_000.0, "{}", held());
    drop(unfinished);
    eventually("their memory is free again", || status() == 200);
    eventually("the gauge says so", || held() == 0.0);
}

#[test]
fn body_of_a_request_that_waits_is_held_until_it_is_forwarded() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        r#"
{}
[[routes]]
match = "/model"
upstream = "{}"
limits = ["model"]
"#,
        of_model("rate = \"10/second\"\nburst = 1\nmax_wait = \"250ms\""),
        upstream.url()
    ));
    let body = long_body();
    assert_eq!(
        post(&mut gateway.connect(), "/model", "", &body).status,
        200
    );
    let metrics_have = |line: &str| {
        let line = format!("\n{line}\n");
        eventually(&line, || {
            gateway.admin_get("/metrics").text().contains(&line)
        });
    };
    metrics_have("tollgate_held_bodies_bytes 0.0");
    let mut waiting = gateway.connect();
    send(&mut waiting, "/model", "", &body, body.len());
    // Its body has been read and decided about; it waits for its unit.
    metrics_have("tollgate_requests_held 1.0");
    metrics_have(&format!("tollgate_held_bodies_bytes {}.0", body.len()));
    gateway.advance(std::time::Duration::from_millis(100));
    assert_eq!(waiting.answer("POST").status, 200);
    metrics_have("tollgate_held_bodies_bytes 0.0");
    assert_eq!(upstream.seen()[1].body, body.as_bytes());
}

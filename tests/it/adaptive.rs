//! What follows the upstream's health, over HTTP: the rate that falls and recovers, the concurrency that is found.

use std::time::Duration;

use crate::harness::{Connection, Gateway, Reply, Upstream, eventually};

/// Responds by the path: `/429` asks for less, `/503?5` for five seconds, `/date` until a date, `/slow` says nothing, `/gone` closes.
fn moody() -> Upstream {
    Upstream::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/slow") => Reply::Silence,
        Some("/gone") => Reply::Close(Vec::new()),
        Some("/429") => Reply::new(429, &[], "less"),
        Some("/503") => Reply::new(503, &[("retry-after", "5")], "later"),
        // 20 seconds after the tests' clock begins.
        Some("/date") => Reply::new(
            503,
            &[("retry-after", "Fri, 15 Jan 2027 08:00:20 GMT")],
            "later",
        ),
        Some("/sick") => Reply::new(503, &[], "no"),
        _ => Reply::ok("done"),
    })
}

fn following(numbers: &str, upstream: &Upstream) -> String {
    format!(
        "[limits.gentle]\n{numbers}\nper = \"everyone\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"gentle\"]\n",
        upstream.url()
    )
}

fn gauge(gateway: &Gateway, name: &str) -> f64 {
    let metrics = gateway.admin_get("/metrics").text();
    let line = metrics
        .lines()
        .find(|line| line.starts_with(&format!("{name}{{limit=\"gentle\"}}")));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {name} in {metrics}"))
}

const RATE: &str = "tollgate_limit_rate_factor";
const PLACES: &str = "tollgate_limit_adaptive_places";

/// Requests that pass when one asks every 100 ms for `seconds`.
fn admitted(gateway: &Gateway, seconds: u32) -> u32 {
    let mut admitted = 0;
    for _ in 0..seconds * 10 {
        gateway.advance(Duration::from_millis(100));
        admitted += u32::from(gateway.get("/").status == 200);
    }
    admitted
}

#[test]
fn a_rate_falls_while_its_upstream_asks_for_less_and_recovers_with_it() {
    let upstream = moody();
    let numbers =
        "rate = \"1000/second\"\nburst = 1000\nfollow_upstream = { least = \"250/second\" }";
    let gateway = Gateway::start(&following(numbers, &upstream));
    assert_eq!(gateway.get("/").status, 200);
    assert_eq!(gauge(&gateway, RATE), 1.0);
    assert_eq!(gateway.get("/429").status, 429, "the upstream's own");
    assert_eq!(gauge(&gateway, RATE), 0.875);
    assert_eq!(gateway.get("/503").status, 503);
    assert_eq!(
        gauge(&gateway, RATE),
        0.875,
        "within a second it is one trouble"
    );
    gateway.advance(Duration::from_secs(1));
    assert_eq!(gateway.get("/503").status, 503);
    assert_eq!(gauge(&gateway, RATE), 0.765_625);
    gateway.advance(Duration::from_secs(5));
    assert_eq!(
        gauge(&gateway, RATE),
        0.765_625,
        "it holds as long as the upstream asked"
    );
    gateway.advance(Duration::from_secs(4));
    assert_eq!(
        gauge(&gateway, RATE),
        0.828_125,
        "and climbs by a 64th a second"
    );
    gateway.advance(Duration::from_secs(60));
    assert_eq!(gauge(&gateway, RATE), 1.0);
    for _ in 0..30 {
        assert_eq!(gateway.get("/sick").status, 503);
        gateway.advance(Duration::from_millis(1_100));
    }
    assert!(
        (0.25..0.3).contains(&gauge(&gateway, RATE)),
        "the file's least: {}",
        gauge(&gateway, RATE)
    );
}

#[test]
fn a_lowered_rate_admits_less_never_more_and_keeps_its_word() {
    let upstream = moody();
    let numbers = "rate = \"4/second\"\nburst = 1\nfollow_upstream = { least = \"2/second\" }";
    let gateway = Gateway::start(&following(numbers, &upstream));
    assert_eq!(gateway.get("/").status, 200);
    let healthy = admitted(&gateway, 10);
    // Every 100 ms: at 250 ms apart one passes on every third.
    assert!((33..=40).contains(&healthy), "{healthy}");
    for _ in 0..12 {
        gateway.advance(Duration::from_millis(1_500));
        assert_eq!(gateway.get("/sick").status, 503);
    }
    gateway.advance(Duration::from_secs(1));
    let (before, lowered) = (gauge(&gateway, RATE), admitted(&gateway, 4));
    assert!(before < 0.52, "{before}");
    assert!((6..=9).contains(&lowered), "about half of 16: {lowered}");
    while gateway.get("/").status == 200 {}
    let refused = gateway.get("/");
    let wait = refused.json()["retry_after_ms"]
        .as_u64()
        .expect("milliseconds");
    assert!(wait > 1, "{wait}");
    gateway.advance(Duration::from_millis(wait - 1));
    assert_eq!(gateway.get("/").status, 429, "too early");
    gateway.advance(Duration::from_millis(1));
    assert_eq!(
        gateway.get("/").status,
        200,
        "the header keeps its word at any factor"
    );
}

#[test]
fn the_factor_outlives_a_reload_and_a_date_is_understood() {
    let upstream = moody();
    let numbers =
        "rate = \"1000/second\"\nburst = 1000\nfollow_upstream = { least = \"100/second\" }";
    let gateway = Gateway::start(&following(numbers, &upstream));
    assert_eq!(gateway.get("/date").status, 503);
    gateway.advance(Duration::from_secs(19));
    assert_eq!(gauge(&gateway, RATE), 0.875, "until the date");
    gateway
        .reload(&following(numbers, &upstream))
        .expect("a good file");
    assert_eq!(
        gauge(&gateway, RATE),
        0.875,
        "an unchanged file forgets nothing"
    );
    let raised = numbers.replace("100/second\" }", "950/second\" }");
    gateway
        .reload(&following(&raised, &upstream))
        .expect("a good file");
    assert_eq!(
        gauge(&gateway, RATE),
        973.0 / 1024.0,
        "a raised least counts at once"
    );
    gateway
        .reload(&following(numbers, &upstream))
        .expect("a good file");
    assert_eq!(gauge(&gateway, RATE), 0.875);
    gateway.advance(Duration::from_secs(20));
    assert_eq!(gauge(&gateway, RATE), 1.0);
}

#[test]
fn adaptive_concurrency_keeps_to_the_files_bounds_and_outlives_a_reload() {
    let upstream = moody();
    let numbers = "in_flight = { adaptive = true, least = 3, most = 12 }";
    let gateway = Gateway::start(&following(numbers, &upstream));
    assert_eq!(
        gauge(&gateway, PLACES),
        12.0,
        "it starts with the most, which is below 20"
    );
    for _ in 0..60 {
        assert_eq!(gateway.get("/sick").status, 503, "the upstream's own");
        gateway.advance(Duration::from_millis(150));
    }
    assert_eq!(gauge(&gateway, PLACES), 3.0, "the file's least");
    gateway
        .reload(&following(numbers, &upstream))
        .expect("a good file");
    assert_eq!(gauge(&gateway, PLACES), 3.0, "a reload starts nothing anew");
    let asked = upstream.seen().len();
    let mut held: Vec<_> = (0..3).map(|_| gateway.connect()).collect();
    for connection in &mut held {
        connection.send("GET /slow HTTP/1.1\r\nHost: x\r\n\r\n");
    }
    eventually("three are there", || upstream.seen().len() == asked + 3);
    assert_eq!(
        gateway.get("/").status,
        503,
        "three are what it may be asked at once"
    );
    gateway
        .reload(&following(
            "in_flight = { adaptive = true, least = 4, most = 12 }",
            &upstream,
        ))
        .expect("a good file");
    assert_eq!(gauge(&gateway, PLACES), 4.0, "another least counts at once");
    assert_eq!(
        gateway.get("/").status,
        200,
        "those in flight still count, and one more may go"
    );
    drop(held);
}

#[test]
fn adaptive_errors_of_callers_lower_no_limit() {
    let upstream = moody();
    let numbers = "in_flight = { adaptive = true, least = 3, most = 12 }";
    let config =
        following(numbers, &upstream).replace("\"/**\"", "\"/v1/**\"\nstrip_prefix = \"/v1\"");
    let gateway = Gateway::start(&config);
    for _ in 0..20 {
        // To the router it is `/v1/a`; its prefix cannot be cut off.
        assert_eq!(gateway.get("/x/../v1/a").status, 400);
        gateway.advance(Duration::from_millis(150));
    }
    assert_eq!(gauge(&gateway, PLACES), 12.0);
    assert!(upstream.seen().is_empty(), "which was never asked");
}

#[test]
fn adaptive_connection_closed_at_the_deadline_of_its_caller_lowers_no_limit() {
    let upstream = moody();
    let numbers = "in_flight = { adaptive = true, least = 3, most = 12 }";
    let gateway = Gateway::start(&following(numbers, &upstream));
    let ask = |headers: &[(&str, &str)]| {
        for _ in 0..20 {
            assert_eq!(gateway.request("POST", "/gone", headers).status, 502);
            gateway.advance(Duration::from_millis(150));
        }
        gauge(&gateway, PLACES)
    };
    // A deadline that has passed at once.
    assert_eq!(ask(&[("connect-timeout-ms", "0")]), 12.0);
    assert!(ask(&[]) < 12.0, "the upstream's own failures do");
}

#[test]
fn adaptive_slow_uploads_of_callers_lower_no_limit() {
    const SERVER: Duration = Duration::from_millis(20);
    let upstream = Upstream::start(|seen| match seen.line().split(' ').nth(1) {
        Some("/slow") => Reply::Silence,
        _ => {
            std::thread::sleep(SERVER);
            Reply::ok("done")
        }
    });
    let numbers = "in_flight = { adaptive = true, least = 3, most = 12 }";
    let gateway = Gateway::start_in_real_time(&following(numbers, &upstream));
    // Half of the places are in use: otherwise nothing is learnt.
    let mut held: Vec<_> = (0..6).map(|_| gateway.connect()).collect();
    for connection in &mut held {
        connection.send("GET /slow HTTP/1.1\r\nhost: a\r\n\r\n");
    }
    eventually("they are under way", || upstream.seen().len() == 6);
    let mut connection = gateway.connect();
    let fast = |connection: &mut Connection, times| {
        for _ in 0..times {
            assert_eq!(connection.request("GET", "/", &[]).status, 200);
        }
    };
    fast(&mut connection, 30);
    for _ in 0..10 {
        fast(&mut connection, 10);
        connection.send("POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 2\r\n\r\na");
        std::thread::sleep(25 * SERVER);
        connection.send("b");
        assert_eq!(connection.answer("POST").status, 200);
    }
    let places = gauge(&gateway, PLACES);
    assert!(places >= 11.0, "{places} of 12: the server took 20 ms");
    drop(held);
}

//! Requests that state a deadline of their own, which their upstream keeps.

use std::io::Write;
use std::time::Duration;

use super::causes::failed_of_six;
use super::origin::{OK, Origin, respond};
use super::relay::{gateway, gateway_on, in_turn, route, upstream};
use super::wire::read_response;
use crate::headers::DEADLINES;
use http::HeaderName;
use tollgate_limit::Micros;
use tollgate_limiter::Cause;
use tollgate_policy::routes::Route;
use tollgate_policy::routes::template::Template;

/// The cause of the response with this first line and these lines to a request with these lines.
fn cause(request: &str, response: &str) -> Cause {
    cause_by(route(), request, response)
}

/// The same by this route.
fn cause_by(route: Route, request: &str, response: &str) -> Cause {
    let response = format!("HTTP/1.1 {response}\r\nContent-Length: 0\r\n\r\n");
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send(&response)
    });
    let gateway = gateway_on(upstream(origin.address), route);
    gateway.ask(&format!(
        "POST /svc/M?3000 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{request}Content-Length: 0\r\n\r\n"
    ));
    gateway.causes()[0]
}

const FAR: [&str; 10] = [
    "Grpc-Timeout: 1H\r\n",
    "Content-Type: application/json\r\nGrpc-Timeout: 1H\r\n",
    "Content-Type: application/grpc-web+proto\r\nGrpc-Timeout: 1H\r\n",
    "Content-Type: application/grpc\r\nGrpc-Timeout: 2H\r\nGrpc-Timeout: 1H\r\n",
    "Connect-Timeout-Ms: 3600000\r\n",
    "X-Envoy-Upstream-Rq-Timeout-Ms: 3600000\r\n",
    "X-Envoy-Upstream-Rq-Per-Try-Timeout-Ms: 3600000\r\n",
    "X-Envoy-Expected-Rq-Timeout-Ms: 3600000\r\n",
    "X-Envoy-Upstream-Stream-Duration-Ms: 3600000\r\n",
    "Connect_Timeout_Ms: 3600000\r\n",
];

#[test]
fn deadline_of_a_caller_that_its_upstream_keeps_earns_no_credit() {
    for request in FAR {
        for status in [
            "504 Late",
            "408 Late",
            "499 Late",
            "200 OK\r\ngrpc-status: 4",
            "200 OK\r\nGrpc-Status: 1",
        ] {
            assert_eq!(cause(request, status), Cause::Early, "{request}: {status}");
        }
        for status in ["200 OK", "503 Busy", "200 OK\r\ngrpc-status: 14"] {
            assert_eq!(
                cause(request, status),
                Cause::Upstream,
                "{request}: {status}"
            );
        }
    }
    assert_eq!(cause("", "504 Late"), Cause::Upstream, "no deadline");
}

/// `timeouts.response` is five seconds. Envoy gives up before the deadline, and says UNAVAILABLE; a
/// handler may say that too little time is left.
#[test]
fn deadline_of_a_caller_before_the_response_timeout_earns_no_credit_for_a_failure() {
    for (name, _) in DEADLINES {
        let (before, later) = match name {
            "grpc-timeout" => ("4999m", "60S"),
            _ => ("4999", "60000"),
        };
        let of = |deadline, response| cause(&format!("{name}: {deadline}\r\n"), response);
        for response in [
            "500 Ill",
            "503 Busy",
            "599 Ill",
            "200 OK\r\ngrpc-status: 14",
            "200 OK\r\ngrpc-status: 0\r\ngrpc-status: 14",
        ] {
            assert_eq!(of(before, response), Cause::Early, "{name}: {response}");
            assert_eq!(of(later, response), Cause::Upstream, "{name}: {response}");
        }
        for response in ["200 OK", "404 None", "200 OK\r\ngrpc-status: 0"] {
            assert_eq!(of(before, response), Cause::Upstream, "{name}: {response}");
        }
    }
}

/// Less than `timeouts.response` is left of it when the response begins.
#[test]
fn deadline_of_a_caller_that_is_near_earns_no_credit_for_a_failure() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        std::thread::sleep(Duration::from_millis(300));
        conn.send("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n")
    });
    let gateway = gateway(upstream(origin.address));
    gateway
        .ask("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnect-Timeout-Ms: 5200\r\n\r\n");
    assert_eq!(gateway.causes(), [Cause::Early]);
}

#[test]
fn deadline_of_a_caller_that_has_passed_earns_no_credit_for_any_response() {
    for request in [
        "Grpc-Timeout: 1n\r\n",
        "Grpc-Timeout: soon\r\n",
        "Grpc-Timeout: 1H\r\nGrpc-Timeout: 0S\r\n",
        "Connect-Timeout-Ms: 0\r\n",
        "Connect-Timeout-Ms: -1\r\n",
        "Connect-Timeout-Ms: 99999999999999999999999999\r\n",
        "Content-Type: application/grpc\r\nGrpc-Timeout: \r\n",
    ] {
        for status in ["200 OK", "500 Ill", "503 Busy"] {
            assert_eq!(cause(request, status), Cause::Early, "{request}: {status}");
        }
    }
}

#[test]
fn deadline_headers_each_state_a_deadline_of_the_caller() {
    for (name, _) in DEADLINES {
        let far = match name {
            "grpc-timeout" => "1H",
            _ => "3600000",
        };
        let stated = format!("{name}: {far}\r\n");
        assert_eq!(cause(&stated, "504 Late"), Cause::Early, "{name}");
        assert_eq!(cause(&stated, "200 OK"), Cause::Upstream, "{name} is read");
    }
}

const ENVOYS: &str = "X-Envoy-Upstream-Rq-Timeout-Ms: 1\r\n";

/// The route that sets the header that Envoy reads.
fn setting(value: &str) -> Route {
    let name = HeaderName::from_static("x-envoy-upstream-rq-timeout-ms");
    let value = Template::parse(value, |_| None).expect("a template");
    let mut route = route();
    route.request_headers.set = vec![(name, value)];
    route
}

#[test]
fn deadline_that_a_route_sets_is_not_that_of_the_caller() {
    let spelt = ENVOYS.replace('-', "_");
    for request in ["", ENVOYS, &spelt] {
        let by_route = cause_by(setting("3000"), request, "504 Late");
        assert_eq!(by_route, Cause::Upstream, "{request}");
    }
    let another = cause_by(setting("3000"), "Connect-Timeout-Ms: 3000\r\n", "504 Late");
    assert_eq!(another, Cause::Early, "one that the route leaves");
    let filled = cause_by(setting("{query}"), "", "504 Late");
    assert_eq!(filled, Cause::Early, "the caller chooses the query");
}

#[test]
fn deadline_that_a_route_removes_is_not_that_of_the_caller() {
    let spelt = ENVOYS.replace('-', "_");
    for request in [ENVOYS, &spelt] {
        let mut removing = route();
        removing.request_headers.remove =
            vec![HeaderName::from_static("x-envoy-upstream-rq-timeout-ms")];
        let cause = cause_by(removing, request, "504 Late");
        assert_eq!(cause, Cause::Upstream, "{request}");
    }
}

#[test]
fn deadline_of_a_grpc_call_that_its_route_sets_is_a_timeout_of_the_upstream() {
    let hung = Origin::start(|conn| {
        conn.request()?;
        conn.request().map(|_| ())
    });
    for (by_route, own, expected) in [
        (Some("50m"), "", Cause::Silence),
        (Some("50m"), "Grpc-Timeout: 1m\r\n", Cause::Silence),
        (None, "Grpc-Timeout: 50m\r\n", Cause::Client),
    ] {
        let mut route = route();
        let set = by_route.map(|value| Template::parse(value, |_| None).expect("a template"));
        let name = HeaderName::from_static("grpc-timeout");
        route.request_headers.set = set.map(|value| (name, value)).into_iter().collect();
        let gateway = gateway_on(upstream(hung.address), route);
        gateway.ask(&format!(
            "POST /svc/M HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\n{own}Content-Length: 0\r\n\r\n"
        ));
        assert_eq!(gateway.causes(), [expected], "{by_route:?} {own}");
    }
}

#[test]
fn deadline_of_a_grpc_call_after_the_total_time_of_its_upstream_takes_no_credit() {
    let hung = Origin::start(|conn| {
        conn.request()?;
        conn.request().map(|_| ())
    });
    let mut short = upstream(hung.address);
    short.timeouts.total = Some(Micros(50_000));
    let gateway = gateway(short);
    gateway.ask(
        "POST /svc/M HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\nGrpc-Timeout: 1H\r\nContent-Length: 0\r\n\r\n",
    );
    assert_eq!(gateway.causes(), [Cause::Silence]);
}

const LATE: &str = "HTTP/1.1 504 Late\r\nContent-Length: 0\r\n\r\n";

/// How many of six requests with these lines, in turn to two servers of which one responds with 504,
/// get that.
fn late_of_six(request: &str) -> usize {
    responses_of_six(request, LATE)
}

/// The same for a server with this response.
fn responses_of_six(request: &str, response: &'static str) -> usize {
    let request = format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n{request}Content-Length: 0\r\n\r\n"
    );
    failed_of_six(&request, respond(response))
}

#[test]
fn deadline_of_a_caller_that_its_upstream_keeps_ejects_no_server() {
    for request in [
        "Connect-Timeout-Ms: 0\r\n",
        "Connect-Timeout-Ms: x\r\n",
        "Grpc-Timeout: 1n\r\n",
    ] {
        assert_eq!(late_of_six(request), 3, "{request}");
    }
}

#[test]
fn deadline_of_a_caller_before_the_response_timeout_ejects_no_server_that_gives_up_early() {
    for (name, _) in DEADLINES {
        // `timeouts.response` is five seconds.
        let (before, later) = match name {
            "grpc-timeout" => ("4999m", "60S"),
            _ => ("4999", "60000"),
        };
        let excused = late_of_six(&format!("{name}: {before}\r\n"));
        assert_eq!(excused, 3, "{name}: {before}");
        let failed = late_of_six(&format!("{name}: {later}\r\n"));
        assert_eq!(failed, 1, "{name}: {later}");
    }
    let earliest = "Connect-Timeout-Ms: 3600000\r\nGrpc-Timeout: 10m\r\n";
    assert_eq!(late_of_six(earliest), 3, "{earliest}");
}

#[test]
fn deadline_of_a_caller_that_passes_during_its_upload_ejects_no_server() {
    let late = Origin::responding(LATE);
    let well = Origin::responding(OK);
    let mut two = in_turn(upstream(late.address), well.address);
    two.timeouts.response = Micros(500_000);
    let gateway = gateway(two);
    for _ in 0..2 {
        let mut stream = gateway.connect();
        let head =
            "POST / HTTP/1.1\r\nHost: a\r\nConnect-Timeout-Ms: 500\r\nContent-Length: 5\r\n\r\n";
        stream.write_all(head.as_bytes()).expect("sent");
        // The caller waits until its deadline has passed.
        std::thread::sleep(Duration::from_millis(501));
        stream.write_all(b"hello").expect("sent");
        read_response(&mut stream);
    }
    let plain = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
    let statuses: Vec<u16> = (0..2).map(|_| gateway.ask(plain).status).collect();
    assert!(statuses.contains(&504), "{statuses:?}");
}

#[test]
fn deadline_of_a_caller_before_the_response_timeout_excuses_no_other_failure() {
    for response in [
        "HTTP/1.1 502 Ill\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n",
    ] {
        let failed = responses_of_six("Connect-Timeout-Ms: 10\r\n", response);
        assert_eq!(failed, 1, "{response}");
    }
}

#[test]
fn deadline_of_a_caller_that_is_far_shields_no_server_that_responds_with_504() {
    for request in FAR {
        assert_eq!(late_of_six(request), 1, "{request}");
    }
}

#[test]
fn deadline_of_a_caller_shields_no_hung_server() {
    for (deadline, expected) in [
        ("x", Cause::Client),
        ("1", Cause::Client),
        ("3600000", Cause::Silence),
    ] {
        let hung = Origin::start(|conn| {
            conn.request()?;
            conn.request().map(|_| ())
        });
        let well = Origin::responding(OK);
        let mut two = in_turn(upstream(hung.address), well.address);
        two.timeouts.response = Micros(200_000);
        let gateway = gateway(two);
        let request = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nConnect-Timeout-Ms: {deadline}\r\nContent-Length: 0\r\n\r\n"
        );
        let statuses: Vec<u16> = (0..4).map(|_| gateway.ask(&request).status).collect();
        let causes = gateway.causes();
        let late: Vec<Cause> = (statuses.iter().zip(causes))
            .filter_map(|(status, cause)| (*status == 504).then_some(cause))
            .collect();
        assert_eq!(late, [expected], "{deadline}: {statuses:?}");
    }
}

//! How the gateway fares with its upstreams' servers, as an operator sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::harness::{Gateway, Reply, Upstream, eventually};

fn told(gateway: &Gateway, metric: &str, server: &str) -> Option<f64> {
    let metrics = gateway.admin_get("/metrics").text();
    let server = server.trim_start_matches("http://");
    let line = metrics
        .lines()
        .find(|line| line.starts_with(metric) && line.contains(server))?;
    line.rsplit(' ').next()?.parse().ok()
}

#[test]
fn health_is_asked_for_once_and_by_all_workers_known() {
    let (ill, asked) = (
        Arc::new(AtomicBool::new(true)),
        Arc::new(AtomicUsize::new(0)),
    );
    let (its, count) = (Arc::clone(&ill), Arc::clone(&asked));
    let moody = Upstream::start(move |seen| {
        if seen.line().contains("/healthz") {
            count.fetch_add(1, Ordering::SeqCst);
            return Reply::new(if its.load(Ordering::SeqCst) { 500 } else { 200 }, &[], "");
        }
        Reply::ok("moody")
    });
    let well = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 4\n\
         [upstreams.app]\nservers = [\"{}\", \"{}\"]\nbalance = \"round_robin\"\n\
         health = {{ path = \"/healthz\", every = \"100ms\", healthy_after = 1, unhealthy_after = 2 }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        moody.url(),
        well.url()
    ));
    // Not a request has come, and it is known already.
    eventually("it is left out", || {
        told(&gateway, "tollgate_upstream_server_up", &moody.url()) == Some(0.0)
    });
    assert_eq!(
        told(&gateway, "tollgate_upstream_server_up", &well.url()),
        Some(1.0)
    );
    for _ in 0..16 {
        assert_eq!(gateway.get("/").text(), "hello", "every worker knows");
    }
    let (before, checks) = (asked.load(Ordering::SeqCst), well.seen().len());
    eventually("ten more questions", || {
        asked.load(Ordering::SeqCst) >= before + 10
    });
    // Four workers that all asked would have asked the other server as often as this one and all its requests.
    let both = well.seen().len() - checks;
    assert!(
        both <= 10 + 3,
        "one worker asks for all: {both} questions while the other server got ten"
    );
    ill.store(false, Ordering::SeqCst);
    eventually("it is back", || {
        told(&gateway, "tollgate_upstream_server_up", &moody.url()) == Some(1.0)
    });
    eventually("it is served by", || gateway.get("/").text() == "moody");
    assert!(
        told(
            &gateway,
            "tollgate_upstream_health_checks_total{",
            &format!("{}\",result=\"bad", moody.url())
        )
        .is_some_and(|count| count > 10.0)
    );
}

#[test]
fn a_server_that_fails_is_ejected_once_for_all_workers_and_comes_back() {
    let ill = Arc::new(AtomicBool::new(true));
    let its = Arc::clone(&ill);
    let moody = Upstream::start(move |_| {
        Reply::new(
            if its.load(Ordering::SeqCst) { 503 } else { 200 },
            &[],
            "moody",
        )
    });
    let well = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 4\n\
         [upstreams.app]\nservers = [\"{}\", \"{}\"]\nbalance = \"round_robin\"\nretries = {{ attempts = 1 }}\n\
         eject = {{ failures = 3, wait = \"1s\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        moody.url(),
        well.url()
    ));
    let failed = (0..40).filter(|_| gateway.get("/").status == 503).count();
    // Three for all of them; a second is short on a busy machine, and each return costs one more.
    let ejected = told(
        &gateway,
        "tollgate_upstream_server_ejections_total",
        &moody.url(),
    )
    .expect("told");
    assert!(
        (3..=5).contains(&failed) && ejected >= 1.0,
        "{failed} failed, {ejected} times ejected"
    );
    ill.store(false, Ordering::SeqCst);
    eventually("it is back", || gateway.get("/").text() == "moody");
    assert_eq!(
        told(&gateway, "tollgate_upstream_server_ejected", &moody.url()),
        Some(0.0)
    );
}

#[test]
fn a_request_waits_in_the_queue_no_longer_than_its_deadline() {
    let upstream = Upstream::start(|_| Reply::Silence);
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
         [upstreams.app]\nservers = [\"{}\"]\nconnections = 1\npending = 1\npending_timeout = \"200ms\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        upstream.url()
    ));
    let mut holder = gateway.connect();
    holder.send("GET /held HTTP/1.1\r\nHost: a\r\n\r\n");
    eventually("it arrives", || upstream.seen().len() == 1);
    let answer = gateway.get("/waits");
    assert_eq!(
        (answer.status, answer.header("retry-after")),
        (503, Some("1"))
    );
    assert_eq!(upstream.seen().len(), 1);
}

#[test]
fn retries_attempts_of_one_send_a_request_once() {
    for (attempts, on, times) in [
        (1, "", 1),
        (2, "", 2),
        (2, ", on = \"connect_failure\"", 1),
        (2, ", on = [\"connection_closed\"]", 2),
    ] {
        for method in ["GET", "PUT", "DELETE", "POST"] {
            let upstream = Upstream::start(|seen| {
                if seen.line().contains("/closes") {
                    Reply::Close(Vec::new())
                } else {
                    Reply::ok("kept")
                }
            });
            let gateway = Gateway::start(&format!(
                "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n\
                 [upstreams.app]\nservers = [\"{}\"]\nretries = {{ attempts = {attempts}{on} }}\n\
                 [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
                upstream.url()
            ));
            assert_eq!(gateway.get("/").status, 200, "its connection is kept");
            assert_eq!(gateway.request(method, "/closes", &[]).status, 502);
            let sent = upstream
                .seen()
                .iter()
                .filter(|seen| seen.line().contains("/closes"))
                .count();
            assert_eq!(
                sent,
                if method == "POST" { 1 } else { times },
                "{method} with {attempts} attempts{on}"
            );
        }
    }
}

#[test]
fn upstream_that_takes_no_upload_is_cut_off_by_its_idle_timeout() {
    // It listens, and reads nothing.
    let deaf = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let gateway = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"http://{}\"]\ntimeouts = {{ idle = \"200ms\", response = \"1h\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        deaf.local_addr().expect("bound")
    ));
    let mut connection = gateway.connect();
    connection.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n");
    // More than any buffer on the way holds; the end of it is the gateway's answer.
    let piece = vec![b'x'; 1 << 20];
    while connection.try_send(&piece).is_ok() {}
    let answer = connection.try_answer("POST");
    assert!(answer.is_err() || answer.is_ok_and(|answer| answer.status == 504));
}

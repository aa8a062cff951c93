//! What the admin listener answers, over a real socket.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};

use arc_swap::ArcSwap;
use tollgate_config::settings::LogLevel;
use tollgate_gateway::Snapshot;
use tollgate_gateway::proxy_defaults::ProxyDefaults;
use tollgate_limiter::Limiter;
use tollgate_store::clock::Clock;
use tollgate_store::local::ColdStart;
use tollgate_telemetry::access::KeyNames;

use super::*;
use crate::overrides::Overrides;

#[test]
fn probes_follow_the_gateways_life() {
    let (admin, readiness, _) = start();
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
    assert!(
        get(&admin, "/readyz").starts_with("HTTP/1.1 503"),
        "not before it serves"
    );
    readiness.enter(Phase::Serving);
    assert!(get(&admin, "/readyz").starts_with("HTTP/1.1 200"));
    readiness.require("store", || {
        Standing::Strained("redis does not answer; allowed".to_owned())
    });
    assert!(get(&admin, "/readyz").starts_with("HTTP/1.1 200"));
    assert!(
        get(&admin, "/readyz?verbose")
            .ends_with("[+] serving\n[!] store: redis does not answer; allowed\n")
    );
    readiness.require("store", || {
        Standing::Fails("redis does not answer".to_owned())
    });
    assert!(get(&admin, "/readyz").starts_with("HTTP/1.1 503"));
    assert!(
        get(&admin, "/readyz?verbose").ends_with("[+] serving\n[-] store: redis does not answer\n")
    );
    readiness.require("store", || Standing::Holds);
    readiness.enter(Phase::Draining);
    readiness.enter(Phase::Serving);
    assert!(
        get(&admin, "/readyz").starts_with("HTTP/1.1 503"),
        "draining is final"
    );
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
}

#[test]
fn metrics_come_in_the_form_that_is_asked_for() {
    let (admin, ..) = start();
    let plain = get(&admin, "/metrics");
    assert!(plain.contains("content-type: text/plain; version=0.0.4"));
    assert!(plain.contains("tollgate_build_info{version="));
    let open = send(
        &admin,
        "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: application/openmetrics-text\r\n",
    );
    assert!(
        open.contains("content-type: application/openmetrics-text") && open.ends_with("# EOF\n")
    );
}

#[test]
fn a_rebound_name_and_a_web_page_get_nothing() {
    let (admin, _, reloads) = start();
    for host in [
        "evil.example",
        "evil.example:9180",
        "127.0.0.1.evil.example",
        "",
        ".",
        "localhost..",
        "x.localhost",
    ] {
        let answer = send(
            &admin,
            &format!("GET /metrics HTTP/1.1\r\nHost: {host}\r\n"),
        );
        assert!(answer.starts_with("HTTP/1.1 421"), "{host}: {answer}");
    }
    // The target of a request may name a host, too.
    for target in [
        "http://evil.example/metrics",
        "http://evil.example:9180/metrics",
        "http://localhost@evil.example/metrics",
    ] {
        let head = format!("GET {target} HTTP/1.1\r\nHost: localhost\r\n");
        let answer = send(&admin, &head);
        assert!(answer.starts_with("HTTP/1.1 421"), "{target}: {answer}");
    }
    let absolute = "GET http://localhost:9180/livez HTTP/1.1\r\nHost: localhost\r\n";
    assert!(send(&admin, absolute).starts_with("HTTP/1.1 200"));
    for host in [
        "127.0.0.1",
        "[::1]:9180",
        "localhost:1",
        "LOCALHOST",
        "localhost.",
        "localhost.:9180",
        "gate.internal:9180",
        "gate.internal.",
        "Gate.Internal",
    ] {
        let answer = send(&admin, &format!("GET /livez HTTP/1.1\r\nHost: {host}\r\n"));
        assert!(answer.starts_with("HTTP/1.1 200"), "{host}: {answer}");
    }
    let answer = send(
        &admin,
        "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nOrigin: http://localhost:9180\r\n",
    );
    assert!(answer.starts_with("HTTP/1.1 403"));
    let fetched = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: same-origin\r\n";
    assert!(send(&admin, fetched).starts_with("HTTP/1.1 403"));
    assert_eq!(reloads.load(Ordering::Relaxed), 0);
}

#[test]
fn admin_reload_reports_its_result() {
    let (admin, _, reloads) = start();
    let post = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\n";
    assert!(send(&admin, post).ends_with("reloaded\n"));
    let second = send(&admin, post);
    assert!(second.starts_with("HTTP/1.1 422") && second.ends_with("unknown key\n"));
    assert_eq!(reloads.load(Ordering::Relaxed), 2);
    let answer = get(&admin, "/-/reload");
    assert!(answer.starts_with("HTTP/1.1 405") && answer.contains("allow: POST"));
}

#[test]
fn admin_unknown_path_lists_the_resources() {
    let (admin, ..) = start();
    assert!(get(&admin, "/nothing").starts_with("HTTP/1.1 404"));
    let status = get(&admin, "/api/v1/status");
    assert!(status.contains("\"format\": 1"), "{status}");
    assert!(status.contains("\"phase\": \"starting\""), "{status}");
    assert!(send(&admin, "BOGUS\r\n").starts_with("HTTP/1.1 400"));
    let head = send(&admin, "HEAD /livez HTTP/1.1\r\nHost: localhost\r\n");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    let posted = send(&admin, "POST /livez HTTP/1.1\r\nHost: localhost\r\n");
    assert!(posted.starts_with("HTTP/1.1 405"), "{posted}");
}

#[test]
fn admin_idle_connections_do_not_block_a_probe() {
    let (admin, ..) = start();
    let mut held: Vec<TcpStream> = (0..200)
        .map(|_| {
            let mut stream = TcpStream::connect(address(&admin)).expect("it listens");
            let _ = stream.write_all(b"GET /livez HT");
            stream
        })
        .collect();
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
    held[0]
        .set_read_timeout(Some(std::time::Duration::from_secs(20)))
        .expect("set");
    let timed_out = held[0]
        .read(&mut [0])
        .is_err_and(|error| error.kind() == std::io::ErrorKind::WouldBlock);
    assert!(!timed_out, "the oldest is closed");
}

/// Idle connections are closed in its place, the oldest first.
#[test]
fn admin_busy_connection_outlives_a_flood_of_idle_ones() {
    let (admin, _, _, events_of) = start_with_events();
    let mut reader = events(&admin, "");
    assert_eq!(status(&mut reader), "HTTP/1.1 200");
    let idle: Vec<TcpStream> = (0..150)
        .map(|_| TcpStream::connect(address(&admin)).expect("it listens"))
        .collect();
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
    events_of.emit(Kind::Reload, &serde_json::json!({ "text": "still there" }));
    let mut read = String::new();
    let mut piece = [0; 4096];
    while !read.contains("still there") {
        let count = reader.read(&mut piece).expect("the stream goes on");
        assert!(count > 0, "{read}");
        read.push_str(&String::from_utf8_lossy(&piece[..count]));
    }
    drop(idle);
}

#[test]
fn admin_connection_beyond_the_bound_is_told_to_come_again() {
    let held = Arc::new(parking_lot::Mutex::new(()));
    let waits = Arc::clone(&held);
    let (admin, ..) = start_with(move || {
        drop(waits.lock());
        Ok("reloaded".to_owned())
    });
    let all = held.lock();
    let post = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    let mut busy: Vec<TcpStream> = (0..64)
        .map(|_| {
            let mut stream = TcpStream::connect(address(&admin)).expect("it listens");
            stream.write_all(post.as_bytes()).expect("sent");
            stream
        })
        .collect();
    let mut beyond = String::new();
    tollgate_testkit::eventually("all are busy", || {
        beyond = get(&admin, "/livez");
        beyond.starts_with("HTTP/1.1 503")
    });
    assert!(beyond.contains("retry-after: 1"), "{beyond}");
    drop(all);
    for stream in &mut busy {
        assert_eq!(status(stream), "HTTP/1.1 200");
    }
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
}

/// Strangers that connect while others are busy do not make the listener wait.
#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "a test of how long a client waits"
)]
fn admin_probe_does_not_wait_for_room() {
    let held = Arc::new(parking_lot::Mutex::new(()));
    let waits = Arc::clone(&held);
    let (admin, ..) = start_with(move || {
        drop(waits.lock());
        Ok("reloaded".to_owned())
    });
    let all = held.lock();
    let connect = |sent: &str| {
        let mut stream = TcpStream::connect(address(&admin)).expect("it listens");
        stream.write_all(sent.as_bytes()).expect("sent");
        stream
    };
    let post = "POST /-/reload HTTP/1.1\r\nHost: localhost\r\n\r\n";
    let busy: Vec<TcpStream> = (0..63).map(|_| connect(post)).collect();
    let idle: Vec<TcpStream> = (0..30).map(|_| connect("G")).collect();
    let since = std::time::Instant::now();
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
    let waited = since.elapsed();
    assert!(waited < std::time::Duration::from_secs(3), "{waited:?}");
    drop((all, busy, idle));
}

fn events(admin: &Admin, head: &str) -> TcpStream {
    let mut stream = TcpStream::connect(address(admin)).expect("it listens");
    let head = format!("GET /api/v1/events HTTP/1.1\r\nHost: localhost\r\n{head}\r\n");
    stream.write_all(head.as_bytes()).expect("sent");
    let wait = Some(std::time::Duration::from_secs(20));
    stream.set_read_timeout(wait).expect("set");
    stream
}

/// The status line of a response that may go on.
fn status(stream: &mut TcpStream) -> String {
    let mut line = [0; 12];
    stream.read_exact(&mut line).expect("a response");
    String::from_utf8_lossy(&line).into_owned()
}

#[test]
fn event_readers_that_do_not_read_are_disconnected() {
    let (admin, _, _, events_of) = start_with_events();
    let mut slow = events(&admin, "");
    assert_eq!(status(&mut slow), "HTTP/1.1 200");
    // More than the buffers of both sockets and the queue of the reader hold.
    let long = serde_json::json!({ "text": "x".repeat(256 << 10) });
    for _ in 0..200 {
        events_of.emit(Kind::Reload, &long);
    }
    let (mut read, all) = (0, 200 * (256 << 10));
    let mut piece = vec![0; 64 << 10];
    while read < all
        && let Ok(count @ 1..) = slow.read(&mut piece)
    {
        read += count;
    }
    assert!(read < all, "it got everything");
    let mut next = events(&admin, "");
    assert_eq!(status(&mut next), "HTTP/1.1 200");
}

#[test]
fn event_readers_are_few_and_none_is_of_another_site() {
    let (admin, ..) = start();
    for site in ["cross-site", "same-site"] {
        let head = format!("Sec-Fetch-Site: {site}\r\n");
        assert_eq!(status(&mut events(&admin, &head)), "HTTP/1.1 403", "{site}");
    }
    let origin = "Origin: http://evil.example\r\n";
    assert_eq!(status(&mut events(&admin, origin)), "HTTP/1.1 403");
    assert_eq!(
        status(&mut events(&admin, "Host: evil.example\r\n")),
        "HTTP/1.1 400"
    );
    let mut readers: Vec<TcpStream> = (0..events::READERS_MAX)
        .map(|_| events(&admin, "Sec-Fetch-Site: same-origin\r\n"))
        .collect();
    for reader in &mut readers {
        assert_eq!(status(reader), "HTTP/1.1 200");
    }
    assert_eq!(status(&mut events(&admin, "")), "HTTP/1.1 503");
    readers.pop();
    tollgate_testkit::eventually("a place is free", || {
        status(&mut events(&admin, "")) == "HTTP/1.1 200"
    });
    assert!(get(&admin, "/livez").starts_with("HTTP/1.1 200"));
}

fn start() -> (Admin, Readiness, Arc<AtomicUsize>) {
    let (admin, readiness, reloads, _) = start_with_events();
    (admin, readiness, reloads)
}

fn start_with_events() -> (Admin, Readiness, Arc<AtomicUsize>, Events) {
    let reloads = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&reloads);
    let (admin, readiness, events) =
        start_with(move || match counted.fetch_add(1, Ordering::Relaxed) {
            0 => Ok("reloaded".to_owned()),
            _ => Err("unknown key".to_owned()),
        });
    (admin, readiness, reloads, events)
}

fn start_with(
    reload: impl Fn() -> Result<String, String> + Send + Sync + 'static,
) -> (Admin, Readiness, Events) {
    let readiness = Readiness::new();
    let live = live();
    let events = live.events.clone();
    let door = Door::bind(&Listen::Tcp {
        address: SocketAddr::from(([127, 0, 0, 1], 0)),
        tls: false,
    });
    let options = Options {
        hosts: vec!["gate.internal".to_owned()],
        metrics: Metrics::new(0),
        readiness: readiness.clone(),
        status: Arc::new(Status::default),
        live,
        operators: Arc::new(Vec::new),
        audit: Audit::new(None, Clock::system()),
        log_levels: LogLevels::new(LogLevel::Info, Clock::system(), |_| Ok(())),
        webhook: None,
        reload: Arc::new(reload),
    };
    let admin = Admin::serve(door.expect("a free port"), options).expect("a thread");
    admin.open();
    (admin, readiness, events)
}

/// Of a gateway without limits.
pub(super) fn live() -> Live {
    live_of("[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n")
}

/// Of a gateway with this file.
pub(super) fn live_of(file: &str) -> Live {
    let clock = Clock::system();
    let config = tollgate_config::parse(file, "test.toml", &|_| None, clock.now());
    let policy = config.expect("a good file").policy;
    let limiter = Limiter::new(
        &policy.limits,
        Arc::default(),
        clock.clone(),
        ColdStart::Full,
    );
    let metrics = Metrics::new(0);
    let snapshot = Snapshot::new(policy, limiter, &metrics, ProxyDefaults::default());
    let current = Arc::new(ArcSwap::from_pointee(snapshot));
    let overrides = Overrides::start(Arc::clone(&current), clock.clone(), None, None, b"");
    Live {
        events: Events::new(clock.clone()),
        current,
        overrides,
        clock,
        refusals: None,
        names: KeyNames::new([7; 16]),
        plain_keys: false,
        waits: Waits::default(),
        penalties: Default::default(),
    }
}

fn get(admin: &Admin, path: &str) -> String {
    send(
        admin,
        &format!("GET {path} HTTP/1.1\r\nHost: {}\r\n", address(admin)),
    )
}

fn send(admin: &Admin, head: &str) -> String {
    let mut stream = TcpStream::connect(address(admin)).expect("it listens");
    stream
        .write_all(format!("{head}Connection: close\r\n\r\n").as_bytes())
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

fn address(admin: &Admin) -> SocketAddr {
    match admin.address() {
        Listen::Tcp { address, .. } => *address,
        Listen::Unix(_) => unreachable!("the tests listen on TCP"),
    }
}

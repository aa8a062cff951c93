//! A reset on one gateway reaches the others on the same store, and begins a generation of the bucket.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc;

use serde_json::json;

use crate::gateways::{Gateway, change, status, store};
use crate::servers::wait_until;
use crate::servers::{Server, StoreKind};

/// The SHA-256 of `test`.
const OPERATORS: &str = "operators = [{ name = \"ann\", token = \"sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08\" }]\n";

fn settings(server: &Server, place: usize) -> String {
    let store = store(server, place);
    format!(
        "{OPERATORS}{store}[limits.total]\nper = \"everyone\"\nrate = \"3/hour\"\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\nlimits = [\"total\"]\n"
    )
}

/// Asks a gateway until it refuses; returns how many it granted.
fn exhaust(port: u16) -> u64 {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut granted = 0;
    while status(&mut stream, "/") == Some(200) {
        granted += 1;
    }
    granted
}

fn reset(admin: u16) -> String {
    change(admin, "POST", "reset", &json!({ "reason": "a test" }))
}

/// Every gateway has refused and knows that the bucket is exhausted; a reset on the first one makes the second admit, and
/// all of them together grant the burst once more and no unit beyond it.
pub fn reaches_the_others(server: Server) {
    let gateways = [0, 1].map(|place| Gateway::start_on(&settings(&server, place)));
    assert_eq!(exhaust(gateways[0].port), 3);
    assert_eq!(exhaust(gateways[1].port), 0);
    let done = reset(gateways[0].admin);
    assert!(done.starts_with("HTTP/1.1 200"), "{done}");
    assert!(done.contains("\"store\": \"shared\""), "{done}");
    let mut granted = 0;
    wait_until("an admission by the other gateway", || {
        granted = exhaust(gateways[1].port);
        granted > 0
    });
    assert_eq!(granted + exhaust(gateways[0].port), 3);
}

/// An upstream that accepts one request, says so, waits until it is told to go on, and fails.
fn failing_upstream() -> (u16, mpsc::Receiver<()>, mpsc::Sender<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let (arrives, arrived) = mpsc::channel();
    let (go_on, told) = mpsc::channel();
    std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let read = stream.read(&mut [0; 4096]).unwrap();
        assert!(read > 0, "a request");
        arrives.send(()).unwrap();
        let _ = told.recv();
        let failure = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(failure).unwrap();
    });
    (port, arrived, go_on)
}

/// A call is under way while the bucket is reset and used up. That it turns out to cost nothing returns nothing to the
/// bucket. (What it returns to a limit that was not reset shows that it has ended.)
fn call_under_way_returns_nothing(settings: &str) {
    let (upstream, arrived, go_on) = failing_upstream();
    let limit = |name: &str, rate: u32| {
        format!(
            "[limits.{name}]\nper = \"everyone\"\nrate = \"{rate}/hour\"\nrefund_on = [\"5xx\"]\n"
        )
    };
    let route = |path: &str, upstream: &str, limits: &str| {
        format!("[[routes]]\nmatch = \"{path}\"\nupstream = \"{upstream}\"\nlimits = [{limits}]\n")
    };
    let gateway = Gateway::start_on(&format!(
        "{OPERATORS}{settings}{}{}{}{}{}",
        limit("total", 3),
        limit("other", 1),
        route(
            "/slow",
            &format!("http://127.0.0.1:{upstream}"),
            "\"total\", \"other\""
        ),
        route("/other", "builtin:echo", "\"other\""),
        route("/**", "builtin:echo", "\"total\""),
    ));
    let ask = |path: &str| {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
        status(&mut stream, path)
    };
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| ask("/slow"));
        arrived.recv().unwrap();
        assert_eq!(ask("/other"), Some(429));
        assert_eq!(exhaust(gateway.port), 2);
        let body = json!({ "reason": "a test", "limit": "total" });
        let done = change(gateway.admin, "POST", "reset", &body);
        assert!(done.starts_with("HTTP/1.1 200"), "{done}");
        let mut granted = 0;
        wait_until("an admission", || {
            granted = exhaust(gateway.port);
            granted > 0
        });
        assert_eq!(granted, 3);
        go_on.send(()).unwrap();
        assert_eq!(slow.join().unwrap(), Some(500));
    });
    wait_until("what the call returns", || ask("/other") == Some(200));
    assert_eq!(exhaust(gateway.port), 0);
}

pub fn call_under_way_grants_once(server: Server) {
    call_under_way_returns_nothing(&store(&server, 0));
}

#[test]
fn reset_under_a_call_in_the_process_grants_once() {
    call_under_way_returns_nothing("");
}

#[test]
fn reset_without_a_store_changes_nothing_and_says_so() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let gateway = Gateway::start_on(&settings(&server, 0));
    assert_eq!(exhaust(gateway.port), 3);
    drop(server);
    wait_until("a gateway that misses its store", || {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
        status(&mut stream, "/") == Some(503)
    });
    let done = reset(gateway.admin);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert!(done.contains("limit `total`: not available"), "{done}");
}

/// A change of limits in the process is made also if the store does not respond for the limits that are written first.
#[test]
fn changes_without_a_store_are_made_for_the_limits_in_the_process() {
    let Some(server) = StoreKind::Redis.start() else {
        return;
    };
    let own = "[limits.zone]\nper = \"everyone\"\nrate = \"3/hour\"\nstore = \"local\"\n\
               [[routes]]\nmatch = \"/own\"\nupstream = \"builtin:echo\"\nlimits = [\"zone\"]\n";
    let gateway = Gateway::start_on(&(settings(&server, 0) + own));
    let own = || {
        let mut stream = TcpStream::connect(("127.0.0.1", gateway.port)).unwrap();
        status(&mut stream, "/own")
    };
    assert_eq!([(); 4].map(|()| own()), [200, 200, 200, 429].map(Some));
    drop(server);
    let done = reset(gateway.admin);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert_eq!(own(), Some(200));
    let block = json!({ "reason": "a test", "block": true, "for": "1h" });
    let done = change(gateway.admin, "PUT", "override", &block);
    assert!(done.starts_with("HTTP/1.1 503"), "{done}");
    assert_eq!(own(), Some(429));
}

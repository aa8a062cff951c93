//! What reaches the upstream, and what comes back.

use std::sync::Barrier;

use crate::harness::{Gateway, Reply, Upstream};

#[test]
fn request_arrives_unchanged_except_hop_by_hop_headers() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let answer = gateway.request(
        "GET",
        "/a%20b/c;d?x=1&y=%2F",
        &[
            ("Connection", "keep-alive, X-Hop"),
            ("X-Hop", "1"),
            ("Keep-Alive", "5"),
            ("X-Stays", "yes"),
            ("TE", "gzip"),
        ],
    );
    assert_eq!(answer.status, 200);
    let seen = upstream.last();
    assert_eq!(
        seen.line(),
        "GET /a%20b/c;d?x=1&y=%2F HTTP/1.1",
        "byte for byte"
    );
    assert_eq!(seen.header("x-stays"), Some("yes"));
    for gone in ["x-hop", "keep-alive", "te"] {
        assert_eq!(seen.header(gone), None, "{gone}");
    }
    assert_eq!(seen.header("x-forwarded-for"), Some("127.0.0.1"));
}

#[test]
fn bodies_pass_both_ways() {
    let upstream = Upstream::start(|seen| {
        Reply::new(
            201,
            &[("x-length", &seen.body.len().to_string())],
            &seen.body,
        )
    });
    let gateway = Gateway::start(&open(&upstream));
    let body = "0123456789abcdef".repeat(20_000);
    let mut connection = gateway.connect();
    connection.send(format!(
        "POST /up HTTP/1.1\r\nHost: x\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    ));
    let answer = connection.answer("POST");
    assert_eq!((answer.status, answer.body.len()), (201, body.len()));
    connection.send(
        "POST /up HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n",
    );
    assert_eq!(connection.answer("POST").text(), "hello world");
    assert_eq!(
        upstream.connections(),
        1,
        "the upstream's connection is kept"
    );
}

#[test]
fn connections_of_a_burst_serve_the_next_one() {
    const BURST: usize = 300;
    // The upstream replies once all requests of a burst have arrived: each has a connection.
    let all = Barrier::new(BURST);
    let upstream = Upstream::start(move |_| {
        all.wait();
        Reply::ok("hello")
    });
    let gateway = Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n{}",
        open(&upstream)
    ));
    let mut clients: Vec<_> = (0..BURST).map(|_| gateway.connect()).collect();
    for _ in 0..3 {
        for client in &mut clients {
            client.send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
        }
        for client in &mut clients {
            assert_eq!(client.answer("GET").text(), "hello");
        }
    }
    assert_eq!(upstream.connections(), BURST);
}

#[test]
fn a_head_request_has_no_body_and_keeps_its_length() {
    let upstream =
        Upstream::start(|_| Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n".to_vec()));
    let gateway = Gateway::start(&open(&upstream));
    let mut connection = gateway.connect();
    let answer = connection.request("HEAD", "/", &[]);
    assert_eq!(
        (
            answer.status,
            answer.header("content-length"),
            answer.body.len()
        ),
        (200, Some("5"), 0)
    );
    assert_eq!(
        connection.request("HEAD", "/", &[]).status,
        200,
        "the connection goes on"
    );
}

#[test]
fn the_most_specific_route_wins_and_none_is_404() {
    let (one, two) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&format!(
        "[[routes]]\nmatch = \"GET /api/**\"\nupstream = \"{}\"\n[[routes]]\nmatch = \"/api/{{item}}/x\"\nupstream = \"{}\"\n",
        one.url(),
        two.url()
    ));
    assert_eq!(gateway.get("/api/7/x").status, 200);
    assert_eq!(
        gateway.get("/api/%37/./x").status,
        200,
        "no spelling slips past"
    );
    assert_eq!(gateway.get("/api/7/y").status, 200);
    assert_eq!((one.seen().len(), two.seen().len()), (1, 2));
    let lost = gateway.get("/nowhere");
    assert_eq!(
        (lost.status, lost.header("content-type")),
        (404, Some("application/problem+json"))
    );
}

#[test]
fn echo_sends_100_continue_to_a_client_that_waits_for_it() {
    let gateway = Gateway::start("[[routes]]\nmatch = \"/**\"\nupstream = \"builtin:echo\"\n");
    let mut connection = gateway.connect();
    for _ in 0..2 {
        connection.send(
            "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        );
        assert_eq!(connection.interim(), 100);
        connection.send("hello");
        assert_eq!(connection.answer("POST").text(), "hello");
    }
    // What is not wanted is not asked for.
    connection
        .send("HEAD / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n");
    assert_eq!(connection.interim(), 200);
}

pub(crate) fn open(upstream: &Upstream) -> String {
    format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\n",
        upstream.url()
    )
}

#[test]
fn upstream_connection_ends_after_a_response_that_announces_a_body_it_cannot_have() {
    let upstream = Upstream::start(|seen| {
        let path = seen.line().split(' ').nth(1).unwrap_or_default().to_owned();
        let odd = match &path[..] {
            "/204" => "HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n",
            "/204-chunked" => "HTTP/1.1 204 No Content\r\ntransfer-encoding: chunked\r\n\r\n",
            "/304" => "HTTP/1.1 304 Not Modified\r\ncontent-length: 5\r\n\r\n",
            "/103" => {
                "HTTP/1.1 103 Early Hints\r\ncontent-length: 5\r\n\r\nHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"
            }
            "/head" => "HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n",
            "/204-plain" => "HTTP/1.1 204 No Content\r\n\r\n",
            "/304-plain" => "HTTP/1.1 304 Not Modified\r\netag: \"a\"\r\n\r\n",
            "/head-plain" => "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            _ => return Reply::ok("hello"),
        };
        Reply::Bytes(odd.into())
    });
    for (method, path, fresh) in [
        ("GET", "/204", true),
        ("GET", "/204-chunked", true),
        ("GET", "/304", true),
        ("GET", "/103", true),
        ("HEAD", "/head", true),
        ("GET", "/204-plain", false),
        ("GET", "/304-plain", false),
        ("HEAD", "/head-plain", false),
    ] {
        let gateway = Gateway::start(&format!(
            "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\n{}",
            open(&upstream)
        ));
        let before = upstream.connections();
        let mut connection = gateway.connect();
        let answer = connection.request(method, path, &[]);
        assert!(answer.status < 400, "{path}: {answer:?}");
        assert_eq!(
            connection.request("GET", "/", &[]).text(),
            "hello",
            "{path}"
        );
        assert_eq!(
            upstream.connections() - before,
            1 + usize::from(fresh),
            "{path}"
        );
    }
}

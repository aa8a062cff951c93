//! Bad input and dead upstreams: each has its clear answer, and the gateway serves on.

use crate::forwarding::open;
use crate::harness::{Gateway, Reply, Upstream};
use crate::servers::free_port;

#[test]
fn an_upstream_that_cannot_be_reached_is_502_with_a_problem_body() {
    let dead = format!("127.0.0.1:{}", free_port());
    let gateway = Gateway::start(&format!(
        "[[routes]]\nmatch = \"/**\"\nupstream = \"http://{dead}\"\n"
    ));
    let answer = gateway.get("/");
    assert_eq!(
        (answer.status, answer.header("content-type")),
        (502, Some("application/problem+json"))
    );
}

#[test]
fn upstream_closing_without_a_response_is_502() {
    let upstream = Upstream::start(|_| Reply::Close(Vec::new()));
    let gateway = Gateway::start(&open(&upstream));
    assert_eq!(
        gateway
            .request("POST", "/", &[("Content-Length", "0")])
            .status,
        502
    );
    assert_eq!(upstream.seen().len(), 1, "a POST is never sent twice");
}

#[test]
fn an_upstream_that_is_too_slow_is_504() {
    let upstream = Upstream::start(|_| Reply::Silence);
    let gateway = Gateway::start(&format!(
        "[upstreams.app]\nservers = [\"{}\"]\ntimeouts = {{ response = \"100ms\" }}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n",
        upstream.url()
    ));
    assert_eq!(gateway.get("/").status, 504);
}

#[test]
fn a_body_with_two_lengths_smuggles_nothing() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&open(&upstream));
    let mut connection = gateway.connect();
    connection.send(
        "POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n\
         0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    // RFC 9112 section 6.3: refuse it, or go by the chunks alone and close the connection after the answer.
    let answer = connection.answer("POST");
    assert!(answer.status == 400 || connection.is_closed(), "{answer:?}");
    for seen in upstream.seen() {
        assert!(
            seen.all("content-length").is_empty() || seen.all("transfer-encoding").is_empty(),
            "{}",
            seen.head
        );
        assert!(!seen.line().contains("smuggled"), "{}", seen.head);
    }
}

#[test]
fn too_much_is_refused_by_its_kind() {
    let upstream = Upstream::hello();
    let gateway = Gateway::start(&format!(
        "[server.bounds]\nbody = \"1KiB\"\nheaders = 20\n{}",
        open(&upstream)
    ));
    let many: Vec<(String, String)> = (0..30)
        .map(|n| (format!("x-{n}"), "v".to_owned()))
        .collect();
    let many: Vec<(&str, &str)> = many
        .iter()
        .map(|(name, value)| (name.as_str(), value.as_str()))
        .collect();
    assert_eq!(gateway.request("GET", "/", &many).status, 431);
    let mut connection = gateway.connect();
    connection.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4096\r\n\r\n");
    assert_eq!(connection.answer("POST").status, 413);
    assert_eq!(upstream.seen().len(), 0);
}

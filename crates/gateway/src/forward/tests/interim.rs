//! Responses before the final one: 100 for a client that waits with its body, early hints.

use std::io::Write;
use std::net::TcpStream;

use super::origin::{OK, Origin};
use super::relay::{gateway, gateway_on, route, upstream};
use super::wire::{read_head, read_response};
use tollgate_policy::routes::Template;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

/// Sends a head that announces a body of five bytes and waits; returns the head of the first response.
fn expect_continue(client: &mut TcpStream) -> String {
    client
        .write_all(
            b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 5\r\nExpect: 100-continue\r\n\r\n",
        )
        .expect("sent");
    read_head(client).expect("a head")
}

#[test]
fn a_body_waits_for_the_upstreams_continue() {
    let origin = Origin::start(|conn| {
        let head = conn.until("\r\n\r\n")?;
        assert!(
            head.to_ascii_lowercase().contains("expect: 100-continue"),
            "{head}"
        );
        conn.send("HTTP/1.1 100 Continue\r\n\r\n")?;
        conn.until("hello")?;
        conn.send(OK)
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    assert!(expect_continue(&mut client).starts_with("HTTP/1.1 100 "));
    client.write_all(b"hello").expect("sent");
    assert_eq!(read_response(&mut client).status, 200);
}

#[test]
fn a_refused_expectation_never_asks_for_the_body() {
    let origin = Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.send("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")?;
        conn.receive().map(|_| ())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    assert!(expect_continue(&mut client).starts_with("HTTP/1.1 403 "));
}

#[test]
fn interim_response_is_not_the_final_one() {
    let origin = Origin::responding(
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 102 Processing\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    assert_eq!(gateway(upstream(origin.address)).ask(GET).body, "ok");
}

#[test]
fn header_removed_by_the_route_is_in_no_interim_response() {
    let origin = Origin::responding(
        "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\nX-Internal: 1\r\nServer: that\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok",
    );
    let mut hinting = upstream(origin.address);
    hinting.early_hints = true;
    let mut route = route();
    route
        .response_headers
        .remove
        .push("x-internal".parse().expect("a name"));
    let other = Template::parse("this", |_| None).expect("a template");
    route
        .response_headers
        .set
        .push(("server".parse().expect("a name"), other));
    let said =
        gateway_on(hinting, route).talk("GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    let (hints, response) = said.split_once("\r\n\r\n").expect("two heads");
    assert_eq!(hints, "HTTP/1.1 103 Early Hints\r\nlink: </x>");
    assert!(response.starts_with("HTTP/1.1 200 OK"), "{response}");
}

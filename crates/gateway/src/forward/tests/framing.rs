//! What may not pass, in either direction, and what the upstream sees of what may.

use super::origin::{OK, Origin};
use super::relay::{gateway, gateway_on, route, upstream};
use super::wire::{DEADLINE, header};

#[test]
fn the_upstream_sees_a_clean_request() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let response = gateway.ask(
        "GET /%2e/a%2Fb//c;d?x=%20&y HTTP/1.1\r\nHost: api.example\r\nConnection: X-Gone, keep-alive, X-Forwarded-For\r\n\
         X-Gone: 1\r\nKeep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\
         X-Forwarded-For: 1.2.3.4\r\nForwarded: for=1.2.3.4\r\nAccept: */*\r\n\r\n",
    );
    assert_eq!((response.status, response.body.as_str()), (200, "ok"));
    let seen = &origin.records()[0];
    assert_eq!(
        seen.to_ascii_lowercase(),
        "get /%2e/a%2fb//c;d?x=%20&y http/1.1\r\nhost: api.example\r\naccept: */*\r\nx-forwarded-for: 127.0.0.1\r\n\
         x-forwarded-proto: http\r\nx-forwarded-host: api.example\r\n\r\n"
    );
    assert!(
        seen.starts_with("GET /%2e/a%2Fb//c;d?x=%20&y HTTP/1.1\r\n"),
        "the target is byte-exact"
    );
}

#[test]
fn smuggling_is_refused_and_reaches_no_upstream() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let smuggled = "0\r\n\r\nGET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n";
    let mut cases = vec![
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked".to_owned(),
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity".to_owned(),
        "Content-Length: 4\r\nContent-Length: 5".to_owned(),
        "Content-Length: +4".to_owned(),
        "Content-Length: 4, 5".to_owned(),
        "Transfer-Encoding : chunked".to_owned(),
        "X: y\r\n Transfer-Encoding: chunked".to_owned(),
        "Bad\0Name: x".to_owned(),
        "Name: va\0lue".to_owned(),
        "Name: va\rlue".to_owned(),
        "Host: b".to_owned(),
    ];
    for coding in [
        "identity",
        "chunked, chunked",
        "identity, chunked",
        "x, chunked",
        ",chunked",
        "chunked,",
        "xchunked",
        "gzip",
    ] {
        cases.push(format!("Transfer-Encoding: {coding}"));
    }
    for case in cases {
        let text = gateway.talk(&format!(
            "POST /x HTTP/1.1\r\nHost: a\r\n{case}\r\n\r\n{smuggled}"
        ));
        let status = text.split(' ').nth(1).unwrap_or("nothing");
        assert!(matches!(status, "400" | "501"), "{case:?}: {text}");
        assert_eq!(
            text.matches("HTTP/1.1 ").count(),
            1,
            "{case:?}: the connection closes: {text}"
        );
    }
    for head in [
        "GET / HTTP/1.1\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: a/b\r\n\r\n",
        "GET / HTTP/1.1\r\nHost: u@a\r\n\r\n",
        "GET http://u:p@a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET ftp://a/ HTTP/1.1\r\nHost: a\r\n\r\n",
        "CONNECT a:443 HTTP/1.1\r\nHost: a:443\r\n\r\n",
        "POST / HTTP/1.0\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let text = gateway.talk(head);
        let status = text.split(' ').nth(1).unwrap_or("nothing");
        assert!(matches!(status, "400" | "501"), "{head:?}: {text}");
    }
    assert!(origin.records().is_empty(), "{:?}", origin.records());
}

#[test]
fn both_length_and_chunks_are_framed_by_the_chunks_alone() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let text = gateway.talk(
        "POST /x HTTP/1.1\r\nHost: a\r\nContent-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n\
         GET /smuggled HTTP/1.1\r\nHost: a\r\n\r\n",
    );
    assert_eq!(
        text.matches("HTTP/1.1 200").count(),
        1,
        "the connection closes after it: {text}"
    );
    let seen = &origin.records()[0];
    assert!(
        !seen.to_ascii_lowercase().contains("content-length"),
        "{seen}"
    );
    assert!(seen.ends_with("5\r\nhello\r\n0\r\n\r\n"), "{seen}");
}

#[test]
fn an_absolute_target_names_the_host() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    assert_eq!(
        gateway
            .ask("GET http://real.example/x?y HTTP/1.1\r\nHost: other\r\n\r\n")
            .status,
        200
    );
    let seen = &origin.records()[0];
    assert!(seen.starts_with("GET /x?y HTTP/1.1\r\n"), "{seen}");
    assert!(
        seen.to_ascii_lowercase()
            .contains("\r\nhost: real.example\r\n"),
        "{seen}"
    );
    assert_eq!(
        gateway
            .ask("GET http://real.example?y HTTP/1.1\r\nHost: other\r\n\r\n")
            .status,
        200
    );
    assert!(
        origin.records().concat().contains("GET /?y HTTP/1.1\r\n"),
        "{:?}",
        origin.records()
    );
}

#[test]
fn response_that_is_not_http_becomes_502() {
    for bad in [
        "garbage\r\n\r\n",
        "HTTP/1.1 abc OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n",
        "HTTP/1.1 200 O\rK\r\n\r\n",
        "HTTP/1.1 2000 OK\r\n\r\n",
        "HTTP/1.1 200 OK\r\nX: a\r\n folded\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length : 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nContent-Length: 0x1\r\n\r\nx",
        "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
        "",
    ] {
        let origin = Origin::start(move |conn| {
            conn.request()?;
            conn.send(bad)
        });
        let response = gateway(upstream(origin.address)).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(response.status, 502, "{bad:?}: {response:?}");
        assert!(response.body.contains("upstream-answer"), "{response:?}");
    }
}

/// Whatever an upstream says wrongly on a connection: the bytes after it, which would be a response, go to no request.
#[test]
fn malformed_response_affects_no_later_request() {
    const EVIL: &str = "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nevil";
    for (bad, status) in [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 44\r\n\r\n",
            502,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
            502,
        ),
        ("HTTP/1.1 200 OK\r\nX: a\r\n b\r\n\r\n", 502),
        (
            "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            502,
        ),
        // These are responses; the bytes after them are not.
        ("HTTP/1.1 204 No Content\r\nContent-Length: 43\r\n\r\n", 204),
        (
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 43\r\n\r\n",
            304,
        ),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", 200),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            200,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab0\r\n\r\n",
            200,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX Y: z\r\n\r\n",
            200,
        ),
    ] {
        let origin = Origin::start(move |conn| {
            conn.request()?;
            if conn.index > 0 {
                return conn.send(OK);
            }
            conn.send(&format!("{bad}{EVIL}"))?;
            // Only the gateway ends this: it must not keep the connection.
            while conn.receive().is_ok() {}
            Ok(())
        });
        let gateway = gateway(upstream(origin.address));
        let get = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";
        let first = gateway.ask(get);
        assert_eq!(first.status, status, "{bad:?}: {first:?}");
        assert!(!first.body.contains("evil"), "{bad:?}: {first:?}");
        assert_eq!(gateway.ask(get).body, "ok", "{bad:?}");
        origin.wait_closed();
        let records = origin.records();
        assert!(
            records.len() == 2 && records[0].matches("GET /").count() == 1,
            "{bad:?}: {records:?}"
        );
    }
}

#[test]
fn bytes_on_an_idle_connection_are_no_response() {
    let (sent, wait) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send(OK)?;
        if conn.index == 0 {
            conn.send("HTTP/1.1 408 Request Timeout\r\nContent-Length: 4\r\n\r\nevil")?;
            let _ = sent.send(());
        }
        conn.receive().map(|_| ())
    });
    let gateway = gateway(upstream(origin.address));
    for method in ["GET", "POST"] {
        let ask = format!("{method} / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n");
        let response = gateway.ask(&ask);
        assert_eq!(
            (response.status, response.body.as_str()),
            (200, "ok"),
            "{method}: {response:?}"
        );
        if method == "GET" {
            wait.recv_timeout(DEADLINE).expect("it was sent");
        }
    }
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn response_has_no_hop_by_hop_headers() {
    let origin = Origin::responding(
        "HTTP/1.1 200 OK\r\nContent-Length: 9\r\nTransfer-Encoding: chunked\r\nConnection: X-Gone, keep-alive\r\nX-Gone: 1\r\n\
         Keep-Alive: 5\r\nProxy-Connection: x\r\nUpgrade: h2c\r\nServer: theirs\r\nX-Kept: 1\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    );
    let response = gateway(upstream(origin.address)).ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_eq!(response.status, 200);
    assert_eq!(response.body, "2\r\nok\r\n0\r\n\r\n");
    for gone in [
        "content-length",
        "x-gone",
        "keep-alive",
        "proxy-connection",
        "upgrade",
    ] {
        assert_eq!(response.header(gone), None, "{gone}: {}", response.head);
    }
    assert_eq!(response.header("x-kept"), Some("1"));
    assert_eq!(response.header("server"), Some("theirs"));
}

#[test]
fn bodyless_responses_have_no_body() {
    for (request, sent, status, length, connections) in [
        // If the upstream sends that body nevertheless, it would be read as the next response.
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n",
            200,
            Some("5"),
            2,
        ),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            304,
            Some("5"),
            2,
        ),
        (
            "HEAD",
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            200,
            Some("0"),
            1,
        ),
        ("GET", "HTTP/1.1 204 No Content\r\n\r\n", 204, None, 1),
        (
            "GET",
            "HTTP/1.1 304 Not Modified\r\nETag: \"x\"\r\n\r\n",
            304,
            None,
            1,
        ),
    ] {
        let origin = Origin::responding(sent);
        let gateway = gateway(upstream(origin.address));
        let ask = format!("{request} / HTTP/1.1\r\nHost: a\r\n\r\n");
        // Twice on one connection: a body that is not there must not be waited for.
        let text = gateway.talk(&format!(
            "{ask}{request} / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        assert_eq!(
            text.matches(&format!("HTTP/1.1 {status}")).count(),
            2,
            "{text}"
        );
        assert_eq!(header(&text, "content-length"), length, "{text}");
        assert_eq!(
            origin.records().len(),
            connections,
            "{request} {status}: the upstream's connections"
        );
    }
}

#[test]
fn a_route_rewrites_the_path_and_nothing_else_of_it() {
    let origin = Origin::responding(OK);
    let mut route = route();
    route.strip_prefix = Some("/v1".into());
    route.add_prefix = Some("/api".into());
    let gateway = gateway_on(upstream(origin.address), route);
    assert_eq!(
        gateway
            .ask("GET /v1/a%2Fb;x//?c HTTP/1.1\r\nHost: a\r\n\r\n")
            .status,
        200
    );
    let seen = &origin.records()[0];
    assert!(
        seen.starts_with("GET /api/a%2Fb;x//?c HTTP/1.1\r\n"),
        "{seen}"
    );
}

#[test]
fn no_spelling_climbs_out_of_the_prefix_it_is_put_under() {
    let origin = Origin::responding(OK);
    let mut route = route();
    route.strip_prefix = Some("/v1".into());
    route.add_prefix = Some("/api".into());
    let gateway = gateway_on(upstream(origin.address), route);
    // To the router all of these are below /v1.
    for path in [
        "/v1/../v1/a",
        "/v1/%2e%2E/v1/a",
        "/v1/a/../../v1/a",
        "/v1//..//v1/a",
    ] {
        let text = gateway.talk(&format!(
            "GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        ));
        assert!(text.starts_with("HTTP/1.1 400"), "{path}: {text}");
    }
    assert!(origin.records().is_empty(), "{:?}", origin.records());
    assert_eq!(
        gateway
            .ask("GET /v1/a/../b HTTP/1.1\r\nHost: a\r\n\r\n")
            .status,
        200
    );
    assert!(origin.records()[0].starts_with("GET /api/a/../b HTTP/1.1\r\n"));
}

//! The body that is read before the decision is forwarded whole.

use std::process::Command;

use super::*;

#[test]
fn body_member_is_a_key_and_a_route_and_the_body_is_forwarded_unchanged() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let mut connection = gateway.connect();
    for (tool, units) in [("read", 9), ("read", 8), ("write", 9)] {
        let answer = post(&mut connection, "/mcp", "", &call(tool));
        assert_eq!(
            (answer.status, answer.left_of("tool")),
            (200, Some(units)),
            "{tool}"
        );
    }
    let answer = post(&mut connection, "/mcp", "", &call("search"));
    assert_eq!((answer.status, answer.left_of("total")), (200, None));
    assert_eq!(searches.last().body, call("search").as_bytes());
    let listed = r#"{"jsonrpc":"2.0","id":2,"method":"tools/list"}"#;
    let answer = post(&mut connection, "/mcp", "", listed);
    assert_eq!((answer.status, answer.left_of("total")), (200, Some(96)));
    assert_eq!(upstream.last().body, listed.as_bytes());
    // Escapes and blanks spell the same tool.
    let spelt = "{ \"params\" : { \"n\\u0061me\" : \"re\\u0061d\" }, \"method\" : \"tools/call\" }";
    let answer = post(
        &mut connection,
        "/mcp",
        "Content-Type: text/plain\r\n",
        spelt,
    );
    assert_eq!((answer.status, answer.left_of("tool")), (200, Some(7)));
    assert_eq!(upstream.last().body, spelt.as_bytes());
    // A request without a body, and a route that asks nothing of it.
    assert_eq!(post(&mut connection, "/mcp", "", "").status, 200);
    assert_eq!(post(&mut connection, "/plain", "", "{not json").status, 200);
}

#[test]
fn body_in_pieces_with_trailers_or_awaited_is_forwarded_whole() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let text = format!("{}{}", call("search"), " ".repeat(20_000));
    let mut connection = gateway.connect();
    connection.send(
        "POST /mcp HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: x-sum\r\n\r\n",
    );
    for piece in text.as_bytes().chunks(777) {
        connection.send(format!("{:x}\r\n", piece.len()));
        connection.send(piece);
        connection.send("\r\n");
    }
    connection.send("0\r\nX-Sum: 7\r\n\r\n");
    assert_eq!(connection.answer("POST").status, 200);
    let seen = searches.last();
    assert_eq!(seen.body, text.as_bytes());
    assert_eq!(seen.trailers.join(",").to_lowercase(), "x-sum: 7");

    let short = call("read");
    connection.send(format!(
        "POST /mcp HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: {}\r\n\r\n",
        short.len()
    ));
    assert_eq!(connection.interim(), 100, "the decision needs the body");
    connection.send(&short);
    assert_eq!(connection.answer("POST").status, 200);
    assert_eq!(upstream.last().body, short.as_bytes());
}

#[test]
fn body_over_http2_is_read_and_forwarded_whole() {
    let (upstream, searches) = (Upstream::hello(), Upstream::hello());
    let gateway = Gateway::start(&tools(&upstream, &searches));
    let text = format!("{}{}", call("search"), " ".repeat(40_000));
    let url = format!("http://{}/mcp", gateway.address());
    let sent = Command::new("curl")
        .args(["-sS", "--http2-prior-knowledge", "-d", &text, &url])
        .output()
        .expect("curl runs");
    assert_eq!(String::from_utf8_lossy(&sent.stdout), "hello", "{sent:?}");
    assert_eq!(searches.last().body, text.as_bytes());
}

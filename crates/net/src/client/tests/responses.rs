//! Responses in any pieces, with headers that are parsed or not, and malformed ones.

use http::Method;

use super::*;

#[test]
fn client_writes_the_request_unchanged_and_reads_a_response_in_any_pieces() {
    let responses = [
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello",
            200,
            "hello",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n",
            200,
            "hello",
            true,
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\nHTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n",
            404,
            "",
            true,
        ),
        ("HTTP/1.1 204 No Content\r\n\r\n", 204, "", true),
        (
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 5\r\n\r\n",
            304,
            "",
            false,
        ),
        (
            "HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
            204,
            "",
            false,
        ),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 0\r\n\r\n",
            204,
            "",
            true,
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nContent-Length: 1\r\n\r\nHTTP/1.1 204 No\r\n\r\n",
            204,
            "",
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nhi",
            200,
            "hi",
            false,
        ),
        (
            "HTTP/1.0 200 OK\r\nConnection: Keep-Alive\r\nContent-Length: 2\r\n\r\nhi",
            200,
            "hi",
            true,
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
            200,
            "hi",
            false,
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\nConnection: x, close\r\nContent-Length: 2\r\n\r\nhi",
            200,
            "hi",
            false,
        ),
        ("HTTP/1.1 200 OK\nContent-Length: 2\n\nhi", 200, "hi", true),
        // Both: the chunks count, and the connection is not trusted.
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            200,
            "hi",
            false,
        ),
    ];
    let mut dice = fastrand::Rng::with_seed(9110);
    for (said, status, body, reusable) in responses {
        for _ in 0..50 {
            let (mut pieces, mut rest) = (Vec::new(), said.as_bytes());
            while !rest.is_empty() {
                let (piece, after) = rest.split_at(dice.usize(1..=rest.len().min(40)));
                pieces.push(piece);
                rest = after;
            }
            let mut link = link(&pieces);
            link.socket.verbatim = dice.bool();
            let came = exchange(&mut link, Method::GET).expect(said).expect(said);
            assert_eq!(
                (came.0, &*came.1, came.3),
                (status, body.as_bytes(), reusable),
                "{said:?}"
            );
            assert_eq!(came.2.is_some(), said.contains("X-Sum"), "{said:?}");
            assert_eq!(link.socket.heard, b"GET /x?y HTTP/1.1\r\nhost: a\r\n\r\n");
        }
    }
}

#[test]
fn client_headers_are_parsed_unless_verbatim_suffices() {
    let usual = "HTTP/1.1 200 OK\r\nServer: a\r\nContent-Length: 0\r\n\r\n";
    for (said, method, forgone, kept) in [
        (usual, Method::GET, true, Some("Server: a\r\n")),
        (usual, Method::GET, false, None),
        (usual, Method::HEAD, true, None),
        (
            "HTTP/1.1 304 Not Modified\r\nContent-Length: 7\r\n\r\n",
            Method::GET,
            true,
            None,
        ),
        (
            "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n",
            Method::GET,
            true,
            None,
        ),
        (
            "HTTP/1.1 103 Early Hints\r\nA: 1\r\n\r\nHTTP/1.1 200 OK\r\nB: 2\r\n\r\n",
            Method::GET,
            true,
            Some("B: 2\r\n"),
        ),
        (
            "HTTP/1.1 200 OK\r\nConnection: A\r\nA: 1\r\nContent-Length: 0\r\n\r\n",
            Method::GET,
            true,
            None,
        ),
    ] {
        let mut link = link(&[said.as_bytes()]);
        link.socket.verbatim = forgone;
        ask(&mut link, method);
        let mut interim = 0;
        let response = link.poll_response(&mut context(), |_, fields| interim += fields.len());
        let Poll::Ready(Ok(head)) = response else {
            panic!("a head")
        };
        let lines = link.take_verbatim().map(|verbatim| verbatim.lines);
        assert_eq!(lines.as_deref(), kept.map(str::as_bytes), "{said:?}");
        assert_eq!(head.headers.is_empty(), kept.is_some(), "{said:?}");
        assert_eq!(
            interim,
            usize::from(said.contains("103")),
            "interim responses are looked at"
        );
    }
}

#[test]
fn client_malformed_response_ends_its_connection() {
    let long = format!("HTTP/1.1 200 OK\r\nX: {}\r\n\r\n", "x".repeat(64 * 1024));
    let many = format!("HTTP/1.1 200 OK\r\n{}\r\n", "X: y\r\n".repeat(101));
    let interim = format!(
        "{}HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
        "HTTP/1.1 102 P\r\n\r\n".repeat(1001)
    );
    for (said, why) in [
        ("", "silent"),
        ("H", "broken"),
        ("HTTP/1.1 200 O", "broken"),
        ("HTTP/1.1 100 Continue\r\n\r\n", "broken"),
        ("garbage", "StartLine"),
        (
            "\r\nHTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n",
            "StartLine",
        ),
        ("HTTP/1.1 abc OK\r\n\r\n", "StartLine"),
        ("HTTP/1.1 2000 OK\r\n\r\n", "StartLine"),
        ("HTTP/1.1 200 O\rK\r\n\r\n", "StartLine"),
        ("HTTP/1.1 200 O\0K\r\n\r\n", "StartLine"),
        ("HTTP/1.2 200 OK\r\n\r\n", "Version"),
        ("HTTP/2.0 200 OK\r\n\r\n", "Version"),
        ("HTTP/1.1 200 OK\r\nBad Name: x\r\n\r\n", "FieldName"),
        ("HTTP/1.1 200 OK\r\nX : y\r\n\r\n", "FieldName"),
        ("HTTP/1.1 200 OK\r\nX: y\r\n folded\r\n\r\n", "FieldName"),
        ("HTTP/1.1 200 OK\r\nX: a\0b\r\n\r\n", "FieldValue"),
        ("HTTP/1.1 200 OK\r\nX: a\rb\r\n\r\n", "FieldValue"),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 1, 1\r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: \r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nContent-Length: 99999999999999999999999\r\n\r\nx",
            "ContentLength",
        ),
        (
            "HTTP/1.1 204 No Content\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
            "ContentLength",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
            "TransferEncoding",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "TransferEncoding",
        ),
        (
            "HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "TransferEncoding",
        ),
        (&long, "TooLarge"),
        (&many, "TooManyFields"),
        (&interim, "TooManyInterim"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell", "silent"),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
            "silent",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nZ\r\n",
            "ChunkSize",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
            "ChunkEnd",
        ),
        (
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nA: \0\r\n\r\n",
            "FieldValue",
        ),
    ] {
        assert_eq!(
            once(said).expect("an end").expect_err(said),
            why,
            "{:?}",
            &said[..said.len().min(120)]
        );
    }
}

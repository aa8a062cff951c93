//! HTTP/2 on either side.

mod bodies;
mod peers;

use bytes::Bytes;
use http::Response;
use http_body_util::BodyExt;

use super::origin::{OK, Origin};
use super::relay::{defaults, gateway, gateway_with, route, upstream};
use super::wire::{DEADLINE, read_head};
use crate::proxy_defaults::ProxyDefaults;
use peers::{Message, client, mirror, run, to};
use tollgate_limit::Micros;

#[test]
fn a_grpc_call_passes_with_its_trailers() {
    let mut upstream = upstream(mirror());
    upstream.http2 = true;
    let gateway = gateway(upstream);
    run(async {
        let mut client = client(&gateway).await;
        for _ in 0..3 {
            let call = to(&gateway, "/pkg.Service/Method?x=%2F")
                .header("content-type", "application/grpc")
                .header("te", "trailers")
                .body(Message::new(
                    "message",
                    &[("x-sent", "1"), ("authorization", "dropped")],
                ))
                .expect("a request");
            let (head, body) = client
                .send_request(call)
                .await
                .expect("a response")
                .into_parts();
            assert_eq!(head.status, 200);
            let seen = head.headers["x-seen"].to_str().expect("text");
            let expected = format!(
                "HTTP/2.0 POST http://{}/pkg.Service/Method?x=%2F",
                gateway.address
            );
            assert_eq!(seen, expected);
            assert_eq!(head.headers["x-te"], "trailers");
            let collected = body.collect().await.expect("a whole body");
            let trailers = collected.trailers().expect("trailers");
            assert!(
                trailers["grpc-status"] == "0" && trailers["x-sent"] == "1",
                "{trailers:?}"
            );
            assert!(!trailers.contains_key("authorization"));
            assert_eq!(collected.to_bytes(), "message");
        }
    });
}

#[test]
fn an_http1_client_reaches_an_http2_upstream() {
    let mut upstream = upstream(mirror());
    upstream.http2 = true;
    let gateway = gateway(upstream);
    let response = gateway.ask(
        "POST /x HTTP/1.1\r\nHost: api.example\r\nConnection: close\r\nContent-Length: 2\r\n\r\nhi",
    );
    assert_eq!(response.status, 200);
    assert_eq!(
        response.header("x-seen"),
        Some("HTTP/2.0 POST http://api.example/x")
    );
    assert!(response.body.contains("hi"), "{response:?}");
}

#[test]
fn an_http2_client_reaches_an_http1_upstream() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    run(async {
        let mut client = client(&gateway).await;
        let request = to(&gateway, "/x")
            .header("cookie", "a=1")
            .header("cookie", "b=2")
            .body(Message::new("hello", &[]))
            .expect("a request");
        let response = client.send_request(request).await.expect("a response");
        assert_eq!(
            response
                .into_body()
                .collect()
                .await
                .expect("whole")
                .to_bytes(),
            "ok"
        );
    });
    let seen = origin.records()[0].to_ascii_lowercase();
    assert!(seen.starts_with("post /x http/1.1\r\n"), "{seen}");
    assert!(seen.contains("\r\ncookie: a=1; b=2\r\n"), "{seen}");
    assert!(
        seen.contains(&format!("\r\nhost: {}\r\n", gateway.address)),
        "{seen}"
    );
    assert!(
        seen.contains("transfer-encoding: chunked") && seen.contains("hello"),
        "{seen}"
    );
}

#[test]
fn http2_bodyless_response_has_no_content_length() {
    let origin =
        Origin::responding("HTTP/1.1 204 No Content\r\nContent-Length: 2\r\nX-Some: thing\r\n\r\n");
    let gateway = gateway(upstream(origin.address));
    run(async {
        let mut client = client(&gateway).await;
        let response = client
            .send_request(
                to(&gateway, "/")
                    .body(Message::default())
                    .expect("a request"),
            )
            .await;
        let (head, body) = response.expect("a head").into_parts();
        assert_eq!(
            (head.status.as_u16(), head.headers.get("content-length")),
            (204, None)
        );
        assert_eq!(head.headers["x-some"], "thing");
        assert_eq!(body.collect().await.expect("whole").to_bytes(), "");
    });
}

#[test]
fn http2_truncated_response_is_reset() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n")
    });
    let gateway = gateway(upstream(origin.address));
    run(async {
        let mut client = client(&gateway).await;
        let response = client
            .send_request(
                to(&gateway, "/")
                    .body(Message::default())
                    .expect("a request"),
            )
            .await;
        let body = response.expect("a head").into_body().collect().await;
        assert!(body.is_err(), "{body:?}");
    });
}

#[test]
fn pseudo_headers_in_trailers_are_not_forwarded() {
    let origin = Origin::start(|conn| {
        while conn.receive().is_ok() {}
        Ok(())
    });
    let gateway = gateway(upstream(origin.address));
    run(async {
        let mut client = client(&gateway).await;
        let request = to(&gateway, "/").body(Message::new(
            "x",
            &[
                ("host", "evil"),
                ("x-good", "1"),
                ("transfer-encoding", "x"),
            ],
        ));
        // Whether it is refused or stripped: nothing of it passes.
        let sent = tokio::time::timeout(
            std::time::Duration::from_millis(300),
            client.send_request(request.expect("a request")),
        );
        let _ = sent.await;
    });
    let seen = origin.records().concat();
    assert!(!seen.contains("evil"), "{seen}");
}

#[test]
fn streams_are_cancelled_one_by_one() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        let head = read_head(&mut conn.stream)?;
        let _ = tell.send(());
        if head.starts_with("POST /cancelled") {
            return conn.receive().map(|_| ());
        }
        conn.send(OK)
    });
    let gateway = gateway(upstream(origin.address));
    run(async {
        let mut client = client(&gateway).await;
        let request = to(&gateway, "/cancelled")
            .body(Message::default())
            .expect("a request");
        let cancelled = tokio::spawn(client.send_request(request));
        tokio::task::spawn_blocking(move || received.recv_timeout(DEADLINE).expect("it arrives"))
            .await
            .expect("ran");
        cancelled.abort();
        let request = to(&gateway, "/kept")
            .body(Message::default())
            .expect("a request");
        let response = client.send_request(request).await.expect("a response");
        assert_eq!(response.status(), 200);
    });
    origin.wait_closed();
    origin.wait_closed();
}

#[test]
fn a_body_that_others_leave_no_room_for_is_not_held_against_its_caller() {
    let (tell, received) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        read_head(&mut conn.stream)?;
        let _ = tell.send(());
        std::io::copy(
            &mut std::io::Read::take(&mut conn.stream, 1 + (2 << 20)),
            &mut std::io::sink(),
        )?;
        conn.send(OK)
    });
    let mut upstream = upstream(origin.address);
    (upstream.connections, upstream.queue_timeout) = (1, Micros::from_secs(3));
    let defaults = ProxyDefaults {
        body_idle: Micros::from_secs(1),
        ..defaults()
    };
    let gateway = gateway_with(upstream, route(), defaults);
    run(async {
        let stream = tokio::net::TcpStream::connect(gateway.address)
            .await
            .expect("connected");
        let (mut client, connection) = h2::client::handshake(stream)
            .await
            .expect("an HTTP/2 server");
        tokio::spawn(connection);
        let post = |length: &'static str| {
            to(&gateway, "/")
                .header("content-length", length)
                .body(())
                .expect("a request")
        };
        let (response, mut body) = client.send_request(post("2097153"), false).expect("sent");
        body.send_data(Bytes::from_static(b"a"), false)
            .expect("taken");
        tokio::task::spawn_blocking(move || received.recv_timeout(DEADLINE).expect("it arrives"))
            .await
            .expect("ran");
        // These wait for the server's only place, and fill the connection's window meanwhile: 1 MiB.
        let mut held = Vec::new();
        for _ in 0..5 {
            client = client.ready().await.expect("open");
            let (response, mut body) = client.send_request(post("262144"), false).expect("sent");
            body.send_data(Bytes::from_static(&[0; 262_144]), true)
                .expect("taken");
            held.push(response);
        }
        // More than they leave of it, however the client shares it out.
        body.send_data(Bytes::from_static(&[0; 2 << 20]), true)
            .expect("taken");
        assert_eq!(response.await.expect("a response").status(), 200);
        drop(held);
    });
}

/// Interim responses of an HTTP/2 upstream are skipped, because the protocol library cannot send them on.
#[test]
fn http2_interim_responses_are_skipped() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("set");
    let mut upstream = upstream(listener.local_addr().expect("bound"));
    upstream.http2 = true;
    std::thread::spawn(move || {
        run(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("registered");
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
            while let Some(Ok((_, mut respond))) = connection.accept().await {
                for status in [100, 102, 103] {
                    let interim = Response::builder()
                        .status(status)
                        .header("link", "</x>")
                        .body(())
                        .expect("a head");
                    respond.send_informational(interim).expect("sent");
                }
                let mut body = respond
                    .send_response(Response::new(()), false)
                    .expect("sent");
                body.send_data(Bytes::from_static(b"ok"), true)
                    .expect("sent");
            }
        });
    });
    let gateway = gateway(upstream);
    for _ in 0..2 {
        let response = gateway.ask("GET / HTTP/1.1\r\nHost: a\r\n\r\n");
        assert_eq!(
            (
                response.status,
                response.body.contains("ok"),
                response.header("link")
            ),
            (200, true, None)
        );
    }
}

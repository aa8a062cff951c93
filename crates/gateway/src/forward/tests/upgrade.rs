//! WebSocket through the gateway, and the upgrades that do not pass.

use std::io::{Read, Write};

use super::origin::{OK, Origin};
use super::relay::{defaults, gateway, gateway_with, route, upstream};
use super::wire::{DEADLINE, read_head, read_response};
use crate::proxy_defaults::ProxyDefaults;
use tollgate_limit::Micros;

const UPGRADE: &[u8] =
    b"GET /ws HTTP/1.1\r\nHost: a\r\nConnection: keep-alive, Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
const SWITCH: &str = "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\
    Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n";

/// Switches, sends something at once, and then echoes.
fn echo() -> Origin {
    Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.send(&format!("{SWITCH}early"))?;
        loop {
            let bytes = conn.receive()?;
            conn.stream.write_all(&bytes)?;
        }
    })
}

#[test]
fn a_websocket_passes_both_ways() {
    let origin = echo();
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    let head = read_head(&mut client).expect("a head").to_ascii_lowercase();
    assert!(head.starts_with("http/1.1 101 "), "{head}");
    assert!(
        head.contains("connection: upgrade") && head.contains("upgrade: websocket"),
        "{head}"
    );
    assert!(
        head.contains("sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo="),
        "{head}"
    );
    let mut early = [0; 5];
    client
        .read_exact(&mut early)
        .expect("what came behind the 101");
    assert_eq!(&early, b"early");
    for word in [b"hello", b"again"] {
        client.write_all(word).expect("sent");
        let mut back = [0; 5];
        client.read_exact(&mut back).expect("echoed");
        assert_eq!(&back, word);
    }
    let seen = origin.records()[0].to_ascii_lowercase();
    assert!(
        seen.contains("connection: upgrade\r\n") && seen.contains("upgrade: websocket\r\n"),
        "{seen}"
    );
    drop(client);
    origin.wait_closed();
}

#[test]
fn upgrade_bytes_right_after_the_request_are_forwarded() {
    let origin = echo();
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client
        .write_all(&[UPGRADE, b"hello"].concat())
        .expect("sent");
    read_head(&mut client).expect("a head");
    let mut back = [0; 10];
    client
        .read_exact(&mut back)
        .expect("what came behind the 101, then the echo");
    assert_eq!(&back, b"earlyhello");
}

#[test]
fn a_tunnel_in_which_nothing_moves_is_closed() {
    let origin = echo();
    let impatient = ProxyDefaults {
        upgrade_idle: Micros(100_000),
        ..defaults()
    };
    let gateway = gateway_with(upstream(origin.address), route(), impatient);
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    read_head(&mut client).expect("a head");
    let mut rest = Vec::new();
    let _ = client.read_to_end(&mut rest);
    assert_eq!(rest, b"early");
    origin.wait_closed();
}

#[test]
fn the_end_of_one_side_is_the_others_at_once() {
    let origin = Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.send(&format!("{SWITCH}bye"))
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    read_head(&mut client).expect("a head");
    let mut rest = Vec::new();
    client
        .read_to_end(&mut rest)
        .expect("an end in order, though this side has not ended");
    assert_eq!(rest, b"bye");
}

/// The gateway goes away while a message of each side is under way: both arrive whole, then the word of farewell.
#[test]
fn upgrade_close_frame_is_sent_between_two_messages() {
    let (drained, go) = std::sync::mpsc::channel::<()>();
    let (sender, heard) = std::sync::mpsc::channel();
    let go = std::sync::Mutex::new(go);
    let origin = Origin::start(move |conn| {
        conn.until("\r\n\r\n")?;
        conn.send(SWITCH)?;
        let mut bytes = [0; 17];
        conn.stream.read_exact(&mut bytes[..4])?;
        // Half of a message of two frames, which themselves are cut.
        conn.stream.write_all(&[0x01, 4, b'a', b'b'])?;
        let _ = go.lock().expect("no panic").recv();
        conn.stream.write_all(&[b'c', b'd', 0x80, 1])?;
        conn.stream.write_all(&[b'e', 0x81, 1, b'f'])?;
        conn.stream.read_exact(&mut bytes[4..])?;
        let _ = sender.send(bytes);
        Ok(())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    read_head(&mut client).expect("a head");
    client
        .write_all(&[0x81, 0x83, 0, 0])
        .expect("the beginning of a frame");
    let mut begun = [0; 4];
    client.read_exact(&mut begun).expect("what came before");
    gateway.drain();
    drained.send(()).expect("it waits");
    client
        .write_all(&[0, 0, b'x', b'y', b'z', 0x81, 0x80, 0, 0, 0, 0])
        .expect("its end, and one more");
    let mut rest = [0; 9];
    client
        .read_exact(&mut rest)
        .expect("the end of the message, and the farewell");
    assert_eq!(
        rest,
        [b'c', b'd', 0x80, 1, b'e', 0x88, 2, 0x03, 0xe9],
        "nothing behind it"
    );
    let bytes = heard.recv_timeout(DEADLINE).expect("it comes");
    assert_eq!(&bytes[..9], &[0x81, 0x83, 0, 0, 0, 0, b'x', b'y', b'z']);
    let farewell = &bytes[9..];
    assert_eq!(farewell[..2], [0x88, 0x82], "{farewell:?}");
    assert_eq!(
        [farewell[6] ^ farewell[2], farewell[7] ^ farewell[3]],
        [0x03, 0xe9]
    );
}

#[test]
fn upgrade_other_than_websocket_is_not_changed() {
    let origin = Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.send(
            "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n",
        )?;
        loop {
            let bytes = conn.receive()?;
            conn.stream.write_all(&bytes)?;
        }
    });
    let raw = ProxyDefaults {
        upgrades: vec!["raw".to_owned()],
        ..defaults()
    };
    let gateway = gateway_with(upstream(origin.address), route(), raw);
    let mut client = gateway.connect();
    client
        .write_all(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade\r\nUpgrade: raw\r\n\r\n")
        .expect("sent");
    read_head(&mut client).expect("a head");
    gateway.drain();
    for word in [b"hello", b"again"] {
        client.write_all(word).expect("sent");
        let mut back = [0; 5];
        client.read_exact(&mut back).expect("echoed");
        assert_eq!(&back, word);
    }
    client.shutdown(std::net::Shutdown::Write).expect("ended");
    assert_eq!(
        client.read(&mut [0]).expect("the end"),
        0,
        "the drain waits for it"
    );
}

#[test]
fn upgrade_ignored_by_the_upstream_is_an_ordinary_response() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    assert_eq!(read_response(&mut client).body, "ok");
}

#[test]
fn other_protocols_are_not_passed_on() {
    let origin = Origin::responding(OK);
    let gateway = gateway(upstream(origin.address));
    let asked = "GET / HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAA\r\n\r\n";
    assert_eq!(gateway.ask(asked).status, 200);
    let seen = origin.records()[0].to_ascii_lowercase();
    assert!(
        !seen.contains("h2c") && !seen.contains("http2-settings") && !seen.contains("connection"),
        "{seen}"
    );
}

#[test]
fn a_switch_to_something_else_is_502() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(UPGRADE).expect("sent");
    assert_eq!(read_response(&mut client).status, 502);
}

/// An HTTP/2 client's WebSocket (RFC 8441), which the upstream gets as HTTP/1.1.
mod over_http2 {
    use http::{Method, Request, Response, StatusCode};
    use http_body_util::Empty;
    use hyper::body::{Bytes, Incoming};
    use hyper::client::conn::http2;
    use hyper::ext::Protocol;
    use hyper_util::rt::{TokioExecutor, TokioIo};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::relay::Gateway;
    use super::*;

    fn run<F: Future>(test: F) -> F::Output {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        runtime.block_on(async { tokio::time::timeout(DEADLINE, test).await.expect("in time") })
    }

    /// A client that knows that it may: a response comes after the server's settings.
    async fn client(gateway: &Gateway) -> http2::SendRequest<Empty<Bytes>> {
        let stream = tokio::net::TcpStream::connect(gateway.address)
            .await
            .expect("connected");
        let (mut sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .expect("an HTTP/2 server");
        tokio::spawn(connection);
        let plain = Request::builder().uri(format!("http://{}/", gateway.address));
        let response = sender
            .send_request(plain.body(Empty::new()).expect("a request"))
            .await
            .expect("a response");
        assert_eq!(response.status(), StatusCode::OK);
        sender
    }

    async fn connect(gateway: &Gateway, protocol: &'static str) -> Response<Incoming> {
        let request = Request::builder()
            .method(Method::CONNECT)
            .uri(format!("http://{}/ws?x", gateway.address))
            .header("sec-websocket-version", "13")
            .extension(Protocol::from_static(protocol))
            .body(Empty::new())
            .expect("a request");
        client(gateway)
            .await
            .send_request(request)
            .await
            .expect("a response")
    }

    #[test]
    fn a_websocket_passes_both_ways() {
        // The client's first request, then the WebSocket.
        let origin = Origin::start(|conn| {
            while !conn.until("\r\n\r\n")?.contains("/ws") {
                conn.send(OK)?;
            }
            conn.send(&format!("{SWITCH}early"))?;
            loop {
                let bytes = conn.receive()?;
                conn.stream.write_all(&bytes)?;
            }
        });
        let gateway = gateway(upstream(origin.address));
        run(async {
            let response = connect(&gateway, "websocket").await;
            assert_eq!(response.status(), StatusCode::OK);
            for gone in ["upgrade", "connection", "sec-websocket-accept"] {
                assert!(!response.headers().contains_key(gone), "{gone}");
            }
            let mut tunnel = TokioIo::new(hyper::upgrade::on(response).await.expect("a tunnel"));
            let mut early = [0; 5];
            tunnel
                .read_exact(&mut early)
                .await
                .expect("what came behind the 101");
            assert_eq!(&early, b"early");
            for word in [b"hello", b"again"] {
                tunnel.write_all(word).await.expect("sent");
                let mut back = [0; 5];
                tunnel.read_exact(&mut back).await.expect("echoed");
                assert_eq!(&back, word);
            }
            tunnel.shutdown().await.expect("closed");
        });
        let seen = origin.records().concat();
        assert!(seen.contains("GET /ws?x HTTP/1.1\r\n"), "{seen}");
        let seen = seen.to_ascii_lowercase();
        for field in [
            "connection: upgrade\r\n",
            "upgrade: websocket\r\n",
            "sec-websocket-key: ",
            "version: 13\r\n",
        ] {
            assert!(seen.contains(field), "{field}: {seen}");
        }
        origin.wait_closed();
    }

    #[test]
    fn upgrade_without_101_is_no_tunnel() {
        let origin = Origin::responding(OK);
        let gateway = gateway(upstream(origin.address));
        run(async {
            assert_eq!(
                connect(&gateway, "websocket").await.status(),
                502,
                "200 would be a tunnel"
            );
            assert_eq!(
                connect(&gateway, "connect-udp").await.status(),
                501,
                "not listed"
            );
            let mut client = client(&gateway).await;
            let plain = Request::builder()
                .method(Method::CONNECT)
                .uri("elsewhere.example:443");
            let response = client
                .send_request(plain.body(Empty::new()).expect("a request"))
                .await
                .expect("a response");
            assert_eq!(response.status(), 501, "no tunnel to anywhere");
        });
    }
}

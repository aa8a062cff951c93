//! Bodies: streamed both ways, bounded, cut visibly, with trailers.

use std::io::{Read, Write};
use std::time::Duration;

use super::origin::{OK, Origin};
use super::relay::{defaults, gateway, gateway_on, gateway_with, route, upstream};
use super::wire::{DEADLINE, read_head, read_response};
use crate::proxy_defaults::ProxyDefaults;
use tollgate_limit::Micros;

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\n\r\n";

#[test]
fn truncated_response_is_visible() {
    for sent in [
        "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\nhalf\r\nzz\r\n",
    ] {
        let origin = Origin::start(move |conn| {
            conn.request()?;
            conn.send(sent)
        });
        let response = gateway(upstream(origin.address)).ask(GET);
        assert_eq!(response.status, 200);
        assert!(
            response.body.contains("half") && !response.whole,
            "{sent:?}: {response:?}"
        );
    }
}

#[test]
fn response_that_stalls_is_cut_off() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf")?;
        conn.receive().map(|_| ())
    });
    let mut impatient = upstream(origin.address);
    impatient.timeouts.idle = Micros(100_000);
    let response = gateway(impatient).ask(GET);
    assert!(response.body == "half" && !response.whole, "{response:?}");
    origin.wait_closed();
}

#[test]
fn response_without_length_ends_with_its_connection() {
    let origin = Origin::start(|conn| {
        conn.request()?;
        conn.send("HTTP/1.0 200 OK\r\n\r\nall of it")
    });
    let response = gateway(upstream(origin.address)).ask(GET);
    assert!(
        response.whole && response.body.contains("all of it"),
        "{response:?}"
    );
}

/// A slow reader holds the upstream back: what is in between is bounded, and all of it arrives.
#[test]
fn large_response_streams_in_bounded_memory() {
    const SIZE: u64 = 192 << 20;
    let (blocked, stands_still) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: {SIZE}\r\n\r\n"
        ))?;
        let piece = vec![b'x'; 1 << 16];
        let mut written = 0;
        // A write that the peer does not take for so long tells how far it came, once; then it waits.
        let tell_after = Duration::from_millis(200);
        conn.stream.set_write_timeout(Some(tell_after))?;
        while written < SIZE {
            let most = piece
                .len()
                .min(usize::try_from(SIZE - written).unwrap_or(usize::MAX));
            match conn.stream.write(&piece[..most]) {
                Ok(taken) => written += taken as u64,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                    let _ = blocked.send(written);
                    conn.stream.set_write_timeout(None)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    read_head(&mut client).expect("a head");
    let before = stands_still
        .recv_timeout(DEADLINE)
        .expect("a write that blocks");
    assert!(
        before < 64 << 20,
        "{before} bytes are on the way to a client that reads none"
    );
    let read = std::io::copy(&mut client.take(SIZE), &mut std::io::sink()).expect("the rest");
    assert_eq!(read, SIZE);
}

#[test]
fn a_large_request_streams_and_is_held_back() {
    const SIZE: u64 = 64 << 20;
    let origin = Origin::start(|conn| {
        let head = read_head(&mut conn.stream)?;
        assert!(
            head.to_ascii_lowercase()
                .contains(&format!("content-length: {SIZE}\r\n")),
            "{head}"
        );
        let read = std::io::copy(
            &mut Read::by_ref(&mut conn.stream).take(SIZE),
            &mut std::io::sink(),
        )?;
        conn.send(&format!(
            "HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\n{read:08}"
        ))
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    write!(
        client,
        "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: {SIZE}\r\n\r\n"
    )
    .expect("sent");
    let piece = vec![b'x'; 1 << 16];
    for _ in 0..SIZE >> 16 {
        client.write_all(&piece).expect("sent");
    }
    assert_eq!(read_response(&mut client).body, SIZE.to_string());
}

#[test]
fn pieces_pass_as_they_come() {
    let (go_on, wait) = std::sync::mpsc::channel::<()>();
    let wait = std::sync::Mutex::new(wait);
    let origin = Origin::start(move |conn| {
        conn.request()?;
        conn.send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nfirst\r\n",
        )?;
        // Nothing more until the client has seen the first.
        wait.lock()
            .expect("not poisoned")
            .recv_timeout(DEADLINE)
            .expect("the client has seen it");
        conn.send("6\r\nsecond\r\n0\r\n\r\n")
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    client.write_all(GET.as_bytes()).expect("sent");
    read_head(&mut client).expect("a head");
    let mut first = [0; 10];
    client.read_exact(&mut first).expect("the first piece");
    assert_eq!(&first, b"5\r\nfirst\r\n");
    go_on.send(()).expect("the upstream waits");
    let mut rest = [0; 16];
    client.read_exact(&mut rest).expect("the rest");
    assert_eq!(&rest, b"6\r\nsecond\r\n0\r\n\r\n");
}

#[test]
fn early_response_passes_while_the_request_streams() {
    let origin = Origin::start(|conn| {
        conn.until("\r\n\r\n")?;
        conn.send(
            "HTTP/1.1 413 Payload Too Large\r\nContent-Length: 5\r\nConnection: close\r\n\r\nearly",
        )?;
        while conn.receive().is_ok() {}
        Ok(())
    });
    let gateway = gateway(upstream(origin.address));
    let mut client = gateway.connect();
    // The body is never sent.
    client
        .write_all(b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n")
        .expect("sent");
    let response = read_response(&mut client);
    assert_eq!((response.status, response.body.as_str()), (413, "early"));
}

#[test]
fn a_body_beyond_the_bound_is_413() {
    let origin = Origin::responding(OK);
    let mut route = route();
    route.body_max = Some(8);
    let gateway = gateway_on(upstream(origin.address), route);
    let said = gateway.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n123456789");
    assert_eq!(said.status, 413, "{said:?}");
    // Connections are accepted in their order: one for what was refused would be counted by now.
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(
        origin.records().len(),
        1,
        "what says its length is refused at once"
    );
    let chunked =
        gateway.ask("POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n9\r\n123456789\r\n0\r\n\r\n");
    assert_eq!(chunked.status, 413, "{chunked:?}");
}

#[test]
fn requests_keep_their_framing() {
    for (request, expected) in [
        (
            "GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n",
            "transfer-encoding: chunked",
        ),
        (
            "DELETE / HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
            "content-length: 2",
        ),
        (
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n\r\n",
            "content-length: 0",
        ),
        (
            "POST / HTTP/1.0\r\nHost: a\r\nContent-Length: 2\r\n\r\nhi",
            "content-length: 2",
        ),
    ] {
        let origin = Origin::responding(OK);
        assert_eq!(
            gateway(upstream(origin.address)).ask(request).status,
            200,
            "{request:?}"
        );
        let seen = origin.records()[0].to_ascii_lowercase();
        let lines =
            seen.matches("content-length").count() + seen.matches("transfer-encoding").count();
        assert!(seen.contains(expected) && lines == 1, "{request:?}: {seen}");
        assert_eq!(seen.contains("hi"), request.contains("hi"), "{seen}");
    }
}

#[test]
fn trailers_pass_both_ways_without_forbidden_headers() {
    let origin = Origin::responding(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: X-Sum, Set-Cookie\r\n\r\n2\r\nok\r\n0\r\nX-Sum: 42\r\nSet-Cookie: a=b\r\n\r\n",
    );
    let gateway = gateway(upstream(origin.address));
    let response = gateway.ask(
        "POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\nTrailer: X-Check, Authorization\r\n\r\n\
         2\r\nhi\r\n0\r\nX-Check: 7\r\nAuthorization: x\r\n\r\n",
    );
    assert!(
        response.body.to_ascii_lowercase().contains("x-sum: 42\r\n"),
        "{response:?}"
    );
    assert!(
        !response.body.to_ascii_lowercase().contains("set-cookie"),
        "{response:?}"
    );
    let seen = origin.records()[0].to_ascii_lowercase();
    assert!(seen.contains("0\r\nx-check: 7\r\n\r\n"), "{seen}");
    assert!(seen.contains("\r\nte: trailers\r\n"), "{seen}");
}

#[test]
fn a_body_that_comes_too_slowly_is_408_and_the_end_of_its_connection() {
    let origin = Origin::start(|conn| conn.until("never").map(|_| ()));
    let strict = ProxyDefaults {
        body_rate: 1_000,
        body_grace: Micros(100_000),
        ..defaults()
    };
    let relay = gateway_with(upstream(origin.address), route(), strict);
    let response = relay.ask("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 100\r\n\r\nslow");
    assert_eq!(
        (response.status, response.header("connection")),
        (408, Some("close"))
    );
    assert!(response.body.contains("too slowly"), "{}", response.body);
    origin.wait_closed();
}

#[test]
fn minimum_rate_ignores_streams_and_bodies_with_a_response() {
    // The upstream responds at once where there is no stream; the body continues.
    let origin = Origin::start(|conn| {
        let head = conn.until("\r\n\r\n")?;
        if !head.contains("grpc") {
            conn.send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nbegun\r\n")?;
        }
        conn.until("0\r\n\r\n")?;
        // This connection ends here, and the next request must not meet it on its way.
        let last = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok";
        conn.send(if head.contains("grpc") {
            last
        } else {
            "0\r\n\r\n"
        })
    });
    let strict = ProxyDefaults {
        body_rate: 1_000,
        body_grace: Micros(20_000),
        ..defaults()
    };
    let relay = gateway_with(upstream(origin.address), route(), strict);
    for kind in ["application/grpc", "text/plain"] {
        let mut client = relay.connect();
        let head = format!(
            "POST / HTTP/1.1\r\nHost: a\r\nContent-Type: {kind}\r\nTransfer-Encoding: chunked\r\n\r\n"
        );
        client.write_all(head.as_bytes()).expect("sent");
        // Longer than the grace: nothing comes meanwhile, and nothing is given up.
        client
            .set_read_timeout(Some(Duration::from_millis(200)))
            .expect("set");
        let mut early = Vec::new();
        let mut piece = [0; 1024];
        while let Ok(read) = client.read(&mut piece) {
            assert!(
                read > 0,
                "{kind} was given up: {}",
                String::from_utf8_lossy(&early)
            );
            early.extend_from_slice(&piece[..read]);
        }
        assert_eq!(
            early.is_empty(),
            kind == "application/grpc",
            "{}",
            String::from_utf8_lossy(&early)
        );
        client.set_read_timeout(Some(DEADLINE)).expect("set");
        client.write_all(b"0\r\n\r\n").expect("sent");
        let read = client.read(&mut piece).expect("the rest");
        assert!(piece[..read].ends_with(if early.is_empty() {
            b"\r\n\r\nok"
        } else {
            b"0\r\n\r\n"
        }));
    }
}

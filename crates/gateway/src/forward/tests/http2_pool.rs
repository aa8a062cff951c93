//! HTTP/2 upstreams that misbehave, frame by frame.

use std::io::{self, Read};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use super::origin::{Conn, Origin};
use super::relay::{Gateway, gateway, server, upstream};
use super::wire::{DEADLINE, read_answer, read_head};
use tollgate_limit::Micros;
use tollgate_policy::upstream::{Balance, Upstream};

const GET: &str = "GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n";
const POST: &str = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";

const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const GOAWAY: u8 = 7;
const ACK: u8 = 1;

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// Reads one frame: its type, flags and stream.
fn read_frame(conn: &mut Conn) -> io::Result<(u8, u8, u32)> {
    let mut head = [0; 9];
    conn.stream.read_exact(&mut head)?;
    let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
    io::copy(&mut (&mut conn.stream).take(length.into()), &mut io::sink())?;
    Ok((
        head[3],
        head[4],
        u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]),
    ))
}

/// Takes the preface and says what is to be said first.
fn greet(conn: &mut Conn, settings: &[u8]) -> io::Result<()> {
    conn.stream.read_exact(&mut [0; 24])?;
    write(conn, &frame(SETTINGS, 0, 0, settings))
}

fn write(conn: &mut Conn, bytes: &[u8]) -> io::Result<()> {
    io::Write::write_all(&mut conn.stream, bytes)
}

/// Waits for a request and gives its stream.
fn request(conn: &mut Conn) -> io::Result<u32> {
    loop {
        match read_frame(conn)? {
            (HEADERS, _, stream) => return Ok(stream),
            (SETTINGS, flags, _) if flags & ACK == 0 => write(conn, &frame(SETTINGS, ACK, 0, b""))?,
            _ => {}
        }
    }
}

/// 200 and no body.
fn ok(conn: &mut Conn, stream: u32) -> io::Result<()> {
    write(conn, &frame(HEADERS, 0x5, stream, &[0x88]))
}

fn answer_all(conn: &mut Conn) -> io::Result<()> {
    loop {
        let stream = request(conn)?;
        ok(conn, stream)?;
    }
}

fn http2(origin: &Origin) -> Upstream {
    let mut upstream = upstream(origin.address);
    upstream.http2 = true;
    upstream.eject.failures = 1000;
    upstream
}

/// One that says nothing on its first connection after its settings, not even to a ping.
fn half_dead() -> Origin {
    Origin::start(|conn| {
        greet(conn, b"")?;
        if conn.index == 0 {
            while read_frame(conn).is_ok() {}
            return Ok(());
        }
        answer_all(conn)
    })
}

#[test]
fn a_stuck_connection_gets_no_more_requests() {
    let origin = half_dead();
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros(300_000);
    let gateway = gateway(upstream);
    // The server's settings are something that is heard: they come with the first request, or before the second.
    let statuses: Vec<u16> = (0..3).map(|_| gateway.ask(GET).status).collect();
    assert!(
        matches!(statuses[..], [504, 200 | 504, 200]),
        "{statuses:?}"
    );
}

#[test]
fn a_connection_that_answers_no_ping_is_given_up() {
    let origin = half_dead();
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros::from_secs(3600);
    upstream.timeouts.idle = Micros::from_secs(1);
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 502);
    assert_eq!(gateway.ask(GET).status, 200);
}

#[test]
fn a_request_the_leaving_server_did_not_look_at_goes_to_a_new_connection() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        if conn.index == 0 {
            request(conn)?;
            // Last stream 0, no error: whatever came after is untouched.
            write(conn, &frame(GOAWAY, 0, 0, &[0; 8]))?;
            while read_frame(conn).is_ok() {}
            return Ok(());
        }
        answer_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.attempts = 2;
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn a_connection_that_has_gone_in_order_is_replaced_without_a_failure() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        let stream = request(conn)?;
        ok(conn, stream)?;
        write(conn, &frame(GOAWAY, 0, 0, &[0, 0, 0, 1, 0, 0, 0, 0]))?;
        conn.stream.shutdown(std::net::Shutdown::Both)
    });
    let gateway = gateway(http2(&origin));
    for _ in 0..5 {
        assert_eq!(gateway.ask(GET).status, 200);
        // Whether the end was heard before the next request or after it was sent is the machine's choice.
        origin.wait_closed();
    }
}

#[test]
fn a_request_that_finds_its_connection_gone_and_no_other_goes_to_another_server() {
    let stays = Origin::start(|conn| {
        greet(conn, b"")?;
        answer_all(conn)
    });
    for _ in 0..30 {
        let leaving = Origin::leaving(|conn| {
            greet(conn, b"")?;
            for _ in 0..4 {
                let stream = request(conn)?;
                ok(conn, stream)?;
            }
            // Last stream 7, the fourth: what came after is untouched.
            write(conn, &frame(GOAWAY, 0, 0, &[0, 0, 0, 7, 0, 0, 0, 0]))?;
            while read_frame(conn).is_ok() {}
            Ok(())
        });
        let mut two = http2(&leaving);
        two.servers.push(server(stays.address));
        two.balance = Balance::RoundRobin;
        two.attempts = 2;
        let gateway = gateway(two);
        // Whether a request hears of the end before it is put on the connection, there, or sent is the machine's choice.
        std::thread::scope(|scope| {
            for _ in 0..6 {
                scope.spawn(|| {
                    for _ in 0..2 {
                        assert_eq!(gateway.ask(POST).status, 200);
                        assert_eq!(
                            gateway
                                .ask(&POST.replace("0\r\n\r\n", "2\r\n\r\nhi"))
                                .status,
                            200
                        );
                    }
                });
            }
        });
    }
}

#[test]
fn more_requests_than_a_connection_takes_open_another() {
    let (meeting, streams) = (Arc::new(Barrier::new(2)), Arc::new(AtomicUsize::new(0)));
    let (met, most) = (Arc::clone(&meeting), Arc::clone(&streams));
    let origin = Origin::start(move |conn| {
        // SETTINGS_MAX_CONCURRENT_STREAMS = 1
        greet(conn, &[0, 3, 0, 0, 0, 1])?;
        loop {
            let stream = request(conn)?;
            if most.fetch_add(1, Ordering::SeqCst) > 0 {
                met.wait();
            }
            ok(conn, stream)?;
        }
    });
    let gateway = gateway(http2(&origin));
    assert_eq!(
        gateway.ask(GET).status,
        200,
        "the server's bound is known from here on"
    );
    let gateway: &Gateway = &gateway;
    std::thread::scope(|scope| {
        // Neither is answered before both have come.
        let both = [
            scope.spawn(|| gateway.ask(GET).status),
            scope.spawn(|| gateway.ask(GET).status),
        ];
        both.into_iter()
            .for_each(|one| assert_eq!(one.join().expect("no panic"), 200));
    });
    assert_eq!(origin.records().len(), 2);
}

#[test]
fn connections_on_which_the_server_takes_nothing_are_not_kept() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        conn.stream.read_exact(&mut [0; 24])?;
        let stream = request(conn)?;
        // SETTINGS_MAX_CONCURRENT_STREAMS = 0
        write(conn, &frame(SETTINGS, 0, 0, &[0, 3, 0, 0, 0, 0]))?;
        ok(conn, stream)?;
        let end = loop {
            if let Err(error) = read_frame(conn) {
                break error.kind();
            }
        };
        let _ = tell.send(!matches!(
            end,
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
        ));
        Ok(())
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.idle = Micros::from_secs(3600);
    let gateway = gateway(upstream);
    for _ in 0..3 {
        assert_eq!(gateway.ask(GET).status, 200);
    }
    for _ in 0..3 {
        assert_eq!(
            told.recv_timeout(Duration::from_secs(20)),
            Ok(true),
            "closed by us"
        );
    }
}

#[test]
fn an_idle_connection_is_closed() {
    let origin = Origin::start(|conn| {
        greet(conn, b"")?;
        answer_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.idle = Micros::from_secs(1);
    let gateway = gateway(upstream);
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.wait_closed(), 0);
    assert_eq!(gateway.ask(GET).status, 200, "on a new one");
}

#[test]
fn a_callers_short_deadline_costs_no_connection() {
    let asked = AtomicUsize::new(0);
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        loop {
            let stream = request(conn)?;
            // Two calls of a slow method after the first request.
            if !(1..3).contains(&asked.fetch_add(1, Ordering::SeqCst)) {
                ok(conn, stream)?;
            }
        }
    });
    let gateway = gateway(http2(&origin));
    assert_eq!(gateway.ask(GET).status, 200);
    for _ in 0..2 {
        assert_eq!(gateway.ask(HASTY).field("grpc-status"), Some("4"));
    }
    assert_eq!(gateway.ask(GET).status, 200);
    assert_eq!(origin.records().len(), 1, "a healthy connection goes on");
}

const HASTY: &str = "POST /pkg.Service/Slow HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\n\
                     grpc-timeout: 20m\r\nContent-Length: 0\r\n\r\n";

#[test]
fn a_grpc_callers_deadline_is_kept_and_told_in_its_words() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        let _ = request(conn)?;
        // RST_STREAM
        while read_frame(conn)?.0 != 3 {}
        let _ = tell.send(());
        answer_all(conn)
    });
    let mut upstream = http2(&origin);
    upstream.timeouts.response = Micros::from_secs(3600);
    let call = "POST /pkg.Service/Method HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/grpc\r\n\
                grpc-timeout: 200m\r\nContent-Length: 0\r\n\r\n";
    let answer = gateway(upstream).ask(call);
    assert_eq!(
        (answer.status, answer.field("grpc-status")),
        (200, Some("4")),
        "DEADLINE_EXCEEDED: {answer:?}"
    );
    told.recv_timeout(Duration::from_secs(10))
        .expect("the call is cancelled upstream");
}

/// The bodies of the requests on a connection, stream by stream; `act` is told of each frame of DATA: its stream, what
/// came on it so far, and whether that is all.
fn bodies(
    conn: &mut Conn,
    mut act: impl FnMut(&mut Conn, u32, &[u8], bool) -> io::Result<()>,
) -> io::Result<()> {
    let mut came = std::collections::HashMap::<u32, Vec<u8>>::new();
    loop {
        let mut head = [0; 9];
        conn.stream.read_exact(&mut head)?;
        let mut payload = vec![0; u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize];
        conn.stream.read_exact(&mut payload)?;
        let stream = u32::from_be_bytes([head[5] & 0x7f, head[6], head[7], head[8]]);
        match head[3] {
            DATA => {
                let body = came.entry(stream).or_default();
                body.extend_from_slice(&payload);
                act(conn, stream, body, head[4] & 1 != 0)?;
            }
            SETTINGS if head[4] & ACK == 0 => write(conn, &frame(SETTINGS, ACK, 0, b""))?,
            _ => {}
        }
    }
}

const DATA: u8 = 0;
const RST_STREAM: u8 = 3;
const WINDOW_UPDATE: u8 = 8;
const REFUSED: [u8; 4] = [0, 0, 0, 7];

fn post(length: usize, body: &str) -> String {
    format!(
        "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

#[test]
fn http2_post_on_a_refused_stream_is_sent_again_with_its_body() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        bodies(conn, |conn, stream, body, whole| {
            if stream == 1 {
                return write(conn, &frame(RST_STREAM, 0, stream, &REFUSED));
            }
            if whole {
                let _ = tell.send(body.to_vec());
                ok(conn, stream)?;
            }
            Ok(())
        })
    });
    let mut twice = http2(&origin);
    twice.attempts = 2;
    assert_eq!(gateway(twice).ask(&post(5, "hello")).status, 200);
    assert_eq!(told.recv_timeout(DEADLINE).expect("it comes"), b"hello");
    let refusing = Origin::start(move |conn| {
        greet(conn, b"")?;
        bodies(conn, |conn, stream, _, _| {
            write(conn, &frame(RST_STREAM, 0, stream, &REFUSED))
        })
    });
    assert_eq!(
        gateway(http2(&refusing)).ask(&post(5, "hello")).status,
        502,
        "one attempt is one"
    );
}

#[test]
fn http2_post_half_sent_to_a_leaving_server_goes_whole_to_a_new_connection() {
    let (tell, told) = std::sync::mpsc::channel();
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        let (index, tell) = (conn.index, tell.clone());
        bodies(conn, |conn, stream, body, whole| {
            if index == 0 {
                let _ = tell.send(body.to_vec());
                // Last stream 0, no error: nothing was processed.
                return write(conn, &frame(GOAWAY, 0, 0, &[0; 8]));
            }
            if whole {
                let _ = tell.send(body.to_vec());
                ok(conn, stream)?;
            }
            Ok(())
        })
    });
    let gateway = gateway(http2(&origin));
    let mut client = gateway.connect();
    io::Write::write_all(&mut client, post(11, "hello").as_bytes()).expect("sent");
    assert_eq!(told.recv_timeout(DEADLINE).expect("it comes"), b"hello");
    io::Write::write_all(&mut client, b" world").expect("sent");
    assert_eq!(read_answer(&mut client).status, 200);
    assert_eq!(
        told.recv_timeout(DEADLINE).expect("it comes"),
        b"hello world"
    );
}

#[test]
fn http2_post_that_a_leaving_server_may_have_processed_is_not_sent_again() {
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        bodies(conn, |conn, stream, _, whole| {
            if !whole {
                return Ok(());
            }
            // It has taken up this stream, and goes without an answer.
            write(
                conn,
                &frame(GOAWAY, 0, 0, &[&stream.to_be_bytes()[..], &[0; 4]].concat()),
            )?;
            Err(io::ErrorKind::Other.into())
        })
    });
    let mut three = http2(&origin);
    three.attempts = 3;
    assert_eq!(gateway(three).ask(&post(5, "hello")).status, 502);
    assert_eq!(origin.records().len(), 1, "on one connection");
}

#[test]
fn http2_post_of_which_more_was_sent_than_is_kept_is_not_sent_again() {
    let length = 300_000;
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        // WINDOW_UPDATE of the connection, and as soon as there is one of the stream.
        write(conn, &frame(8, 0, 0, &[0, 0x10, 0, 0]))?;
        let stream = request(conn)?;
        write(conn, &frame(8, 0, stream, &[0, 0x10, 0, 0]))?;
        bodies(conn, |conn, _, body, _| {
            if body.len() > 100_000 {
                write(conn, &frame(GOAWAY, 0, 0, &[0; 8]))
            } else {
                Ok(())
            }
        })
    });
    let mut three = http2(&origin);
    three.attempts = 3;
    let gateway = gateway(three);
    let mut client = gateway.connect();
    let answer = std::thread::scope(|scope| {
        let mut writes = client.try_clone().expect("cloned");
        scope.spawn(move || {
            io::Write::write_all(&mut writes, post(length, &"x".repeat(length)).as_bytes())
        });
        read_answer(&mut client)
    });
    assert_eq!(answer.status, 502);
    assert_eq!(origin.records().len(), 1, "on one connection");
}

/// Refuses a stream, answers the one on which the request comes again before there is room for its
/// body, and makes room once the head of the answer has arrived; that stream.
fn answered_before_its_body(
    conn: &mut Conn,
    refused: u32,
    opened: &Mutex<std::sync::mpsc::Receiver<()>>,
) -> io::Result<u32> {
    // SETTINGS_INITIAL_WINDOW_SIZE = 0: what is sent again finds no room.
    write(conn, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0]))?;
    write(conn, &frame(RST_STREAM, 0, refused, &REFUSED))?;
    let stream = request(conn)?;
    write(conn, &frame(HEADERS, 0x4, stream, &[0x88]))?;
    let arrived = opened.lock().expect("not poisoned").recv_timeout(DEADLINE);
    arrived.expect("the head has arrived");
    write(conn, &frame(WINDOW_UPDATE, 0, stream, &[0, 0, 0x10, 0]))?;
    Ok(stream)
}

/// The server answers before it has room for the body that is sent again.
#[test]
fn http2_body_sent_again_after_the_answer_has_begun_is_whole() {
    for later in ["", " world"] {
        let (tell, told) = std::sync::mpsc::channel();
        let (open, opened) = std::sync::mpsc::channel();
        let opened = Mutex::new(opened);
        let origin = Origin::start(move |conn| {
            greet(conn, b"")?;
            let refused = request(conn)?;
            while read_frame(conn)?.0 != DATA {}
            answered_before_its_body(conn, refused, &opened)?;
            bodies(conn, |conn, stream, body, whole| {
                if whole {
                    let _ = tell.send(body.to_vec());
                    write(conn, &frame(DATA, 1, stream, b""))?;
                }
                Ok(())
            })
        });
        let mut twice = http2(&origin);
        twice.attempts = 2;
        let gateway = gateway(twice);
        let mut client = gateway.connect();
        io::Write::write_all(&mut client, post(5 + later.len(), "hello").as_bytes()).expect("sent");
        let head = read_head(&mut client).expect("a head");
        assert!(head.starts_with("HTTP/1.1 200"), "{head}");
        io::Write::write_all(&mut client, later.as_bytes()).expect("sent");
        open.send(()).expect("the server waits");
        let body = told.recv_timeout(DEADLINE).expect("it comes");
        assert_eq!(String::from_utf8_lossy(&body), format!("hello{later}"));
    }
}

#[test]
fn http2_trailers_sent_again_after_the_answer_has_begun_arrive() {
    let (tell, told) = std::sync::mpsc::channel();
    let (open, opened) = std::sync::mpsc::channel();
    let opened = Mutex::new(opened);
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        let refused = request(conn)?;
        // The body and the trailers have gone out once.
        while read_frame(conn)?.0 != HEADERS {}
        let stream = answered_before_its_body(conn, refused, &opened)?;
        loop {
            let (kind, flags, of) = read_frame(conn)?;
            if of == stream && flags & 1 != 0 {
                let _ = tell.send(kind);
                write(conn, &frame(DATA, 1, stream, b""))?;
            }
        }
    });
    let mut twice = http2(&origin);
    twice.attempts = 2;
    let gateway = gateway(twice);
    let mut client = gateway.connect();
    let call = "POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
                5\r\nhello\r\n0\r\nX-Sum: 1\r\n\r\n";
    io::Write::write_all(&mut client, call.as_bytes()).expect("sent");
    let head = read_head(&mut client).expect("a head");
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    open.send(()).expect("the server waits");
    assert_eq!(
        told.recv_timeout(DEADLINE).expect("it comes"),
        HEADERS,
        "the stream ends with its trailers"
    );
}

//! Requests with a body that HTTP/2 upstreams refuse or leave behind.

use super::*;

/// Reads the frames of a connection and calls `act` for each frame of DATA, with its stream, the body of that stream so
/// far, and whether the body is complete.
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
    let (tell, received) = std::sync::mpsc::channel();
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
    assert_eq!(received.recv_timeout(DEADLINE).expect("it comes"), b"hello");
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
    let (tell, received) = std::sync::mpsc::channel();
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
    assert_eq!(received.recv_timeout(DEADLINE).expect("it comes"), b"hello");
    io::Write::write_all(&mut client, b" world").expect("sent");
    assert_eq!(read_response(&mut client).status, 200);
    assert_eq!(
        received.recv_timeout(DEADLINE).expect("it comes"),
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
            // It has accepted this stream, and leaves without a response.
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
    let response = std::thread::scope(|scope| {
        let mut writes = client.try_clone().expect("cloned");
        scope.spawn(move || {
            io::Write::write_all(&mut writes, post(length, &"x".repeat(length)).as_bytes())
        });
        read_response(&mut client)
    });
    assert_eq!(response.status, 502);
    assert_eq!(origin.records().len(), 1, "on one connection");
}

/// Refuses a stream, responds on the one on which the request comes again before there is room for
/// its body, and makes room once the head of the response has arrived; returns that stream.
fn respond_before_the_body(
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

/// The server responds before it has room for the body that is sent again.
#[test]
fn http2_body_sent_again_after_the_response_has_begun_is_complete() {
    for later in ["", " world"] {
        let (tell, received) = std::sync::mpsc::channel();
        let (open, opened) = std::sync::mpsc::channel();
        let opened = Mutex::new(opened);
        let origin = Origin::start(move |conn| {
            greet(conn, b"")?;
            let refused = request(conn)?;
            while read_frame(conn)?.0 != DATA {}
            respond_before_the_body(conn, refused, &opened)?;
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
        let body = received.recv_timeout(DEADLINE).expect("it comes");
        assert_eq!(String::from_utf8_lossy(&body), format!("hello{later}"));
    }
}

#[test]
fn http2_trailers_sent_again_after_the_response_has_begun_arrive() {
    let (tell, received) = std::sync::mpsc::channel();
    let (open, opened) = std::sync::mpsc::channel();
    let opened = Mutex::new(opened);
    let origin = Origin::start(move |conn| {
        greet(conn, b"")?;
        let refused = request(conn)?;
        // The body and the trailers have gone out once.
        while read_frame(conn)?.0 != HEADERS {}
        let stream = respond_before_the_body(conn, refused, &opened)?;
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
        received.recv_timeout(DEADLINE).expect("it comes"),
        HEADERS,
        "the stream ends with its trailers"
    );
}

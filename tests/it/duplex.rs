//! Uploads and answers that are under way at the same time, where the caller sends everything before it reads anything.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use bytes::Bytes;

use crate::harness::frames::{
    DATA, END_HEADERS, END_STREAM, Frames, HEADERS, WINDOW_UPDATE, frame, request,
};
use crate::harness::{Gateway, PATIENCE};
use crate::streams::{scripted, until};

/// Far more than all buffers on the way hold.
const SIZE: usize = 24 << 20;
const PIECE: usize = 64 << 10;

/// An upstream that answers with `SIZE` bytes while it reads as many; its address.
fn full_duplex() -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.expect("a connection");
            std::thread::spawn(move || {
                stream.set_read_timeout(Some(PATIENCE)).expect("set");
                let mut head = Vec::new();
                let mut byte = [0];
                while !head.ends_with(b"\r\n\r\n") {
                    stream.read_exact(&mut byte).expect("a head");
                    head.push(byte[0]);
                }
                let mut answering = stream.try_clone().expect("a second handle");
                let answer = std::thread::spawn(move || {
                    let head = format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n", SIZE + 8);
                    answering.write_all(head.as_bytes())?;
                    (0..SIZE / PIECE).try_for_each(|_| answering.write_all(&[b'a'; PIECE]))
                });
                let read = std::io::copy(
                    &mut Read::by_ref(&mut stream).take(SIZE as u64),
                    &mut std::io::sink(),
                );
                answer.join().expect("no panic").expect("taken in time");
                // How much had come is the last that is said.
                let _ = write!(stream, "{:08}", read.expect("a body"));
            });
        }
    });
    address
}

/// The same over HTTP/2.
fn full_duplex_over_http2() -> SocketAddr {
    over_http2(async |mut body, mut respond| {
        let mut answer = respond
            .send_response(http::Response::new(()), false)
            .expect("sent");
        let reading = tokio::task::spawn_local(async move {
            let mut read = 0;
            while let Some(piece) = body.data().await {
                let length = piece.expect("a body").len();
                read += length;
                body.flow_control()
                    .release_capacity(length)
                    .expect("its own");
            }
            read
        });
        send(&mut answer, SIZE).await;
        let read = reading.await.expect("no panic");
        answer
            .send_data(format!("{read:08}").into(), true)
            .expect("sent");
    })
}

/// An upstream of one HTTP/2 connection whose requests are answered by `answer`; its address.
pub(crate) fn over_http2(
    answer: impl AsyncFn(h2::RecvStream, h2::server::SendResponse<Bytes>) + Copy + Send + 'static,
) -> SocketAddr {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a free port");
    listener.set_nonblocking(true).expect("set");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        run(tokio::task::LocalSet::new().run_until(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("registered");
            let (stream, _) = listener.accept().await.expect("a connection");
            let mut connection = h2::server::handshake(stream).await.expect("HTTP/2");
            while let Some(Ok((request, respond))) = connection.accept().await {
                tokio::task::spawn_local(async move {
                    answer(request.into_body(), respond).await;
                });
            }
        }));
    });
    address
}

/// Sends so many bytes, as fast as there is room for them.
async fn send(stream: &mut h2::SendStream<Bytes>, bytes: usize) {
    let mut left = bytes;
    while left > 0 {
        stream.reserve_capacity(left.min(PIECE));
        let room = std::future::poll_fn(|cx| stream.poll_capacity(cx))
            .await
            .expect("open")
            .expect("room");
        stream
            .send_data(vec![b'u'; room].into(), false)
            .expect("sent");
        left -= room;
    }
}

pub(crate) fn run<F: Future>(test: F) -> F::Output {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        tokio::time::timeout(3 * PATIENCE, test)
            .await
            .expect("in time")
    })
}

/// Cuts off who stands still for a second and a half.
fn in_front_of(upstream: SocketAddr, http2: bool) -> Gateway {
    Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nworkers = 1\ntimeouts = {{ body_idle = \"1500ms\" }}\n\
         [upstreams.app]\nservers = [\"http://{upstream}\"]\nhttp2 = {http2}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\n"
    ))
}

/// Sends `SIZE` bytes over HTTP/1.1, then reads the answer; how many bytes the upstream says that came.
fn upload(gateway: &Gateway, pause: Duration) -> String {
    let mut stream = TcpStream::connect(gateway.address()).expect("connected");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    write!(
        stream,
        "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: {SIZE}\r\n\r\n"
    )
    .expect("sent");
    for piece in 0..SIZE / PIECE {
        if piece % 64 == 63 {
            std::thread::park_timeout(pause);
        }
        stream
            .write_all(&[b'u'; PIECE])
            .expect("the upload goes on");
    }
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).expect("an answer");
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    assert!(head.starts_with("HTTP/1.1 200 "), "{head}");
    let chunked = head.contains("transfer-encoding");
    let mut answer = vec![0; SIZE];
    stream.read_exact(&mut answer).expect("the answer");
    // What is left of a chunked answer is a little more for its framing.
    let mut end = Vec::new();
    while !end.ends_with(if chunked { b"\r\n0\r\n\r\n" } else { b"" }) || end.len() < 8 {
        stream.read_exact(&mut byte).expect("its end");
        end.push(byte[0]);
    }
    let end = String::from_utf8_lossy(&end).into_owned();
    let end = end.trim_end_matches("\r\n0\r\n\r\n");
    end[end.len() - 8..].to_owned()
}

/// The same over HTTP/2.
fn upload_over_http2(gateway: &Gateway, pause: Duration) -> String {
    run(async {
        let stream = tokio::net::TcpStream::connect(gateway.address())
            .await
            .expect("connected");
        let (mut client, connection) = h2::client::handshake(stream).await.expect("HTTP/2");
        tokio::spawn(connection);
        let request = http::Request::post("http://x/")
            .header("content-length", SIZE)
            .body(())
            .expect("a request");
        let (answer, mut body) = client.send_request(request, false).expect("sent");
        for _ in 0..6 {
            send(&mut body, SIZE / 6).await;
            tokio::time::sleep(pause).await;
        }
        body.send_data(Bytes::new(), true).expect("sent");
        let mut answer = answer.await.expect("an answer").into_body();
        let (mut read, mut end) = (0, Vec::new());
        while let Some(piece) = answer.data().await {
            let piece = piece.expect("the answer");
            answer
                .flow_control()
                .release_capacity(piece.len())
                .expect("its own");
            read += piece.len();
            end = [&end, &piece[..]].concat();
            end.drain(..end.len().saturating_sub(8));
        }
        assert_eq!(read, SIZE + 8);
        String::from_utf8(end).expect("a number")
    })
}

#[test]
fn upload_continues_while_its_client_reads_no_response() {
    for (upstream, http2) in [(full_duplex(), false), (full_duplex_over_http2(), true)] {
        let gateway = in_front_of(upstream, http2);
        for _ in 0..2 {
            assert_eq!(
                upload(&gateway, Duration::ZERO),
                format!("{SIZE:08}"),
                "HTTP/2 upstream: {http2}"
            );
            assert_eq!(
                upload_over_http2(&gateway, Duration::ZERO),
                format!("{SIZE:08}"),
                "HTTP/2 upstream: {http2}"
            );
        }
    }
}

#[test]
fn upload_longer_than_the_idle_timeout_is_not_cut_off() {
    let pause = Duration::from_millis(500);
    for (upstream, http2) in [(full_duplex(), false), (full_duplex_over_http2(), true)] {
        let gateway = in_front_of(upstream, http2);
        assert_eq!(
            upload(&gateway, pause),
            format!("{SIZE:08}"),
            "HTTP/2 upstream: {http2}"
        );
        assert_eq!(
            upload_over_http2(&gateway, pause),
            format!("{SIZE:08}"),
            "HTTP/2 upstream: {http2}"
        );
    }
}

#[test]
fn a_stream_whose_window_is_shut_is_not_cut_off_while_its_request_comes_and_is_when_that_stands_still()
 {
    for pieces in [8, 1] {
        let url = scripted(|mut stream| {
            until(&mut stream, "\r\n\r\n");
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 164\r\n\r\ntext")
                .expect("sent");
            // A piece of the answer for each piece of the request.
            let mut piece = [0; 4096];
            while stream.read_exact(&mut piece).is_ok()
                && stream.write_all(b"twenty bytes of text").is_ok()
            {}
            let _ = stream.read(&mut [0]);
        });
        let upstream = url
            .trim_start_matches("http://")
            .parse()
            .expect("an address");
        let gateway = in_front_of(upstream, false);
        // A window of ten bytes: the reader asks for no more pieces than fit into the buffers of its stream.
        let mut frames = Frames::open(gateway.address(), &[(4, 10)]);
        let head = request("POST", "/", &[("content-length", "32768")]);
        frames.send(frame(HEADERS, END_HEADERS, 1, head));
        for piece in 1..=pieces {
            frames.send(frame(
                DATA,
                if piece == 8 { END_STREAM } else { 0 },
                1,
                [b'u'; 4096],
            ));
            std::thread::park_timeout(Duration::from_millis(500));
        }
        if pieces == 8 {
            frames.send(frame(WINDOW_UPDATE, 0, 1, 1000_u32.to_be_bytes()));
        }
        let fate = frames.fate(1);
        let whole = fate.ended && fate.body.len() == 164;
        assert_eq!(
            (whole, fate.reset.is_some()),
            (pieces == 8, pieces == 1),
            "{fate:?}"
        );
    }
}

//! Deadlines of callers that end the body of a response: the upstream ends it in order, at a moment that the caller chose.

use std::io::{self, Write};
use std::net::TcpListener;
use std::time::Duration;

use crate::harness::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, block, frame};
use crate::harness::upstream::Stream;
use crate::harness::{Gateway, Reply, Upstream};

/// The cost of a request with these headers, by a limit that estimates 500 units.
#[track_caller]
fn charged(from: &str, upstream: &str, more: &str, headers: &[(&str, &str)]) -> u64 {
    let gateway = Gateway::start(&format!(
        "[limits.it]\nrate = \"10000/day\"\nburst = 10000\nper = \"everyone\"\n\
         settle = {{ from = \"{from}\", estimate = 500, max = 900 }}\n\
         [upstreams.app]\nservers = [\"{upstream}\"]\n{more}\n\
         [[routes]]\nmatch = \"/**\"\nupstream = \"app\"\nlimits = [\"it\"]\n\
         [[routes]]\nmatch = \"/look\"\nupstream = \"builtin:echo\"\nlimits = [\"it\"]\n"
    ));
    // On one connection, so that the first response is settled before the second request.
    let mut connection = gateway.connect();
    let answer = connection.request("POST", "/", &[headers, &[("content-length", "0")]].concat());
    assert_eq!(
        (answer.status, answer.truncated),
        (200, false),
        "{answer:?}"
    );
    let left = connection.request("GET", "/look", &[]).left();
    10_000 - 500 - left.expect("quota headers")
}

fn write(stream: &mut dyn Write, text: &str) -> io::Result<()> {
    stream.write_all(text.as_bytes())?;
    stream.flush()
}

/// Sends a head of this type and most of the 11 bytes of a body at once; after `pause` its end, with these trailers.
fn streaming(kind: &'static str, pause: Duration, trailers: &'static str) -> Upstream {
    Upstream::start(move |_| {
        Reply::Stream(Stream::new(move |stream| {
            let head = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: {kind}\r\ntransfer-encoding: chunked\r\n\r\n"
            );
            write(stream, &(head + "a\r\n{\"used\":10\r\n"))?;
            std::thread::sleep(pause);
            write(stream, &format!("1\r\n}}\r\n0\r\n{trailers}\r\n"))
        }))
    })
}

/// The same over HTTP/2, for each request of one connection; returns its URL.
fn streaming_http2(pause: Duration, status: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        let Ok((stream, _)) = listener.accept() else {
            return;
        };
        let mut frames = Frames::accepted(stream, (MAX_CONCURRENT_STREAMS, 100));
        while let Ok(Some((kind, _, stream, _))) = frames.frame() {
            if kind != HEADERS {
                continue;
            }
            let head = block(&[(":status", "200"), ("content-type", "application/grpc")]);
            frames.send(frame(HEADERS, END_HEADERS, stream, head));
            frames.send(frame(DATA, 0, stream, "{\"used\":10}"));
            std::thread::sleep(pause);
            let trailers = block(&[("grpc-status", status)]);
            frames.send(frame(HEADERS, END_HEADERS | END_STREAM, stream, trailers));
        }
    });
    format!("http://{address}")
}

const MAX_CONCURRENT_STREAMS: u16 = 3;
const DEADLINES: [[(&str, &str); 1]; 2] = [
    [("connect-timeout-ms", "200")],
    [("x-envoy-upstream-stream-duration-ms", "200")],
];
const BEYOND: Duration = Duration::from_millis(210);
const FAR: &str = "1H";

#[test]
fn settle_response_that_ends_after_the_callers_deadline_earns_no_credit() {
    for (from, kind) in [
        ("bytes", "application/connect+json"),
        ("json:used", "application/json"),
    ] {
        for deadline in &DEADLINES {
            let upstream = streaming(kind, BEYOND, "");
            let cost = charged(from, &upstream.url(), "", deadline);
            assert_eq!(cost, 500, "{from} {deadline:?}");
        }
        // It ends before its deadline, or has none.
        for deadline in [&[("connect-timeout-ms", "3600000")][..], &[]] {
            let upstream = streaming(kind, BEYOND, "");
            let cost = charged(from, &upstream.url(), "", deadline);
            assert!(cost < 20, "{from} {deadline:?}: {cost}");
        }
    }
}

#[test]
fn settle_trailers_that_tell_of_the_callers_deadline_earn_no_credit() {
    let grpc = [("content-type", "application/grpc"), ("te", "trailers")];
    let stated = [&grpc[..], &[("grpc-timeout", FAR)]].concat();
    let short = [&grpc[..], &[("grpc-timeout", "10S")]].concat();
    for (headers, status, cost) in [
        (&stated[..], "4", 500),
        (&stated, "1", 500),
        (&stated, "0", 1),
        (&stated, "14", 1),
        // The upstream may have given up early, because too little time was left.
        (&short, "14", 500),
        (&short, "0", 1),
        (&grpc, "4", 1),
    ] {
        let trailers = match status {
            "0" => "grpc-status: 0\r\n",
            "1" => "Grpc-Status: 1\r\n",
            "4" => "grpc-status: 4\r\n",
            _ => "grpc-status: 14\r\n",
        };
        let upstream = streaming("application/grpc", Duration::ZERO, trailers);
        let its = charged("bytes", &upstream.url(), "", headers);
        assert_eq!(its, cost, "{status} {headers:?}");

        let url = streaming_http2(Duration::ZERO, status);
        let its = charged("bytes", &url, "http2 = true", headers);
        assert_eq!(its, cost, "HTTP/2: {status} {headers:?}");
    }
}

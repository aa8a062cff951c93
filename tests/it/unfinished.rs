//! A request that has not arrived completely, or that asks for less than the whole response, is never cheaper for it: the
//! caller decides when its last byte comes, and which condition or range it sends.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::harness::frames::{DATA, END_HEADERS, END_STREAM, Frames, HEADERS, frame, request};
use crate::harness::{Gateway, Reply, Upstream};
use crate::spending::{REFUNDS, admitted, three};

/// The head of an upload, which must go on after what was sent: with a length, in chunks, and in the middle of the body.
const UPLOADS: [&str; 3] = [
    "Content-Length: 5\r\n\r\n",
    "Transfer-Encoding: chunked\r\n\r\n",
    "Content-Length: 5\r\n\r\nx",
];

/// An upstream that responds with this status to the head of a request, before it has read the body. Returns its URL and
/// the number of requests so far.
fn early(status: u16) -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("its address"));
    let seen = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&seen);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (Ok(mut stream), count) = (stream, Arc::clone(&count)) else {
                continue;
            };
            std::thread::spawn(move || {
                let (mut read, mut piece) = (Vec::new(), [0; 1024]);
                while !read.windows(4).any(|four| four == b"\r\n\r\n") {
                    let Ok(length @ 1..) = stream.read(&mut piece) else {
                        return;
                    };
                    read.extend_from_slice(&piece[..length]);
                }
                count.fetch_add(1, Ordering::SeqCst);
                let reply = format!(
                    "HTTP/1.1 {status} Early\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                );
                _ = stream.write_all(reply.as_bytes());
                // The gateway closes when it has read the response.
                while matches!(stream.read(&mut piece), Ok(1..)) {}
            });
        }
    });
    (url, seen)
}

#[test]
fn refund_of_an_upload_withheld_behind_expect_is_not_made() {
    for refund in REFUNDS {
        for upload in UPLOADS {
            for timeout in ["response", "total"] {
                let upstream = Upstream::start(|_| Reply::Silence);
                let timeouts = format!("timeouts = {{ {timeout} = \"60ms\" }}");
                let gateway = Gateway::start(&three(refund, &upstream.url(), &timeouts));
                let count = admitted(&gateway, |connection| {
                    connection.send(format!(
                        "POST / HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n{upload}"
                    ));
                    let status = connection.answer("POST").status;
                    assert!(matches!(status, 504 | 429), "{status}");
                });
                assert_eq!(count, 3, "{refund}: {timeout}, {upload:?}");
            }
        }
    }
}

#[test]
fn refund_of_a_stream_left_open_behind_expect_is_not_made() {
    for refund in REFUNDS {
        for (kind, body) in [
            ("text/plain", ""),
            ("text/plain", "x"),
            ("application/grpc", ""),
        ] {
            let upstream = Upstream::start(|_| Reply::Silence);
            let timeouts = "timeouts = { response = \"60ms\" }";
            let gateway = Gateway::start(&three(refund, &upstream.url(), timeouts));
            let count = admitted(&gateway, |_| {
                let mut frames = Frames::open(gateway.address(), &[]);
                let fields = [("content-type", kind), ("expect", "100-continue")];
                frames.send(frame(
                    HEADERS,
                    END_HEADERS,
                    1,
                    request("POST", "/", &fields),
                ));
                if !body.is_empty() {
                    frames.send(frame(DATA, 0, 1, body));
                }
                frames.fate(1);
            });
            assert_eq!(count, 3, "{refund}: {kind}, {body:?}");
        }
    }
}

#[test]
fn refund_of_a_response_that_comes_before_the_end_of_the_upload_is_not_made() {
    for refund in REFUNDS {
        for upload in UPLOADS {
            for (status, expect) in [(408, ""), (503, ""), (503, "Expect: 100-continue\r\n")] {
                let (url, seen) = early(status);
                let gateway = Gateway::start(&three(refund, &url, ""));
                let count = admitted(&gateway, |connection| {
                    connection.send(format!("POST / HTTP/1.1\r\nHost: x\r\n{expect}{upload}"));
                    let told = connection.answer("POST").status;
                    assert!(told == status || told == 429, "{told}");
                });
                assert_eq!(count, 3, "{refund}: {status}, {expect}{upload:?}");
                assert_eq!(seen.load(Ordering::SeqCst), 3, "{refund}: {status}");
            }
        }
    }
}

#[test]
fn refund_of_a_failure_after_a_whole_upload_is_made() {
    let whole = [
        "Content-Length: 5\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\nx-sum: 1\r\n\r\n",
        "Content-Length: 0\r\n\r\n",
    ];
    for (reply, status) in [(Reply::new(503, &[], ""), 503), (Reply::Silence, 504)] {
        for upload in whole {
            let upstream = Upstream::start({
                let reply = reply.clone();
                move |_| reply.clone()
            });
            let timeouts = "timeouts = { response = \"60ms\" }";
            let gateway = Gateway::start(&three(REFUNDS[0], &upstream.url(), timeouts));
            let count = admitted(&gateway, |connection| {
                connection.send(format!("POST / HTTP/1.1\r\nHost: x\r\n{upload}"));
                assert_eq!(connection.answer("POST").status, status, "{upload:?}");
            });
            assert_eq!(count, 10, "{status}: {upload:?}");
        }
    }
}

/// The client may send its last byte while the upstream's 408 is on its way.
#[test]
fn refund_of_a_request_timeout_is_not_made_although_the_upload_is_whole_by_then() {
    for refund in REFUNDS {
        let upstream = Upstream::start(|_| Reply::new(408, &[], ""));
        let gateway = Gateway::start(&three(refund, &upstream.url(), ""));
        let count = admitted(&gateway, |connection| {
            connection.send("POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello");
            let told = connection.answer("POST").status;
            assert!(matches!(told, 408 | 429), "{told}");
        });
        assert_eq!(count, 3, "{refund}");
    }
}

#[test]
fn refund_of_a_failure_after_a_whole_stream_is_made() {
    for (length, last) in [("5", 0), ("5", END_STREAM), ("", END_STREAM)] {
        let upstream = Upstream::start(|_| Reply::new(503, &[], ""));
        let gateway = Gateway::start(&three(REFUNDS[0], &upstream.url(), ""));
        let count = admitted(&gateway, |_| {
            let mut frames = Frames::open(gateway.address(), &[]);
            let fields = [("content-length", length)];
            let fields = if length.is_empty() { &[][..] } else { &fields };
            frames.send(frame(HEADERS, END_HEADERS, 1, request("POST", "/", fields)));
            frames.send(frame(DATA, last, 1, "hello"));
            assert_eq!(frames.fate(1).status, Some(503), "{length:?}");
        });
        // With all announced bytes the upstream has the whole request, also while the stream is open.
        assert_eq!(count, 10, "{length:?}, flags {last}");
    }
}

/// Headers that ask for less than the whole response, and the status that a server then responds with.
const SELECTIONS: [(&str, &str, u16); 5] = [
    ("if-none-match", "*", 304),
    ("range", "bytes=0-0", 206),
    ("if-match", "\"x\"", 412),
    ("range", "bytes=9999-", 416),
    ("if_none_match", "*", 304),
];

/// An upstream that obeys them; a HEAD gets a length without a body.
fn selecting() -> Upstream {
    Upstream::start(|seen| {
        for (name, value, status) in SELECTIONS {
            if seen.header(name) == Some(value) {
                let body = if status == 206 { "y" } else { "" };
                return match status {
                    304 => Reply::Bytes(b"HTTP/1.1 304 Not Modified\r\n\r\n".to_vec()),
                    status => Reply::new(status, &[], body),
                };
            }
        }
        match seen.line().split(' ').next() {
            Some("HEAD") => {
                Reply::Bytes(b"HTTP/1.1 200 OK\r\ncontent-length: 500000\r\n\r\n".to_vec())
            }
            _ => Reply::ok(&"y".repeat(500)),
        }
    })
}

#[test]
fn conditions_and_ranges_of_the_caller_count_as_the_success_that_they_ask_less_of() {
    for (name, value, status) in SELECTIONS {
        for numbers in ["count = [\"2xx\"]", "refund_on = [\"3xx\", \"4xx\"]"] {
            let upstream = selecting();
            let gateway = Gateway::start(&three(numbers, &upstream.url(), ""));
            let mut told = Vec::new();
            admitted(&gateway, |connection| {
                told.push(connection.request("GET", "/", &[(name, value)]).status);
            });
            let sent = told.iter().filter(|told| **told == status).count();
            assert_eq!(sent, 3, "{numbers} {name}: {told:?}");
        }
    }
    // A limit that counts failures alone gives successes back, and these with them.
    let upstream = selecting();
    let gateway = Gateway::start(&three("count = \"failures\"", &upstream.url(), ""));
    let count = admitted(&gateway, |connection| {
        let status = connection
            .request("GET", "/", &[("if-none-match", "*")])
            .status;
        assert_eq!(status, 304);
    });
    assert_eq!(count, 10);
}

#[test]
fn settle_by_bytes_of_a_request_for_less_than_the_response_costs_the_estimate() {
    let left = |method: &str, header: &[(&str, &str)]| {
        let upstream = selecting();
        let gateway = Gateway::start(&format!(
            "[responses]\nheaders = [\"ratelimit\"]\n\
             [limits.it]\nrate = \"1000/day\"\nburst = 1000\nper = \"everyone\"\n\
             settle = {{ from = \"bytes\", per = \"100B\", estimate = 50, max = 900 }}\n\
             [[routes]]\nmatch = \"/**\"\nupstream = \"{}\"\nlimits = [\"it\"]\n",
            upstream.url()
        ));
        let mut connection = gateway.connect();
        connection.request(method, "/", header);
        let told = connection.request("GET", "/", &[]);
        let told = told.header("ratelimit").expect("a header").to_owned();
        let left = told
            .split("r=")
            .nth(1)
            .and_then(|rest| rest.split(';').next());
        left.and_then(|left| left.parse::<u64>().ok())
            .expect("units")
    };
    // 500 bytes cost 5 units; the second request has its estimate of 50 taken when its head is written.
    assert_eq!(left("GET", &[]), 1000 - 5 - 50);
    assert_eq!(left("HEAD", &[]), 1000 - 50 - 50);
    for (name, value, status) in SELECTIONS {
        assert_eq!(
            left("GET", &[(name, value)]),
            1000 - 50 - 50,
            "{name}: {status}"
        );
    }
}

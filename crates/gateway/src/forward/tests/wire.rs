//! A raw client: its connections, and responses as they are on the wire.

use std::io::{self, Read};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// No event of these tests takes longer.
pub(super) const DEADLINE: Duration = Duration::from_secs(10);

pub(super) fn dial(address: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(address).expect("connected");
    stream.set_read_timeout(Some(DEADLINE)).expect("set");
    stream.set_write_timeout(Some(DEADLINE)).expect("set");
    stream
}

/// A response as it was on the wire.
#[derive(Debug)]
pub(super) struct RawResponse {
    pub(super) status: u16,
    pub(super) head: String,
    pub(super) body: String,
    /// Whether the body ended as its framing says.
    pub(super) whole: bool,
}

impl RawResponse {
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        header(&self.head, name)
    }
}

pub(super) fn header<'h>(head: &'h str, name: &str) -> Option<&'h str> {
    head.lines().find_map(|line| {
        let (left, right) = line.split_once(':')?;
        left.eq_ignore_ascii_case(name).then(|| right.trim())
    })
}

/// Reads a head, up to and with its blank line.
pub(super) fn read_head(stream: &mut impl Read) -> io::Result<String> {
    let mut head = Vec::new();
    let mut byte = [0];
    while !head.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte)?;
        head.push(byte[0]);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Reads one response, and leaves later bytes on the connection.
pub(super) fn read_response(stream: &mut impl Read) -> RawResponse {
    let head = read_head(stream).expect("a head");
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|code| code.parse().ok())
        .expect("a status");
    let (body, whole) = if status == 204 || status == 304 || status == 101 {
        (Vec::new(), true)
    } else if let Some(length) = header(&head, "content-length") {
        let length = length.parse().expect("a length");
        let mut body = Vec::new();
        let _ = stream.take(length).read_to_end(&mut body);
        let whole = body.len() as u64 == length;
        (body, whole)
    } else if header(&head, "transfer-encoding").is_some() {
        let mut body = Vec::new();
        let mut byte = [0];
        let mut whole = true;
        while !(body.ends_with(b"0\r\n\r\n") || is_end_with_trailers(&body)) {
            if stream.read_exact(&mut byte).is_err() {
                whole = false;
                break;
            }
            body.push(byte[0]);
        }
        (body, whole)
    } else {
        let mut body = Vec::new();
        let whole = stream.read_to_end(&mut body).is_ok();
        (body, whole)
    };
    RawResponse {
        status,
        head,
        body: String::from_utf8_lossy(&body).into_owned(),
        whole,
    }
}

pub(super) fn is_end_with_trailers(body: &[u8]) -> bool {
    body.ends_with(b"\r\n\r\n") && body.windows(5).any(|window| window == b"\r\n0\r\n")
}

/// Waits for an event of another thread, at most [`DEADLINE`].
#[track_caller]
pub(super) fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let step = Duration::from_millis(5);
    let mut waited = Duration::ZERO;
    while !holds() {
        assert!(waited < DEADLINE, "not in time: {what}");
        std::thread::sleep(step);
        waited += step;
    }
}

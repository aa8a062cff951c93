//! One side of HTTP/2, mostly a client, that writes the very frames the test wants, right or wrong.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::PATIENCE;

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const PRIORITY: u8 = 2;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PUSH_PROMISE: u8 = 5;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 1;
pub const END_HEADERS: u8 = 4;
const ACK: u8 = 1;

pub fn frame(kind: u8, flags: u8, stream: u32, payload: impl AsRef<[u8]>) -> Vec<u8> {
    let payload = payload.as_ref();
    let length = u32::try_from(payload.len()).expect("short").to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header block of literals: neither Huffman nor the table hides anything.
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    let mut block = Vec::new();
    for (name, value) in fields {
        block.push(0);
        for text in [name, value] {
            integer(&mut block, text.len());
            block.extend_from_slice(text.as_bytes());
        }
    }
    block
}

/// A length with a prefix of seven bits (RFC 7541 5.1).
fn integer(into: &mut Vec<u8>, value: usize) {
    if value < 127 {
        into.push(u8::try_from(value).expect("below 127"));
        return;
    }
    into.push(127);
    let mut rest = value - 127;
    while rest >= 128 {
        into.push(u8::try_from(rest % 128).expect("below 128") | 128);
        rest /= 128;
    }
    into.push(u8::try_from(rest).expect("below 128"));
}

/// The pseudo-fields of a request, and `more`.
pub fn request(method: &str, path: &str, more: &[(&str, &str)]) -> Vec<u8> {
    let pseudo = [
        (":method", method),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", path),
    ];
    block(&[&pseudo, more].concat())
}

/// What became of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fate {
    /// The status of the answer.
    pub status: Option<u16>,
    pub body: Vec<u8>,
    /// Header blocks after the first.
    pub trailers: usize,
    /// It ended in order.
    pub ended: bool,
    /// The code it was reset with.
    pub reset: Option<u32>,
    /// The code the whole connection was ended with.
    pub goaway: Option<u32>,
}

impl Fate {
    /// The body as JSON.
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body)
            .unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }

    /// Whether the request was turned away: by a status, or by HTTP/2's own means.
    pub fn is_refused(&self) -> bool {
        self.reset.is_some_and(|code| code != 0)
            || self.goaway.is_some_and(|code| code != 0)
            || self.status.is_some_and(|status| status >= 400)
    }
}

/// A connection.
pub struct Frames {
    pub stream: TcpStream,
    read: Vec<u8>,
}

impl Frames {
    /// Connects, with these settings (`identifier, value`) of ours.
    #[track_caller]
    pub fn open(to: SocketAddr, settings: &[(u16, u32)]) -> Self {
        let stream = TcpStream::connect_timeout(&to, PATIENCE).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_write_timeout(Some(PATIENCE)).expect("a timeout");
        stream.set_nodelay(true).expect("no delay");
        let mut open = Self {
            stream,
            read: Vec::new(),
        };
        // No dynamic table towards us: the status of a response is in its first bytes.
        let mut payload = vec![0, 1, 0, 0, 0, 0];
        for (identifier, value) in settings {
            payload.extend(identifier.to_be_bytes());
            payload.extend(value.to_be_bytes());
        }
        open.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
        open.send(frame(SETTINGS, 0, 0, payload));
        open
    }

    /// The upstream's side of a connection just accepted, with this setting (`identifier, value`) of its own.
    #[track_caller]
    pub fn accepted(mut stream: TcpStream, (identifier, value): (u16, u32)) -> Self {
        stream.read_exact(&mut [0; 24]).expect("the preface");
        let mut open = Self {
            stream,
            read: Vec::new(),
        };
        open.send(frame(
            SETTINGS,
            0,
            0,
            [&identifier.to_be_bytes()[..], &value.to_be_bytes()].concat(),
        ));
        open
    }

    /// Sends these very bytes.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.try_send(bytes).expect("sent");
    }

    /// Sends these very bytes, if the other side still takes them.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> io::Result<()> {
        self.stream.write_all(bytes.as_ref())
    }

    /// Sends a request without a body.
    #[track_caller]
    pub fn ask(&mut self, stream: u32, method: &str, path: &str, more: &[(&str, &str)]) {
        self.send(frame(
            HEADERS,
            END_STREAM | END_HEADERS,
            stream,
            request(method, path, more),
        ));
    }

    /// Reads one frame: its type, flags, stream and payload; `None`: the connection has ended.
    pub fn frame(&mut self) -> io::Result<Option<(u8, u8, u32, Vec<u8>)>> {
        loop {
            if let Some(head) = self.read.first_chunk::<9>() {
                let [a, b, c, kind, flags, stream @ ..] = *head;
                let length = u32::from_be_bytes([0, a, b, c]) as usize;
                if self.read.len() >= 9 + length {
                    let payload = self.read[9..9 + length].to_vec();
                    self.read.drain(..9 + length);
                    return Ok(Some((
                        kind,
                        flags,
                        u32::from_be_bytes(stream) & 0x7fff_ffff,
                        payload,
                    )));
                }
            }
            let mut piece = [0; 16 << 10];
            match self.stream.read(&mut piece) {
                Ok(0) => return Ok(None),
                Ok(length) => self.read.extend_from_slice(&piece[..length]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(None),
                Err(error) => return Err(error),
            }
        }
    }

    /// Reads until this stream or the connection has ended.
    #[track_caller]
    pub fn fate(&mut self, stream: u32) -> Fate {
        let mut fate = Fate::default();
        while !fate.ended && fate.reset.is_none() {
            let Some((kind, flags, of, payload)) = self.frame().expect("in time") else {
                break;
            };
            match kind {
                // It may be gone already: then nothing is lost.
                SETTINGS if flags & ACK == 0 => _ = self.try_send(frame(SETTINGS, ACK, 0, b"")),
                GOAWAY => fate.goaway = payload[4..8].try_into().ok().map(u32::from_be_bytes),
                _ if of != stream => {}
                HEADERS if fate.status.is_some() => fate.trailers += 1,
                HEADERS => fate.status = status(&payload).filter(|status| *status >= 200),
                DATA => fate.body.extend_from_slice(&payload),
                RST_STREAM => fate.reset = payload[..4].try_into().ok().map(u32::from_be_bytes),
                _ => {}
            }
            fate.ended = of == stream && matches!(kind, DATA | HEADERS) && flags & END_STREAM != 0;
        }
        fate
    }

    /// Whether the other side ends the connection; reads until then.
    pub fn is_ended(&mut self) -> bool {
        while let Ok(frame) = self.frame() {
            if frame.is_none() {
                return true;
            }
        }
        false
    }
}

/// `:status`, the first field of an answer's block, as an encoder without a dynamic table writes it.
fn status(block: &[u8]) -> Option<u16> {
    // A change of the table's size may stand before it.
    let block = if block.first().is_some_and(|byte| byte & 0xe0 == 0x20) {
        &block[1..]
    } else {
        block
    };
    let indexed = [200, 204, 206, 304, 400, 404, 500];
    match *block {
        [first @ 0x88..=0x8e, ..] => Some(indexed[usize::from(first - 0x88)]),
        [0x08 | 0x18 | 0x48, 3, a, b, c, ..] => std::str::from_utf8(&[a, b, c]).ok()?.parse().ok(),
        [0x08 | 0x18 | 0x48, length, ref rest @ ..] if length & 0x80 != 0 => {
            let bytes = rest.get(..usize::from(length & 0x7f))?;
            let mut bits = bytes
                .iter()
                .flat_map(|byte| (0..8).rev().map(move |at| u16::from(byte >> at & 1)));
            let mut digits = || {
                let five = (0..5).try_fold(0, |code, _| Some(code << 1 | bits.next()?))?;
                // RFC 7541 appendix B: 0, 1 and 2 have five bits, the other digits six.
                if five < 3 {
                    Some(five)
                } else {
                    Some((five << 1 | bits.next()?) - 0x19 + 3)
                }
            };
            Some(digits()? * 100 + digits()? * 10 + digits()?)
        }
        _ => None,
    }
}

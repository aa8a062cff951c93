//! Finds the boundaries of WebSocket frames (RFC 6455 section 5.2), so that the gateway can insert
//! a frame between two messages.

use bytes::Bytes;

/// Follows the frames of one direction. It does not validate: bytes that are not WebSocket frames
/// either never reach a boundary between messages or reach a meaningless one, and both ends have
/// received the same bytes.
#[derive(Debug)]
pub(super) struct Frames {
    role: Role,
    header: [u8; HEADER_MAX],
    have: usize,
    /// The number of payload bytes until the frame ends.
    payload: u64,
    /// Whether a message has begun and its last frame has not passed.
    in_message: bool,
    /// Whether this side has begun to close.
    pub(super) closed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// A client, whose frames are masked (section 5.3).
    Client,
    Server,
}

impl Frames {
    pub(super) const fn new(role: Role) -> Self {
        Self {
            role,
            header: [0; HEADER_MAX],
            have: 0,
            payload: 0,
            in_message: false,
            closed: false,
        }
    }

    /// Follows `bytes` to their end or, with `stop`, to the end of the current message. Returns the
    /// number of bytes followed.
    pub(super) fn follow(&mut self, bytes: &[u8], stop: bool) -> usize {
        let mut at = 0;
        while at < bytes.len() && !(stop && self.between_messages()) {
            if self.payload > 0 {
                let left = bytes.len() - at;
                let taken = usize::try_from(self.payload).map_or(left, |payload| payload.min(left));
                at += taken;
                self.payload -= taken as u64;
                continue;
            }
            self.header[self.have] = bytes[at];
            self.have += 1;
            at += 1;
            if self.have == length(&self.header[..self.have]) {
                self.begin();
            }
        }
        at
    }

    /// Handles a complete header: the payload of its frame begins.
    fn begin(&mut self) {
        let header = &self.header[..self.have];
        let number = |bytes: &[u8]| {
            bytes
                .iter()
                .fold(0, |sum, byte| sum << 8 | u64::from(*byte))
        };
        self.payload = match header[1] & LENGTH {
            126 => number(&header[2..4]),
            127 => number(&header[2..10]),
            length => u64::from(length),
        };
        // Control frames may occur between the frames of a message (section 5.4).
        if header[0] & CONTROL == 0 {
            self.in_message = header[0] & FIN == 0;
        }
        self.closed |= header[0] & OPCODE == CLOSE;
        self.have = 0;
    }

    /// Whether a frame that belongs to no message may be inserted here.
    pub(super) const fn between_messages(&self) -> bool {
        self.have == 0 && self.payload == 0 && !self.in_message
    }

    /// The close frame for a shutdown of the gateway: status 1001 (section 7.4.1).
    pub(super) fn going_away(&self) -> Bytes {
        let [high, low] = 1001_u16.to_be_bytes();
        match self.role {
            Role::Server => Bytes::copy_from_slice(&[FIN | CLOSE, 2, high, low]),
            Role::Client => {
                let mask = fastrand::u32(..).to_be_bytes();
                let [a, b, c, d] = mask;
                Bytes::copy_from_slice(&[FIN | CLOSE, MASKED | 2, a, b, c, d, high ^ a, low ^ b])
            }
        }
    }
}

/// The length of a header that begins with these bytes; certain from the second byte on.
fn length(header: &[u8]) -> usize {
    let Some(second) = header.get(1) else {
        return 2;
    };
    let extended = match second & LENGTH {
        126 => 2,
        127 => 8,
        _ => 0,
    };
    2 + extended + if second & MASKED == 0 { 0 } else { 4 }
}

const FIN: u8 = 0x80;
const OPCODE: u8 = 0x0f;
const CONTROL: u8 = 0x08;
const CLOSE: u8 = 0x08;
const MASKED: u8 = 0x80;
const LENGTH: u8 = 0x7f;
/// Two bytes, eight of length, four of mask.
const HEADER_MAX: usize = 14;

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(first: u8, masked: bool, payload: usize) -> Vec<u8> {
        let mask = if masked { MASKED } else { 0 };
        let mut frame = vec![first];
        match payload {
            0..126 => frame.push(mask | u8::try_from(payload).expect("small")),
            126..65_536 => {
                frame.push(mask | 126);
                frame.extend(u16::try_from(payload).expect("fits").to_be_bytes());
            }
            _ => {
                frame.push(mask | 127);
                frame.extend((payload as u64).to_be_bytes());
            }
        }
        frame.extend(vec![0xff; payload + if masked { 4 } else { 0 }]);
        frame
    }

    #[test]
    fn it_knows_where_messages_end_however_they_are_cut() {
        for masked in [false, true] {
            for payload in [0, 1, 125, 126, 65_535, 65_536] {
                let message = [
                    frame(0x01, masked, payload), // text, to be continued
                    frame(0x89, masked, 3),       // a ping in its middle
                    frame(0x00, masked, payload),
                    frame(0x80, masked, payload),
                ]
                .concat();
                let stream = [message.clone(), frame(0x82, masked, payload)].concat();
                for piece in [1, 2, 3, 7, 1000, stream.len()] {
                    let mut frames = Frames::new(Role::Server);
                    let (mut at, mut stopped) = (0, None);
                    for bytes in stream.chunks(piece) {
                        // From the second byte on `follow` has to stop.
                        let followed = frames.follow(bytes, at > 0);
                        at += followed;
                        if followed < bytes.len() {
                            stopped = Some(at);
                            break;
                        }
                    }
                    if piece < stream.len() {
                        assert_eq!(stopped, Some(message.len()), "{masked} {payload} {piece}");
                    }
                    assert!(frames.between_messages() && !frames.closed);
                }
            }
        }
    }

    #[test]
    fn a_close_is_seen_and_said() {
        for role in [Role::Client, Role::Server] {
            let said = Frames::new(role).going_away();
            let mut frames = Frames::new(role);
            assert_eq!(frames.follow(&said, false), said.len());
            assert!(frames.closed && frames.between_messages());
            let plain = match role {
                Role::Server => said[2..].to_vec(),
                Role::Client => said[6..]
                    .iter()
                    .zip(&said[2..])
                    .map(|(byte, mask)| byte ^ mask)
                    .collect(),
            };
            assert_eq!(plain, [0x03, 0xe9]);
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_never_reached() {
        let mut frames = Frames::new(Role::Server);
        let absurd = [&[0x82, 127][..], &[0xff; 8], &[0; 1000]].concat();
        assert_eq!(frames.follow(&absurd, false), absurd.len());
        assert!(!frames.between_messages());
    }
}

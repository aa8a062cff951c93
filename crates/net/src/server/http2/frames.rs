//! Parses the headers of the frames that an HTTP/2 connection sends, to observe what the protocol
//! library does not report.
//!
//! The library refuses violations of the protocol itself, by resetting the stream or ending the
//! connection, and does not report them. The error code is in the frame, so it is counted here. The
//! library also does not report the rest of the connection's window, which is the granted bytes
//! minus the received ones (which `trailers.rs` counts).

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameEvent {
    /// A stream was reset, or the connection ended, with this code.
    Refused(u32),
    /// The connection's window grew by this number of bytes.
    Granted(u32),
}

#[derive(Debug, Default)]
pub(crate) struct Frames {
    /// The frame's header, and the part of its payload that contains the code.
    head: [u8; HEAD],
    filled: usize,
    /// The number of payload bytes still to skip.
    skip: usize,
}

impl Frames {
    pub(crate) fn follow(&mut self, mut bytes: &[u8], mut tell: impl FnMut(FrameEvent)) {
        while !bytes.is_empty() {
            if self.skip > 0 {
                let passed = self.skip.min(bytes.len());
                self.skip -= passed;
                bytes = &bytes[passed..];
                continue;
            }
            let taken = (self.wanted() - self.filled).min(bytes.len());
            self.head[self.filled..self.filled + taken].copy_from_slice(&bytes[..taken]);
            self.filled += taken;
            bytes = &bytes[taken..];
            if self.filled < self.wanted() {
                continue;
            }
            if self.filled > FRAME {
                let number = &self.head[self.filled - 4..self.filled];
                let number = number
                    .iter()
                    .fold(0, |number, byte| number << 8 | u32::from(*byte));
                tell(if self.head[3] == WINDOW_UPDATE {
                    FrameEvent::Granted(number & RESERVED_OFF)
                } else {
                    FrameEvent::Refused(number)
                });
            }
            self.skip = self.length().saturating_sub(self.filled - FRAME);
            self.filled = 0;
        }
    }

    fn length(&self) -> usize {
        self.head[..3]
            .iter()
            .fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    /// The number of bytes of this frame to inspect: RST_STREAM and GOAWAY up to the code, the
    /// connection's WINDOW_UPDATE up to the number, other frames the header.
    fn wanted(&self) -> usize {
        if self.filled < FRAME {
            return FRAME;
        }
        match self.head[3] {
            RST_STREAM if self.length() >= 4 => FRAME + 4,
            GOAWAY if self.length() >= 8 => FRAME + 8,
            WINDOW_UPDATE if self.length() >= 4 && self.head[5..FRAME] == [0; 4] => FRAME + 4,
            _ => FRAME,
        }
    }
}

/// A frame's header (RFC 9113 4.1).
const FRAME: usize = 9;
const HEAD: usize = FRAME + 8;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
/// The first bit of a window's number is reserved.
const RESERVED_OFF: u32 = u32::MAX >> 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_with_any_cut_of_the_bytes() {
        let mut wire = vec![0, 0, 3, 0, 0, 0, 0, 0, 1, 9, 9, 9];
        wire.extend([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        wire.extend([0, 0, 0, 4, 1, 0, 0, 0, 0]);
        wire.extend([
            0, 0, 10, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 11, b'h', b'i',
        ]);
        wire.extend([0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8]);
        wire.extend([0, 0, 4, 8, 0, 0, 0, 0, 5, 0, 0, 1, 0]); // of a stream
        wire.extend([0, 0, 4, 8, 0, 0, 0, 0, 0, 0x80, 0, 1, 2]);
        let all = [
            FrameEvent::Refused(1),
            FrameEvent::Refused(11),
            FrameEvent::Refused(8),
            FrameEvent::Granted(0x102),
        ];
        for size in 1..=wire.len() {
            let (mut frames, mut events) = (Frames::default(), Vec::new());
            wire.chunks(size)
                .for_each(|piece| frames.follow(piece, |one| events.push(one)));
            assert_eq!(events, all, "pieces of {size}");
        }
    }
}

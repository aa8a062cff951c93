//! Follows the frames of an HTTP/2 connection as they go out.
//!
//! What breaks the rules of HTTP/2 is refused by the protocol library itself, with a reset stream or the connection's
//! end, and nobody hears of it. The code it gives is in the frame, so it is counted there.

/// How far into which frame the bytes so far have come.
#[derive(Debug, Default)]
pub(super) struct Frames {
    /// The frame's header, and of its payload what holds the code.
    head: [u8; HEAD],
    filled: usize,
    /// Bytes of payload that are passed over.
    skip: usize,
}

impl Frames {
    /// Follows `bytes`, which went out, and tells `refused` the codes of streams that were reset and of the
    /// connection's end.
    pub(super) fn follow(&mut self, mut bytes: &[u8], mut refused: impl FnMut(u32)) {
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
                let code = &self.head[self.filled - 4..self.filled];
                refused(code.iter().fold(0, |code, byte| code << 8 | u32::from(*byte)));
            }
            self.skip = self.length().saturating_sub(self.filled - FRAME);
            self.filled = 0;
        }
    }

    fn length(&self) -> usize {
        self.head[..3].iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
    }

    /// Bytes of this frame to look at: of RST_STREAM and GOAWAY up to the code, of others the header.
    fn wanted(&self) -> usize {
        if self.filled < FRAME {
            return FRAME;
        }
        match self.head[3] {
            RST_STREAM if self.length() >= 4 => FRAME + 4,
            GOAWAY if self.length() >= 8 => FRAME + 8,
            _ => FRAME,
        }
    }
}

/// A frame's header (RFC 9113 4.1).
const FRAME: usize = 9;
const HEAD: usize = FRAME + 8;
const RST_STREAM: u8 = 3;
const GOAWAY: u8 = 7;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_seen_however_the_bytes_are_cut() {
        let mut wire = vec![0, 0, 3, 0, 0, 0, 0, 0, 1, 9, 9, 9];
        wire.extend([0, 0, 4, 3, 0, 0, 0, 0, 1, 0, 0, 0, 1]);
        wire.extend([0, 0, 0, 4, 1, 0, 0, 0, 0]);
        wire.extend([0, 0, 10, 7, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 11, b'h', b'i']);
        wire.extend([0, 0, 4, 3, 0, 0, 0, 0, 3, 0, 0, 0, 8]);
        for size in 1..=wire.len() {
            let (mut frames, mut codes) = (Frames::default(), Vec::new());
            wire.chunks(size).for_each(|piece| frames.follow(piece, |code| codes.push(code)));
            assert_eq!(codes, [1, 11, 8], "pieces of {size}");
        }
    }
}

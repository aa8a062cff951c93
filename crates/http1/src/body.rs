//! Reads bodies out of a read buffer, and writes them so that they end where their head says.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use crate::chunked::{CHUNK_END, Decoder, Piece, write_end, write_size};
use crate::{BodyLength, Malformed, Output};

/// Reads the body that follows a head.
#[derive(Debug, Default)]
pub enum BodyReader {
    /// The whole body has been read.
    #[default]
    Done,
    /// This many bytes are left.
    Exactly(u64),
    /// Chunks follow, up to the last one.
    Chunked(Decoder),
    /// All bytes until the connection ends.
    UntilClose,
    /// Its end is unknown, or it ended too early.
    Broken,
}

/// The next part of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// Some of its bytes; never empty.
    Data(Bytes),
    /// The trailers that follow it. The body has ended.
    Trailers(HeaderMap),
    /// The body has ended, without trailers.
    End,
    /// More must be read first: this many bytes, or 0 if the number is unknown.
    Needs(u64),
}

impl BodyReader {
    /// Creates a reader at the beginning of a body of this length.
    pub fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::None => Self::Done,
            BodyLength::Exactly(length) => Self::Exactly(length),
            BodyLength::Chunked => Self::Chunked(Decoder::new()),
            BodyLength::UntilClose => Self::UntilClose,
            BodyLength::Unknown => Self::Broken,
        }
    }

    /// Takes the next part out of `input`.
    ///
    /// # Errors
    /// The reason why it is malformed. The body is broken then.
    pub fn read(&mut self, input: &mut BytesMut) -> Result<Body, Malformed> {
        Ok(match self {
            Self::Done => Body::End,
            Self::Exactly(left) if input.is_empty() => Body::Needs(*left),
            Self::Exactly(left) => {
                let some = usize::try_from(*left).map_or(input.len(), |left| left.min(input.len()));
                *left -= some as u64;
                if *left == 0 {
                    *self = Self::Done;
                }
                Body::Data(input.split_to(some).freeze())
            }
            Self::Chunked(decoder) => match decoder.decode(input) {
                Ok(Some(Piece::Data(data))) => Body::Data(data),
                Ok(Some(Piece::End(trailers))) => {
                    *self = Self::Done;
                    trailers.map_or(Body::End, Body::Trailers)
                }
                Ok(None) => Body::Needs(0),
                Err(error) => {
                    *self = Self::Broken;
                    return Err(error);
                }
            },
            Self::UntilClose if input.is_empty() => Body::Needs(0),
            Self::UntilClose => Body::Data(input.split().freeze()),
            Self::Broken => return Err(Malformed::Truncated),
        })
    }

    /// Handles the end of the connection; everything that was read must have been taken.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]: the body is incomplete.
    pub fn end(&mut self) -> Result<(), Malformed> {
        match self {
            Self::Done => Ok(()),
            Self::UntilClose => {
                *self = Self::Done;
                Ok(())
            }
            _ => {
                *self = Self::Broken;
                Err(Malformed::Truncated)
            }
        }
    }

    /// Whether the whole body has been read.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Whether no more of it will arrive, although it is incomplete.
    pub const fn is_broken(&self) -> bool {
        matches!(self, Self::Broken)
    }

    /// The number of remaining bytes, if known.
    pub const fn left(&self) -> Option<u64> {
        match self {
            Self::Done => Some(0),
            Self::Exactly(left) => Some(*left),
            _ => None,
        }
    }

    /// The whole rest of a body of known length, if `input` contains it.
    pub fn take_whole(&mut self, input: &mut BytesMut) -> Option<Bytes> {
        let Self::Exactly(left) = *self else {
            return None;
        };
        let length = usize::try_from(left)
            .ok()
            .filter(|length| *length <= input.len())?;
        *self = Self::Done;
        Some(input.split_to(length).freeze())
    }
}

/// Writes the body that follows a head.
#[derive(Debug)]
pub struct BodyWriter {
    /// The length of its unwritten rest.
    length: BodyLength,
    ended: bool,
    broken: bool,
}

impl BodyWriter {
    /// Creates a writer at the beginning of a body of this length.
    pub const fn new(length: BodyLength) -> Self {
        Self {
            length,
            ended: matches!(length, BodyLength::None),
            broken: false,
        }
    }

    /// Writes a piece of the body; `last`: it is the last.
    pub fn data(&mut self, out: &mut Output, piece: Bytes, last: bool) {
        match &mut self.length {
            BodyLength::Exactly(left) => {
                let length = piece.len() as u64;
                if length > *left {
                    // More bytes than announced would be read as the next message.
                    out.push(piece.slice(..usize::try_from(*left).unwrap_or(0)));
                    (self.ended, self.broken) = (true, true);
                    return;
                }
                *left -= length;
                // The body is complete, so its source need not be polled again.
                self.ended = *left == 0;
                if !piece.is_empty() {
                    out.push(piece);
                }
            }
            BodyLength::Chunked if !piece.is_empty() => {
                write_size(out.flat(), piece.len());
                out.push(piece);
                out.flat().extend_from_slice(CHUNK_END);
            }
            BodyLength::Chunked => {}
            // No byte may follow: it would be read as the next message.
            BodyLength::None => {
                (self.ended, self.broken) = (true, self.broken || !piece.is_empty());
            }
            BodyLength::UntilClose | BodyLength::Unknown => {
                if !piece.is_empty() {
                    out.push(piece);
                }
            }
        }
        if last && !self.ended {
            self.end(out, None);
        }
    }

    /// Ends the body with `trailers`, which only the chunked coding can carry.
    pub fn end(&mut self, out: &mut Output, trailers: Option<&HeaderMap>) {
        if self.ended {
            return;
        }
        self.ended = true;
        match self.length {
            BodyLength::Exactly(left) => self.broken = left > 0,
            BodyLength::Chunked => write_end(out.flat(), trailers),
            BodyLength::None | BodyLength::UntilClose | BodyLength::Unknown => {}
        }
    }

    /// Records that the body broke off.
    pub const fn fail(&mut self) {
        (self.ended, self.broken) = (true, true);
    }

    /// Whether nothing more of it is written.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether the written bytes are not the body that the head announced; the peer must be able to
    /// detect that.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether only the end of the connection marks the end of the body.
    pub fn ends_with_connection(&self) -> bool {
        self.length == BodyLength::UntilClose
    }
}

//! Bodies, both ways: taken out of what was read, and written so that they end where their head said.

use bytes::{Bytes, BytesMut};
use http::HeaderMap;

use crate::chunked::{CHUNK_END, Decoder, Piece, write_end, write_size};
use crate::{BodyLength, Malformed, Output};

/// Reads the body behind a head.
#[derive(Debug, Default)]
pub enum BodyReader {
    /// It has been read whole.
    #[default]
    Done,
    /// So many bytes are left.
    Exactly(u64),
    /// Chunks.
    Chunked(Decoder),
    /// All that comes before the connection ends.
    UntilClose,
    /// Nobody can say where it ends, or it ended too early.
    Broken,
}

/// What comes next of a body.
#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    /// Some of its bytes, never none.
    Data(Bytes),
    /// The headers behind it. The body has ended.
    Trailers(HeaderMap),
    /// Nothing more.
    End,
    /// More must be read first: so many bytes, or 0 if that is not known.
    Needs(u64),
}

impl BodyReader {
    /// At the beginning of a body that ends there.
    pub fn new(length: BodyLength) -> Self {
        match length {
            BodyLength::None => Self::Done,
            BodyLength::Exactly(length) => Self::Exactly(length),
            BodyLength::Chunked => Self::Chunked(Decoder::new()),
            BodyLength::UntilClose => Self::UntilClose,
            BodyLength::Unknown => Self::Broken,
        }
    }

    /// The next piece out of `input`.
    ///
    /// # Errors
    /// What is wrong with it. The body is broken then.
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

    /// The connection has ended, and everything that was read is taken.
    ///
    /// # Errors
    /// [`Malformed::Truncated`]: the body has not come to its end.
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

    /// Whether it has been read whole.
    pub const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Whether no more of it comes, although it has not come to its end.
    pub const fn is_broken(&self) -> bool {
        matches!(self, Self::Broken)
    }

    /// Bytes that are to come, if that is known.
    pub const fn left(&self) -> Option<u64> {
        match self {
            Self::Done => Some(0),
            Self::Exactly(left) => Some(*left),
            _ => None,
        }
    }

    /// All that is left of a body of known length, if it is in `input`.
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

/// Writes the body behind a head.
#[derive(Debug)]
pub struct BodyWriter {
    /// What is left of it.
    length: BodyLength,
    ended: bool,
    broken: bool,
}

impl BodyWriter {
    /// At the beginning of a body that ends there.
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
                    // What was promised is kept; more would be the next message.
                    out.push(piece.slice(..usize::try_from(*left).unwrap_or(0)));
                    (self.ended, self.broken) = (true, true);
                    return;
                }
                *left -= length;
                // Its owner need not be asked whether there is more.
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
            // Not a byte may follow: it would be read as the next message.
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

    /// The body has ended, with `trailers`, which only chunks can carry.
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

    /// The body broke off.
    pub const fn fail(&mut self) {
        (self.ended, self.broken) = (true, true);
    }

    /// Whether nothing more of it is written.
    pub const fn is_ended(&self) -> bool {
        self.ended
    }

    /// Whether what was written is not the body that the head promised: the other side has to see that.
    pub const fn is_broken(&self) -> bool {
        self.broken
    }

    /// Whether the end of the connection is all that says where the body ends.
    pub fn ends_with_connection(&self) -> bool {
        self.length == BodyLength::UntilClose
    }
}

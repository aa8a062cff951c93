//! An answer's body as it comes in.

use bytes::Bytes;
use http::response::Parts;
use http_body::Frame;

use tollgate_http1::head::Framing;
use tollgate_http1::{BodyLength, Decoder, Malformed, Message, Piece};

use crate::buffer::ReadBuffer;

/// What is awaited from the server.
#[derive(Debug)]
pub(super) enum Receiving {
    /// The head of an answer.
    Head,
    /// So many bytes more.
    Length(u64),
    Chunks(Decoder),
    /// All that comes before the connection closes.
    Rest,
    /// Nothing more.
    Nothing,
}

/// What comes next of a body.
pub(super) enum Next {
    /// This piece.
    Frame(Frame<Bytes>),
    /// Nothing more.
    End,
    /// What is still to be read: so many bytes, or 0 if that is not known.
    Wanted(u64),
}

impl Receiving {
    /// How the body behind `head` is read.
    ///
    /// # Errors
    /// When the head says of its end what no response may.
    pub(super) fn behind(
        head: &Parts,
        framing: Framing,
        asks_head: bool,
    ) -> Result<Self, Malformed> {
        let message = Message::Response {
            status: head.status,
            to_head: asks_head,
        };
        Ok(match BodyLength::of(message, head.version, framing)? {
            BodyLength::None => Self::Nothing,
            BodyLength::Exactly(length) => Self::Length(length),
            BodyLength::Chunked => Self::Chunks(Decoder::new()),
            BodyLength::UntilClose => Self::Rest,
            BodyLength::Unknown => return Err(Malformed::TransferEncoding),
        })
    }

    /// Bytes that are to come, if that is known.
    pub(super) const fn left(&self) -> Option<u64> {
        match self {
            Self::Nothing => Some(0),
            Self::Length(left) => Some(*left),
            _ => None,
        }
    }

    /// All of a body of known length, if it was read.
    pub(super) fn take_whole(&mut self, read: &mut ReadBuffer) -> Option<Bytes> {
        let Self::Length(left) = *self else {
            return None;
        };
        let length = usize::try_from(left)
            .ok()
            .filter(|length| *length <= read.len())?;
        *self = Self::Nothing;
        Some(read.bytes().split_to(length).freeze())
    }

    /// The next piece out of what was read.
    pub(super) fn next(&mut self, read: &mut ReadBuffer) -> Result<Next, Malformed> {
        Ok(match self {
            Self::Head | Self::Nothing => Next::End,
            Self::Rest if read.is_empty() => Next::Wanted(0),
            Self::Rest => Next::Frame(Frame::data(read.bytes().split().freeze())),
            Self::Length(left) if read.is_empty() => Next::Wanted(*left),
            Self::Length(left) => {
                let some = usize::try_from(*left).map_or(read.len(), |left| left.min(read.len()));
                *left -= some as u64;
                if *left == 0 {
                    *self = Self::Nothing;
                }
                Next::Frame(Frame::data(read.bytes().split_to(some).freeze()))
            }
            Self::Chunks(decoder) => match decoder.decode(read.bytes())? {
                Some(Piece::Data(data)) => Next::Frame(Frame::data(data)),
                Some(Piece::End(trailers)) => {
                    *self = Self::Nothing;
                    trailers.map_or(Next::End, |trailers| Next::Frame(Frame::trailers(trailers)))
                }
                None => Next::Wanted(0),
            },
        })
    }
}

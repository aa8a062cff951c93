//! HTTP/1.0 and HTTP/1.1 messages without I/O (RFC 9112): bytes in, events out.
//!
//! Nothing here waits, owns a socket or knows what a message is for. A message whose end two parties could see in two
//! places is an error, never a guess.
//!
//! | module | job |
//! |---|---|
//! | [`requests`] | the requests of a connection, as a server reads them: [`Requests::read`] |
//! | [`responses`] | the responses of a connection, as a client reads them: [`Responses::read`] |
//! | [`write`](mod@write) | heads as they are written |
//! | [`body_length`] | where a body ends: the one function that decides it, whoever reads or writes |
//! | [`body`] | bodies, read and written so that they end there |
//! | [`request`] | the head of a request |
//! | [`head`] | where the lines of a head end, and the headers in them |
//! | [`chunked`] | the chunked transfer coding, both ways |
//! | [`output`] | what is to be written |
//! | [`verbatim`] | headers of a response that are passed on as they were written |

#![forbid(unsafe_code)]

pub mod body;
pub mod body_length;
pub mod chunked;
pub mod head;
pub mod output;
pub mod request;
pub mod requests;
pub mod responses;
pub mod verbatim;
pub mod write;

use bytes::Bytes;
use http::HeaderMap;

pub use body::{Body, BodyReader, BodyWriter};
pub use body_length::{BodyLength, Message};
pub use chunked::{Decoder, Piece};
pub use head::{Bounds, Lines};
pub use output::Output;
pub use requests::Requests;
pub use responses::Responses;
pub use verbatim::Verbatim;

/// What comes next on a connection.
#[derive(Debug)]
pub enum Event<H> {
    /// The head of a message.
    Head(H),
    /// Some bytes of its body, never none.
    Data(Bytes),
    /// The headers behind its body.
    Trailers(HeaderMap),
    /// Its end.
    End,
}

/// The elements of a comma-separated list (RFC 9110 5.6.1), trimmed, empty ones left out.
pub fn tokens(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// What is wrong with a message, or with the connection it came on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is none.
    #[error("the first line is malformed")]
    StartLine,
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// A line does not end in CR LF.
    #[error("a line does not end as it must")]
    LineEnd,
    /// The name of a field is no token, or there is no colon behind it.
    #[error("the name of a field is malformed")]
    FieldName,
    /// The value of a field holds a control character.
    #[error("the value of a field is malformed")]
    FieldValue,
    /// The head, or the trailers, are longer than they may be.
    #[error("the head is too large")]
    TooLarge,
    /// There are more fields than there may be.
    #[error("there are too many fields")]
    TooManyFields,
    /// Content-Length is no number, or there are several.
    #[error("Content-Length is malformed")]
    ContentLength,
    /// Transfer-Encoding is anything but one `chunked`, or the version knows none.
    #[error("the transfer coding is not understood")]
    TransferEncoding,
    /// The size of a chunk is no hexadecimal number, or too large a one.
    #[error("the size of a chunk is malformed")]
    ChunkSize,
    /// A chunk's extensions hold what they may not, or are too long.
    #[error("the extension of a chunk is malformed")]
    ChunkExtension,
    /// The bytes of a chunk are not followed by CR LF.
    #[error("a chunk does not end as it must")]
    ChunkEnd,
    /// The connection ended before the message did.
    #[error("the message broke off")]
    Truncated,
    /// More interim answers came than anybody sends.
    #[error("there are too many interim answers")]
    TooManyInterim,
    /// It came before it was asked for.
    #[error("there are bytes that nobody asked for")]
    Unasked,
}

/// The example of the README is a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

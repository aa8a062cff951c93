//! HTTP/1.0 and HTTP/1.1 messages without I/O (RFC 9112): bytes in; heads, pieces of bodies and errors out.
//!
//! Nothing here waits, owns a socket or knows what a message is for. A message whose end two parties could see in two
//! places is an error, never a guess.
//!
//! | module | job |
//! |---|---|
//! | [`head`] | where the lines of a head end, and the headers in them |
//! | [`request`] | the head of a request |
//! | [`body_length`] | where a body ends: the one function that decides it |
//! | [`chunked`] | the chunked transfer coding, both ways |
//! | [`verbatim`] | headers of a response that are passed on as they were written |

#![forbid(unsafe_code)]

pub mod body_length;
pub mod chunked;
pub mod head;
pub mod request;
pub mod verbatim;

pub use body_length::{BodyLength, Message};
pub use chunked::{Decoder, Piece};
pub use head::{Bounds, Lines};
pub use verbatim::Verbatim;

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

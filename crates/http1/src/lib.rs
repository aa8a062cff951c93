//! HTTP/1.0 and HTTP/1.1 messages without I/O (RFC 9112): bytes in, events out.
//!
//! This crate does not wait, owns no socket and does not know the purpose of a message. A message
//! whose end two parties could see in two places is an error; the parser never guesses.
//!
//! | module | job |
//! |---|---|
//! | [`requests`] | the requests of a connection, as a server reads them: [`Requests::read`] |
//! | [`responses`] | the responses of a connection, as a client reads them: [`Responses::read`] |
//! | [`write`](mod@write) | writes heads |
//! | [`body_length`] | where a body ends: one function decides it for readers and writers |
//! | [`body`] | reads and writes bodies of that length |
//! | [`request`] | the head of a request |
//! | [`head`] | where the lines of a head end, and the headers in them |
//! | [`chunked`] | the chunked transfer coding, both ways |
//! | [`output`] | the bytes waiting to be written |
//! | [`verbatim`] | response headers that are passed on exactly as they were received |

#![forbid(unsafe_code)]
#![warn(missing_docs)]

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

/// The next event on a connection.
#[derive(Debug)]
pub enum Event<H> {
    /// The head of a message.
    Head(H),
    /// Bytes of its body; never empty.
    Data(Bytes),
    /// The trailers that follow its body.
    Trailers(HeaderMap),
    /// The end of the message.
    End,
}

/// Splits a comma-separated list (RFC 9110 5.6.1) into its elements, trimmed; empty elements are
/// left out.
pub fn tokens(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    line.split(|&byte| byte == b',')
        .map(<[u8]>::trim_ascii)
        .filter(|token| !token.is_empty())
}

/// The error of a malformed message, or of the connection on which it arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// The first line is not a valid start line.
    #[error("the first line is malformed")]
    StartLine,
    /// The version is neither HTTP/1.0 nor HTTP/1.1.
    #[error("the version is neither HTTP/1.0 nor HTTP/1.1")]
    Version,
    /// A line does not end in CR LF.
    #[error("a line does not end as it must")]
    LineEnd,
    /// A header name is not a token, or no colon follows it.
    #[error("the name of a field is malformed")]
    FieldName,
    /// A header value contains a control character.
    #[error("the value of a field is malformed")]
    FieldValue,
    /// The head or the trailers exceed the size limit.
    #[error("the head is too large")]
    TooLarge,
    /// There are more headers than the limit allows.
    #[error("there are too many fields")]
    TooManyFields,
    /// Content-Length is not a number, or there are several.
    #[error("Content-Length is malformed")]
    ContentLength,
    /// Transfer-Encoding is not exactly one `chunked`, or the HTTP version does not support it.
    #[error("the transfer coding is not understood")]
    TransferEncoding,
    /// The size of a chunk is not a hexadecimal number, or is too large.
    #[error("the size of a chunk is malformed")]
    ChunkSize,
    /// A chunk's extensions contain invalid bytes, or are too long.
    #[error("the extension of a chunk is malformed")]
    ChunkExtension,
    /// The bytes of a chunk are not followed by CR LF.
    #[error("a chunk does not end as it must")]
    ChunkEnd,
    /// The connection ended before the message did.
    #[error("the message broke off")]
    Truncated,
    /// There were more interim responses than any real server sends.
    #[error("there are too many interim answers")]
    TooManyInterim,
    /// A response arrived before a request was sent.
    #[error("there are bytes that belong to no response")]
    Unasked,
}

/// Runs the example of the README as a test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

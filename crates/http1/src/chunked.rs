//! The chunked coding, both ways (RFC 9112 7.1). Reading is strict: every line ends in CR LF, no
//! extra bytes are allowed, and sizes, extensions and trailers are bounded.

use std::io::Write;

use bytes::{Buf, Bytes, BytesMut};
use http::HeaderMap;

use super::head::{is_control, write_fields};
use super::{Bounds, Lines, Malformed};

/// Reads a chunked body out of a read buffer.
#[derive(Debug, Default)]
pub struct Decoder {
    at: At,
    /// The size of the current chunk as read so far, then the rest of it.
    left: u64,
    /// The number of digits of its size.
    digits: u8,
    /// The number of extension bytes so far, in all chunks.
    extensions: usize,
    /// The lines of trailers, which nearly no body has: boxed, to save space.
    trailers: Option<Box<Lines>>,
}

/// The position of the decoder.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum At {
    #[default]
    Size,
    /// In whitespace between a size and its extension.
    Blank,
    Extension,
    SizeLf,
    Data,
    DataCr,
    DataLf,
    Trailers,
    End,
}

/// A piece of a chunked body.
#[derive(Debug, PartialEq, Eq)]
pub enum Piece {
    /// Some of the bytes of the body.
    Data(Bytes),
    /// Its end, with the trailers, if there are any.
    End(Option<HeaderMap>),
}

impl Decoder {
    /// Creates a decoder at the beginning of a body.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes the next piece out of `input`; `None` if more must be read first. If the connection
    /// has ended that is an error, which the calling code must detect.
    ///
    /// # Errors
    /// The reason why it is malformed. The decoder must not be called again.
    pub fn decode(&mut self, input: &mut BytesMut) -> Result<Option<Piece>, Malformed> {
        loop {
            match self.at {
                At::Data => {
                    if input.is_empty() {
                        return Ok(None);
                    }
                    let length = usize::try_from(self.left)
                        .map_or(input.len(), |left| left.min(input.len()));
                    self.left -= length as u64;
                    if self.left == 0 {
                        self.at = At::DataCr;
                    }
                    return Ok(Some(Piece::Data(input.split_to(length).freeze())));
                }
                At::Trailers if self.trailers.is_none() && input.starts_with(CHUNK_END) => {
                    self.at = At::End;
                    input.advance(CHUNK_END.len());
                }
                At::Trailers => {
                    let lines = self.trailers.get_or_insert_default();
                    let Some(length) = lines.find(input, TRAILERS)? else {
                        return Ok(None);
                    };
                    self.at = At::End;
                    if lines.is_empty() {
                        input.advance(length);
                        return Ok(Some(Piece::End(None)));
                    }
                    let block = input.split_to(length).freeze();
                    let mut trailers = HeaderMap::new();
                    lines.fields(&block, 0, &mut trailers)?;
                    return Ok(Some(Piece::End(Some(trailers))));
                }
                At::End => return Ok(Some(Piece::End(None))),
                _ => {
                    let (mut read, mut outcome) = (0, Ok(false));
                    for &byte in input.iter() {
                        read += 1;
                        outcome = self.line(byte);
                        if outcome != Ok(false) {
                            break;
                        }
                    }
                    input.advance(read);
                    if !outcome? {
                        return Ok(None);
                    }
                }
            }
        }
    }

    /// Processes one byte outside the data; returns whether data or trailers follow.
    fn line(&mut self, byte: u8) -> Result<bool, Malformed> {
        self.at = match (self.at, byte) {
            (At::DataCr, b'\r') => At::DataLf,
            (At::DataLf, b'\n') => {
                self.digits = 0;
                At::Size
            }
            (At::DataCr | At::DataLf, _) => return Err(Malformed::ChunkEnd),
            (At::Size, digit) if digit.is_ascii_hexdigit() => {
                // Sixteen digits fill the number; leading zeros count, so they are bounded too.
                if self.digits == 16 {
                    return Err(Malformed::ChunkSize);
                }
                self.digits += 1;
                let value = char::from(digit).to_digit(16).unwrap_or_default();
                self.left = (self.left << 4) | u64::from(value);
                At::Size
            }
            (At::Size, _) if self.digits == 0 => return Err(Malformed::ChunkSize),
            (At::Size | At::Blank | At::Extension, b'\r') => At::SizeLf,
            (At::Size | At::Blank, b' ' | b'\t') => {
                self.extend()?;
                At::Blank
            }
            (At::Size | At::Blank, b';') => At::Extension,
            (At::Size | At::Blank, _) => return Err(Malformed::ChunkSize),
            (At::Extension, byte) => {
                if is_control(byte) {
                    return Err(Malformed::ChunkExtension);
                }
                self.extend()?;
                At::Extension
            }
            (At::SizeLf, b'\n') if self.left == 0 => At::Trailers,
            (At::SizeLf, b'\n') => At::Data,
            (At::SizeLf, _) => return Err(Malformed::LineEnd),
            (at @ (At::Data | At::Trailers | At::End), _) => at,
        };
        Ok(matches!(self.at, At::Data | At::Trailers))
    }

    fn extend(&mut self) -> Result<(), Malformed> {
        self.extensions += 1;
        match self.extensions > EXTENSIONS {
            true => Err(Malformed::ChunkExtension),
            false => Ok(()),
        }
    }
}

/// Writes the size line of a chunk with `length` bytes. An empty chunk would end the body, so
/// `length` must not be 0.
pub fn write_size(out: &mut Vec<u8>, length: usize) {
    debug_assert!(length > 0, "the empty chunk is the last");
    // Writing to a vector cannot fail.
    let _ = write!(out, "{length:x}\r\n");
}

/// The CRLF that ends a chunk.
pub const CHUNK_END: &[u8] = b"\r\n";

/// Writes the end of a body, with `trailers`.
pub fn write_end(out: &mut Vec<u8>, trailers: Option<&HeaderMap>) {
    out.extend_from_slice(b"0\r\n");
    if let Some(trailers) = trailers {
        write_fields(out, trailers);
    }
    out.extend_from_slice(b"\r\n");
}

/// The largest number of extension bytes that are skipped in one body; real clients send none.
const EXTENSIONS: usize = 16 * 1024;
const TRAILERS: Bounds = Bounds {
    bytes: 16 * 1024,
    lines: 100,
    bare_lf: false,
};

#[cfg(test)]
mod tests;

//! Where quota fields are written: into a table, or as lines.

use http::{HeaderMap, HeaderValue};

use super::OURS;

/// Where fields go, each once: what an earlier dialect has said stays.
pub(super) struct Out<'o> {
    pub(super) way: Way<'o>,
    /// A bit for each [`Field`] that was written.
    pub(super) written: u8,
}

pub(super) enum Way<'o> {
    /// Into a table, by way of a buffer.
    Table(&'o mut HeaderMap, &'o mut Vec<u8>),
    /// To the end of a head.
    Lines(&'o mut Vec<u8>),
}

impl Out<'_> {
    /// Adds a field whose value `write` appends; none if that is nothing.
    #[inline]
    pub(super) fn field(&mut self, field: Field, write: impl FnOnce(&mut Vec<u8>)) {
        let bit = 1 << field as u8;
        if self.written & bit != 0 {
            return;
        }
        match &mut self.way {
            Way::Table(headers, buffer) => {
                buffer.clear();
                write(buffer);
                if buffer.is_empty() {
                    return;
                }
                if let Ok(value) = HeaderValue::from_bytes(buffer) {
                    headers.insert(OURS[field as usize].clone(), value);
                }
            }
            Way::Lines(out) => {
                let before = out.len();
                out.extend_from_slice(field.opening());
                let begun = out.len();
                write(out);
                if out.len() == begun {
                    out.truncate(before);
                    return;
                }
                out.extend_from_slice(b"\r\n");
            }
        }
        self.written |= bit;
    }
}

/// The fields that are ours to write, as they stand in [`OURS`].
#[derive(Clone, Copy)]
pub(super) enum Field {
    RateLimit,
    RateLimitPolicy,
    RateLimitLimit,
    RateLimitRemaining,
    RateLimitReset,
    XRateLimitLimit,
    XRateLimitRemaining,
    XRateLimitReset,
}

impl Field {
    /// What its line begins with.
    #[inline]
    const fn opening(self) -> &'static [u8] {
        match self {
            Self::RateLimit => b"ratelimit: ",
            Self::RateLimitPolicy => b"ratelimit-policy: ",
            Self::RateLimitLimit => b"ratelimit-limit: ",
            Self::RateLimitRemaining => b"ratelimit-remaining: ",
            Self::RateLimitReset => b"ratelimit-reset: ",
            Self::XRateLimitLimit => b"x-ratelimit-limit: ",
            Self::XRateLimitRemaining => b"x-ratelimit-remaining: ",
            Self::XRateLimitReset => b"x-ratelimit-reset: ",
        }
    }
}

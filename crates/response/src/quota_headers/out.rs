//! The output of quota headers: values for a header table, or header lines.

use http::{HeaderMap, HeaderValue};
use smallvec::SmallVec;

use super::{OURS, make_room, number};

/// Quota headers that are written and not yet in a response.
#[derive(Debug, Default)]
pub struct Prepared(SmallVec<[(Field, HeaderValue); 2]>);

impl Prepared {
    pub fn insert(self, headers: &mut HeaderMap) {
        if self.0.is_empty() {
            return;
        }
        make_room(headers);
        for (field, value) in self.0 {
            headers.insert(OURS[field as usize].clone(), value);
        }
    }
}

/// The output for headers, each written once: the value of an earlier dialect stays.
pub(super) struct Out<'o> {
    pub(super) way: Destination<'o>,
    pub(super) written: u8,
}

pub(super) enum Destination<'o> {
    /// Values for a table, with a buffer in which each is written.
    Prepared(&'o mut Prepared, &'o mut Vec<u8>),
    Lines(&'o mut Vec<u8>),
}

impl Out<'_> {
    #[inline]
    pub(super) fn field(&mut self, field: Field, write: impl FnOnce(&mut Vec<u8>)) {
        let bit = 1 << field as u8;
        if self.written & bit != 0 {
            return;
        }
        match &mut self.way {
            Destination::Prepared(prepared, buffer) => {
                buffer.clear();
                write(buffer);
                if buffer.is_empty() {
                    return;
                }
                if let Ok(value) = HeaderValue::from_bytes(buffer) {
                    prepared.0.push((field, value));
                }
            }
            Destination::Lines(out) => {
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

    #[inline]
    pub(super) fn number(&mut self, field: Field, units: u64) {
        self.field(field, |value| number(value, units));
    }

    #[inline]
    pub(super) fn constant(&mut self, field: Field, value: &HeaderValue) {
        let bit = 1 << field as u8;
        match &mut self.way {
            Destination::Prepared(prepared, _) if self.written & bit == 0 => {
                prepared.0.push((field, value.clone()));
                self.written |= bit;
            }
            _ => self.field(field, |out| out.extend_from_slice(value.as_bytes())),
        }
    }
}

/// The headers that we write, in the order of [`OURS`].
#[derive(Clone, Copy, Debug)]
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

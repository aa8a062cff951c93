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
    Prepared(&'o mut Prepared),
    Lines(&'o mut Vec<u8>),
}

impl Out<'_> {
    /// Writes a header by `write`, unless that writes nothing.
    #[inline]
    pub(super) fn field(&mut self, field: Field, write: impl FnOnce(&mut Vec<u8>)) {
        let bit = 1 << field as u8;
        if self.written & bit != 0 {
            return;
        }
        match &mut self.way {
            Destination::Prepared(prepared) => {
                let mut value = Vec::with_capacity(64);
                write(&mut value);
                if value.is_empty() {
                    return;
                }
                let value = HeaderValue::try_from(value);
                prepared.0.extend(value.map(|value| (field, value)));
            }
            Destination::Lines(out) => {
                let before = out.len();
                out.extend_from_slice(OURS[field as usize].as_str().as_bytes());
                out.extend_from_slice(b": ");
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

//! The argument and the response of `draw_bucket.lua` for the common case: see its head.

use crate::batch::{Answer, Batch, place_among};
use crate::simple::Simple;
use crate::wire_form::{StoredState, WireForm, moment};
use tollgate_limit::Timestamp;
use tollgate_limit::bucket::{Level, State};

const TERM: usize = 5;
const BUCKET: usize = 8 + 8;
/// Claims and buckets of one call, so that argument and response fit in Lua's stack: 8000 values.
const CLAIMS_MAX: usize = 2000;
const BUCKETS_MAX: usize = 1024;

/// The argument for `batch`; `None`: the batch needs the general script.
pub(super) fn argument(batch: &Batch, pinned: i64, fingerprint: i64) -> Option<Vec<u8>> {
    let claims: usize = batch.groups.iter().map(|group| group.parts.len()).sum();
    // (The most values that Lua's stack holds.)
    if !batch.only_requests() || claims > CLAIMS_MAX || batch.buckets.len() > BUCKETS_MAX {
        return None;
    }
    let (mut terms, mut of_bucket) = (Terms::default(), vec![None; batch.buckets.len()]);
    let mut groups = Vec::with_capacity(3 * (batch.groups.len() + claims));
    for group in &batch.groups {
        groups.extend_from_slice(&u16::try_from(group.count).ok()?.to_le_bytes());
        groups.push(u8::try_from(group.parts.len()).ok()?);
        for (place, part) in group.parts.iter().enumerate() {
            let bucket = part.bucket as usize;
            let before = &group.parts[..place];
            let twice = before.iter().any(|other| other.bucket == part.bucket);
            if !part.enforced || twice {
                return None;
            }
            let term = terms.place(Simple::of(&batch.buckets[bucket].1, part.cost)?)?;
            of_bucket[bucket] = Some(term);
            groups.push(term);
            groups.extend_from_slice(&u16::try_from(part.bucket).ok()?.to_le_bytes());
        }
    }
    // A bucket that requests only read has no term.
    let of_bucket = of_bucket.into_iter().collect::<Option<Vec<u8>>>()?;
    let mut out =
        Vec::with_capacity(17 + terms.0.len() * TERM * 8 + of_bucket.len() + groups.len());
    double(&mut out, pinned);
    double(&mut out, fingerprint);
    out.push(u8::try_from(terms.0.len()).ok()?);
    for number in terms.0.into_iter().flatten() {
        double(&mut out, number);
    }
    out.extend(of_bucket);
    out.extend(groups);
    Some(out)
}

/// The numbers of claims, without duplicates.
#[derive(Default)]
struct Terms(Vec<[i64; TERM]>);

impl Terms {
    fn place(
        &mut self,
        Simple {
            n,
            p,
            capacity,
            price,
            need,
            ..
        }: Simple,
    ) -> Option<u8> {
        let (place, _) = place_among(&mut self.0, [n, p, capacity, price, need]);
        u8::try_from(place).ok()
    }
}

/// The response to `batch`; `None`: it is invalid.
pub(super) fn read(batch: &Batch, reply: &[u8]) -> Option<Answer> {
    let (now, rest) = reply.split_first_chunk::<8>()?;
    let (buckets, taken) = rest.split_at_checked(BUCKET * batch.buckets.len())?;
    if taken.len() != 2 * batch.groups.len() {
        return None;
    }
    let states = buckets.as_chunks::<BUCKET>().0.iter().zip(&batch.buckets);
    let before = states
        .map(|(bytes, (_, shape))| state(shape, bytes))
        .collect::<Option<Vec<_>>>()?;
    let granted = taken.as_chunks::<2>().0.iter();
    let granted = granted.map(|bytes| u32::from(u16::from_le_bytes(*bytes)));
    Some(Answer::to_requests(at(*now)?, before, granted.collect()))
}

/// A bucket's state; `Some(None)`: full, which equals no bucket.
fn state(shape: &WireForm, bytes: &[u8; BUCKET]) -> Option<Option<StoredState>> {
    let (level, at) = bytes.split_first_chunk::<8>()?;
    let (level, at) = (integer(*level)?, self::at(at.try_into().ok()?)?);
    Some((level < shape.full_level()).then_some(State::Level(Level { level, at })))
}

#[expect(
    clippy::cast_precision_loss,
    reason = "limits of a shared store keep their numbers below 2^53"
)]
fn double(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&(number as f64).to_le_bytes());
}

/// A whole number that a double represents exactly.
fn integer(bytes: [u8; 8]) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = f64::from_le_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 53 bits")]
    let whole = (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64);
    whole
}

fn at(bytes: [u8; 8]) -> Option<Timestamp> {
    moment(integer(bytes)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_whole_numbers_that_doubles_hold_are_read() {
        for number in [0, 1, -1, 1_760_000_000_000_000, -9_007_199_254_740_991] {
            let mut out = Vec::new();
            double(&mut out, number);
            assert_eq!(integer(out.try_into().expect("eight bytes")), Some(number));
        }
        for wrong in [f64::NAN, f64::INFINITY, 0.5, 1e300, -1e300] {
            assert_eq!(integer(wrong.to_le_bytes()), None, "{wrong}");
        }
    }

    #[test]
    fn bucket_response_of_another_length_is_invalid() {
        for reply in [&b""[..], b"1234567", b"\0\0\0\0\0\0\0\0\0"] {
            assert!(read(&Batch::default(), reply).is_none(), "{reply:?}");
        }
    }
}

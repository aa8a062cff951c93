//! The arguments and the answer of `draw_bucket.lua`, which decides the common case: see its head.

use crate::limit::Timestamp;
use crate::limit::bucket::{Level, State};
use crate::store::batch::{Answer, Batch};
use crate::store::simple::{Simple, all_simple};

/// A term is this many doubles.
const TERM: usize = 7;
/// Level, moment, granted.
const ANSWER: usize = 8 + 8 + 2;

/// The argument for `batch`; `None`: it is for the general script.
pub(super) fn arguments(batch: &Batch, pinned: i64, fingerprint: i64) -> Option<Vec<u8>> {
    let wanted = all_simple(batch)?;
    let mut terms: Vec<[i64; TERM]> = Vec::new();
    let mut asked = Vec::with_capacity(wanted.len() * 3);
    for (Simple { n, p, brim, price, need, lowest, most }, group) in wanted.into_iter().zip(&batch.groups) {
        let term = [n, p, brim, price, need, most, lowest];
        // Neighbours are mostly alike.
        let place = terms.iter().rposition(|known| *known == term).unwrap_or_else(|| {
            terms.push(term);
            terms.len() - 1
        });
        asked.push(u8::try_from(place).ok()?);
        asked.extend_from_slice(&u16::try_from(group.count).ok()?.to_le_bytes());
    }
    let mut out = Vec::with_capacity(17 + terms.len() * TERM * 8 + asked.len());
    double(&mut out, pinned);
    double(&mut out, fingerprint);
    out.push(u8::try_from(terms.len()).ok()?);
    for number in terms.into_iter().flatten() {
        double(&mut out, number);
    }
    out.extend_from_slice(&asked);
    Some(out)
}

/// The answer for `batch`; `None`: it is none.
pub(super) fn read(batch: &Batch, reply: &[u8]) -> Option<Answer> {
    let (now, each) = reply.split_first_chunk::<8>()?;
    if each.len() != ANSWER * batch.buckets.len() {
        return None;
    }
    let mut before = Vec::with_capacity(batch.buckets.len());
    let mut granted = Vec::with_capacity(batch.groups.len());
    for (bytes, group) in each.chunks_exact(ANSWER).zip(&batch.groups) {
        let (level, bytes) = bytes.split_first_chunk::<8>()?;
        let (at, taken) = bytes.split_first_chunk::<8>()?;
        let level = integer(*level)?;
        let brim = Simple::of(&batch.buckets[group.parts[0].bucket as usize].1, group.parts[0].cost)?.brim;
        // A full bucket equals none.
        before.push(if level >= brim { None } else { Some(State::Level(Level { level, at: moment(*at)? })) });
        granted.push(u32::from(u16::from_le_bytes(taken.try_into().ok()?)));
    }
    Some(Answer { now: moment(*now)?, before, granted, leased: Vec::new() })
}

#[expect(clippy::cast_precision_loss, reason = "limits of a shared store keep their numbers below 2^53")]
fn double(out: &mut Vec<u8>, number: i64) {
    out.extend_from_slice(&(number as f64).to_le_bytes());
}

/// A whole number that a double holds exactly.
fn integer(bytes: [u8; 8]) -> Option<i64> {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    let number = f64::from_le_bytes(bytes);
    #[expect(clippy::cast_possible_truncation, reason = "whole and within 53 bits")]
    let whole = (number.fract() == 0.0 && number.abs() <= EXACT).then_some(number as i64);
    whole
}

fn moment(bytes: [u8; 8]) -> Option<Timestamp> {
    Some(Timestamp::from_micros(u64::try_from(integer(bytes)?).ok()?))
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
    fn an_answer_of_another_length_is_none() {
        for reply in [&b""[..], b"1234567", b"\0\0\0\0\0\0\0\0\0"] {
            assert!(read(&Batch::default(), reply).is_none(), "{reply:?}");
        }
    }
}

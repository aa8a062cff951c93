//! The arguments and the response of the general script, `draw/*.lua`: see its head.

use std::sync::Arc;

use super::{Connection, RedisLink};
use crate::batch::{Answer, Batch, place_among};
use crate::redis::pack;
use crate::wire_form::{HOLD_PINNED, NUMBERS, WireForm, count, signed};
use tollgate_limit::stepped::CALENDAR_STEPS_MAX;
use tollgate_limit::{Corrects, Timestamp};

const VERSION: i64 = 7;
/// Calendar boundaries in each direction when those of a limit's own numbers were not enough: other
/// numbers left the bucket in a deeper debt, or the server's clock and ours are windows apart.
pub(super) const FAR: u64 = 4 * CALENDAR_STEPS_MAX;
/// No limit has more units; a greater cost never fits, which is correct.
const UNITS_MAX: i64 = 1 << 52;

impl RedisLink {
    /// The arguments of the general script; see its head. `far`: the server's time, if the script
    /// has asked for more calendar boundaries than it received at first.
    pub(super) fn arguments(
        &self,
        connection: &Connection,
        batch: &Batch,
        far: Option<Timestamp>,
    ) -> Vec<u8> {
        let mut shapes: Vec<*const WireForm> = Vec::new();
        let mut numbers: Vec<i64> = Vec::with_capacity(64);
        let mut boundaries = Vec::new();
        let pinned = self.pinned_now();
        let about = far.unwrap_or_else(|| self.pinned.as_ref().unwrap_or(&self.clock).now());
        numbers.extend([
            VERSION,
            pinned,
            self.id,
            connection.fingerprint,
            i64::from(self.marked(batch)),
            i64::from(batch.concerns_resets()),
            0,
        ]);
        let mut places = Vec::with_capacity(batch.buckets.len());
        for (_, shape) in &batch.buckets {
            let (place, is_new) = place_among(&mut shapes, Arc::as_ptr(shape));
            places.push(count(place));
            if is_new {
                let mut own = shape.numbers(about);
                if pinned != 0 && shape.holds() {
                    // Heartbeats follow real time; a test's clock may run ahead of them.
                    own[3] = signed(HOLD_PINNED.0);
                }
                if let Some(floor) = shape.floor_of_steps() {
                    // (In place of a boundary: this script receives boundaries separately.)
                    (own[8], own[9]) = (0, floor);
                }
                if let Some(listed) = shape.boundaries(about, far.map(|_| FAR)) {
                    own[8] = count(listed.len());
                    boundaries.extend(listed);
                }
                numbers.extend_from_slice(&own);
            }
        }
        numbers[6] = count(shapes.len());
        debug_assert_eq!(numbers.len(), 7 + NUMBERS * shapes.len(), "each shape once");
        numbers.extend(boundaries);
        numbers.extend(places);
        numbers.push(count(batch.returns.len()));
        for (bucket, back) in &batch.returns {
            let units = [back.units, back.left].map(|units| signed(units).min(UNITS_MAX));
            let until = signed(back.until.as_micros());
            numbers.extend([i64::from(*bucket), until, units[0], units[1]]);
        }
        numbers.push(count(batch.corrections.len()));
        for (bucket, adjust) in &batch.corrections {
            let (what, units, window_end) = adjust.numbers();
            let drawn = match adjust.corrects() {
                Corrects::Any => 0,
                Corrects::DrawOf(at) => signed(at.as_micros()),
                Corrects::Reset => -1,
            };
            let (units, window_end) =
                (signed(units).min(UNITS_MAX), signed(window_end.as_micros()));
            numbers.extend([i64::from(*bucket), what, units, window_end, drawn]);
        }
        numbers.push(count(batch.groups.len()));
        for group in &batch.groups {
            numbers.extend([i64::from(group.count), count(group.parts.len())]);
            for part in &group.parts {
                let cost = signed(part.cost).min(UNITS_MAX);
                numbers.extend([i64::from(part.bucket), cost, i64::from(part.enforced)]);
            }
        }
        numbers.push(count(batch.leases.len()));
        for (bucket, asked) in &batch.leases {
            let units = [asked.units, asked.needed].map(|units| signed(units).min(UNITS_MAX));
            numbers.extend([i64::from(*bucket), units[0], units[1]]);
        }
        let mut out = Vec::with_capacity(numbers.len() * 3 + 8);
        pack::array(
            &mut out,
            u32::try_from(numbers.len()).expect("a batch is bounded"),
        );
        for number in numbers {
            pack::integer(&mut out, number);
        }
        out
    }
}

pub(super) fn read(batch: &Batch, reply: &[u8]) -> Option<Answer> {
    let numbers = pack::integers(reply)?;
    let mut numbers = numbers.as_slice();
    let now = Timestamp::from_micros(u64::try_from(*numbers.split_off_first()?).ok()?);
    let mut before = Vec::with_capacity(batch.buckets.len());
    for (_, shape) in &batch.buckets {
        let count = usize::try_from(*numbers.split_off_first()?).ok()?;
        let state = numbers.split_off(..count)?;
        before.push(if count == 0 {
            None
        } else {
            Some(shape.seen(state)?)
        });
    }
    let (granted, leased) = numbers.split_at_checked(batch.groups.len())?;
    let granted = granted.iter().map(|granted| u32::try_from(*granted).ok());
    let granted = granted.collect::<Option<Vec<_>>>()?;
    let leased = leased.iter().map(|units| u64::try_from(*units).ok());
    let leased = leased.collect::<Option<Vec<_>>>()?;
    Some(Answer {
        now,
        before,
        granted,
        leased,
        unreadable: Vec::new(),
    })
}

/// Minus one, then the server's time: the script needs more calendar boundaries.
pub(super) fn asks_for_more(reply: &[u8]) -> Option<Timestamp> {
    // (Checked first, because every response passes here.)
    if !reply.starts_with(&[0x92, 0xff]) {
        return None;
    }
    match pack::integers(reply)?.as_slice() {
        [-1, now] => Some(Timestamp::from_micros(u64::try_from(*now).ok()?)),
        _ => None,
    }
}

//! A few buckets under one lock, each flat in 32 bytes with its tag. Logs, and the few buckets whose
//! numbers do not fit, are in boxes.

use std::borrow::Cow;
use std::sync::Arc;

use tollgate_limit::bucket::{Held, Level, Pair, State, Steps};
use tollgate_limit::{Algorithm, Timestamp};

use super::{Bucket, Replaced, Table};

#[derive(Debug, Default)]
pub(in crate::local) struct Shard {
    /// The tag of the bucket at each place; 0: the place was never used.
    tags: [u64; SHARD_PLACES],
    /// The bucket at each place, and the shard's floor at the last one.
    flat: [FlatBucket; SHARD_PLACES + 1],
    overflow: Option<Box<Overflow>>,
}

/// A bucket as three numbers: its algorithm knows what they mean.
#[derive(Clone, Copy, Debug)]
struct FlatBucket {
    /// Level, units used, places in flight, or the units of the window before.
    first: u64,
    /// The largest burst, the largest amount, or the units of the current window.
    last: u64,
    /// Its moment in the low bits, and the index of its numbers in the high ones.
    moment: u64,
}

#[derive(Debug, Default)]
struct Overflow {
    /// By place: buckets that are [`FlatBucket::BOXED`], and all at places from [`OVERFLOW`] on.
    buckets: Vec<Option<Box<Bucket>>>,
    /// The tags of the buckets at places from [`OVERFLOW`] on.
    tags: Vec<u64>,
}

impl FlatBucket {
    /// No bucket: a full one, or none yet.
    const FREE: Self = Self::marked(u64::MAX);
    /// The bucket is in [`Overflow::buckets`]: a log, or one whose numbers are too large.
    const BOXED: Self = Self::marked(u64::MAX - 1);
    /// As the floor: the shard's buckets have moved to the successor of its table.
    const MOVED: Self = Self::marked(u64::MAX - 2);

    const fn marked(moment: u64) -> Self {
        Self {
            first: 0,
            last: 0,
            moment,
        }
    }

    /// A bucket that is kept in the numbers at an index; `None`: it needs a box.
    fn of(bucket: &Bucket, algorithm: &Algorithm, index: usize) -> Option<Self> {
        let (first, at, last) = match (algorithm, &bucket.state) {
            (Algorithm::TokenBucket(_), State::Level(Level { level, at })) => {
                (level.cast_unsigned(), *at, bucket.largest)
            }
            (Algorithm::Interval(_) | Algorithm::FixedWindow(_), State::Steps(steps)) => {
                (steps.used, steps.since, steps.amount)
            }
            (Algorithm::SlidingWindow(_), State::Pair(pair)) => {
                (pair.previous, pair.start, pair.current)
            }
            (Algorithm::InFlight(_), State::Held(held)) => (held.units, Timestamp::default(), 0),
            _ => return None,
        };
        let (at, index) = (at.as_micros(), index as u64);
        (at <= MOMENT_MAX && index <= INDEX_MAX).then_some(Self {
            first,
            last,
            moment: index << MOMENT_BITS | at,
        })
    }

    fn index(self) -> u16 {
        (self.moment >> MOMENT_BITS) as u16
    }

    /// The state in these numbers, and the largest burst it was drawn under.
    fn state(self, algorithm: &Algorithm) -> (State, u64) {
        let at = Timestamp::from_micros(self.moment & MOMENT_MAX);
        match algorithm {
            Algorithm::Interval(_) | Algorithm::FixedWindow(_) => {
                let (used, amount) = (self.first, self.last);
                let steps = Steps {
                    used,
                    since: at,
                    amount,
                };
                (State::Steps(steps), 0)
            }
            Algorithm::SlidingWindow(_) => {
                let (start, previous, current) = (at, self.first, self.last);
                let pair = Pair {
                    start,
                    previous,
                    current,
                };
                (State::Pair(pair), 0)
            }
            Algorithm::InFlight(_) => (State::Held(Held { units: self.first }), 0),
            _ => {
                let level = self.first.cast_signed();
                (State::Level(Level { level, at }), self.last)
            }
        }
    }
}

impl Default for FlatBucket {
    fn default() -> Self {
        Self::FREE
    }
}

impl Shard {
    /// A shard whose buckets have moved to the successor of its table.
    pub(super) fn moved() -> Self {
        let mut shard = Self::default();
        shard.flat[FLOOR] = FlatBucket::MOVED;
        shard
    }

    pub(super) fn is_moved(&self) -> bool {
        self.flat[FLOOR].moment == FlatBucket::MOVED.moment
    }

    /// The place of the bucket of a tag.
    pub(super) fn find(&self, tag: u64) -> Option<usize> {
        let place = self.tags.iter().position(|known| *known == tag);
        place.or_else(|| {
            let mut more = self.overflow.as_ref()?.tags.iter();
            Some(OVERFLOW + more.position(|known| *known == tag)?)
        })
    }

    /// The debt of a key that it does not know.
    pub(super) fn floor(&self, table: &Table) -> Option<Cow<'_, Bucket>> {
        self.load(table, FLOOR)
    }

    pub(super) fn has_floor(&self) -> bool {
        self.flat[FLOOR].moment != FlatBucket::FREE.moment
    }

    pub(super) fn lift_floor(&mut self, table: &Table, bucket: Bucket, now: Timestamp) {
        let floor = match self.take(table, FLOOR) {
            Some(floor) => table.join(&floor, &bucket, now),
            None => bucket,
        };
        self.store(table, FLOOR, 0, Some(floor));
    }

    /// The bucket at `place`; `None`: it is full.
    pub(super) fn load(&self, table: &Table, place: usize) -> Option<Cow<'_, Bucket>> {
        match self.flat.get(place) {
            Some(flat) if flat.moment < FlatBucket::MOVED.moment => {
                Some(Cow::Owned(table.unfold(*flat)))
            }
            Some(flat) if flat.moment != FlatBucket::BOXED.moment => None,
            _ => {
                let bucket = self.overflow.as_ref()?.buckets.get(place)?.as_deref();
                bucket.map(Cow::Borrowed)
            }
        }
    }

    /// The bucket at `place`, to be changed and stored again.
    pub(super) fn take(&mut self, table: &Table, place: usize) -> Option<Bucket> {
        let flat = self.flat.get(place);
        let boxed = flat.is_none_or(|flat| flat.moment == FlatBucket::BOXED.moment);
        match self.overflow.as_mut().filter(|_| boxed) {
            Some(overflow) => Some(*overflow.buckets.get_mut(place)?.take()?),
            None => self.load(table, place).map(Cow::into_owned),
        }
    }

    pub(super) fn store(&mut self, table: &Table, place: usize, tag: u64, bucket: Option<Bucket>) {
        let mut boxed = bucket;
        if let Some(flat) = self.flat.get_mut(place) {
            let folded = match &boxed {
                Some(bucket) => table.fold(bucket),
                None => Some(FlatBucket::FREE),
            };
            *flat = folded.unwrap_or(FlatBucket::BOXED);
            boxed = boxed.filter(|_| folded.is_none());
        }
        if let Some(known) = self.tags.get_mut(place) {
            *known = tag;
        }
        let overflow = self.overflow.as_ref();
        let has_box = overflow.is_some_and(|overflow| place < overflow.buckets.len());
        if boxed.is_none() && !has_box {
            return;
        }
        let overflow = self.overflow.get_or_insert_default();
        if overflow.buckets.len() <= place {
            overflow.buckets.resize_with(place + 1, || None);
        }
        overflow.buckets[place] = boxed.map(Box::new);
        if let Some(more) = place.checked_sub(OVERFLOW) {
            overflow.tags.resize(overflow.tags.len().max(more + 1), tag);
            overflow.tags[more] = tag;
        }
    }

    /// The place for a new bucket, and the moment at which the one there is full again: it is the
    /// soonest. A held place in a concurrency limit is never dropped, so the shard may have to grow,
    /// by at most the number of requests in flight.
    pub(super) fn soonest_full(&self, table: &Table) -> (usize, Timestamp) {
        let expiry = |place: usize| match self.load(table, place) {
            Some(bucket) => bucket.expiry(table.algorithm(bucket.variant)),
            None => Some(Timestamp::default()),
        };
        let expiries = self.all().filter_map(|place| Some((place, expiry(place)?)));
        let soonest = expiries.min_by_key(|(_, expiry)| *expiry);
        let more = self.overflow_places();
        soonest.unwrap_or((OVERFLOW + more, Timestamp::default()))
    }

    pub(super) fn buckets(&self, table: &Table) -> impl Iterator<Item = (u64, Cow<'_, Bucket>)> {
        self.all().filter_map(move |place| {
            let more = || self.overflow.as_ref()?.tags.get(place - OVERFLOW);
            let tag = self.tags.get(place).or_else(more)?;
            Some((*tag, self.load(table, place)?))
        })
    }

    #[cfg(test)]
    pub(super) fn boxes(&self) -> usize {
        let overflow = self.overflow.iter();
        overflow
            .flat_map(|overflow| overflow.buckets.iter().flatten())
            .count()
    }

    fn overflow_places(&self) -> usize {
        let overflow = self.overflow.as_ref();
        overflow.map_or(0, |overflow| overflow.tags.len())
    }

    fn all(&self) -> impl Iterator<Item = usize> + use<> {
        let more = self.overflow_places();
        (0..SHARD_PLACES).chain(OVERFLOW..OVERFLOW + more)
    }
}

impl Table {
    /// A bucket as a place stores it; `None`: it needs a box.
    fn fold(&self, bucket: &Bucket) -> Option<FlatBucket> {
        let Some(own) = &bucket.own else {
            return FlatBucket::of(
                bucket,
                self.algorithm(bucket.variant),
                bucket.variant.into(),
            );
        };
        let is_own = |one: &Replaced| one.variant == bucket.variant && Arc::ptr_eq(&one.own, own);
        let index = self.replaced.iter().position(is_own)?;
        FlatBucket::of(bucket, own, self.numbers.len() + index)
    }

    fn unfold(&self, flat: FlatBucket) -> Bucket {
        let index = flat.index();
        let replaced = usize::from(index).checked_sub(self.numbers.len());
        let (variant, own) = match replaced.map(|index| &self.replaced[index]) {
            None => (index, None),
            Some(Replaced { variant, own }) => (*variant, Some(Arc::clone(own))),
        };
        let (state, largest) = flat.state(own.as_deref().unwrap_or(self.algorithm(variant)));
        Bucket {
            state,
            largest,
            variant,
            own,
        }
    }
}

/// Buckets under one lock: few enough to be searched in two cache lines, enough that a shard
/// overflows only long after the table is full on average.
pub(super) const SHARD_PLACES: usize = 16;

const FLOOR: usize = SHARD_PLACES;

/// The first place beyond the flat ones: buckets are there while all flat places hold units in flight.
const OVERFLOW: usize = FLOOR + 1;

/// Microseconds until the year 2112.
const MOMENT_BITS: u32 = 52;
const MOMENT_MAX: u64 = (1 << MOMENT_BITS) - 1;
/// The last index is that of the marks.
const INDEX_MAX: u64 = (1 << (u64::BITS - MOMENT_BITS)) - 2;

//! Converts a bucket to the integers of its row and back: version, kind, fingerprint, and the kind's
//! own numbers. Of a token bucket these are n and p of its last grant and the level of one that is
//! full under the largest burst it was drawn under; of the others only what was used. A row of another
//! kind counts as none. One that cannot be read does not: a newer gateway may have written it, with
//! units of it in use.

use super::leased;
use super::mark::Mark;
use crate::wire_form::{TOKEN_BUCKET, WireForm, kind_of, moment as at_moment, signed, state_of};
use tollgate_limit::bucket::{Held, State};
use tollgate_limit::kept::ahead::is_far;
use tollgate_limit::{Algorithm, Change, Micros, StoredBucket, Timestamp};

const VERSION: i64 = 1;

/// The places of a concurrency limit: holder, units, until when.
pub(super) type Holders = Vec<(i64, i64, i64)>;

/// A bucket while its row is locked.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) kept: StoredBucket,
    pub(super) holders: Holders,
    /// The row is of another kind: no correction applies to it, and it is overwritten only by a draw.
    pub(super) foreign: bool,
    /// Its moment was too far ahead ([`StoredBucket::pull`]): the moved state is written.
    pub(super) pulled: bool,
}

impl Opened {
    /// A bucket whose row cannot be read: nothing is drawn from it, and its row is not written.
    pub(super) fn unreadable(shape: &WireForm) -> Self {
        Self {
            kept: StoredBucket::full(shape.algorithm().clone()),
            holders: Vec::new(),
            foreign: true,
            pulled: false,
        }
    }

    /// Corrects it in its own numbers; returns whether the correction applies.
    pub(super) fn settle(&mut self, shape: &WireForm, change: Change, now: Timestamp) -> bool {
        if !self.foreign {
            self.kept.settle(shape.algorithm(), change, now);
        }
        !self.foreign
    }
}

/// Reads the bucket from `row`; without a row it is a full one of `shape`.
///
/// # Errors
/// When the row has an unknown kind, or is invalid for the kind of `shape`.
///
/// `hold` is how long a place in flight lasts.
pub(super) fn open(
    shape: &WireForm,
    row: Option<&[i64]>,
    now: Timestamp,
    hold: Micros,
    mark: Mark,
) -> Result<Opened, &'static str> {
    let stored = match row {
        None => None,
        Some([VERSION, kind, fingerprint, own @ ..]) if *kind == shape.kind() => {
            Some((*fingerprint, own))
        }
        Some([VERSION, TOKEN_BUCKET..=leased::KIND, ..]) => None,
        Some(_) => return Err("a bucket's row is of a kind that this gateway does not know"),
    };
    let foreign = row.is_some() && stored.is_none();
    if shape.holds() {
        let alive =
            |place: &&[i64]| u64::try_from(place[2]).is_ok_and(|until| until > now.as_micros());
        let mut holders: Holders = stored
            .map(|(_, own)| {
                let places = own.chunks_exact(3).filter(alive);
                places.map(|place| (place[0], place[1], place[2])).collect()
            })
            .unwrap_or_default();
        let units: i64 = holders.iter().map(|place| place.1).sum();
        // Otherwise a clock that was set back would keep a place of a dead gateway.
        let until = now.after(hold);
        let mut pulled = false;
        for place in holders
            .iter_mut()
            .filter(|place| at_moment(place.2).is_some_and(|at| is_far(at, until)))
        {
            (place.2, pulled) = (moment(until), true);
        }
        return Ok(Opened {
            kept: held(shape, units),
            holders,
            foreign,
            pulled,
        });
    }
    let (mut kept, written) = match stored {
        Some((_, own)) => kept(shape, own).ok_or("a bucket's row cannot be read")?,
        None => (StoredBucket::full(shape.algorithm().clone()), None),
    };
    let pulled = kept.pull(written, now);
    if shape.drains() && stored.is_none_or(|(print, _)| print != mark.print) {
        // Nothing is known of the time before the mark: only what has refilled since is there.
        kept.drain(mark.since().min(now));
    }
    Ok(Opened {
        kept,
        holders: Vec::new(),
        foreign,
        pulled,
    })
}

/// The row of a bucket, and when it may be deleted; `None`: the bucket is full.
pub(super) fn close(
    shape: &WireForm,
    bucket: &Opened,
    print: i64,
    now: Timestamp,
) -> Option<(Vec<i64>, i64)> {
    let mut row = vec![VERSION, kind_of(bucket.kept.algorithm()), print];
    if shape.holds() {
        let places = bucket.holders.iter().filter(|place| place.1 > 0);
        let gone = places.clone().map(|place| place.2).max()?;
        row.extend(places.flat_map(|place| [place.0, place.1, place.2]));
        return Some((row, gone));
    }
    let state = bucket.kept.state()?;
    let gone = bucket.kept.expiry()?;
    match (bucket.kept.algorithm(), state) {
        (Algorithm::TokenBucket(limit), State::Level(level)) => {
            let quota = limit.quota();
            row.extend([
                signed(quota.n),
                signed(quota.p),
                limit.full(),
                level.level,
                moment(level.at),
            ]);
        }
        (_, State::Steps(steps)) => {
            row.extend([
                signed(steps.amount),
                signed(steps.used),
                moment(steps.since),
            ]);
        }
        (_, State::Pair(pair)) => {
            row.extend([
                moment(pair.start),
                signed(pair.previous),
                signed(pair.current),
            ]);
            row.extend(bucket.kept.written(now).map(moment));
        }
        (_, State::Log(log)) => {
            row.extend(
                bucket
                    .kept
                    .written(now)
                    .into_iter()
                    .flat_map(|written| [moment(written), 0]),
            );
            row.extend(
                log.entries()
                    .flat_map(|entry| [moment(entry.at), signed(entry.units)]),
            );
        }
        _ => return None,
    }
    Some((row, moment(gone)))
}

/// Adds `units` (or takes them) to the places of gateway `me`; added places last `until` then.
pub(super) fn hold(shape: &WireForm, bucket: &mut Opened, me: i64, units: i64, until: i64) {
    match bucket.holders.iter_mut().find(|place| place.0 == me) {
        Some(place) => {
            place.1 = place.1.saturating_add(units).max(0);
            if units > 0 {
                place.2 = until;
            }
        }
        None if units > 0 => bucket.holders.push((me, units, until)),
        None => {}
    }
    bucket.kept = held(shape, bucket.holders.iter().map(|place| place.1).sum());
}

/// A heartbeat: gateway `me` holds exactly `units`.
pub(super) fn renew(shape: &WireForm, bucket: &mut Opened, me: i64, units: u64, until: i64) {
    bucket.holders.retain(|place| place.0 != me);
    hold(shape, bucket, me, signed(units), until);
}

fn held(shape: &WireForm, units: i64) -> StoredBucket {
    let units = u64::try_from(units).ok().filter(|units| *units > 0);
    StoredBucket::from_parts(
        shape.algorithm().clone(),
        units.map(|units| State::Held(Held { units })),
        0,
    )
}

/// The bucket of a row of the kind of `shape`, and [`StoredBucket::written`].
fn kept(shape: &WireForm, own: &[i64]) -> Option<(StoredBucket, Option<Timestamp>)> {
    let limit = shape.algorithm();
    let (algorithm, state, written) = match (limit, own) {
        (Algorithm::TokenBucket(limit), [n, p, full, state @ ..]) => {
            let bucket = limit.of_row(units(*n)?, units(*p)?, units(*full)?)?;
            (Algorithm::TokenBucket(bucket), state, None)
        }
        (Algorithm::TokenBucket(_), _) => return None,
        (Algorithm::SlidingWindow(_), [state @ .., written]) if state.len() == 3 => {
            (limit.clone(), state, Some(at_moment(*written)?))
        }
        // (An entry without units stores the time at which the log was written.)
        (Algorithm::SlidingLog(_), [written, 0, entries @ ..]) => {
            (limit.clone(), entries, Some(at_moment(*written)?))
        }
        _ => (limit.clone(), own, None),
    };
    let state = state_of(shape.kind(), state)?;
    if matches!(state, State::Steps(steps) if steps.amount == 0) {
        return None;
    }
    Some((StoredBucket::from_parts(algorithm, Some(state), 0), written))
}

fn units(value: i64) -> Option<u64> {
    u64::try_from(value).ok()
}

fn moment(at: Timestamp) -> i64 {
    signed(at.as_micros())
}

//! Converts a bucket to the integers of its row and back: version, kind, fingerprint, the kind's
//! own numbers, and what the bucket remembers of other numbers ([`Kept::beyond`]). The pure core
//! converts a row stored under other numbers or by another algorithm. Between a rate and a
//! concurrency limit a row counts as none. One that cannot be read does not: a newer gateway may
//! have written it, with units of it in use.

use super::leased;
use super::mark::Mark;
use crate::wire_form::{
    FIXED_WINDOW, INTERVAL, SLIDING_LOG, SLIDING_WINDOW, TOKEN_BUCKET, WireForm, kind_of,
    moment as at_moment, signed, state_of,
};
use tollgate_limit::bucket::{Held, State};
use tollgate_limit::rescale::ahead::is_far;
use tollgate_limit::{Algorithm, Align, Change, Kept, Kind, Micros, Terms, Timestamp};

const VERSION: i64 = 1;

/// The places of a concurrency limit: holder, units, until when.
pub(super) type Holders = Vec<(i64, i64, i64)>;

/// A bucket while its row is locked.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) kept: Kept,
    pub(super) holders: Holders,
    /// The row does not go on ([`Algorithm::goes_on_as`]): no correction applies to it, and it is
    /// overwritten only by a draw.
    pub(super) foreign: bool,
    /// Its moment was too far ahead ([`Kept::pull`]): the moved state is written, whatever is
    /// decided.
    pub(super) pulled: bool,
}

impl Opened {
    /// A bucket whose row cannot be read: nothing is drawn from it, and its row is not written.
    pub(super) fn unreadable(shape: &WireForm) -> Self {
        Self {
            kept: Kept::full(shape.algorithm().clone()),
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
        Some([VERSION, kind, fingerprint, own @ ..])
            if *kind == shape.kind() || (is_rate(*kind) && !shape.holds()) =>
        {
            Some((*kind, *fingerprint, own))
        }
        Some([VERSION, TOKEN_BUCKET..=leased::KIND, ..]) => None,
        Some(_) => return Err("a bucket's row is of a kind that this gateway does not know"),
    };
    let foreign = row.is_some() && stored.is_none();
    if shape.holds() {
        let alive =
            |place: &&[i64]| u64::try_from(place[2]).is_ok_and(|until| until > now.as_micros());
        let mut holders: Holders = stored
            .map(|(.., own)| {
                own.chunks_exact(3)
                    .filter(alive)
                    .map(|place| (place[0], place[1], place[2]))
                    .collect()
            })
            .unwrap_or_default();
        let units: i64 = holders.iter().map(|place| place.1).sum();
        // Without this, a place of a dead gateway would last until a clock that was set back has
        // caught up.
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
        Some((kind, _, own)) => kept(shape, kind, own).ok_or("a bucket's row cannot be read")?,
        None => (Kept::full(shape.algorithm().clone()), None),
    };
    let pulled = kept.pull(written, now);
    if shape.drains() && stored.is_none_or(|(_, print, _)| print != mark.print) {
        // Nothing is known of the time before the mark: the bucket has only what has refilled
        // since.
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
        (Algorithm::Interval(limit) | Algorithm::FixedWindow(limit), State::Steps(steps)) => {
            let quota = limit.quota();
            let align = align_number(limit.align());
            row.extend([
                signed(quota.amount),
                signed(quota.burst),
                signed(quota.period.0),
                align,
            ]);
            row.extend([steps.units, moment(steps.since)]);
        }
        (Algorithm::SlidingWindow(limit), State::Pair(pair)) => {
            row.extend([signed(limit.quota().amount), signed(limit.quota().period.0)]);
            row.extend([
                moment(pair.start),
                signed(pair.previous),
                signed(pair.current),
            ]);
        }
        (Algorithm::SlidingLog(limit), State::Log(log)) => {
            row.extend([signed(limit.quota().amount), signed(limit.quota().period.0)]);
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
    let written = bucket
        .kept
        .written(now)
        .filter(|_| matches!(state, State::Pair(_)));
    if bucket.kept.beyond() > 0 || written.is_some() {
        row.push(signed(bucket.kept.beyond()));
    }
    row.extend(written.map(moment));
    Some((row, moment(gone)))
}

/// Adds `units` (which may be negative) to the places that gateway `me` holds; added places last
/// `until` then.
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

fn held(shape: &WireForm, units: i64) -> Kept {
    let units = u64::try_from(units).ok().filter(|units| *units > 0);
    Kept::from_parts(
        shape.algorithm().clone(),
        units.map(|units| State::Held(Held { units })),
        0,
    )
}

fn is_rate(kind: i64) -> bool {
    (TOKEN_BUCKET..=SLIDING_LOG).contains(&kind)
}

/// The bucket of a row of `kind` in the numbers it was stored under (those of `shape` if they are
/// equal), and [`Kept::written`].
fn kept(shape: &WireForm, kind: i64, own: &[i64]) -> Option<(Kept, Option<Timestamp>)> {
    // How many numbers of its limit the row has, and how many of its state. What it remembers of
    // other numbers follows.
    let (limit, state) = match kind {
        TOKEN_BUCKET => (3, 2),
        INTERVAL | FIXED_WINDOW => (4, 2),
        SLIDING_WINDOW => (2, 3),
        SLIDING_LOG => (2, own.len().saturating_sub(2) / 2 * 2),
        _ => return None,
    };
    let (limit, rest) = own.split_at_checked(limit)?;
    let (state, beyond) = rest.split_at_checked(state)?;
    let (state, written) = match (kind, state) {
        (SLIDING_WINDOW, _) => (state, beyond.get(1).copied().and_then(at_moment)),
        // (An entry without units stores the time at which the log was written.)
        (SLIDING_LOG, [written, 0, entries @ ..]) => (entries, at_moment(*written)),
        _ => (state, None),
    };
    let (algorithm, state) = (stored_under(shape, kind, limit)?, state_of(kind, state)?);
    let beyond = beyond.first().copied().map_or(Some(0), units)?;
    Some((Kept::from_parts(algorithm, Some(state), beyond), written))
}

/// The algorithm of a row of `kind` with these numbers; that of `shape` if it has the same.
fn stored_under(shape: &WireForm, kind: i64, numbers: &[i64]) -> Option<Algorithm> {
    let new = shape.algorithm();
    let quota = new.quota().filter(|_| kind == shape.kind());
    let (same, old) = match (kind, numbers) {
        (TOKEN_BUCKET, &[n, p, full]) => {
            let (n, p, full) = (units(n)?, units(p)?, units(full)?);
            let same = matches!(new, Algorithm::TokenBucket(limit)
                if limit.quota().n == n && limit.quota().p == p && limit.full() == signed(full));
            let burst = full.checked_div(p)?;
            let old = terms(Kind::TokenBucket, n, p, Some(burst), Align::FirstHit);
            (same, old)
        }
        (INTERVAL | FIXED_WINDOW, &[amount, burst, period, align]) => {
            let (amount, burst, period) = (units(amount)?, units(burst)?, units(period)?);
            let same = align == align_number(align_of(new))
                && quota.is_some_and(|quota| {
                    (quota.amount, quota.burst, quota.period.0) == (amount, burst, period)
                });
            let align = match (align, align_of(new)) {
                (1, _) => Align::Clock,
                // The calendar of that time is not stored; the current one is used instead.
                (2, Align::Calendar(calendar)) => Align::Calendar(calendar.clone()),
                _ => Align::FirstHit,
            };
            let old = match kind {
                INTERVAL => terms(Kind::Interval, amount, period, Some(burst), align),
                _ => terms(Kind::FixedWindow, amount, period, None, align),
            };
            (same, old)
        }
        (SLIDING_WINDOW | SLIDING_LOG, &[amount, period]) => {
            let (amount, period) = (units(amount)?, units(period)?);
            let same =
                quota.is_some_and(|quota| (quota.amount, quota.period.0) == (amount, period));
            let kind = match kind {
                SLIDING_WINDOW => Kind::SlidingWindow,
                _ => Kind::SlidingLog,
            };
            (same, terms(kind, amount, period, None, Align::FirstHit))
        }
        _ => return None,
    };
    if same {
        Some(new.clone())
    } else {
        Algorithm::new(&old).ok()
    }
}

fn terms(kind: Kind, amount: u64, period: u64, burst: Option<u64>, align: Align) -> Terms {
    Terms {
        burst,
        align,
        shared: true,
        ..Terms::new(kind, amount, Micros(period))
    }
}

fn align_of(algorithm: &Algorithm) -> &Align {
    match algorithm {
        Algorithm::FixedWindow(window) => window.align(),
        _ => &Align::FirstHit,
    }
}

fn align_number(align: &Align) -> i64 {
    match align {
        Align::FirstHit => 0,
        Align::Clock => 1,
        Align::Calendar(_) => 2,
    }
}

fn units(value: i64) -> Option<u64> {
    u64::try_from(value).ok()
}

fn moment(at: Timestamp) -> i64 {
    signed(at.as_micros())
}

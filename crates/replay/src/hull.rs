//! The burst that one key needs at every rate, exact: three convex hulls per stretch of the log.
//!
//! Requests at `t1 <= .. <= tn` with costs `ci` and running sums `Si` are all admitted by a token bucket of rate `r` and
//! burst `B` exactly when `B >= max over i <= j of (Sj - S(i-1)) - r (tj - ti)`. That maximum is the upper envelope of
//! lines, and its corners are the upper convex hull of the points `(tj - ti, Sj - S(i-1))`. Stretches that follow each
//! other in time merge, and merging is associative.

/// A point: a time or a span in microseconds, and units.
pub(crate) type Point = (i64, i64);

/// What a stretch of one key's requests asks of a bucket.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stretch {
    /// Upper hull of `(tj, Sj)`.
    after: Vec<Point>,
    /// Lower hull of `(ti, S(i-1))`.
    before: Vec<Point>,
    /// Upper hull of the differences: the answer.
    need: Vec<Point>,
    /// All units of the stretch.
    sum: i64,
}

/// The burst that keys need at every rate: the corners of the answer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need(Vec<Point>);

impl Stretch {
    pub fn one(at: u64, cost: u64) -> Self {
        let (at, cost) = (signed(at), signed(cost));
        Self {
            after: vec![(at, cost)],
            before: vec![(at, 0)],
            need: vec![(0, cost)],
            sum: cost,
        }
    }

    pub fn of(requests: &[(u64, u64)]) -> Self {
        match requests {
            [] => Self::default(),
            [(at, cost)] => Self::one(*at, *cost),
            more => {
                let (first, last) = more.split_at(more.len() / 2);
                Self::of(first).merge(&Self::of(last))
            }
        }
    }

    /// This stretch followed by another that begins no earlier than it ends.
    pub fn merge(&self, later: &Self) -> Self {
        if self.need.is_empty() {
            return later.clone();
        }
        if later.need.is_empty() {
            return self.clone();
        }
        // Sums go on where this stretch has ended.
        let up = |points: &[Point]| -> Vec<Point> {
            let raised = |&(at, units): &Point| (at, units.saturating_add(self.sum));
            points.iter().map(raised).collect()
        };
        let (later_after, later_before) = (up(&later.after), up(&later.before));
        let across = difference(&later_after, &self.before);
        let mut need = Vec::with_capacity(self.need.len() + later.need.len() + across.len());
        need.extend_from_slice(&self.need);
        need.extend_from_slice(&later.need);
        need.extend(across);
        need.sort_unstable();
        Self {
            after: joined(&self.after, &later_after, true),
            before: joined(&self.before, &later_before, false),
            need: falling(joined(&[], &need, true)),
            sum: self.sum.saturating_add(later.sum),
        }
    }

    /// The burst it needs at every rate.
    pub fn need(&self) -> Need {
        Need(self.need.clone())
    }
}

impl Need {
    /// The least whole burst at which a bucket of `amount` per `period` microseconds refuses nothing.
    pub fn burst(&self, amount: u64, period: u64) -> u64 {
        let (amount, period) = (i128::from(amount), i128::from(period.max(1)));
        let scaled =
            |&(span, units): &Point| i128::from(units) * period - amount * i128::from(span);
        let most = self.0.iter().map(scaled).max().unwrap_or(0).max(0);
        let whole = most / period + i128::from(most % period > 0);
        u64::try_from(whole).unwrap_or(u64::MAX)
    }

    pub fn join(&mut self, other: &Self) {
        let mut points = other.0.iter();
        if points.all(|point| self.0.binary_search(point).is_ok()) {
            return;
        }
        self.0.extend_from_slice(&other.0);
        self.0.sort_unstable();
        self.0 = falling(joined(&[], &self.0, true));
    }
}

/// Streams one key's requests: equal stretches are merged as a binary counter carries.
#[derive(Clone, Debug, Default)]
pub struct Stream {
    pending: Vec<(u64, u64)>,
    stretches: Vec<(u32, Stretch)>,
}

impl Stream {
    /// Adds a request that comes no earlier than the last.
    pub fn push(&mut self, at: u64, cost: u64) {
        self.pending.push((at, cost));
        if self.pending.len() == PENDING {
            self.carry();
        }
    }

    fn carry(&mut self) {
        let mut stretch = Stretch::of(&self.pending);
        self.pending.clear();
        let mut size = 0;
        while let Some((_, earlier)) = self.stretches.pop_if(|(other, _)| *other == size) {
            stretch = earlier.merge(&stretch);
            size += 1;
        }
        self.stretches.push((size, stretch));
    }

    /// All of it as one stretch; the stream is empty again.
    pub fn take(&mut self) -> Stretch {
        let mut whole = Stretch::of(&self.pending);
        self.pending.clear();
        while let Some((_, earlier)) = self.stretches.pop() {
            whole = earlier.merge(&whole);
        }
        whole
    }
}

/// Adds a point to the right of a hull.
fn push(corners: &mut Vec<Point>, point: Point, upper: bool) {
    if let Some(last) = corners.last()
        && last.0 == point.0
    {
        // Of one span only the extreme counts.
        if (point.1 > last.1) != upper {
            return;
        }
        corners.pop();
    }
    while let [.., a, b] = corners.as_slice() {
        let turn = cross(*a, *b, point);
        if (upper && turn < 0) || (!upper && turn > 0) {
            break;
        }
        corners.pop();
    }
    corners.push(point);
}

/// A hull and the points to the right of it, in ascending order, as one hull.
fn joined(first: &[Point], second: &[Point], upper: bool) -> Vec<Point> {
    let mut corners = Vec::with_capacity(first.len() + second.len());
    corners.extend_from_slice(first);
    for point in second {
        push(&mut corners, *point, upper);
    }
    corners
}

/// The upper hull of `a - b` over all points of an upper and a lower hull: their edges merged by slope.
fn difference(upper: &[Point], lower: &[Point]) -> Vec<Point> {
    // Turned about the origin a lower hull is an upper one, from its last point to its first.
    let (Some(&first), Some(&last)) = (upper.first(), lower.last()) else {
        return Vec::new();
    };
    let mut point = minus(first, last);
    let mut corners = vec![point];
    let edge = |edge: &[Point]| minus(edge[1], edge[0]);
    let mut ups = upper.windows(2).map(edge).peekable();
    let mut downs = lower.windows(2).rev().map(edge).peekable();
    loop {
        let edge = match (ups.peek(), downs.peek()) {
            (None, None) => return corners,
            (Some(_), None) => ups.next(),
            (None, Some(_)) => downs.next(),
            (Some(up), Some(down)) if steeper(*up, *down) => ups.next(),
            (Some(_), Some(_)) => downs.next(),
        };
        let Some(edge) = edge else { return corners };
        point = (point.0 + edge.0, point.1 + edge.1);
        corners.push(point);
    }
}

fn minus(from: Point, to: Point) -> Point {
    (from.0 - to.0, from.1 - to.1)
}

/// Whether an edge to the right rises more than another.
fn steeper(one: Point, other: Point) -> bool {
    product(other, one) > 0
}

/// Above zero: the way from a over b to c turns left.
fn cross(a: Point, b: Point, c: Point) -> i128 {
    product(minus(b, a), minus(c, a))
}

/// The cross product: above zero where the second edge turns left of the first.
fn product(one: Point, other: Point) -> i128 {
    i128::from(one.0) * i128::from(other.1) - i128::from(one.1) * i128::from(other.0)
}

/// Corners at which some rate is best: beyond the highest one a longer span asks for less at every rate.
fn falling(mut corners: Vec<Point>) -> Vec<Point> {
    let mut top = 0;
    for (place, corner) in corners.iter().enumerate() {
        if corner.1 > corners[top].1 {
            top = place;
        }
    }
    corners.truncate(top + 1);
    corners
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// Requests that are gathered before a stretch is made of them.
const PENDING: usize = 32;

#[cfg(test)]
mod tests;

//! The only module that reads a clock; everything else receives the time as an argument.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use tollgate_limit::{Micros, Timestamp};

/// A source of time: the system's clock, or a test's.
#[derive(Clone, Debug)]
pub enum Clock {
    /// Anchored once to the wall clock, monotonic from then on.
    System(Anchor),
    /// Stands still until it is advanced. Clones share one time.
    Manual(Arc<ManualClock>),
}

#[derive(Debug)]
pub struct ManualClock {
    now: AtomicU64,
    /// By how many microseconds its wall clock was set forward.
    set_forward: AtomicU64,
}

/// Where a monotonic clock was anchored to the wall clock.
#[derive(Clone, Copy, Debug)]
pub struct Anchor {
    monotonic: Instant,
    wall: Timestamp,
}

impl Clock {
    #[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
    pub fn system() -> Self {
        Self::System(Anchor {
            monotonic: Instant::now(),
            wall: read_wall(),
        })
    }

    pub fn manual(start: Timestamp) -> Self {
        Self::Manual(Arc::new(ManualClock {
            now: AtomicU64::new(start.as_micros()),
            set_forward: AtomicU64::new(0),
        }))
    }

    pub fn now(&self) -> Timestamp {
        match self {
            Self::System(anchor) => anchor.wall.after(anchor.monotonic.elapsed().into()),
            Self::Manual(manual) => Timestamp::from_micros(manual.now.load(Ordering::Acquire)),
        }
    }

    /// The present moment on the wall clock, which may have been set since this clock was anchored to
    /// it: for moments that another process reads later.
    pub fn wall(&self) -> Timestamp {
        match self {
            Self::System(_) => read_wall(),
            Self::Manual(manual) => {
                let forward = Micros(manual.set_forward.load(Ordering::Acquire));
                self.now().after(forward)
            }
        }
    }

    /// A moment on a clock that continues while the machine sleeps, unlike the monotonic clock: for
    /// deadlines that a server tracks too. Comparable only with other values of this function.
    pub fn boot(&self) -> Timestamp {
        match self {
            #[cfg(target_os = "linux")]
            Self::System(_) => {
                let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
                let (seconds, nanos) = (time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs());
                let second = Timestamp::default().after(Micros::from_secs(seconds));
                second.after(Micros(nanos / 1000))
            }
            // On other systems the wall clock is the closest substitute.
            #[cfg(not(target_os = "linux"))]
            Self::System(_) => self.wall(),
            Self::Manual(_) => self.now(),
        }
    }

    /// Advances a manual clock. It panics on the system's clock: only tests advance clocks.
    pub fn advance(&self, span: Micros) {
        self.manually_set().now.fetch_add(span.0, Ordering::AcqRel);
    }

    /// Sets the wall clock of a manual clock forward. It panics on the system's clock.
    pub fn set_wall_forward(&self, span: Micros) {
        let forward = &self.manually_set().set_forward;
        forward.fetch_add(span.0, Ordering::AcqRel);
    }

    fn manually_set(&self) -> &ManualClock {
        match self {
            Self::System(_) => panic!("only a manual clock can be set"),
            Self::Manual(manual) => manual,
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that reads time")]
fn read_wall() -> Timestamp {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    Timestamp::default().after(since_epoch.unwrap_or_default().into())
}

/// The moments of a [`Clock`] as the wall clock shows them: for what other programs compare with
/// clocks of their own, such as the validity of a token or a line of a log.
///
/// The wall clock may be set while the process runs, and it goes on while the machine sleeps; a
/// [`Clock`] follows neither, so that no bucket refills. Each thread has its own, which reads the
/// wall clock once a second.
///
/// ```
/// use tollgate_limit::{Micros, Timestamp};
/// use tollgate_store::clock::{Clock, WallClock};
///
/// let clock = Clock::manual(Timestamp::from_micros(1_700_000_000_000_000));
/// let wall = WallClock::of(clock.clone());
/// let hour = Micros::from_secs(3600);
/// clock.set_wall_forward(hour);
/// clock.advance(Micros::from_secs(1));
/// assert_eq!(wall.show(clock.now()), clock.now().after(hour));
/// ```
#[derive(Debug)]
pub struct WallClock {
    clock: Clock,
    read_at: Cell<Timestamp>,
    shift: Cell<Shift>,
}

impl WallClock {
    pub fn of(clock: Clock) -> Self {
        let wall = Self {
            read_at: Cell::new(clock.now()),
            shift: Cell::default(),
            clock,
        };
        wall.read(wall.read_at.get());
        wall
    }

    /// The moment `at` of the clock, which is about now, as the wall clock shows it.
    pub fn show(&self, at: Timestamp) -> Timestamp {
        if at.since(self.read_at.get()) >= READ_EVERY {
            self.read(at);
        }
        self.shift.get().moved(at)
    }

    fn read(&self, at: Timestamp) {
        let shift = Shift::between(self.clock.now(), self.clock.wall());
        self.read_at.set(at);
        self.shift.set(shift);
    }
}

/// Moves moments of one clock to another.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Shift {
    // One of the two is zero.
    forward: Micros,
    back: Micros,
}

impl Shift {
    /// From a clock that shows `from` to one that shows `to` at the same moment.
    pub(crate) const fn between(from: Timestamp, to: Timestamp) -> Self {
        Self {
            forward: to.since(from),
            back: from.since(to),
        }
    }

    /// The moment `at` of the first clock, on the second one.
    pub(crate) const fn moved(self, at: Timestamp) -> Timestamp {
        at.after(self.forward).before(self.back)
    }
}

const READ_EVERY: Micros = Micros::from_secs(1);

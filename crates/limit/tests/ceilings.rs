//! Ceilings under random traces of reservations, settlements, cuts and kills: no window is ever
//! exceeded, and no unit that was not used is lost to its window.

#![expect(
    clippy::disallowed_types,
    reason = "the core holds no map; its tests may"
)]

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_limit::{Algorithm, Align, Calendar, Change, Kind, Micros, Terms, Timestamp};

const PERIOD: u64 = 1_000_000;
const START: u64 = 1_760_000_000_000_000;

/// A call whose response is not known yet.
struct Call {
    reserved: u64,
    window_end: Timestamp,
}

/// A ceiling and what its calls have done.
struct Trace {
    limit: Algorithm,
    quota: u64,
    state: Option<tollgate_limit::bucket::State>,
    now: u64,
    under_way: Vec<Call>,
    /// Settlements on their way to the store.
    sent: Vec<(Change, Timestamp)>,
    /// By the end of a window: units that its bucket is charged.
    charged: BTreeMap<Timestamp, u64>,
    /// By the end of a window: the most that its calls have used, as far as that is known.
    used: BTreeMap<Timestamp, u64>,
}

impl Trace {
    fn new(align: Align, quota: u64) -> Self {
        let terms = Terms {
            align,
            ..Terms::new(Kind::FixedWindow, quota, Micros(PERIOD))
        };
        Self {
            limit: Algorithm::new(&terms).expect("a limit").ceiling(),
            quota,
            state: None,
            now: START,
            under_way: Vec::new(),
            sent: Vec::new(),
            charged: BTreeMap::new(),
            used: BTreeMap::new(),
        }
    }

    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.now)
    }

    fn window_end(&self) -> Timestamp {
        self.limit
            .report(self.state.as_ref(), self.now())
            .window_end
    }

    fn remaining(&self) -> u64 {
        self.limit.report(self.state.as_ref(), self.now()).remaining
    }

    fn reserve(&mut self, reserved: u64) {
        let now = self.now();
        let Ok(granted) = self.limit.judge(self.state.as_ref(), reserved, now) else {
            return;
        };
        self.limit.apply(&mut self.state, granted.next);
        let window_end = self.window_end();
        *self.charged.entry(window_end).or_default() += reserved;
        *self.used.entry(window_end).or_default() += reserved;
        self.under_way.push(Call {
            reserved,
            window_end,
        });
    }

    /// The response of a call states what it has used.
    fn state_cost(&mut self, call: &Call, actual: u64) {
        let Call {
            reserved,
            window_end,
        } = *call;
        if let Some(more) = actual.checked_sub(reserved) {
            self.sent.push((Change::Charge { more }, window_end));
            return;
        }
        let units = reserved - actual;
        *self.used.get_mut(&window_end).expect("it was drawn") -= units;
        let change = Change::RefundWithin { units, window_end };
        self.sent.push((change, window_end));
    }

    /// A settlement arrives at the store.
    fn arrive(&mut self, (change, window_end): (Change, Timestamp)) {
        let (now, before) = (self.now(), self.remaining());
        self.limit.settle(&mut self.state, change, now);
        match change {
            Change::Charge { more } => {
                let current = self.window_end();
                *self.charged.entry(current).or_default() += more.min(before);
            }
            Change::RefundWithin { units, .. } if now < window_end => {
                *self.charged.get_mut(&window_end).expect("it was drawn") -= units;
            }
            _ => assert_eq!(self.remaining(), before, "another window's units"),
        }
    }

    fn check(&self, seed: u64) {
        for (window, used) in &self.used {
            assert!(
                *used <= self.quota,
                "seed {seed}: {used} of {} in the window until {window:?}",
                self.quota
            );
        }
        let current = self.window_end();
        let charged = self.charged.get(&current).copied().unwrap_or(0);
        assert_eq!(
            self.remaining(),
            self.quota - charged,
            "seed {seed}: units are lost or made"
        );
    }
}

#[test]
fn ceiling_random_traces_exceed_no_window_and_lose_no_unit() {
    let boundaries = (0..4_000).map(|step| Timestamp::from_micros(START + step * PERIOD));
    let calendar = Align::Calendar(Arc::new(Calendar {
        boundaries: boundaries.collect(),
        words: "second".into(),
    }));
    let mut late = 0;
    for align in [Align::FirstHit, Align::Clock, calendar] {
        for seed in 0..60 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut trace = Trace::new(align.clone(), rng.u64(20..400));
            for _ in 0..1_500 {
                match rng.u8(0..10) {
                    0..4 => trace.reserve(rng.u64(1..=trace.quota / 4 + 1)),
                    4..7 if !trace.under_way.is_empty() => {
                        let call = trace
                            .under_way
                            .swap_remove(rng.usize(..trace.under_way.len()));
                        match rng.u8(0..8) {
                            // The client leaves, the stream is cut, or its gateway is killed.
                            0 => {}
                            // The upstream does not obey the maximum.
                            1 => {
                                trace.state_cost(&call, call.reserved + rng.u64(1..2 * trace.quota))
                            }
                            _ => trace.state_cost(&call, rng.u64(0..=call.reserved)),
                        }
                    }
                    7 | 8 if !trace.sent.is_empty() => {
                        let sent = trace.sent.swap_remove(rng.usize(..trace.sent.len()));
                        late += u64::from(trace.now() >= sent.1);
                        trace.arrive(sent);
                    }
                    _ => trace.now += rng.u64(0..PERIOD / 8),
                }
                trace.check(seed);
            }
            // All calls end, and their settlements arrive: what is not used is there.
            while let Some(call) = trace.under_way.pop() {
                trace.state_cost(&call, 0);
            }
            while let Some(sent) = trace.sent.pop() {
                trace.arrive(sent);
                trace.check(seed);
            }
        }
    }
    assert!(late > 1_000, "{late} settlements came after their window");
}

#[test]
fn ceiling_excess_takes_what_is_left_and_the_next_window_is_whole() {
    let mut trace = Trace::new(Align::Clock, 100);
    trace.reserve(30);
    let call = trace.under_way.pop().expect("it was granted");
    trace.state_cost(&call, 1_000_000);
    let sent = trace.sent.pop().expect("the excess");
    trace.arrive(sent);
    assert_eq!(trace.remaining(), 0);
    trace.now += PERIOD;
    assert_eq!(trace.remaining(), 100, "a ceiling has no debt");
}

//! Seeded randomness: the seed is printed with every failure, and `SEED=…` replays it.

use std::sync::Arc;

use fastrand::Rng;
use tollgate_limit::{Align, Calendar, Kind, Micros, Terms, Timestamp};

/// Where traces begin: some moment of 2023, no multiple of anything.
pub const START: u64 = 1_700_000_000_123_457;

/// Runs `check` for each of `runs` seeds, or for the one in `SEED`; names the seed of a failure.
pub fn seeds(runs: u64, check: impl Fn(&mut Rng) + std::panic::RefUnwindSafe) {
    let replay = std::env::var("SEED")
        .ok()
        .map(|seed| seed.parse::<u64>().expect("SEED is a number"));
    let seeds = replay.map_or(0..runs, |seed| seed..seed + 1);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| check(&mut Rng::with_seed(seed)));
        if let Err(panic) = outcome {
            eprintln!("failed with SEED={seed}");
            std::panic::resume_unwind(panic);
        }
    }
}

pub fn pick<T: Copy>(rng: &mut Rng, choices: &[T]) -> T {
    choices[rng.usize(..choices.len())]
}

/// Terms of `kind`, from one a day to ten million a second, bursts from one to what fits.
pub fn terms(rng: &mut Rng, kind: Kind) -> Terms {
    let second = 1_000_000;
    let (amount, period) = match rng.u8(..8) {
        0 => (1, 86_400 * second),
        1 => (10_000_000, second),
        2 => (rng.u64(1..=10), rng.u64(1..=30)),
        3 => (100, 60 * second),
        4 => (
            rng.u64(1..=1_000),
            pick(rng, &[second, 10 * second, 60 * second, 3_600 * second]),
        ),
        5 => (pick(rng, &[999_983, 7_000_003, 7]), second),
        6 => (rng.u64(1..=5), rng.u64(1..=1_000_000)),
        _ => (rng.u64(1..=50), second),
    };
    let amount = if kind == Kind::SlidingLog {
        amount.min(60)
    } else {
        amount
    };
    let buckets = matches!(kind, Kind::TokenBucket | Kind::Interval);
    let burst = match rng.u8(..6) {
        0 => Some(1),
        1 => Some(rng.u64(1..=amount)),
        2 => Some(rng.u64(1..=50)),
        3 => Some(amount.saturating_mul(3)),
        4 if kind == Kind::TokenBucket => Some(rng.u64(1..1 << 40)),
        _ => None,
    };
    let indebted = buckets || kind == Kind::FixedWindow;
    let waits = kind != Kind::SlidingWindow;
    let align = match rng.u8(..3) {
        0 if kind == Kind::FixedWindow => Align::Clock,
        1 if kind == Kind::FixedWindow => Align::Calendar(Arc::new(uneven(rng, period))),
        _ => Align::FirstHit,
    };
    Terms {
        kind,
        amount,
        period: Micros(period),
        burst: burst.filter(|_| buckets),
        align,
        debt: if indebted && rng.u8(..3) == 0 {
            rng.u64(1..=20)
        } else {
            0
        },
        max_wait: Micros(if waits && rng.u8(..3) == 0 {
            rng.u64(1..=3_000 * second)
        } else {
            0
        }),
        shared: rng.bool(),
    }
}

/// A calendar of windows about `period` long, as days are when clocks change, that outlasts any trace.
fn uneven(rng: &mut Rng, period: u64) -> Calendar {
    let mut boundary = START - rng.u64(0..period.min(START));
    let mut boundaries = Vec::new();
    for _ in 0..300 {
        boundaries.push(Timestamp::from_micros(boundary));
        boundary += period.saturating_sub(rng.u64(0..=period / 4)).max(1);
    }
    // The rest of time is one window, further than any trace goes.
    boundaries.push(Timestamp::from_micros(boundary.saturating_add(1 << 55)));
    Calendar {
        boundaries,
        words: "window".to_owned(),
    }
}

/// The next pause of a trace: none, short, about a unit, exactly what a refusal said (or a microsecond less), long.
pub fn pause(rng: &mut Rng, terms: &Terms, told: Option<Micros>) -> u64 {
    let unit = (terms.period.0 / terms.amount).max(1);
    match (rng.u8(..9), told) {
        (0 | 1, Some(told)) => told.0,
        (2, Some(told)) => told.0.saturating_sub(1),
        (3, _) => rng.u64(0..=3),
        (4, _) => rng.u64(0..=2 * unit),
        (5, _) => rng.u64(0..=terms.period.0 / 2),
        (6, _) if rng.u8(..4) == 0 => rng.u64(0..=terms.period.0 * 3),
        _ => 0,
    }
}

/// A cost: mostly small, sometimes all there is or more.
pub fn cost(rng: &mut Rng, burst: u64) -> u64 {
    match rng.u8(..8) {
        0 => 0,
        1 => rng.u64(0..=burst.saturating_add(2)),
        2 => burst,
        3 => rng.u64(1..=burst.min(1_000)),
        _ => rng.u64(1..=3),
    }
}

//! A flood of random keys into a small table, with callers who behave among it.
//!
//! One million places (34 MiB). The clock is simulated: a flood key a microsecond. After every tenth one of ten
//! thousand known callers asks. An exact bucket per known caller, fed with what the table granted, says
//! whether a grant was one too many and whether a refusal was wrong.

use tollgate_store::clock::Clock;
use tollgate_limit::{Claim, Micros, Timestamp};
use tollgate_store::local::{ColdStart, LocalStore};

use crate::peers::{NOW, limit};
use crate::runs::{resident, worked};

const CALLERS: usize = 10_000;

/// What a flood came to.
pub struct Flooded {
    /// Refusals of known callers that should have been grants, in percent of what they asked.
    pub wrong: f64,
    /// Grants to known callers that should have been refusals.
    pub over: u64,
}

/// Floods the table under several limits; the worst of each figure.
pub fn run(keys: u64) -> Flooded {
    println!("\n## {keys} random keys into a table of 34 MiB, 10,000 callers among them\n");
    println!(
        "| limit | wrong refusals | grants too many | active buckets forgotten | memory grown | ns per decision |"
    );
    println!("|---|---|---|---|---|---|");
    let mut worst = Flooded { wrong: 0.0, over: 0 };
    for (name, period, tick) in [
        ("10 a second, flood 1M/s", 100_000, 1),
        ("1 a second, flood 1M/s", 1_000_000, 1),
        ("1 a minute, flood 10k/s", 60_000_000, 100),
        ("1 a minute, flood 1M/s", 60_000_000, 1),
    ] {
        let flooded = one(name, keys, period, tick);
        worst = Flooded { wrong: worst.wrong.max(flooded.wrong), over: worst.over.max(flooded.over) };
    }
    worst
}

fn one(name: &str, keys: u64, interval: u64, tick: u64) -> Flooded {
    let burst = 10;
    let limit = limit(0, 1, Micros(interval), burst, 34 << 20);
    let store = LocalStore::new(std::slice::from_ref(&limit), Clock::manual(NOW), ColdStart::Full);
    let mut random = fastrand::Rng::with_seed(7);
    // The exact arrival time of what each known caller was granted.
    let mut arrivals = vec![0_u64; CALLERS];
    let (mut asked, mut wrong, mut over) = (0_u64, 0_u64, 0_u64);
    let draw = |key: u64, now: u64| {
        let key = key.to_le_bytes();
        let claim = Claim::new(&limit, &key, 1);
        store.draw_at(&[claim], Timestamp::from_micros(now)).granted
    };
    let before = resident();
    let start = worked();
    for number in 0..keys {
        let now = NOW.as_micros() + number * tick;
        draw(random.u64(..) | 1 << 63, now);
        if number % 10 == 0 {
            let caller = random.usize(0..CALLERS);
            let from = arrivals[caller].max(now);
            let due = from - now <= interval * (burst - 1);
            let granted = draw(caller as u64, now);
            asked += 1;
            wrong += u64::from(due && !granted);
            over += u64::from(granted && !due);
            if granted {
                arrivals[caller] = from + interval;
            }
        }
    }
    let each = (worked() - start) / (keys + asked) as f64;
    let grown = resident().saturating_sub(before) >> 20;
    let evictions = store.tally(0).evictions;
    let wrong = wrong as f64 * 100.0 / asked as f64;
    println!("| {name} | {wrong:.3} % | {over} | {evictions} | {grown} MiB | {each:.1} |");
    Flooded { wrong, over }
}

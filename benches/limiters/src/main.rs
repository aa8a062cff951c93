//! Tollgate's local store beside governor, throttlecrab, limitador and a mutexed dashmap, in one run on one machine.
//!
//! `cargo run --release --manifest-path benches/limiters/Cargo.toml [quick]`; `quick` leaves out the runs over ten million keys. Read the
//! ratios: they hold across machines, nanoseconds do not. A figure is processor time, the least of five passes; each
//! row is taken in a process of its own.
//!
//! Keys are 24-byte strings read one after the other from a stream, as a just-parsed request key is. Every limiter is
//! handed the moment (a gateway reads its clock once per request), but for the rows that say they read it.

mod flood;
mod keys;
mod peers;
mod runs;

use keys::Stream;
use peers::{
    Governor, GovernorInline, GovernorOwnClock, Limitador, Limiter, MutexedDashmap, OneMiss, ThreeLimits, Throttlecrab,
    Tollgate, TollgateOwnClock,
};
use runs::{Expect, beside, fenced, fill, keys, least, pair, resident, throughput};

/// The rows, by the number that a process of its own is given.
macro_rules! rows {
    ($($number:literal => $limiter:ty,)*) => {
        const ROWS: &[(usize, &str)] = &[$(($number, <$limiter>::NAME)),*];

        fn row(number: usize, count: usize) {
            match number {
                $($number => if count == 1 { hot::<$limiter>() } else { spread::<$limiter>(count) },)*
                _ => eprintln!("no row {number}"),
            }
        }
    };
}

rows! {
    0 => Governor,
    1 => Tollgate,
    2 => GovernorInline,
    3 => MutexedDashmap,
    4 => Throttlecrab,
    5 => Limitador,
    6 => GovernorOwnClock,
    7 => TollgateOwnClock,
    8 => OneMiss,
}

const TOLLGATE: usize = 1;
const HOT: &[usize] = &[0, 1, 2, 6, 7, 4, 3, 5];
const MILLION: &[usize] = &[0, 1, 2, 4, 3, 5, 8];
/// Those that fill ten million keys in bearable time.
const TEN_MILLION: &[usize] = &[0, 1, 2, 3, 8];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["row", number, count] => row(number.parse().expect("a number"), count.parse().expect("a number")),
        ["isolated", count] => isolated(count.parse().expect("a number")),
        ["several", count] => several(count.parse().expect("a number")),
        ["flood"] => drop(flood::run(10_000_000)),
        _ => report(arguments.contains(&"quick")),
    }
}

/// One goal: its name, what was reached, what should be, and in what.
struct Goal(String, f64, f64, &'static str);

fn report(quick: bool) {
    let start = std::time::Instant::now();
    let mut goals = Vec::new();
    hot_table(&mut goals);
    let sizes: &[(usize, &[usize])] =
        if quick { &[(1_000_000, MILLION)] } else { &[(1_000_000, MILLION), (10_000_000, TEN_MILLION)] };
    for (count, rows) in sizes {
        spread_table(*count, rows, &mut goals);
    }
    println!("\n## Three limits a request, ns a request\n");
    println!("| keys of each | requests | all or nothing | three checks one after the other | ratio |");
    println!("|---|---|---|---|---|");
    for (count, _) in sizes {
        let f = runs::apart(&["several", &count.to_string()]);
        for (how, f) in [("one on the heels of the other", &f[..2]), ("each alone", &f[2..])] {
            println!("| {count} | {how} | {:.1} | {:.1} | {:.2} |", f[0], f[1], f[0] / f[1]);
            goals.push(Goal(format!("three limits together / apart, {count} keys, {how}"), f[0] / f[1], 1.0, "x"));
        }
    }
    let flooded = flood::run(if quick { 1_000_000 } else { 10_000_000 });
    goals.push(Goal("flood: grants too many".to_owned(), flooded.over as f64, 0.0, ""));
    goals.push(Goal("flood: wrong refusals".to_owned(), flooded.wrong, 0.7, " %"));
    println!("\n## Goals\n");
    println!("| goal | at most | here | reached |");
    println!("|---|---|---|---|");
    for Goal(name, here, most, unit) in goals {
        let reached = match here {
            here if here.is_nan() => "not measured: the threads did not run together",
            here if here <= most => "yes",
            _ => "**no**",
        };
        println!("| {name} | {most}{unit} | {here:.2}{unit} | {reached} |");
    }
    println!("\n{:.0} s in all.", start.elapsed().as_secs_f64());
}

fn hot_table(goals: &mut Vec<Goal>) {
    println!("## One hot key, ns a decision (1 thread / 2 threads)\n");
    println!(
        "| limiter | allow | refuse | allow / governor | refuse / governor | threads ran together (allow / refuse) |"
    );
    println!("|---|---|---|---|---|---|");
    let mut base = None;
    for number in HOT {
        let f = runs::apart(&["row", &number.to_string(), "1"]);
        let b: &Vec<f64> = base.get_or_insert_with(|| f.clone());
        println!(
            "| {} | {:.1} / {:.1} | {:.1} / {:.1} | {:.2} / {:.2} | {:.2} / {:.2} | {:.0} % / {:.0} % |",
            ROWS[*number].1,
            f[0],
            f[1],
            f[3],
            f[4],
            f[0] / b[0],
            f[1] / b[1],
            f[3] / b[3],
            f[4] / b[4],
            f[2] * 100.0,
            f[5] * 100.0
        );
        if *number == TOLLGATE {
            let together = f[2].min(b[2]) >= runs::TOGETHER;
            let allow = if together { f[1] / b[1] } else { f64::NAN };
            goals.push(Goal("hot key / governor".to_owned(), f[0] / b[0], 1.0, "x"));
            goals.push(Goal("hot key on two threads / governor".to_owned(), allow, 1.0, "x"));
        }
    }
}

fn spread_table(count: usize, rows: &[usize], goals: &mut Vec<Goal>) {
    println!("\n## {count} keys, allowed, ns a decision\n");
    println!(
        "| limiter | uniform 1 thread / 2 threads | isolated (fenced) | Zipf 1.0 | bytes a key | uniform / governor | isolated / governor | bytes / governor | note |"
    );
    println!("|---|---|---|---|---|---|---|---|---|");
    let mut base = None;
    for number in rows {
        let f = runs::apart(&["row", &number.to_string(), &count.to_string()]);
        let b: &Vec<f64> = base.get_or_insert_with(|| f.clone());
        let mut note = format!("two threads ran together {:.0} %", f[2] * 100.0);
        if (f[6] as usize) < count {
            note += &format!("; stopped filling after 40 s with {} keys", f[6]);
        }
        println!(
            "| {} | {:.1} / {:.1} | {:.1} | {:.1} | {:.1} | {:.2} / {:.2} | {:.2} | {:.2} | {note} |",
            ROWS[*number].1,
            f[0],
            f[1],
            f[3],
            f[4],
            f[5],
            f[0] / b[0],
            f[1] / b[1],
            f[3] / b[3],
            f[5] / b[5]
        );
        if *number == TOLLGATE {
            goals.push(Goal(format!("uniform / governor, {count} keys"), f[0] / b[0], 0.5, "x"));
            goals.push(Goal(format!("isolated / governor, {count} keys"), f[3] / b[3], 0.7, "x"));
            if count >= 10_000_000 {
                goals.push(Goal(format!("bytes a key, {count} keys"), f[5], 48.0, ""));
            }
        }
    }
    let mut runs: Vec<Vec<f64>> = (0..3).map(|_| runs::apart(&["isolated", &count.to_string()])).collect();
    runs.sort_by(|one, other| one[2].total_cmp(&other[2]));
    println!("\nIsolated, in turns, three processes of 48 rounds:");
    for f in &runs {
        println!(
            "tollgate {:.1} ns, one cache miss {:.1} ns; ratio {:.2} (of single rounds {:.2} to {:.2})",
            f[0], f[1], f[2], f[3], f[4]
        );
    }
    let f = &runs[1];
    goals.push(Goal(format!("isolated / one cache miss, {count} keys"), f[2], 3.0, "x"));
}

/// One key that all callers share.
fn hot<L: Limiter>() {
    let keys = keys::<L>(&Stream::one());
    for (plenty, expect) in [(true, Expect::Allowed), (false, Expect::Refused)] {
        let limiter = L::new(1, plenty);
        assert!(limiter.check(&keys[0]), "{}: the first request is allowed", L::NAME);
        println!("{}", least(|| throughput(&limiter, &keys, expect)));
        let pair = pair(&limiter, &keys, expect);
        println!("{} {}", pair.each, pair.overlap);
    }
}

/// Many keys, each as likely as any other, and by Zipf's law.
fn spread<L: Limiter>(count: usize) {
    let (uniform, zipf) = (Stream::uniform(count, 2_000_000), Stream::zipf(count, 2_000_000));
    let (uniform, zipf) = (keys::<L>(&uniform), keys::<L>(&zipf));
    let before = resident();
    let limiter = L::new(count, true);
    let filled = fill(count, |key| limiter.check(&L::key(key)));
    let bytes = resident().saturating_sub(before) as f64 / filled as f64;
    println!("{}", least(|| throughput(&limiter, &uniform, Expect::Allowed)));
    let pair = pair(&limiter, &uniform, Expect::Allowed);
    println!("{} {}", pair.each, pair.overlap);
    println!("{}", least(|| fenced(&limiter, &uniform)));
    println!("{}", least(|| throughput(&limiter, &zipf, Expect::Allowed)));
    println!("{bytes} {filled}");
}

/// Many keys, one request at a time, and one cache miss at a time.
fn isolated(count: usize) {
    let uniform = Stream::uniform(count, 2_000_000);
    let (own, miss) = (Tollgate::new(count, true), OneMiss::new(count, true));
    // In turns here too, so that their pages come from the same parts of memory.
    fill(count, |key| own.check(&Tollgate::key(key)) & miss.check(&OneMiss::key(key)));
    let found = beside(&own, &miss, &keys::<Tollgate>(&uniform), &keys::<OneMiss>(&uniform));
    println!("{} {}", found.each[0], found.each[1]);
    println!("{} {} {}", found.ratio[0], found.ratio[1], found.ratio[2]);
}

/// Three limits on one request.
fn several(count: usize) {
    let limiter = ThreeLimits::new(count);
    fill(count, |key| limiter.together(key));
    let uniform = Stream::uniform(count, 2_000_000);
    println!("{}", least(|| runs::timed(&uniform, |key| limiter.together(key))));
    println!("{}", least(|| runs::timed(&uniform, |key| limiter.apart(key))));
    println!("{}", least(|| runs::timed_alone(&uniform, |key| limiter.together(key))));
    println!("{}", least(|| runs::timed_alone(&uniform, |key| limiter.apart(key))));
}

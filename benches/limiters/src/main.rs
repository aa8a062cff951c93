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
use runs::{fenced, keys, least, resident, throughput};

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

const HOT: &[usize] = &[0, 1, 2, 6, 7, 4, 3, 5];
const MILLION: &[usize] = &[0, 1, 2, 4, 3, 5, 8];
/// Those that fill ten million keys in bearable time.
const TEN_MILLION: &[usize] = &[0, 1, 2, 3, 8];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        ["row", number, count] => row(number.parse().expect("a number"), count.parse().expect("a number")),
        ["several", count] => several(count.parse().expect("a number")),
        _ => report(arguments.contains(&"quick")),
    }
}

fn report(quick: bool) {
    println!("## One hot key, ns a decision (1 thread / 2 threads)\n");
    println!("| limiter | allow | deny | allow / governor | deny / governor |");
    println!("|---|---|---|---|---|");
    let name = |number: usize| ROWS[number].1;
    let mut base = None;
    for number in HOT {
        let f = runs::apart(&["row", &number.to_string(), "1"]);
        let b: &Vec<f64> = base.get_or_insert_with(|| f.clone());
        println!(
            "| {} | {:.1} / {:.1} | {:.1} / {:.1} | {:.2} / {:.2} | {:.2} / {:.2} |",
            name(*number),
            f[0],
            f[1],
            f[2],
            f[3],
            f[0] / b[0],
            f[1] / b[1],
            f[2] / b[2],
            f[3] / b[3]
        );
    }
    let sizes: &[(usize, &[usize])] =
        if quick { &[(1_000_000, MILLION)] } else { &[(1_000_000, MILLION), (10_000_000, TEN_MILLION)] };
    for (count, rows) in sizes {
        println!("\n## {count} keys, allowed, ns a decision\n");
        println!(
            "| limiter | uniform 1 thread / 2 threads | isolated (fenced) | Zipf 1.0 | bytes a key | uniform / governor | isolated / governor | bytes / governor |"
        );
        println!("|---|---|---|---|---|---|---|---|");
        let mut base = None;
        for number in *rows {
            let f = runs::apart(&["row", &number.to_string(), &count.to_string()]);
            let b: &Vec<f64> = base.get_or_insert_with(|| f.clone());
            println!(
                "| {} | {:.1} / {:.1} | {:.1} | {:.1} | {:.1} | {:.2} / {:.2} | {:.2} | {:.2} |",
                name(*number),
                f[0],
                f[1],
                f[2],
                f[3],
                f[4],
                f[0] / b[0],
                f[1] / b[1],
                f[2] / b[2],
                f[4] / b[4]
            );
        }
    }
    println!("\n## Three limits a request, ns a request\n");
    println!("| keys of each | all or nothing | three checks one after the other | ratio |");
    println!("|---|---|---|---|");
    for (count, _) in sizes {
        let f = runs::apart(&["several", &count.to_string()]);
        println!("| {count} | {:.1} | {:.1} | {:.2} |", f[0], f[1], f[0] / f[1]);
    }
    flood::run(if quick { 1_000_000 } else { 10_000_000 });
}

/// One key that everybody asks for.
fn hot<L: Limiter>() {
    let keys = keys::<L>(&Stream::one());
    for plenty in [true, false] {
        let limiter = L::new(1, plenty);
        for threads in [1, 2] {
            println!("{}", least(|| throughput(&limiter, &keys, threads)));
        }
    }
}

/// Many keys, each as likely as any other, and by Zipf's law.
fn spread<L: Limiter>(count: usize) {
    let (uniform, zipf) = (Stream::uniform(count, 2_000_000), Stream::zipf(count, 2_000_000));
    let (uniform, zipf) = (keys::<L>(&uniform), keys::<L>(&zipf));
    let before = resident();
    let limiter = L::new(count, true);
    Stream::each(count, |key| limiter.check(&L::key(key)));
    let bytes = resident().saturating_sub(before) as f64 / count as f64;
    println!("{}", least(|| throughput(&limiter, &uniform, 1)));
    println!("{}", least(|| throughput(&limiter, &uniform, 2)));
    println!("{}", least(|| fenced(&limiter, &uniform)));
    println!("{}", least(|| throughput(&limiter, &zipf, 1)));
    println!("{bytes}");
}

/// Three limits on one request.
fn several(count: usize) {
    let limiter = ThreeLimits::new(count);
    Stream::each(count, |key| limiter.together(key));
    let uniform = Stream::uniform(count, 2_000_000);
    println!("{}", least(|| runs::timed(&uniform, |key| limiter.together(key))));
    println!("{}", least(|| runs::timed(&uniform, |key| limiter.apart(key))));
}

//! `prove/fleet/run` says how it is used.

use std::process::ExitCode;

use prove_fleet::{Scene, Sums, Without, run, run_scene, table};

fn main() -> ExitCode {
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that reads arguments"
    )]
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |place: usize, default: u64| {
        arguments
            .get(place)
            .map_or(default, |word| word.parse().expect("a number"))
    };
    match arguments.first().map(String::as_str) {
        Some("runs") => runs(number(2, 0), number(1, 100_000)),
        Some("seed") => seed(number(1, 0)),
        Some("table") => {
            table::print(&[10, 64, 100, 1000]);
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: runs [COUNT [FIRST]] | seed SEED | table");
            ExitCode::from(2)
        }
    }
}

/// Runs the scenes of `count` seeds, on all processors.
fn runs(first: u64, count: u64) -> ExitCode {
    let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get() as u64);
    let one = |thread: u64| {
        let (mut sums, mut worst, mut failed) = (Sums::default(), 0, 0);
        for seed in (first..first + count).filter(|seed| seed % threads == thread) {
            let outcome = run(seed, Without::Nothing);
            sums.add(&outcome.sums);
            worst = worst.max(outcome.worst);
            failed += u64::from(!outcome.violations.is_empty());
            for violation in outcome.violations {
                println!("seed {seed} ({:?}): {violation}", outcome.story);
            }
        }
        (sums, worst, failed)
    };
    let (mut sums, mut worst, mut failed) = (Sums::default(), 0, 0);
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(move || one(thread)))
            .collect();
        for thread in running {
            let (its, highest, its_failed) = thread.join().expect("no panic");
            sums.add(&its);
            worst = worst.max(highest);
            failed += its_failed;
        }
    });
    println!("{sums:#?}");
    println!(
        "{count} runs, {failed} failed; the worst span granted {:.3} of its bucket",
        worst as f64 / 1000.0
    );
    ExitCode::from(u8::from(failed > 0))
}

/// Runs the scene of one seed, and says what happens.
fn seed(seed: u64) -> ExitCode {
    let scene = Scene::of(seed);
    println!("{scene:#?}");
    let outcome = run_scene(scene, Without::Nothing, true);
    println!("{outcome:#?}");
    ExitCode::from(u8::from(!outcome.violations.is_empty()))
}

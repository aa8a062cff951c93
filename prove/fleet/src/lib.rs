//! A fleet of gateways in virtual time. The limiter, the batcher and the leases are the shipped ones; the
//! store's server, the network and the clocks are simulated. A seed is one run.

#[cfg(not(tokio_unstable))]
compile_error!(
    "build it in its folder without RUSTFLAGS: .cargo/config.toml has the flag by which a seed is one run"
);

mod fleet;
mod judge;
mod record;
mod scene;
pub mod table;
mod world;

pub use fleet::{Outcome, run, run_scene};
pub use record::Sums;
pub use scene::{Scene, Story, Without};

#[cfg(test)]
mod tests {
    use super::*;

    /// Every story occurs several times in so many runs.
    const RUNS: u64 = 500;

    #[test]
    fn fleet_grants_no_key_more_than_its_bucket_and_keeps_every_wait() {
        let mut sums = Sums::default();
        for seed in 0..RUNS {
            let outcome = run(seed, Without::Nothing);
            assert!(
                outcome.violations.is_empty(),
                "seed {seed}: {:#?}",
                outcome.violations
            );
            sums.add(&outcome.sums);
        }
        println!("{sums:?}");
        assert!(sums.granted > 100_000 && sums.refused > 100_000, "{sums:?}");
        assert!(sums.shared > 10_000 && sums.waited > 1_000, "{sums:?}");
    }

    #[test]
    fn fleet_without_one_guard_is_found() {
        use Without::{Count, GiveBack, Mark};
        let (more, missing) = ("grants of a bucket of", "units are missing");
        for (without, finding) in [(Mark, more), (Count, more), (GiveBack, missing)] {
            let is_found = |seed: &u64| {
                let found = run(*seed, without).violations;
                found.iter().any(|violation| violation.contains(finding))
            };
            let seed = (0..RUNS).find(is_found);
            println!("without {without:?}: seed {seed:?}");
            assert!(seed.is_some(), "without {without:?}");
        }
    }

    #[test]
    fn seed_is_one_run() {
        for seed in 0..30 {
            let (first, second) = (run(seed, Without::Nothing), run(seed, Without::Nothing));
            assert_eq!(first.hash, second.hash, "seed {seed}");
        }
    }
}

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

#[cfg(test)]
mod tests;

pub use fleet::{Outcome, run, run_scene};
pub use record::Sums;
pub use scene::{Scene, Story, Without};

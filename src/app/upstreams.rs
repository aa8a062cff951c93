//! The state of the upstreams' servers for the status and `/readyz?verbose`.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::admin::{Standing, status};
use tollgate_gateway::forward::{ServerHealth, ServerStatus, UpstreamHealth};
use tollgate_limit::{Micros, Timestamp};
use tollgate_policy::Policy;

/// Every server of every upstream, by the upstream's name.
pub(super) fn status(
    health: &UpstreamHealth,
    policy: &Policy,
    now: Timestamp,
) -> BTreeMap<String, Vec<status::Server>> {
    let server = |one: ServerStatus| status::Server {
        server: one.server,
        state: one.state.map_or("unused", ServerHealth::label),
        since: one.state.map(|_| moment(now, one.held_for)),
        last_error: one.last_error.map(|(ago, error)| status::ServerError {
            at: moment(now, ago),
            error,
        }),
    };
    let upstreams = policy.upstreams.iter().map(|upstream| {
        let servers = health.status(upstream).into_iter().map(server).collect();
        (upstream.name.to_string(), servers)
    });
    upstreams.collect()
}

/// A condition for each server. None of them makes the gateway unready: that would not repair an
/// upstream.
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
    let mut words = format!("{} since {}", state.label(), moment(now, status.held_for));
    if let Some((ago, error)) = &status.last_error {
        words.push_str(&format!("; last error at {}: {error}", moment(now, *ago)));
    }
    match state {
        ServerHealth::Up => Standing::HoldsWith(words),
        ServerHealth::Ejected | ServerHealth::Unhealthy => Standing::Strained(words),
    }
}

/// The time `ago` before `now`, in RFC 3339 form.
fn moment(now: Timestamp, ago: Duration) -> String {
    let ago = Micros(u64::try_from(ago.as_micros()).unwrap_or(u64::MAX));
    let micros = i64::try_from(now.as_micros().saturating_sub(ago.0)).unwrap_or(i64::MAX);
    let moment = jiff::Timestamp::from_microsecond(micros).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    moment.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

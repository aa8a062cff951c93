//! Estimates the memory that the buckets of a configuration can take, and compares it with the
//! process's limit.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use tollgate_config::Config;
use tollgate_gateway::refusals;
use tollgate_limit::{Limit, Mode, Placement, Role, WhenDown};
use tollgate_limiter::PENALTY_TABLE;
use tollgate_policy::{Policy, Rule};
use tollgate_store::local;

/// The bytes that all tables of the process take when they are full. The system allocates memory
/// when a table is written, so an unused table takes almost none. A shared limit has a table for
/// its local share; limits with a penalty share one that counts refusals.
pub(crate) fn of_tables(limits: &[Arc<Limit>]) -> u64 {
    let mut tables: BTreeMap<(&str, bool), u64> = BTreeMap::new();
    for limit in limits {
        let local = limit.placement == Placement::Local || limit.when_down == WhenDown::LocalShare;
        if limit.mode != Mode::Off && local {
            // The tiers of a limit share one table.
            let bytes = tables
                .entry((&limit.name, limit.role == Role::Live))
                .or_default();
            *bytes = (*bytes).max(limit.memory as u64);
        }
    }
    let penalties = limits.iter().any(|limit| limit.penalty.is_some());
    let refused = if penalties { PENALTY_TABLE as u64 } else { 0 };
    tables.values().sum::<u64>() + refused
}

/// The number of callers that a local limit can track at once. Beside a caller's bucket there is one for
/// each event of its window, and one that counts what is used where that was reserved.
pub(crate) fn room(rule: &Rule, policy: &Policy) -> Option<u64> {
    let events = rule.live.events.len() as u64;
    let beside = events + u64::from(events > 0 && rule.reserves());
    let buckets = || local::room(&rule.live, &policy.limits);
    (rule.live.placement == Placement::Local).then(|| buckets() / (1 + beside))
}

/// The bytes that connections take when as many are open as `server.bounds.connections` allows.
pub(crate) fn of_connections(connections: usize) -> u64 {
    (connections as u64).saturating_mul(CONNECTION)
}

/// The bytes that the last refusals take; `None`: there is no admin listener to ask for them.
pub(crate) fn of_refusals(config: &Config) -> Option<u64> {
    config
        .admin
        .listen
        .as_ref()
        .map(|_| refusals::MEMORY as u64)
}

/// The warning if full tables and all connections leave less than a quarter of the process's memory limit.
pub(crate) fn note(config: &Config) -> Option<String> {
    let full = of_tables(&config.policy.limits)
        + of_connections(config.server.bounds.connections)
        + of_refusals(config).unwrap_or_default();
    note_of(full, allowed()?)
}

fn note_of(full: u64, allowed: u64) -> Option<String> {
    (full > allowed / 4 * 3).then(|| {
        format!(
            "full tables and all connections take {} MiB and this process may have {} MiB: a flood of new callers could end \
             it. Lower `memory` of limits or `server.bounds.connections`, or allow the process more",
            full >> 20,
            allowed >> 20
        )
    })
}

/// The memory limit of this process's control group; `None`: unlimited.
fn allowed() -> Option<u64> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("0::/"))
        .unwrap_or_default();
    let root = Path::new("/sys/fs/cgroup");
    let files = [
        root.join(own).join("memory.max"),
        root.join("memory.max"),
        root.join("memory/memory.limit_in_bytes"),
    ];
    files
        .iter()
        .find_map(|file| bound(&fs::read_to_string(file).ok()?))
}

/// The measured bytes of an idle connection of the most expensive kind, HTTP/2; requests in
/// progress take more.
const CONNECTION: u64 = 24 << 10;

/// `max`, or a number beyond any machine (version 1 of control groups), means no limit.
fn bound(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_limit::fixtures::per_minute;

    #[test]
    fn memory_of_tables_is_added_up_once_for_each_table() {
        let one = Limit {
            memory: 64 << 20,
            ..per_minute("one", 60, 10)
        };
        let tier = Limit {
            tier: Some("pro".into()),
            ..one.clone()
        };
        let candidate = Limit {
            role: Role::Candidate,
            ..one.clone()
        };
        let shared = Limit {
            name: "two".into(),
            placement: Placement::Shared,
            ..one.clone()
        };
        let refusing = Limit {
            name: "three".into(),
            when_down: WhenDown::Refuse,
            ..shared.clone()
        };
        let off = Limit {
            name: "four".into(),
            mode: Mode::Off,
            ..one.clone()
        };
        let limits = [one, tier, candidate, shared, refusing, off].map(Arc::new);
        assert_eq!(of_tables(&limits), 3 * (64 << 20));
    }

    #[test]
    fn memory_beyond_the_limit_of_the_process_is_reported() {
        assert_eq!(note_of(128 << 20, 256 << 20), None);
        assert!(note_of(256 << 20, 256 << 20).is_some_and(|note| note.contains("256 MiB")));
        assert_eq!(
            (
                bound("268435456\n"),
                bound("max\n"),
                bound("9223372036854771712")
            ),
            (Some(256 << 20), None, None)
        );
    }
}

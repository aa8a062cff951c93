//! The audit at start-up: finds server settings that could lose buckets.

use std::collections::HashMap;

use crate::audit::{Finding, Weight, distant_clock};

pub(super) fn fields(info: &str) -> HashMap<&str, &str> {
    info.lines()
        .filter_map(|line| line.split_once(':'))
        .map(|(key, value)| (key, value.trim_end()))
        .collect()
}

/// The findings from the server's INFO and clock. `server` and `ours` are microseconds since the
/// epoch; `long_quotas`: there are limits of a day or longer, which must survive a restart.
pub(super) fn audit(
    fields: &HashMap<&str, &str>,
    server: u64,
    ours: u64,
    long_quotas: bool,
) -> Vec<Finding> {
    let field = |name: &str| fields.get(name).copied().unwrap_or("");
    let mut findings = Vec::new();
    let mut find = |weight, message: String| findings.push(Finding { weight, message });
    if !matches!(field("role"), "" | "master") {
        let message = "the server is a replica, which cannot be written to: the URL must lead to the primary (redis+sentinel:// finds it)";
        find(Weight::Refusal, message.into());
    }
    let policy = field("maxmemory_policy");
    let bounded = !matches!(field("maxmemory"), "" | "0");
    if policy.starts_with("allkeys") || policy.starts_with("volatile") {
        let message = format!(
            "maxmemory-policy is {policy}: a server short of memory throws buckets away, which refills them; set noeviction"
        );
        find(
            if bounded {
                Weight::Refusal
            } else {
                Weight::Warning
            },
            message,
        );
    }
    if field("aof_enabled") == "0" {
        let message = "no append-only file: a restart of the server forgets what was drawn since its last snapshot, which matters to quotas of a day and longer";
        find(
            if long_quotas {
                Weight::Refusal
            } else {
                Weight::Warning
            },
            message.into(),
        );
    }
    if field("connected_slaves").parse().unwrap_or(0) > 0
        && field("min_slaves_good_slaves").is_empty()
    {
        let message = "replicas without min-replicas-to-write: a primary cut off from them keeps granting beside the promoted one";
        find(Weight::Warning, message.into());
    }
    findings.extend(distant_clock(server, ours));
    findings
}

/// The finding about a server that does not report its settings.
pub(super) fn blind() -> Finding {
    let message = "the store's user may not read INFO: whether buckets survive is not known, and `on_failover = \"drain\"` \
                   does nothing; allow it (ACL: +info)";
    Finding {
        weight: Weight::Refusal,
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_evicting_server_is_refused_and_a_forgetful_one_warned_of() {
        let info = "maxmemory:1000000\r\nmaxmemory_policy:allkeys-lru\r\naof_enabled:0\r\n";
        let findings = audit(&fields(info), 10_000_000, 0, false);
        let weights: Vec<_> = findings.iter().map(|finding| finding.weight).collect();
        assert_eq!(
            weights,
            [Weight::Refusal, Weight::Warning, Weight::Warning],
            "{findings:?}"
        );
        let fine =
            "maxmemory:0\r\nmaxmemory_policy:noeviction\r\naof_enabled:1\r\nconnected_slaves:0\r\n";
        assert_eq!(audit(&fields(fine), 1, 2, true), []);
        let forgetful = audit(&fields("aof_enabled:0\r\n"), 1, 2, true);
        assert_eq!(
            forgetful.first().map(|finding| finding.weight),
            Some(Weight::Refusal),
            "{forgetful:?}"
        );
        let replica = audit(&fields("role:slave\r\naof_enabled:1\r\n"), 1, 2, false);
        assert_eq!(
            replica.first().map(|finding| finding.weight),
            Some(Weight::Refusal),
            "{replica:?}"
        );
        assert_eq!(
            audit(&fields("role:master\r\naof_enabled:1\r\n"), 1, 2, false),
            []
        );
    }
}

//! Refuses a reload that would newly limit too many of the recent requests.

use std::fmt::Write;

use tollgate_config::Config;
use tollgate_config::settings::LogKeys;
use tollgate_config::settings::ReloadGuard;
use tollgate_gateway::recent::{Recent, Requests};
use tollgate_policy::keys;
use tollgate_replay::guard::{Hit, Judged, judge};
use tollgate_telemetry::access::KeyNames;

/// Judges `new` by the recent requests, as the configuration in force asks for.
///
/// # Errors
/// The reason why `new` must not take effect, with the callers that it would hit.
pub(super) fn check(
    recent: &Recent,
    names: KeyNames,
    in_force: &Config,
    new: &Config,
) -> Result<(), String> {
    let Some(guard) = in_force.server.reload else {
        return Ok(());
    };
    let requests = recent.requests();
    let judged = judge(
        &requests,
        &in_force.policy,
        &new.policy,
        guard.bytes / BUCKET,
    );
    for (limit, why) in &judged.not_judged {
        tracing::warn!("the reload is not judged by limit `{limit}`: {why}");
    }
    if judged.unknown > 0 {
        tracing::warn!(
            "the reload is not judged by {} of {} recent requests: the new file has no route of the same name, or there are too many keys",
            judged.unknown,
            judged.unknown + judged.requests
        );
    }
    if judged.exceeds(guard.hundredths, guard.of_keys) {
        // As the status pages show a key: readable without its secrets, and by its name in the log.
        let is_hidden = in_force.log.keys != LogKeys::Plain;
        let shown = |key: &[u8]| {
            let words = keys::words(key, is_hidden);
            if words == keys::words(key, false) {
                words
            } else {
                format!("{words} {}", names.text(key))
            }
        };
        return Err(words(&judged, guard, &requests, shown));
    }
    Ok(())
}

fn words(
    judged: &Judged,
    guard: ReloadGuard,
    requests: &Requests,
    shown: impl Fn(&[u8]) -> String,
) -> String {
    let mut text = format!(
        "the new file would newly refuse {} of {} recent requests, of {} keys; more than {} may not be newly limited \
         (server.reload.refuse_if_newly_limited; POST /-/reload?force takes the file all the same)",
        judged.newly_refused,
        judged.requests,
        judged.keys_hit(),
        share(guard)
    );
    for (limit, [all, hit]) in judged.limits.iter().filter(|(_, [_, hit])| *hit > 0) {
        let _ = write!(text, "\nlimit `{limit}`: {hit} of {all} keys");
    }
    for hit in &judged.hits {
        let _ = write!(
            text,
            "\n  {}: {} would lose {} of {} requests",
            hit.limit,
            name(hit, requests, &shown),
            hit.refused,
            hit.requests
        );
    }
    text
}

fn share(guard: ReloadGuard) -> String {
    let (whole, decimals) = (guard.hundredths / 100, guard.hundredths % 100);
    let of = if guard.of_keys { "keys" } else { "requests" };
    match decimals {
        0 => format!("{whole}% of {of}"),
        _ => format!("{whole}.{decimals:02}% of {of}"),
    }
}

/// The key as the status pages show it, if it is still known.
fn name(hit: &Hit, requests: &Requests, shown: impl Fn(&[u8]) -> String) -> String {
    match requests.key(hit.key) {
        Some(key) => shown(key).escape_debug().to_string(),
        None => format!("a key with the hash {:016x}", hit.key),
    }
}

/// Bytes of recent requests for each bucket that is judged: judging takes at most three times the
/// memory that they do.
const BUCKET: usize = 64;

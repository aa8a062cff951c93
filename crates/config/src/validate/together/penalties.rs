//! Warns of penalties that one client can bring on another.

use super::super::entry_of;
use crate::context::Context;
use crate::raw::RawFile;
use tollgate_policy::identity::{Identity, Source, WhenUnknown};
use tollgate_policy::{Policy, ScopePart};

/// Penalties of limits whose keys any client can spend.
pub(super) fn of_others(raw: &RawFile, policy: &Policy, context: &mut Context<'_>) {
    for rule in &policy.rules {
        if rule.live.penalty.is_none() {
            continue;
        }
        let named = |part: &ScopePart| match part {
            ScopePart::Identity(at) => policy.identities.get(*at),
            _ => None,
        };
        let tells = |part: &ScopePart| match part {
            ScopePart::Address | ScopePart::Descriptor => true,
            ScopePart::Identity(_) => !named(part).is_some_and(is_claimed),
            ScopePart::Route | ScopePart::Method | ScopePart::Host => false,
        };
        let parts = rule.scope.parts();
        if parts.iter().any(tells) {
            continue;
        }
        let limit = &rule.name;
        let title = match parts.iter().find_map(named) {
            Some(identity) => format!(
                "a client can have others blocked by the penalty of `{limit}`: nothing proves `{}`",
                identity.name
            ),
            None => format!(
                "a client can have all others blocked by the penalty of `{limit}`: they share a bucket"
            ),
        };
        let place = entry_of(&raw.limits, &rule.name)
            .map(|(name, limit)| limit.penalty.place().unwrap_or(name.place));
        context
            .warning(title, place.unwrap_or_default(), "it blocks a key that others can spend")
            .help("give a penalty only to keys that one caller alone can spend: list the callers, or verify a token (jwt), or limit per \"address\"");
    }
}

/// Whether a client can send the key of another one: it only claims to be who it is. A bearer token
/// is known to its caller alone.
fn is_claimed(identity: &Identity) -> bool {
    let claimed = |source: &Source| source.is_unverified() && !matches!(source, Source::Bearer);
    let is_anyone = identity.callers.is_none() || identity.when_unknown == WhenUnknown::Accept;
    is_anyone && identity.sources.iter().all(claimed)
}

//! Finds the caller that an operator names.

use std::sync::Arc;

use super::api::Problem;
use super::live::Live;
use tollgate_policy::{KnownBucket, LookupError, Policy, Sought};
use tollgate_telemetry::access::KeyNames;

impl Live {
    /// The caller that `values` name under `identity`, or that `identity` names as logs do, and notes
    /// about the name.
    pub(super) fn sought(
        &self,
        policy: &Policy,
        identity: &str,
        values: &[&str],
    ) -> Result<(Sought, Vec<String>), Problem> {
        if values.is_empty() && KeyNames::is_name(identity) {
            let named = self.named(policy, identity).ok_or_else(|| {
                let detail = format!(
                    "no caller that this gateway knows has the name `{identity}` in logs: it knows the listed callers, and those that were refused, or close to it, of late; give the identity and the key"
                );
                Problem::not_found(detail)
            })?;
            return Ok((named, Vec::new()));
        }
        let sought = policy.look_up(identity, values).map_err(|error| {
            let near = match &error {
                LookupError::Identity(name) => {
                    let identities = policy.identities.iter().map(|known| &*known.name);
                    let known: Vec<&str> = identities.chain(["address", "everyone"]).collect();
                    similar("identity", name, &known)
                }
                _ => String::new(),
            };
            Problem::not_found(format!("{error}{near}"))
        })?;
        let mut notes = Vec::new();
        if sought.is_unlisted {
            notes.push(format!(
                "`{}` is not in the list of callers of `{identity}`, and is taken for a key",
                values.join(" ")
            ));
        }
        for (limit, key) in &sought.elsewhere {
            notes.push(format!(
                "limit `{limit}`: this descriptor shares a bucket with others, {}",
                self.key(key).words()
            ));
        }
        Ok((sought, notes))
    }

    /// The caller whose key has this name in logs, as far as this gateway knows the keys: of listed
    /// callers, and of the last refusals and requests that came close to one.
    fn named(&self, policy: &Policy, name: &str) -> Option<Sought> {
        let is_it = |key: &[u8]| self.names.name(key)[..] == *name.as_bytes();
        let (mut key, mut caller, mut known) = (None, None, Vec::new());
        for listed in policy.listed().filter(|listed| is_it(&listed.key)) {
            let rules = policy.rules.iter().filter(|rule| listed.decides(rule));
            known.extend(rules.map(|rule| KnownBucket {
                limit: Arc::clone(&rule.name),
                numbers: listed.numbers(rule).cloned(),
            }));
            caller = listed.caller.clone();
            key = Some(listed.key);
        }
        let refusals = self.refusals.as_ref();
        let refused = refusals.map(|refusals| refusals.buckets(self.now(), &is_it));
        for (limit, refused) in refused.unwrap_or_default() {
            // (Another key can have the name by chance.)
            if *key.get_or_insert_with(|| refused.clone()) == refused {
                known.push(KnownBucket {
                    limit: Arc::clone(&limit.name),
                    numbers: limit.tier.clone(),
                });
            }
        }
        let mut found = policy.look_up_bucket(&key?, &known);
        found.caller = caller;
        let is_any = policy.rules.iter().any(|rule| found.decides(rule));
        is_any.then_some(found)
    }
}

/// What is probably meant by a name that is none of `known`, as it follows an error.
pub(super) fn similar(what: &str, name: &str, known: &[&str]) -> String {
    match name.len() <= NAME_MAX {
        true => format!(": {}", tollgate_config::suggestion(what, name, known)),
        false => String::new(),
    }
}

/// The longest name that is compared with known ones: each comparison takes the product of
/// both lengths.
const NAME_MAX: usize = 64;

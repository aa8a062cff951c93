//! Looks up what the file does not say of a bucket: its key's name in logs, and with `--live` how
//! it stands in the running gateway.

use tollgate_config::Config;
use tollgate_limit::hex;
use tollgate_policy::Policy;
use tollgate_policy::explain::LimitStory;
use tollgate_telemetry::access::KeyNames;

use super::Stop;
use super::args::Explain;
use super::gateway::Gateway;
use super::listeners;
use crate::admin::keys::Bucket;
use crate::admin::live::Now;
use crate::admin::overrides::Overridden;
use crate::app;

pub(super) struct Lookup {
    names: Option<KeyNames>,
    /// The running gateway, if it is to be asked.
    gateway: Option<Gateway>,
}

impl Lookup {
    pub(super) fn new(args: &Explain, config: &Config) -> Result<Lookup, Stop> {
        Ok(Lookup {
            gateway: gateway(args)?,
            names: app::key_names::known(config),
        })
    }

    /// The name of a key in logs, if it is known here.
    pub(super) fn name(&self, story: &LimitStory) -> Option<String> {
        // Lines about the bucket of everyone name no key.
        let has_name = story.skipped.is_none() && !story.key_bytes.is_empty();
        let names = self.names.filter(|_| has_name);
        names.map(|names| names.text(&story.key_bytes))
    }

    /// How the bucket stands, if the running gateway is to be asked.
    pub(super) fn now(
        &self,
        policy: &Policy,
        story: &LimitStory,
    ) -> Option<(Now, Option<Overridden>)> {
        // A candidate has buckets of its own, which the gateway does not show.
        let asks = story.skipped.is_none() && !story.candidate;
        let gateway = self.gateway.as_ref().filter(|_| asks)?;
        let limit = &policy.limits[story.limit];
        let mut path = format!("/api/v1/buckets/{}/", listeners::encoded(&limit.name));
        path.push_str(&hex::digits(&story.key_bytes));
        if story.key_bytes.is_empty() {
            path.push('-');
        }
        path.push_str(&format!("?cost={}", story.cost));
        if let Some(tier) = &limit.tier {
            path.push_str(&format!("&tier={}", listeners::encoded(tier)));
        }
        Some(match gateway.get::<Bucket>(&path) {
            Ok(bucket) => (bucket.now, bucket.overridden),
            Err(why) => (Now::unknown(why), None),
        })
    }
}

fn gateway(args: &Explain) -> Result<Option<Gateway>, Stop> {
    if !args.live {
        return Ok(None);
    }
    let named = &args.listeners.admin;
    if let [first, _, ..] = named.as_slice() {
        tell!(
            "note: of {} gateways the first is asked, {first}\n",
            named.len()
        );
    }
    let first = named.get(..1).unwrap_or_default();
    let gateways = listeners::asked(first, args.patience.timeout, &args.config)?;
    Ok(gateways.into_iter().next())
}

//! `tollgate key`: the levels of a caller's buckets on running gateways, and changes by an operator.

use std::collections::HashSet;
use std::fmt::Write;

use http::Method;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::args::{Caller, ChangedBy, KeyChange, KeyShow, KeyVerb};
use super::gateway::Gateway;
use super::listeners;
use super::token::Token;
use super::{Ended, Stop};
use super::{overrides, why};
use crate::admin::figures::StoreNow;
use crate::admin::keys::CallerBuckets;
use crate::admin::resets::Reset;

/// Changes or shows a caller's limits; returns also the name of the verb.
pub(super) fn key(verb: &KeyVerb) -> (&'static str, Ended) {
    match verb {
        KeyVerb::Show(args) => ("tollgate key show", show(args)),
        KeyVerb::Reset(args) => ("tollgate key reset", reset(args)),
        KeyVerb::Raise(args) => ("tollgate key raise", overrides::raise(args)),
        KeyVerb::Grant(args) => ("tollgate key grant", overrides::grant(args)),
        KeyVerb::Block(args) => ("tollgate key block", overrides::block(args)),
        KeyVerb::Lift(args) => ("tollgate key lift", overrides::lift(args)),
    }
}

fn show(args: &KeyShow) -> Ended {
    let path = path(&args.caller);
    let ask = |gateway: &Gateway| gateway.get::<CallerBuckets>(&path);
    listeners::ask_each("key show", "caller", &args.asked, ask, words)
}

fn path(caller: &Caller) -> String {
    let mut path = format!("/api/v1/keys/{}", listeners::encoded(&caller.identity));
    for value in &caller.values {
        path.push('/');
        path.push_str(&listeners::encoded(value));
    }
    path
}

fn reset(args: &KeyChange) -> Ended {
    let change = ChangeRequest {
        verb: "key reset",
        method: Method::POST,
        action: "reset",
        member: "reset",
        caller: &args.key.caller,
        limit: args.key.limit.as_deref(),
        reason: &args.change.reason,
        body: serde_json::json!({}),
    };
    change.ask_each(&args.change.by, reset_words)
}

/// A change of a caller's buckets or limits that each gateway is asked for.
pub(super) struct ChangeRequest<'c> {
    pub(super) verb: &'static str,
    pub(super) method: Method,
    /// The last part of the path.
    pub(super) action: &'static str,
    /// The member of a JSON output that has a gateway's response.
    pub(super) member: &'static str,
    pub(super) caller: &'c Caller,
    pub(super) limit: Option<&'c str>,
    pub(super) reason: &'c str,
    /// What is asked for besides.
    pub(super) body: serde_json::Value,
}

impl ChangeRequest<'_> {
    /// Asks each gateway for the change; `words` writes what one has done.
    pub(super) fn ask_each<T: DeserializeOwned + Serialize>(
        mut self,
        by: &ChangedBy,
        words: impl Fn(&mut String, &str, &T) -> std::fmt::Result,
    ) -> Ended {
        let token = Token::find(by.token_file.as_deref()).map_err(Stop::Misuse)?;
        self.body["reason"] = self.reason.into();
        self.body["dry_run"] = by.dry_run.into();
        self.body["limit"] = self.limit.into();
        let path = format!("{}/{}", path(self.caller), self.action);
        let mut stores = (by.asked.gateways.listeners.admin.len() > 1).then(Stores::default);
        let ask = |gateway: &Gateway| {
            if let Some(stores) = &mut stores {
                self.body["in_store"] = stores.is_first(gateway)?.into();
            }
            let body = self.body.to_string();
            gateway.change(self.method.clone(), &path, token.as_ref(), &body)
        };
        listeners::ask_each(self.verb, self.member, &by.asked, ask, words)
    }
}

/// The stores of the gateways that were asked. One gateway of each store makes the change there, and
/// every gateway makes it in its process.
#[derive(Default)]
struct Stores(HashSet<String>);

impl Stores {
    /// Whether `gateway` is to make the change in its store: no other gateway of it was asked.
    /// The error: why it is not known which store it has. It is then asked for nothing.
    fn is_first(&mut self, gateway: &Gateway) -> Result<bool, String> {
        let status: StoreOf = gateway.get("/api/v1/status")?;
        // One that does not know its store's name refuses changes there, as its store is silent.
        let name = status.store.and_then(|store| store.name);
        Ok(name.is_none_or(|name| self.0.insert(name)))
    }
}

#[derive(Deserialize)]
struct StoreOf {
    store: Option<StoreNow>,
}

fn reset_words(to: &mut String, gateway: &str, done: &Reset) -> std::fmt::Result {
    let verb = if done.dry_run {
        "would be filled"
    } else {
        "filled"
    };
    writeln!(to, "gateway    {gateway}")?;
    writeln!(to, "key        {}", done.key.words())?;
    for bucket in &done.buckets {
        writeln!(to, "limit      {} ({}): {verb}", bucket.limit, bucket.store)?;
        writeln!(to, "           before: {}", why::level(&bucket.before))?;
        if !done.dry_run {
            writeln!(to, "           after: {}", why::level(&bucket.after))?;
        }
    }
    notes(to, &done.notes)
}

pub(super) fn notes(to: &mut String, notes: &[String]) -> std::fmt::Result {
    notes
        .iter()
        .try_for_each(|note| writeln!(to, "note       {note}"))
}

fn words(to: &mut String, gateway: &str, buckets_of: &CallerBuckets) -> std::fmt::Result {
    let tier = buckets_of
        .tier
        .as_ref()
        .map_or_else(String::new, |tier| format!(", tier {tier}"));
    writeln!(to, "gateway    {gateway}")?;
    writeln!(to, "key        {}{tier}", buckets_of.key.words())?;
    for bucket in &buckets_of.buckets {
        writeln!(to, "limit      {} ({})", bucket.limit, bucket.store)?;
        writeln!(to, "           {}", bucket.words)?;
        why::holds(to, &bucket.now, bucket.overridden.as_ref())?;
    }
    for partly in &buckets_of.partly {
        writeln!(
            to,
            "limit      {}: for each {}",
            partly.limit,
            partly.per.join(" and ")
        )?;
        for refused in &partly.refused {
            writeln!(
                to,
                "           {}: refused since {}, {} requests lost; now: {}",
                refused.key.words(),
                refused.since,
                refused.count,
                why::words_now(&refused.now, refused.overridden.as_ref())
            )?;
        }
        if partly.refused.is_empty() {
            writeln!(
                to,
                "           none of its buckets with this key was refused of late"
            )?;
        }
    }
    if buckets_of.buckets.is_empty() && buckets_of.partly.is_empty() {
        writeln!(to, "limits     none is by {}", buckets_of.identity)?;
    }
    notes(to, &buckets_of.notes)
}

//! `tollgate explain`: shows which rules apply to a request, and why.

use std::borrow::Cow;
use std::fmt::Write;

use super::args::{Explain, Format};
use super::document;
use super::lookup::Lookup;
use super::request::Request;
use super::{BAD, load, print_out, text_of, why};
use super::{Ended, Stop};
use tollgate_config::Unset;
use tollgate_limit::printable::printable;
use tollgate_limit::words;
use tollgate_policy::claims::body_length;
use tollgate_policy::explain::{Explanation, IdentityStory, LimitStory, RouteFate};
use tollgate_policy::{Peer, Policy};
use tollgate_store::clock::Clock;

pub(super) fn explain(args: &Explain) -> Ended {
    let request = Request::parse(&args.request, &args.headers).map_err(Stop::Misuse)?;
    // The result does not depend on secrets.
    let config = load::read(&args.config, Unset::Assumed)?;
    for name in &config.assumed {
        tell!("note: the environment variable `{name}` is not set: its value is left open\n");
    }
    let policy = &config.policy;
    let peer = Peer {
        address: Some(args.ip),
        port: 0,
        tls: request.tls,
        unnamed: false,
    };
    let Request { method, uri, .. } = &request;
    let described = policy.describe(None, method, uri, &request.headers, peer, None);
    let described = described.map_err(|malformed| format!("answered 400: {malformed}"))?;
    let body = args.body.as_deref().map(str::as_bytes);
    let facts = body.map(|body| policy.read_body(&described, body));
    let facts = facts
        .transpose()
        .map_err(|flaw| format!("answered {}: {flaw}", flaw.status()))?;
    described.body.set(facts.as_ref());
    let lookup = Lookup::new(args, &config)?;
    let now = Clock::system().now().as_micros() / 1_000_000;
    let explanation = policy.explain(&described, now, body_length(&request.headers));
    let text = match args.format {
        Format::Human => text_of(|to| tell(to, policy, &explanation, &lookup)),
        Format::Json => document::explained(policy, &explanation, &lookup),
    };
    let printed = print_out(&text);
    let is_refused = explanation.taken.is_none() || explanation.refusal.is_some();
    Ok(if is_refused { BAD } else { printed })
}

fn tell(
    to: &mut String,
    policy: &Policy,
    explanation: &Explanation,
    lookup: &Lookup,
) -> std::fmt::Result {
    let host = if explanation.host.is_empty() {
        "(none)"
    } else {
        &explanation.host
    };
    writeln!(
        to,
        "request    host {}, path {}",
        printable(host),
        printable(&explanation.path)
    )?;
    let client = explanation.client.as_deref().unwrap_or("no address");
    let how = if explanation.forwarded {
        " (from a forwarding header of a trusted proxy)"
    } else {
        ""
    };
    writeln!(to, "caller     {client}{how}")?;
    let Some((taken, captures)) = &explanation.taken else {
        let methods: Vec<&str> = explanation
            .other_methods
            .iter()
            .map(http::Method::as_str)
            .collect();
        let answered = match methods.as_slice() {
            _ if explanation.unlisted => "421, as no route names this host".to_owned(),
            [] => "404".to_owned(),
            methods => format!(
                "405, as the routes for this path take {}",
                methods.join(", ")
            ),
        };
        writeln!(to, "route      none: answered {answered}")?;
        return losers(to, policy, explanation);
    };
    writeln!(to, "route      {}", policy.routes[*taken].name)?;
    for (name, value) in captures {
        writeln!(to, "           {{{name}}} is `{}`", printable(value))?;
    }
    losers(to, policy, explanation)?;
    for story in &explanation.identities {
        identity(to, policy, story)?;
    }
    if let Some(refusal) = &explanation.refusal {
        let status = refusal.status().as_u16();
        return writeln!(to, "refused    {refusal}: answered {status}");
    }
    if explanation.exempt {
        writeln!(
            to,
            "exempt     the caller's address is in address.exempt: no limit is looked at"
        )?;
    }
    if let Some(tier) = &explanation.tier {
        writeln!(to, "tier       {tier}")?;
    }
    if explanation.limits.is_empty() {
        writeln!(to, "limits     none")?;
    }
    for story in &explanation.limits {
        limit(to, policy, story, lookup)?;
    }
    for (over, stories) in policy.routes[*taken]
        .over_limit
        .iter()
        .zip(&explanation.over_limit)
    {
        let upstream = &policy.upstreams[over.upstream].name;
        let names = over
            .instead_of
            .iter()
            .map(|rule| &*policy.rules[*rule].name);
        let names = names.collect::<Vec<_>>().join(" or ");
        writeln!(
            to,
            "over       where {names} refuses, {upstream} takes it, charged on:"
        )?;
        for story in stories {
            limit(to, policy, story, lookup)?;
        }
    }
    Ok(())
}

fn losers(to: &mut String, policy: &Policy, explanation: &Explanation) -> std::fmt::Result {
    // Of thousands of routes only near matches are of interest; most differ in path or host.
    let close =
        |fate: &RouteFate| !matches!(fate, RouteFate::Taken | RouteFate::Path | RouteFate::Host);
    let few = explanation.routes.len() <= FEW;
    let mut passed_over = 0;
    for (route, fate) in policy.routes.iter().zip(&explanation.routes) {
        if *fate == RouteFate::Taken {
            continue;
        }
        if few || close(fate) {
            writeln!(to, "     not   {}: {}", route.name, fate)?;
        } else {
            passed_over += 1;
        }
    }
    if passed_over > 0 {
        writeln!(to, "     not   {passed_over} more: another host or path")?;
    }
    Ok(())
}

fn identity(to: &mut String, policy: &Policy, story: &IdentityStory) -> std::fmt::Result {
    let name = |index: usize| {
        policy
            .identities
            .get(index)
            .map_or("?", |identity| &identity.name)
    };
    writeln!(to, "identity   {}", name(story.identity))?;
    for step in &story.steps {
        for (source, value) in &step.sources {
            let of = if step.identity == story.identity {
                String::new()
            } else {
                format!("{}: ", name(step.identity))
            };
            match value {
                Ok(Some(value)) => {
                    writeln!(to, "           {of}{source} is `{}`", printable(value))?
                }
                Ok(None) => writeln!(to, "           {of}{source} is absent")?,
                Err(reason) => writeln!(to, "           {of}{source}: {reason}")?,
            }
        }
    }
    match &story.outcome {
        Ok(how) => writeln!(to, "           {}: {}", how.words(), key(&story.key)),
        Err(reason) => writeln!(to, "           {reason}"),
    }
}

fn limit(
    to: &mut String,
    policy: &Policy,
    story: &LimitStory,
    lookup: &Lookup,
) -> std::fmt::Result {
    let limit = &policy.limits[story.limit];
    let variant = why::variant(limit.tier.as_deref(), story.candidate);
    writeln!(to, "limit      {}{variant}", limit.name)?;
    writeln!(to, "           {}", limit.words())?;
    if policy.rules[story.rule].is_budget() && !story.candidate {
        writeln!(to, "           its refusals have status 402")?;
    }
    if let Some(why) = story.skipped {
        return writeln!(to, "           not looked at: {}", why.words());
    }
    let counted = if story.enforced || story.candidate {
        ""
    } else {
        "; its refusals only count"
    };
    let named = lookup
        .name(story)
        .map_or_else(String::new, |name| format!(" ({name} in logs)"));
    writeln!(
        to,
        "           {} from bucket {}{named}{counted}",
        words::units(story.cost, limit.currency.as_deref()),
        key(&story.key)
    )?;
    if let Some(penalty) = limit.penalty {
        writeln!(to, "           penalty: {}", penalty.words())?;
    }
    match lookup.now(policy, story) {
        Some((now, overridden)) => why::holds(to, &now, overridden.as_ref()),
        None => Ok(()),
    }
}

fn key(words: &str) -> Cow<'_, str> {
    if words.is_empty() {
        "(none)".into()
    } else {
        printable(words)
    }
}

/// Up to this number all routes are listed.
const FEW: usize = 12;

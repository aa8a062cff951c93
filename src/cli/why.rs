//! `tollgate why`: explains a refusal by the decision id that its client was told.

use std::fmt::Write;

use super::args::{Format, Why};
use super::{Ended, Stop};
use super::{document, listeners, print_out, text_of};
use crate::admin::decisions::{Decision, Judged};
use crate::admin::live::Now;
use crate::admin::overrides::Overridden;
use tollgate_limit::words;

pub(super) fn why(args: &Why) -> Ended {
    let id = args.id.trim();
    if id.len() != 16 || !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        let what = format!("`{id}` is no decision id: it has 16 hexadecimal digits");
        return Err(Stop::Misuse(what));
    }
    let path = format!("/api/v1/decisions/{}", id.to_ascii_lowercase());
    let gateways = listeners::asked_by(&args.asked.gateways)?;
    let decision = listeners::first::<Decision>("why", &gateways, &path)?;
    Ok(print_out(&match args.asked.format {
        Format::Human => text_of(|to| tell(to, &decision)),
        Format::Json => document::written(&decision),
    }))
}

fn tell(to: &mut String, decision: &Decision) -> std::fmt::Result {
    let Decision { request, .. } = decision;
    let cut = if request.path_is_cut { "…" } else { "" };
    writeln!(to, "decision   {} of {}", decision.id, decision.at)?;
    writeln!(
        to,
        "request    {} {}{}{cut}",
        request.method, request.host, request.path
    )?;
    let client = request.client.as_deref().unwrap_or("no address");
    write!(to, "client     {client}")?;
    if let Some(caller) = &decision.caller {
        let tier = decision.tier.as_ref();
        let tier = tier.map_or_else(String::new, |tier| format!(", tier {tier}"));
        write!(to, ", caller {caller}{tier}")?;
    }
    writeln!(to)?;
    writeln!(
        to,
        "route      {}",
        decision.route.as_deref().unwrap_or("none")
    )?;
    if let Some(upstream) = &decision.upstream {
        writeln!(to, "upstream   {upstream}, by its limits")?;
    }
    let wait = match (&decision.until, decision.retry_after_ms) {
        (Some(until), Some(wait)) => format!(": again from {until}, {} later", span(wait)),
        _ => String::new(),
    };
    writeln!(
        to,
        "refused    {} {}{wait}",
        decision.status, decision.reason
    )?;
    decision
        .limits
        .iter()
        .try_for_each(|limit| judged(to, limit))
}

fn judged(to: &mut String, limit: &Judged) -> std::fmt::Result {
    let variant = variant(limit.tier.as_deref(), limit.candidate);
    writeln!(to, "limit      {}{variant}", limit.limit)?;
    writeln!(to, "           {}", limit.words)?;
    writeln!(
        to,
        "           {} from bucket {}",
        words::units(limit.cost, limit.currency.as_deref()),
        limit.key.words()
    )?;
    match (&limit.then, &limit.blocked) {
        (_, Some(block)) => {
            let by = match &*block.by {
                "penalty" => "a penalty",
                _ => "an operator's block",
            };
            write!(to, "           then: refused by {by} until {}", block.until)?;
            match block.admits_at == block.until {
                true => writeln!(to)?,
                false => writeln!(to, "; the bucket can pay from {}", block.admits_at)?,
            }
        }
        (None, None) => writeln!(to, "           then: not asked")?,
        (Some(then), None) => {
            let wait = match then.admits_in_ms {
                Some(wait) if !then.admits => format!(" for {}", span(wait)),
                _ => String::new(),
            };
            writeln!(
                to,
                "           then: {} left: {}{wait}",
                then.left(),
                outcome(&limit.outcome)
            )?;
        }
    }
    holds(to, &limit.now, limit.overridden.as_ref())
}

/// The variant of a limit, as it follows the limit's name.
pub(super) fn variant(tier: Option<&str>, candidate: bool) -> String {
    match tier {
        _ if candidate => " (candidate: judged and only counted)".to_owned(),
        Some(tier) => format!(" (tier {tier})"),
        None => String::new(),
    }
}

/// Writes what holds for a key now: an override or a penalty that decides alone, otherwise the level
/// of its bucket and the override whose numbers apply.
pub(super) fn holds(
    to: &mut String,
    now: &Now,
    overridden: Option<&Overridden>,
) -> std::fmt::Result {
    writeln!(to, "           now: {}", words_now(now, overridden))?;
    match overridden {
        Some(one) if decides(one).is_none() => {
            let why = one.why_not.as_ref();
            let why = why.map_or_else(String::new, |why| format!("; it changes nothing: {why}"));
            writeln!(to, "           override: {}{why}", one.words())
        }
        _ => Ok(()),
    }
}

pub(super) fn words_now(now: &Now, overridden: Option<&Overridden>) -> String {
    let decided = overridden.and_then(|one| Some((decides(one)?, one)));
    let Some((outcome, one)) = decided else {
        return level(now);
    };
    let bucket = match &now.level {
        Some(level) => format!("the bucket has {}", level.left()),
        None => format!("the bucket's level is {}", level(now)),
    };
    format!("{outcome}: {} ({bucket})", one.words())
}

/// What becomes of every request under an override that looks at no bucket.
fn decides(one: &Overridden) -> Option<&'static str> {
    match (&one.why_not, one.setting.block, one.setting.unlimited) {
        (None, true, _) => Some("refused"),
        (None, _, true) => Some("admitted"),
        _ => None,
    }
}

pub(super) fn level(now: &Now) -> String {
    let Some(level) = &now.level else {
        let why = now.why_not.as_deref().unwrap_or("not known");
        return format!("not known: {why}");
    };
    let left = level.left();
    match (level.admits, &level.admits_at) {
        (true, _) => format!("{left} left: admitted"),
        (false, _) if now.only_counts => format!("{left} left: would refuse, and only counts"),
        (false, Some(at)) => {
            let wait = level.admits_in_ms.unwrap_or_default();
            format!("{left} left: refused until {at}, for {}", span(wait))
        }
        (false, None) => format!("{left} left: refused, no wait is known to help"),
    }
}

fn outcome(word: &str) -> &str {
    match word {
        "deny" => "refused",
        "shadow_deny" => "would refuse, and only counts",
        "allow" => "admitted",
        other => other,
    }
}

fn span(millis: u64) -> String {
    match millis {
        0..1_000 => format!("{millis} ms"),
        1_000..120_000 => format!("{}.{} s", millis / 1_000, millis % 1_000 / 100),
        120_000..172_800_000 => format!("{} min", millis / 60_000),
        _ => format!("{} days", millis / 86_400_000),
    }
}

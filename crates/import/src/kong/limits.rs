//! What a plugin counts by, and the limits it becomes.

use super::PERIODS;
use super::entities::{Plugin, Scope};
use crate::draft::{Counting, Difference, Draft, Limit, Place, either};
use crate::tree::Node;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Callers {
    /// `key-auth` holds on all of them.
    ByKey,
    /// No consumer is authenticated on any of them.
    None,
    /// Some are known, or by what is not read.
    Unknown,
}

/// What the limits of a plugin have in common.
pub(super) struct Common<'k> {
    config: &'k Node,
    prefix: String,
    per: String,
    when_missing: &'static str,
    differences: Vec<Difference>,
}

/// What a plugin counts by. `None`: its numbers are those of a consumer, whose caller gets them.
pub(super) fn scope<'k>(
    plugin: &Plugin<'k>,
    callers: Callers,
    draft: &mut Draft,
) -> Result<Option<Common<'k>>, String> {
    let prefix = match &plugin.scope {
        Scope::All => String::new(),
        Scope::Service(name) | Scope::Route(name) => format!("{name}_"),
        Scope::Consumer(_) => return Ok(None),
        Scope::Group => {
            return Err("a group of consumers has no numbers of its own here".to_owned());
        }
        Scope::Several => {
            return Err("it is of a consumer on a route or service; a caller's own numbers hold on all routes".to_owned());
        }
    };
    let config = plugin.node.get("config").ok_or("it has no config")?;
    let by = config.text_at("limit_by").unwrap_or("consumer");
    let mut differences = Vec::new();
    let (per, when_missing) = match (by, callers) {
        ("ip", _) => ("address".to_owned(), ""),
        ("consumer", Callers::ByKey) => ("consumer".to_owned(), ""),
        ("credential", Callers::ByKey) => {
            differences.push(either(
                "keys of one consumer share buckets here; Kong counts each credential for itself",
            ));
            ("consumer".to_owned(), "")
        }
        ("consumer" | "credential", Callers::Unknown) => {
            return Err(format!(
                "limit_by {by}: Kong counts by consumer where a plugin authenticates; only key-auth on all routes of \
                 the plugin, and no other way, is read"
            ));
        }
        ("consumer" | "credential", Callers::None) => {
            let place = Place::of(plugin.node);
            draft.note(format!("{place}: limit_by {by}: no consumer is authenticated on its routes, so Kong counts by address, as here"));
            ("address".to_owned(), "")
        }
        ("service", _) if matches!(plugin.scope, Scope::Service(_) | Scope::Route(_)) => {
            ("everyone".to_owned(), "")
        }
        ("header", _) => {
            let header = config.text_at("header_name");
            let header = header.ok_or("limit_by header has no header_name")?;
            (
                format!("header:{}", header.to_ascii_lowercase()),
                "use:address",
            )
        }
        (other, _) => return Err(format!("limit_by {other} has no counterpart")),
    };
    Ok(Some(Common {
        config,
        prefix,
        per,
        when_missing,
        differences,
    }))
}

pub(super) fn limits(common: &Common<'_>, draft: &mut Draft) -> Vec<(&'static str, String)> {
    let mut made = Vec::new();
    for (period, micros) in PERIODS {
        let Some(node) = common.config.get(period) else {
            continue;
        };
        let what = format!("rate-limiting {period}: {}", node.text().unwrap_or("?"));
        let Some(count) = node.text().and_then(|text| text.parse::<u64>().ok()) else {
            draft.not_imported(&Place::of(node), &what, "the number is not understood");
            continue;
        };
        let counting = match period {
            "year" => {
                let why = "there is no window of a calendar year";
                draft.not_imported(&Place::of(node), &what, why);
                continue;
            }
            "month" => Counting::CalendarMonth,
            _ => Counting::ClockWindow,
        };
        let mut limit = Limit::new(counting, count, micros);
        limit.per = vec![common.per.clone()];
        limit.when_missing = common.when_missing;
        let wanted = format!("{}{period}", common.prefix);
        let differences = common.differences.clone();
        let name = draft.limit(&wanted, &Place::of(node), &what, limit, differences);
        made.extend(name.map(|name| (period, name)));
    }
    made
}

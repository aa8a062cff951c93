//! The cost of a request: constants, headers, lengths, settlements, and which requests count.

use http::HeaderName;

use super::Context;
use crate::problem::Problem;
use crate::raw::{RawCost, RawSettle, RawUntold};
use crate::scalar::{OneOrMany, ShortOr, Text};
use crate::source::{At, Place};
use tollgate_policy::{Cost, Count, Settle, SettleFrom, StatusMatch};

/// What one variant of a limit can pay at once.
#[derive(Clone, Debug)]
pub(crate) struct Amounts {
    /// The burst, or the window's amount.
    pub(crate) most: u64,
    /// The debt it allows.
    pub(crate) debt: u64,
    /// The place of these numbers.
    pub(crate) place: Place,
    /// The tier of these numbers.
    pub(crate) tier: Option<String>,
}

/// `cost` of a limit or of a route.
pub(crate) fn cost(at: &At<ShortOr<u64, RawCost>>, context: &mut Context<'_>) -> Cost {
    match &at.value {
        ShortOr::Short(units) => Cost::Fixed(*units),
        ShortOr::Table(table) => {
            let table = at.with(table);
            from_request(table.value, at.place, context).unwrap_or(Cost::Fixed(1))
        }
    }
}

fn from_request(raw: &RawCost, place: Place, context: &mut Context<'_>) -> Option<Cost> {
    let least = raw.min().value;
    if raw.max.is_absent() {
        let problem = Problem::error("a cost that comes with the request needs a `max`")
            .at(place, "`max` is missing");
        context.push(
            problem.help(
                "callers must not choose their own price: { header = \"x-cost\", default = 1, min = 1, max = 50 }",
            ),
        );
        return None;
    }
    let most = raw.max.get()?.value;
    if least > most {
        let problem = Problem::error("the least cost is above the most");
        context.push(
            problem
                .at(raw.min.place().unwrap_or(place), "the least")
                .at(raw.max.place().unwrap_or(place), "the most"),
        );
        return None;
    }
    let by_length = raw.content_length().value;
    match (raw.header.get(), by_length) {
        (Some(header), true) => {
            let problem =
                Problem::error("a cost comes from a header or from the length, not from both");
            context.push(
                problem
                    .at(header.place, "one of them must go")
                    .at(raw.content_length.place().unwrap_or(place), "the other"),
            );
            None
        }
        (Some(header), false) => {
            let default = raw.default.or(least.max(1));
            if !(least..=most).contains(&default) {
                let label = format!("min is {least}, max is {most}");
                context.push(
                    Problem::error("the default cost lies outside its bounds")
                        .at(raw.default.place().unwrap_or(place), label),
                );
            }
            if let Some(per) = raw.per.place() {
                context.push(
                    Problem::error("`per` is for content_length")
                        .at(per, "a header says units, not bytes"),
                );
            }
            Some(Cost::Header {
                name: header_name(header, context)?,
                default,
                least,
                most,
            })
        }
        (None, true) => {
            if let Some(place) = raw.default.place() {
                context.push(
                    Problem::error("`default` is for a header")
                        .at(place, "a request of unknown length costs `max`"),
                );
            }
            Some(Cost::ContentLength {
                per: context.bounded(raw.per(), 1, 1 << 40),
                least,
                most,
            })
        }
        (None, false) => {
            let problem =
                Problem::error("where does the cost come from?").at(place, "`header` is missing");
            context.push(problem.help(
                "write { header = \"x-cost\", max = 50 } or { content_length = true, per = \"1KiB\", max = 1000 }",
            ));
            None
        }
    }
}

/// A header's name.
pub(crate) fn header_name(text: &At<Text>, context: &mut Context<'_>) -> Option<HeaderName> {
    header_name_of(text.as_str(), text.place, context)
}

/// A header name at a place.
pub(crate) fn header_name_of(
    name: &str,
    place: Place,
    context: &mut Context<'_>,
) -> Option<HeaderName> {
    let read = name.parse().ok();
    if read.is_none() {
        let label = if name.ends_with(':') {
            "a name has no colon"
        } else {
            "letters, digits and `-` were expected"
        };
        context
            .push(Problem::error(format!("`{name}` cannot be a header's name")).at(place, label));
    }
    read
}

/// `settle` of a limit that holds at most `at_once`.
pub(crate) fn settle(
    raw: &At<RawSettle>,
    at_once: u64,
    context: &mut Context<'_>,
) -> Option<Settle> {
    for (key, absent) in [
        ("from", raw.from.is_absent()),
        ("estimate", raw.estimate.is_absent()),
    ] {
        if absent {
            let problem = Problem::error(format!("`settle` needs `{key}`"))
                .at(raw.place, format!("`{key}` is missing"));
            context.push(
                problem.help("settle = { from = \"json:usage.total_tokens\", estimate = 500 }"),
            );
        }
    }
    let source = settle_from(raw, context);
    let estimate = raw.estimate.get()?;
    let most = raw.max.or(estimate.value.saturating_mul(100).max(at_once));
    if most < estimate.value {
        let problem = Problem::error("the most a response may cost is below the estimate");
        context.push(
            problem
                .at(raw.max.place().unwrap_or(raw.place), "the most")
                .at(estimate.place, "the estimate"),
        );
    }
    let source = source?;
    let broken_off_per = raw.broken_off_per.setting("broken_off_per").map(|per| {
        if let SettleFrom::Bytes { .. } = source {
            let problem = Problem::error("`broken_off_per` is for a cost that the response says");
            context.push(problem.at(
                per.place.unwrap_or_default(),
                "by `bytes` a response costs what was sent of it, broken off or not",
            ));
        }
        context.bounded(per, 1, 1 << 40)
    });
    let untold_costs_most = raw.untold().value == RawUntold::Max;
    Some(Settle {
        from: source,
        estimate: estimate.value,
        most,
        broken_off_per,
        untold_costs_most,
    })
}

fn settle_from(raw: &At<RawSettle>, context: &mut Context<'_>) -> Option<SettleFrom> {
    let from = raw.from.get()?;
    let written = from.as_str();
    let source = if let Some(name) = written.strip_prefix("header:") {
        SettleFrom::Header(header_name_of(
            name,
            from.part("header:".len(), written.len()),
            context,
        )?)
    } else if written == "bytes" {
        SettleFrom::Bytes {
            per: context.bounded(raw.per(), 1, 1 << 40),
        }
    } else if let Some(path) = written.strip_prefix("json:") {
        // A name may have any character except the dot; text meant as an index or a query would
        // never be found.
        let empty = path.split('.').any(str::is_empty);
        let rooted = path.starts_with(['$', '/']).then_some(0);
        if let Some(at) = rooted
            .or_else(|| path.find(['[', ']', '*', '"', '\'']))
            .or(empty.then_some(0))
        {
            let start = "json:".len() + at;
            let end = if empty { written.len() } else { start + 1 };
            context.push(
                Problem::error(format!("`{path}` is not a path into JSON"))
                    .at(from.part(start, end), "names joined by dots were expected, like `usage.total_tokens`")
                    .help("a path leads through objects by the names of their members; there are no lists, indices or wildcards"),
            );
            return None;
        }
        SettleFrom::Json(path.split('.').map(str::to_owned).collect())
    } else {
        let problem = Problem::error(format!("a cost cannot be settled from `{written}`"));
        context.push(problem.at(
            from.place,
            "`header:NAME`, `bytes` or `json:PATH` was expected",
        ));
        return None;
    };
    if let (Some(place), false) = (raw.per.place(), matches!(source, SettleFrom::Bytes { .. })) {
        context.push(
            Problem::error("`per` is for bytes").at(place, "the response says units, not bytes"),
        );
    }
    Some(source)
}

/// `count`.
pub(crate) fn count(list: &OneOrMany<Text>, context: &mut Context<'_>) -> Count {
    match list.list.as_slice() {
        [one] if one.as_str() == "all" => Count::All,
        [one] if one.as_str() == "failures" => Count::Statuses(vec![
            StatusMatch { from: 401, to: 401 },
            StatusMatch { from: 403, to: 403 },
        ]),
        list => Count::Statuses(statuses(list, context)),
    }
}

/// Statuses, and classes of them: `"502"`, `"5xx"`.
pub(crate) fn statuses(list: &[At<Text>], context: &mut Context<'_>) -> Vec<StatusMatch> {
    let mut matches = Vec::new();
    for text in list {
        let written = text.as_str();
        let class = written
            .strip_suffix("xx")
            .and_then(|digit| digit.parse::<u16>().ok())
            .filter(|class| (1..=5).contains(class));
        let exact = written
            .parse::<u16>()
            .ok()
            .filter(|status| (100..=599).contains(status) && written.len() == 3);
        match (class, exact) {
            (Some(class), _) => matches.push(StatusMatch {
                from: class * 100,
                to: class * 100 + 99,
            }),
            (None, Some(status)) => matches.push(StatusMatch {
                from: status,
                to: status,
            }),
            (None, None) => {
                let problem = Problem::error(format!("`{written}` is not a status")).at(
                    text.place,
                    "a status like \"502\" or a class like \"5xx\" was expected",
                );
                context.push(problem);
            }
        }
    }
    matches
}

/// A constant cost that a bucket can never pay is an error; a request-dependent one is a warning.
pub(crate) fn check_payable(
    limit: &str,
    cost: &Cost,
    place: Place,
    amounts: &[Amounts],
    context: &mut Context<'_>,
) {
    // A bucket that holds nothing is a separate mistake, which was reported.
    for amount in amounts.iter().filter(|amount| amount.most > 0) {
        let most = amount.most.saturating_add(amount.debt);
        let whose = amount
            .tier
            .as_ref()
            .map_or_else(String::new, |tier| format!(" for tier `{tier}`"));
        match cost {
            Cost::Fixed(units) if *units > most => {
                let problem = Problem::error(format!(
                    "a request costs {units}, but limit `{limit}` never holds that much{whose}"
                ));
                context.push(
                    problem
                        .at(place, "this can never be paid")
                        .at(amount.place, format!("at most {most} at once"))
                        .help("raise `burst`, or allow `debt`"),
                );
            }
            Cost::Header { least, .. } | Cost::ContentLength { least, .. } if *least > most => {
                let problem = Problem::error(format!(
                    "a request costs at least {least}, but limit `{limit}` never holds that much{whose}"
                ));
                context.push(
                    problem
                        .at(place, "this can never be paid")
                        .at(amount.place, format!("at most {most} at once"))
                        .help("raise `burst`, or allow `debt`"),
                );
            }
            Cost::Header { most: dearest, .. } | Cost::ContentLength { most: dearest, .. }
                if *dearest > most =>
            {
                let problem = Problem::warning(format!(
                    "a request may cost {dearest}, but limit `{limit}` never holds that much{whose}"
                ));
                context.push(
                    problem
                        .at(place, "such a request is always refused")
                        .at(amount.place, format!("at most {most} at once")),
                );
            }
            _ => {}
        }
    }
}

/// The estimate is what admission charges.
pub(crate) fn check_estimate(
    estimate: u64,
    place: Place,
    amounts: &[Amounts],
    context: &mut Context<'_>,
) {
    for amount in amounts
        .iter()
        .filter(|amount| estimate > amount.most.saturating_add(amount.debt))
    {
        let most = amount.most.saturating_add(amount.debt);
        let problem = Problem::error(format!("an estimate of {estimate} can never be paid"));
        context.push(
            problem
                .at(place, "charged when the request comes")
                .at(amount.place, format!("at most {most} at once")),
        );
    }
}

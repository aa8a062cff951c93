use super::{per, when_down};
use crate::values::quantity::bytes_words;
use tollgate_limit::lease::{SLOT, Terms};
use tollgate_limit::words::amount;
use tollgate_limit::{Algorithm, Limit, Micros, Mode, OnFailover, Placement, WhenDown};
use tollgate_policy::body::usage::PerToken;
use tollgate_policy::claims::prices::ModelPrices;
use tollgate_policy::identity::source::Source;
use tollgate_policy::{Cost, Count, Policy, Rule, Settle, SettleFrom, StatusMatch};

pub(super) fn limit(rule: &Rule, policy: &Policy, lines: &mut Vec<String>) {
    lines.push(format!(
        "  {}: {}, {}",
        rule.name,
        numbers(&rule.live),
        per(&rule.scope, policy)
    ));
    for (tier, limit) in &rule.tiers {
        lines.push(format!("    tier {tier}: {}", numbers(limit)));
    }
    if let Some(candidate) = &rule.candidate {
        lines.push(format!(
            "    candidate, only counted: {}",
            numbers(candidate)
        ));
    }
    match rule.live.mode {
        Mode::Enforce if rule.live.enforce_for < 10_000 => {
            lines.push(format!(
                "    refuses only for {} of keys, counts the others",
                percent(rule.live.enforce_for)
            ));
        }
        Mode::Shadow => lines.push("    shadow: counted, never refusing".to_owned()),
        _ => {}
    }
    if rule.ceiling {
        lines.push("    a ceiling: nothing ever exceeds it".to_owned());
    }
    if let Some(cost) = cost(&rule.cost) {
        let what = if rule.prices.is_some() {
            "reserves tokens of output:"
        } else {
            "costs"
        };
        lines.push(format!("    a request {what} {cost}"));
    }
    if let Some(its) = &rule.prices {
        priced(its, lines);
    }
    if let Some(settle) = &rule.settle {
        let from = match &settle.from {
            SettleFrom::Header(name) => format!("the response header {name}"),
            SettleFrom::Bytes { per } => format!("the bytes sent, {per} to a unit"),
            SettleFrom::Json(usage) => format!("{} in the response", usage.words()),
        };
        match settle.estimate {
            Some(estimate) => estimated(rule, settle, estimate, &from, lines),
            None => reserved(rule, settle, &from, policy.body.most as u64, lines),
        }
    }
    if let Count::Statuses(statuses) = &rule.count {
        lines.push(format!("    counts only responses with {}; a request in progress counts until its response, so a Retry-After may be longer than \
             needed",
            status_words(statuses)));
    }
    if !rule.refund_on.is_empty() {
        lines.push(format!(
            "    given back after {}",
            status_words(&rule.refund_on)
        ));
    }
    if rule.is_budget() {
        lines.push("    refuses with 402".to_owned());
    }
    if !rule.live.events.is_empty() {
        let events = rule.live.events.iter().map(|percent| format!("{percent}%"));
        let events = events.collect::<Vec<_>>().join(", ");
        lines.push(format!("    an event when a key has used {events}"));
    }
    if let Some(penalty) = rule.live.penalty {
        lines.push(format!("    penalty: {}", penalty.words()));
    }
    if rule.live.placement == Placement::Shared {
        lines.push(format!(
            "    shared{}; when the store is down {}; after a fail-over {}",
            lease(&rule.live),
            in_an_outage(&rule.live),
            match rule.live.on_failover {
                OnFailover::Keep => "what the promoted server knows is kept",
                OnFailover::Drain => "every bucket starts empty",
            }
        ));
    }
}

fn priced(its: &ModelPrices, lines: &mut Vec<String>) {
    lines.push(format!(
        "    counts money, to a millionth of a {}",
        its.prices.currency
    ));
    let models: Vec<String> = its.models.iter().map(Source::words).collect();
    let unknown = match its.unknown.and_then(|place| its.prices.get(place)) {
        Some(price) => format!("costs as `{}`", price.name),
        None => "is refused with 400".to_owned(),
    };
    lines.push(format!(
        "    the price is that of the model in {}; a model without a price {unknown}",
        models.join(", otherwise in ")
    ));
}

fn estimated(rule: &Rule, settle: &Settle, estimate: u64, from: &str, lines: &mut Vec<String>) {
    let amount = |units| amount(units, rule.live.currency.as_deref());
    let more = amount(settle.most.saturating_sub(estimate));
    let may_cost_more = settle.most > estimate;
    let (most, estimate) = (amount(settle.most), amount(estimate));
    lines.push(format!(
        "    a request costs {estimate} at first, then what {from} says, at most {most}"
    ));
    if !matches!(settle.from, SettleFrom::Bytes { .. }) {
        let broken_off = match settle.broken_off_per {
            Some(per) => format!(
                "{} for every {per} bytes sent, and no less than {estimate}",
                if rule.prices.is_some() {
                    amount(1)
                } else {
                    "a unit".to_owned()
                }
            ),
            None => most.clone(),
        };
        lines.push(format!(
            "    a response that the caller breaks off before its cost is known costs {broken_off}"
        ));
        let untold = if settle.untold_costs_most {
            &most
        } else {
            &estimate
        };
        lines.push(format!(
            "    a complete response (2xx) that does not say its cost costs {untold}"
        ));
    }
    if may_cost_more {
        lines.push(format!("    one request after another never uses more than the limit grants; of several responses that settle at the same time, \
             each may use {more} more"));
    }
}

/// A charge that begins with a reservation. `bytes`: the longest body that is read.
fn reserved(rule: &Rule, settle: &Settle, from: &str, bytes: u64, lines: &mut Vec<String>) {
    let currency = rule.live.currency.as_deref();
    let PerToken { output, input } = settle.reserved();
    if rule.prices.is_none() && (output, input) != (1, 1) {
        let bytes = match &rule.cost {
            Cost::Body(cost) if cost.plus.is_some() => {
                format!(", and {input} for each that its bytes add")
            }
            _ => String::new(),
        };
        lines.push(format!("    by the weights of `settle` {output} units are reserved for each token that the request states{bytes}"));
    }
    let most = if rule.ceiling {
        "what was reserved and what is left".to_owned()
    } else {
        format!("{}, or what was reserved", amount(settle.most, currency))
    };
    lines.push(format!(
        "    that is reserved; the response then costs what {from} says, at most {most}"
    ));
    lines.push("    a response that does not say its cost, or that the caller breaks off, costs what was reserved".to_owned());
    if !rule.ceiling {
        lines.push("    a response that costs more than its reservation is charged in full: the next requests wait until that is paid".to_owned());
    }
    if rule.max_wait > Micros::ZERO {
        let wait = tollgate_limit::words::span(rule.max_wait);
        lines.push(format!(
            "    a request that only reservations refuse waits in line for them up to {wait}"
        ));
    }
    let most = rule.most_charged(None, bytes);
    let capacity = rule.live.algorithm.capacity();
    let Some(fit) = capacity.checked_div(most) else {
        return;
    };
    let costly = format!(
        "{}{}",
        amount(most, currency),
        of_body(rule, bytes, "a body")
    );
    match (&rule.prices, fit) {
        (None, 0) => {}
        (Some(_), 0) => lines.push(format!("    a request that may cost {costly} is refused: a bucket never holds that much")),
        (Some(_), 1) => lines.push(format!("    money is idle while it is reserved: one request that may cost {costly} reserves most of a bucket")),
        (Some(_), _) => lines.push(format!("    money is idle while it is reserved: {fit} requests that may each cost {costly} reserve all that a bucket holds")),
        (None, _) => lines.push(format!("    units are idle while they are reserved: {fit} requests that may cost {costly} reserve all that a bucket holds")),
    }
}

/// The length of body for which a request reserves the most, where its input is reserved.
pub(super) fn of_body(rule: &Rule, bytes: u64, with: &str) -> String {
    match rule.prices {
        Some(_) => format!(" with {with} of {}", bytes_words(bytes)),
        None => String::new(),
    }
}

/// What a limit admits during an outage of its store.
fn in_an_outage(limit: &Limit) -> String {
    let most = match (&limit.algorithm, limit.algorithm.quota()) {
        (Algorithm::InFlight(places), _) => format!("up to {} at the same time", places.most()),
        (_, Some(quota)) => format!(
            "up to {} more at once, then the rate",
            amount(quota.burst, limit.currency.as_deref())
        ),
        (_, None) => return when_down(limit.when_down).to_owned(),
    };
    match limit.when_down {
        WhenDown::LocalShare => {
            format!(
                "each gateway enforces its share, which starts full where nothing is known of the bucket: all together {most}, on \
                 top of what the store gave, and charged to it when it responds"
            )
        }
        other => when_down(other).to_owned(),
    }
}

fn lease(limit: &Limit) -> String {
    let Some(terms) = limit
        .lease
        .then(|| Terms::of(&limit.algorithm).ok())
        .flatten()
    else {
        return String::new();
    };
    format!(
        ", leased (at most {} units of a bucket at a time lie in gateways, each for {} ms at the longest; a gateway \
         that grants them asks the store every {} ms or more often; with more than {} gateways every request asks it)",
        terms.most,
        (terms.counted().0 + SLOT.0) / 1000,
        terms.life.0 / 1000,
        terms.gateways_most()
    )
}

fn numbers(limit: &Limit) -> String {
    if limit.mode == Mode::Off {
        "off".to_owned()
    } else {
        limit.words()
    }
}

/// The description of a cost, unless it is the default.
pub(super) fn cost(cost: &Cost) -> Option<String> {
    match cost {
        Cost::Fixed(1) => None,
        Cost::Fixed(units) => Some(units.to_string()),
        Cost::Header {
            name,
            default,
            least,
            most,
        } => Some(format!(
            "what its header {name} says, {least} to {most}, {default} without it"
        )),
        Cost::ContentLength { per, least, most } => Some(format!(
            "1 for each {per} bytes of its length, {least} to {most}"
        )),
        Cost::Body(cost) => {
            let names: Vec<String> = cost.paths.iter().map(|path| path.join(".")).collect();
            let mut text = format!("what {} in its body says", names.join(" or "));
            if !cost.times.is_empty() {
                let names: Vec<String> = cost.times.iter().map(|path| path.join(".")).collect();
                text += &format!(", times {}", names.join(" or "));
            }
            match cost.plus {
                Some(1) => text += ", and 1 for each byte of its body",
                Some(per) => text += &format!(", and 1 for every {per} bytes of its body"),
                None => {}
            }
            let (least, most, default) = (cost.least, cost.most, cost.default);
            Some(format!(
                "{text}, {least} to {most}, {default} where it says nothing"
            ))
        }
    }
}

fn status_words(statuses: &[StatusMatch]) -> String {
    let words: Vec<String> = statuses
        .iter()
        .map(|status| {
            if status.start() == status.end() {
                status.start().to_string()
            } else {
                format!("{}xx", status.start() / 100)
            }
        })
        .collect();
    words.join(", ")
}

pub(super) fn percent(hundredths: u16) -> String {
    let (whole, rest) = (hundredths / 100, hundredths % 100);
    if rest == 0 {
        format!("{whole}%")
    } else {
        format!("{whole}.{rest:02}%")
    }
}

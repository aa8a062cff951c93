//! Numbers for a limit, from what the keys of a log needed: the exact frontier, and three choices on it.

use serde_json::{Value, json};
use std::fmt::Write;

use crate::floods::{self, floods};
use crate::hull::Need;
use crate::keys::{ByKey, Requests, by_key};
use crate::log::Survey;
use crate::replay::Traffic;
use crate::report::{grouped, head, moment, read_words};
use tollgate_limit::printable::printable;

/// A rate as written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    /// `10/second`.
    pub text: String,
    /// Units.
    pub amount: u64,
    /// Microseconds.
    pub period: u64,
}

/// What is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The rates of the frontier; empty: the usual ones.
    pub rates: Vec<Rate>,
    /// The share of keys that `tight` may refuse, in millionths.
    pub refuse: u64,
    /// The limit's place among the rules of the policy.
    pub rule: usize,
    /// The limit's numbers now.
    pub today: Option<Today>,
}

/// A limit's numbers now, and what they do to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Today {
    /// Its rate as written; empty where the file says it otherwise.
    pub rate: String,
    /// Its burst.
    pub burst: u64,
    /// In words.
    pub words: String,
    /// The most in any minute.
    pub per_minute: Option<u64>,
    /// What a replay says.
    pub counts: crate::Counts,
}

/// What the log says of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// What the keys are.
    pub per: String,
    /// All keys.
    pub keys: u64,
    /// Requests that draw from it.
    pub requests: u64,
    /// The least burst at each rate with which nobody is refused.
    pub frontier: Vec<Corner>,
    /// The same without floods.
    pub frontier_without_floods: Vec<Corner>,
    /// The frontier of the requests that a limiter had admitted when the log was written; empty: it had refused none.
    pub frontier_admitted: Vec<Corner>,
    /// Keys that are floods, and why.
    pub floods: Vec<(String, String)>,
    /// `tight`, `balanced`, `loose`, `today`.
    pub choices: Vec<(&'static str, Choice)>,
    /// What the ten keys that need most need, without floods: a picture's lines.
    pub nearest: Vec<(String, Need)>,
    /// The map of a picture: at every rate and burst how many keys are refused.
    pub map: Map,
    /// The length of the log, microseconds.
    pub span: u64,
    /// What a difference of two moments may be off by, microseconds.
    pub blur: u64,
    /// Whether all requests cost the same.
    pub equal_costs: bool,
}

/// Rate x burst, and how many keys each refuses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map {
    /// Its columns.
    pub rates: Vec<Rate>,
    /// Its rows.
    pub bursts: Vec<u64>,
    /// By row and column.
    pub refused: Vec<Vec<u64>>,
}

/// The burst that one rate takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corner {
    /// The rate.
    pub rate: Rate,
    /// The least burst with which nobody is refused, by the stamps of the log.
    pub burst: u64,
    /// What the stamps may be off by: the true burst is within this of it.
    pub bar: u64,
}

/// Numbers, and what they would have done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The rate as written.
    pub rate: String,
    /// The burst.
    pub burst: u64,
    /// Keys that lose a request, floods included.
    pub keys_refused: u64,
    /// Requests that are refused.
    pub requests_refused: u64,
    /// The most units it admits in any minute.
    pub per_minute: Option<u64>,
    /// What the stamps may be off by.
    pub bar: u64,
}

/// Works a limit's numbers out. The traffic's events are used up.
///
/// # Errors
/// Why the log cannot tell.
pub fn suggest(traffic: &mut Traffic<'_>, per: &str, ask: Ask) -> Result<Suggestion, String> {
    if traffic.survey.requests == 0 {
        return Err("no request could be read".into());
    }
    if let Some(why) = traffic.subjects[0].not_judged(ask.rule, &traffic.survey) {
        return Err(why);
    }
    let (blur, span) = (traffic.survey.blur, traffic.survey.to - traffic.survey.from);
    let (subject, names) = (&traffic.subjects[0], &traffic.names);
    let words =
        |key: usize| subject.key_words(ask.rule, u32::try_from(key).unwrap_or(u32::MAX), names);
    let requests = Requests {
        events: &mut traffic.events,
        classes: &traffic.classes,
        keys: subject.keys[ask.rule].len(),
        is_censored: traffic.survey.recorded_refused > 0,
    };
    let by_key = by_key(requests, ask.rule)?;
    if by_key.requests == 0 {
        return Err("no request of the log draws from this limit".into());
    }
    let rates = if ask.rates.is_empty() {
        usual_rates(by_key.busiest)
    } else {
        ask.rates
    };
    let floods = floods(&by_key.keys);
    let mut is_flood = vec![false; by_key.keys.len()];
    for flood in &floods {
        is_flood[flood.key] = true;
    }
    // The needs of many keys joined are what the neediest of them needs at each rate.
    let joined = |with_floods: bool| {
        let mut need = Need::default();
        for (key, is_flood) in by_key.keys.iter().zip(&is_flood) {
            if with_floods || !is_flood {
                need.join(&key.need);
            }
        }
        need
    };
    let frontier = |need: &Need| -> Vec<Corner> {
        let corner = |rate: &Rate| Corner {
            rate: rate.clone(),
            burst: need.burst(rate.amount, rate.period),
            bar: rate.bar(blur),
        };
        rates.iter().map(corner).collect()
    };
    let (all, without) = (frontier(&joined(true)), frontier(&joined(false)));
    let admitted = by_key.admitted.as_ref().map(frontier).unwrap_or_default();
    let chosen = choose(&by_key, &is_flood, &without, ask.refuse);
    let mut choices: Vec<(&'static str, Choice)> = Vec::new();
    for (name, rate, burst) in chosen {
        let (keys_refused, requests_refused) = by_key.refused(rate.amount, rate.period, burst);
        let choice = Choice {
            per_minute: Some(rate.per_minute(burst)),
            bar: rate.bar(blur),
            rate: rate.text,
            burst,
            keys_refused,
            requests_refused,
        };
        choices.push((name, choice));
    }
    if let Some(today) = ask.today {
        let choice = Choice {
            rate: today.rate,
            burst: today.burst,
            keys_refused: today.counts.keys_refused,
            requests_refused: today.counts.refused,
            per_minute: today.per_minute,
            bar: 0,
        };
        choices.push(("today", choice));
    }
    Ok(Suggestion {
        per: per.to_owned(),
        keys: by_key.keys.iter().filter(|key| key.requests > 0).count() as u64,
        requests: by_key.requests,
        floods: floods
            .iter()
            .map(|flood| (words(flood.key), flood.why.clone()))
            .collect(),
        nearest: nearest(&by_key, &is_flood, &choices, &rates, words),
        map: map(&by_key, &rates, &all),
        frontier: all,
        frontier_without_floods: without,
        frontier_admitted: admitted,
        choices,
        span,
        blur,
        equal_costs: by_key.equal_costs,
    })
}

/// Rate and burst of each choice. A rate is chosen by what burst it takes: the slowest whose burst is at most what it
/// yields in a minute.
fn choose(
    by_key: &ByKey<'_>,
    is_flood: &[bool],
    without: &[Corner],
    refuse: u64,
) -> Vec<(&'static str, Rate, u64)> {
    let mut corners: Vec<&Corner> = without.iter().collect();
    corners.sort_by(|one, other| one.rate.faster_than(&other.rate));
    let fits = |rate: &Rate, burst: u64| {
        u128::from(burst) * u128::from(rate.period) <= u128::from(rate.amount) * u128::from(MINUTE)
    };
    let pick = |burst: &dyn Fn(&Rate, &Corner) -> u64| {
        let fit = corners
            .iter()
            .position(|corner| fits(&corner.rate, burst(&corner.rate, corner)));
        fit.unwrap_or(corners.len().saturating_sub(1))
    };
    let safe = |_: &Rate, corner: &Corner| corner.burst.saturating_add(corner.bar).max(1);
    let quantile = |rate: &Rate, _: &Corner| {
        let ordinary = by_key
            .keys
            .iter()
            .zip(is_flood)
            .filter(|(key, is_flood)| !**is_flood && key.requests > 0);
        let mut bursts: Vec<u64> = ordinary
            .map(|(key, _)| key.need.burst(rate.amount, rate.period))
            .collect();
        bursts.sort_unstable();
        let lost = u128::from(refuse) * (bursts.len() as u128) / 1_000_000;
        let lost = usize::try_from(lost).unwrap_or(0);
        let place = bursts.len().saturating_sub(lost + 1);
        bursts.get(place).copied().unwrap_or(1).max(1)
    };
    if corners.is_empty() {
        return Vec::new();
    }
    let (tight, balanced) = (pick(&quantile), pick(&safe));
    let loose = (balanced + 1).min(corners.len() - 1);
    let rate = |place: usize| corners[place].rate.clone();
    vec![
        (
            "tight",
            rate(tight),
            quantile(&corners[tight].rate, corners[tight]),
        ),
        (
            "balanced",
            rate(balanced),
            safe(&corners[balanced].rate, corners[balanced]),
        ),
        (
            "loose",
            rate(loose),
            safe(&corners[balanced].rate, corners[balanced]).saturating_mul(2),
        ),
    ]
}

/// The ten keys that need most at the rate of `balanced`, floods left out.
fn nearest(
    by_key: &ByKey<'_>,
    is_flood: &[bool],
    choices: &[(&str, Choice)],
    rates: &[Rate],
    words: impl Fn(usize) -> String,
) -> Vec<(String, Need)> {
    let balanced = choices.iter().find(|(name, _)| *name == "balanced");
    let rate = rates
        .iter()
        .find(|rate| balanced.is_some_and(|(_, choice)| choice.rate == rate.text));
    let Some(rate) = rate else { return Vec::new() };
    let mut needs: Vec<(u64, usize)> = Vec::new();
    for (place, key) in by_key.keys.iter().enumerate() {
        if key.requests > 0 && !is_flood[place] {
            needs.push((key.need.burst(rate.amount, rate.period), place));
        }
    }
    needs.sort_unstable_by_key(|(burst, place)| (u64::MAX - burst, *place));
    let named = |(_, place): (u64, usize)| (words(place), by_key.keys[place].need.clone());
    needs.into_iter().take(NEAREST).map(named).collect()
}

/// How many keys each rate and burst refuses.
fn map(by_key: &ByKey<'_>, rates: &[Rate], frontier: &[Corner]) -> Map {
    let mut rates = rates.to_vec();
    rates.sort_by(|one, other| one.faster_than(other));
    let most = frontier
        .iter()
        .map(|corner| corner.burst)
        .max()
        .unwrap_or(1);
    let bursts: Vec<u64> = ladder().take_while(|burst| *burst / 3 <= most).collect();
    let mut refused = vec![vec![0; rates.len()]; bursts.len()];
    for key in by_key.keys.iter().filter(|key| key.requests > 0) {
        for (column, rate) in rates.iter().enumerate() {
            let need = key.need.burst(rate.amount, rate.period);
            let above = bursts.partition_point(|burst| *burst < need);
            for row in refused.iter_mut().take(above) {
                row[column] += 1;
            }
        }
    }
    Map {
        rates,
        bursts,
        refused,
    }
}

/// 1, 2, 5, 10, 20, …
fn ladder() -> impl Iterator<Item = u64> {
    let tens = (0..15).map(|power| 10_u64.pow(power));
    tens.flat_map(|ten| [ten, 2 * ten, 5 * ten])
}

/// From one a minute up to the busiest second of the log.
fn usual_rates(busiest: u64) -> Vec<Rate> {
    let rate = |amount: u64, unit: &str, period| Rate {
        text: format!("{amount}/{unit}"),
        amount,
        period,
    };
    let minutes = [1, 2, 5, 10, 20, 30].map(|amount| rate(amount, "minute", MINUTE));
    let top = busiest.max(100);
    let seconds = ladder()
        .take_while(|amount| *amount <= top)
        .map(|amount| rate(amount, "second", MINUTE / 60));
    minutes.into_iter().chain(seconds).collect()
}

impl Rate {
    /// What stamps that are off by `blur` microseconds make of a burst.
    fn bar(&self, blur: u64) -> u64 {
        let units = u128::from(self.amount) * u128::from(blur);
        u64::try_from(units.div_ceil(u128::from(self.period.max(1)))).unwrap_or(u64::MAX)
    }

    /// The most units in any minute.
    fn per_minute(&self, burst: u64) -> u64 {
        let units = u128::from(self.amount) * u128::from(MINUTE) / u128::from(self.period.max(1));
        u64::try_from(units)
            .unwrap_or(u64::MAX)
            .saturating_add(burst)
    }

    fn faster_than(&self, other: &Self) -> std::cmp::Ordering {
        let one = u128::from(self.amount) * u128::from(other.period);
        one.cmp(&(u128::from(other.amount) * u128::from(self.period)))
    }
}

impl Suggestion {
    /// The choice of this name.
    pub fn choice(&self, name: &str) -> Option<&Choice> {
        self.choices
            .iter()
            .find(|(given, _)| *given == name)
            .map(|(_, choice)| choice)
    }

    /// What the numbers rest on, in words: a line each.
    pub fn evidence(&self, survey: &Survey) -> Vec<String> {
        let mut lines = vec![format!(
            "From {} requests of {} keys, {} to {} ({} days); stamps are exact to {}.",
            grouped(self.requests),
            grouped(self.keys),
            moment(survey.from),
            moment(survey.to),
            self.days(),
            tollgate_limit::words::span(tollgate_limit::Micros(self.blur.max(1)))
        )];
        let counted = |number: u64, one: &str| {
            let ending = if number == 1 { "" } else { "s" };
            format!("{} {one}{ending}", grouped(number))
        };
        for (name, choice) in &self.choices {
            lines.push(format!(
                "{name}: {} with burst {} refuses {} and {}",
                choice.rate,
                choice.burst,
                counted(choice.keys_refused, "key"),
                counted(choice.requests_refused, "request")
            ));
        }
        for (key, why) in self.floods.iter().take(3) {
            lines.push(format!("flood, not counted in: {}: {why}", printable(key)));
        }
        lines
    }

    fn days(&self) -> String {
        let tenths = self.span * 10 / (86_400 * 1_000_000);
        format!("{}.{}", tenths / 10, tenths % 10)
    }

    /// The suggestion for programs.
    pub fn document(&self, survey: &Survey, toml: &str) -> Value {
        let corners = |corners: &[Corner]| -> Value {
            let corner = |corner: &Corner| json!({ "rate": corner.rate.text, "burst": corner.burst, "bar": corner.bar });
            corners.iter().map(corner).collect()
        };
        let mut document = head(survey, &survey.warnings);
        document["per"] = self.per.as_str().into();
        document["keys"] = self.keys.into();
        document["equal_costs"] = self.equal_costs.into();
        document["frontier"] = corners(&self.frontier);
        document["frontier_without_floods"] = corners(&self.frontier_without_floods);
        if !self.frontier_admitted.is_empty() {
            document["frontier_admitted"] = corners(&self.frontier_admitted);
        }
        document["floods"] = self
            .floods
            .iter()
            .map(|(key, why)| json!({ "key": key, "why": why }))
            .collect();
        document["flood_rule"] = floods::RULE.into();
        document["choices"] = json!({});
        for (name, choice) in &self.choices {
            document["choices"][*name] = json!({
                "rate": choice.rate,
                "burst": choice.burst,
                "keys_refused": choice.keys_refused,
                "requests_refused": choice.requests_refused,
                "most_per_minute": choice.per_minute,
                "evidence": {
                    "days": self.days().parse::<f64>().unwrap_or_default(),
                    "resolution_ms": self.blur.div_ceil(1_000),
                    "bar": choice.bar,
                },
            });
        }
        document["toml"] = toml.into();
        document
    }

    /// The suggestion for people.
    pub fn text(&self, survey: &Survey, toml: &str) -> String {
        let mut text = read_words(survey);
        let _ = writeln!(
            text,
            "\n{} keys ({}), {} requests",
            grouped(self.keys),
            self.per,
            grouped(self.requests)
        );
        let _ = writeln!(
            text,
            "\nThe least burst with which nobody is refused\n{:>14} {:>12} {:>14} {:>8}{}",
            "rate",
            "burst",
            "without floods",
            "bar",
            if self.frontier_admitted.is_empty() {
                ""
            } else {
                "  of what was admitted then"
            }
        );
        for (place, (all, without)) in self
            .frontier
            .iter()
            .zip(&self.frontier_without_floods)
            .enumerate()
        {
            let _ = write!(
                text,
                "{:>14} {:>12} {:>14} {:>8}",
                all.rate.text,
                grouped(all.burst),
                grouped(without.burst),
                format!("±{}", grouped(all.bar))
            );
            if let Some(admitted) = self.frontier_admitted.get(place) {
                let _ = write!(text, " {:>26}", grouped(admitted.burst));
            }
            text.push('\n');
        }
        for (key, why) in &self.floods {
            let _ = writeln!(text, "\nflood {}: {why}", printable(key));
        }
        let _ = writeln!(
            text,
            "\n{:>9} {:>14} {:>8} {:>13} {:>17} {:>15}",
            "", "rate", "burst", "keys refused", "requests refused", "most in a minute"
        );
        for (name, choice) in &self.choices {
            let _ = writeln!(
                text,
                "{name:>9} {:>14} {:>8} {:>13} {:>17} {:>15}",
                choice.rate,
                grouped(choice.burst),
                grouped(choice.keys_refused),
                grouped(choice.requests_refused),
                choice.per_minute.map_or_else(|| "-".to_owned(), grouped)
            );
        }
        if !self.equal_costs {
            text.push_str("\nRequests cost unlike amounts: with them the number refused need not fall as a burst grows; each line above was simulated.\n");
        }
        let _ = write!(text, "\n{}\n{toml}", crate::picture::map(self));
        text
    }
}

const MINUTE: u64 = 60_000_000;
const NEAREST: usize = 10;

//! Numbers for a limit, from what the keys of a log needed: the exact frontier, and three choices on it.

mod words;

use crate::floods::floods;
use crate::hull::Need;
use crate::keys::{ByKey, Requests, by_key};
use crate::replay::Traffic;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The rates of the frontier; empty: the usual ones.
    pub rates: Vec<Rate>,
    /// The share of keys that `tight` may refuse, in millionths.
    pub refuse: u64,
    /// The limit's place among the rules of the policy.
    pub rule: usize,
    pub today: Option<Today>,
}

/// A limit's numbers now, and what they do to the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Today {
    /// Its rate as written; empty where the file says it otherwise.
    pub rate: String,
    pub burst: u64,
    pub words: String,
    pub per_minute: Option<u64>,
    pub counts: crate::Counts,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Suggestion {
    pub per: String,
    pub keys: u64,
    pub requests: u64,
    /// The least burst at each rate with which no request is refused.
    pub frontier: Vec<Corner>,
    pub frontier_without_floods: Vec<Corner>,
    /// The frontier of the requests that a limiter had admitted when the log was written; empty: it had refused none.
    pub frontier_admitted: Vec<Corner>,
    pub floods: Vec<(String, String)>,
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
    pub rates: Vec<Rate>,
    pub bursts: Vec<u64>,
    pub refused: Vec<Vec<u64>>,
}

/// The burst that one rate takes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corner {
    pub rate: Rate,
    /// The least burst with which no request is refused, by the stamps of the log.
    pub burst: u64,
    /// What the stamps may be off by: the true burst is within this of it.
    pub bar: u64,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Choice {
    pub rate: String,
    pub burst: u64,
    pub keys_refused: u64,
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
    let pick = |burst: &dyn Fn(&Corner) -> u64| {
        let mut corners = corners.iter();
        corners.position(|corner| fits(&corner.rate, burst(corner)))
    };
    let safe = |corner: &Corner| corner.burst.saturating_add(corner.bar).max(1);
    let quantile = |corner: &Corner| {
        let rate = &corner.rate;
        let keys = by_key.keys.iter().zip(is_flood);
        let ordinary = keys.filter(|(key, is_flood)| !**is_flood && key.requests > 0);
        let bursts = ordinary.map(|(key, _)| key.need.burst(rate.amount, rate.period));
        let mut bursts: Vec<u64> = bursts.collect();
        bursts.sort_unstable();
        let lost = u128::from(refuse) * (bursts.len() as u128) / 1_000_000;
        let lost = usize::try_from(lost).unwrap_or(0);
        let place = bursts.len().saturating_sub(lost + 1);
        bursts.get(place).copied().unwrap_or(1).max(1)
    };
    let Some(last) = corners.len().checked_sub(1) else {
        return Vec::new();
    };
    let (tight, balanced) = (pick(&quantile).unwrap_or(last), pick(&safe).unwrap_or(last));
    let loose = (balanced + 1).min(last);
    let (low, middle) = (quantile(corners[tight]), safe(corners[balanced]));
    let rate = |place: usize| corners[place].rate.clone();
    vec![
        ("tight", rate(tight), low),
        ("balanced", rate(balanced), middle),
        ("loose", rate(loose), middle.saturating_mul(2)),
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
    let is_chosen = |rate: &&Rate| balanced.is_some_and(|(_, choice)| choice.rate == rate.text);
    let rate = rates.iter().find(is_chosen);
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
    let most = frontier.iter().map(|corner| corner.burst).max();
    let most = most.unwrap_or(1);
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

impl Suggestion {
    pub fn choice(&self, name: &str) -> Option<&Choice> {
        let found = self.choices.iter().find(|(given, _)| *given == name);
        found.map(|(_, choice)| choice)
    }

    /// The frontier's corners, each with that without floods and that of what was admitted then.
    pub(crate) fn corners(&self) -> impl Iterator<Item = (&Corner, &Corner, Option<&Corner>)> {
        let corners = self.frontier.iter().zip(&self.frontier_without_floods);
        let admitted = self.frontier_admitted.iter().map(Some);
        let admitted = admitted.chain(std::iter::repeat(None));
        corners
            .zip(admitted)
            .map(|((all, without), admitted)| (all, without, admitted))
    }
}

const NEAREST: usize = 10;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rate {
    pub text: String,
    pub amount: u64,
    pub period: u64,
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

const MINUTE: u64 = 60_000_000;

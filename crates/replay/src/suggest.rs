//! Numbers for a limit, from what the keys of a log needed: the exact frontier, and three choices on it.

mod words;

use crate::floods::floods;
use crate::keys::ByKey;
use crate::replay::Traffic;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// The rates of the frontier; empty: the usual ones.
    pub rates: Vec<Rate>,
    /// The share of keys that `tight` may refuse, in millionths.
    pub refuse: u64,
    /// The limit's place among the rules of the policy.
    pub rule: usize,
    /// The limit's numbers now, and what they do to the log.
    pub today: Option<Choice>,
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
    /// The bursts of the ten keys that need most, without floods, at the rates of the map: a picture's lines.
    pub nearest: Vec<(String, Vec<u64>)>,
    /// The map of a picture: at every rate and burst how many keys are refused.
    pub map: Map,
    /// The length of the log, microseconds.
    pub span: u64,
    /// What a difference of two moments may be off by, microseconds.
    pub blur: u64,
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
    /// As the file writes it; empty where it says it otherwise.
    pub rate: String,
    pub burst: u64,
    pub keys_refused: u64,
    pub requests_refused: u64,
    /// The most units it admits in any minute.
    pub per_minute: Option<u64>,
    /// What the stamps may be off by.
    pub bar: u64,
}

/// Works a limit's numbers out.
pub fn suggest(traffic: &Traffic<'_>, per: &str, ask: Ask) -> Result<Suggestion, String> {
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
    let is_censored = traffic.survey.recorded_refused > 0;
    let by_key = ByKey::of(traffic, ask.rule)?;
    if by_key.draws.is_empty() {
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
    let at_rate = |rate| AtRate::new(&by_key, &is_flood, rate, ask.refuse, is_censored);
    let mut needs: Vec<AtRate> = rates.iter().map(at_rate).collect();
    let frontier = |burst: fn(&AtRate) -> Option<u64>| -> Vec<Corner> {
        let corner = |at: &AtRate| {
            Some(Corner {
                rate: at.rate.clone(),
                burst: burst(at)?,
                bar: at.rate.bar(blur),
            })
        };
        needs.iter().filter_map(corner).collect()
    };
    let all = frontier(|at| Some(at.all));
    let without = frontier(|at| Some(at.ordinary));
    let admitted = frontier(|at| at.admitted);
    needs.sort_by(|one, other| one.rate.faster_than(&other.rate));
    let chosen = choose(&needs, blur);
    let mut choices: Vec<(&'static str, Choice)> = Vec::new();
    for (name, rate, burst) in chosen {
        let (keys_refused, requests_refused) = by_key.refused(&rate, burst);
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
    choices.extend(ask.today.map(|today| ("today", today)));
    Ok(Suggestion {
        per: per.to_owned(),
        keys: by_key.keys.iter().filter(|key| key.requests > 0).count() as u64,
        requests: by_key.draws.len() as u64,
        floods: floods
            .iter()
            .map(|flood| (words(flood.key), flood.why.clone()))
            .collect(),
        nearest: nearest(&by_key, &is_flood, &choices, &needs, words),
        map: map(&needs),
        frontier: all,
        frontier_without_floods: without,
        frontier_admitted: admitted,
        choices,
        span,
        blur,
        equal_costs: by_key
            .draws
            .windows(2)
            .all(|two| two[0].cost == two[1].cost),
    })
}

/// What the keys need at one rate.
struct AtRate {
    rate: Rate,
    /// The least burst with which no request is refused.
    all: u64,
    /// The same without floods.
    ordinary: u64,
    /// The same of the requests that a limiter had admitted; `None`: it had refused none.
    admitted: Option<u64>,
    /// The least burst with which no more ordinary keys lose requests than may.
    tight: u64,
    /// How many keys each burst of the ladder refuses.
    refused: Vec<u64>,
}

impl AtRate {
    fn new(by_key: &ByKey, is_flood: &[bool], rate: &Rate, refuse: u64, is_censored: bool) -> Self {
        let mut bursts = by_key.bursts(rate, false);
        let keys = by_key.keys.iter().zip(is_flood).zip(&bursts);
        let ordinary = keys.filter(|((key, is_flood), _)| key.requests > 0 && !**is_flood);
        let mut ordinary: Vec<u64> = ordinary.map(|(_, need)| *need).collect();
        ordinary.sort_unstable();
        bursts.sort_unstable();
        let served = |burst| bursts.partition_point(|need| *need <= burst);
        let refused = ladder().map(|burst| (bursts.len() - served(burst)) as u64);
        let refused = refused.collect();
        let lost = u128::from(refuse) * (ordinary.len() as u128) / 1_000_000;
        let place = ordinary
            .len()
            .saturating_sub(usize::try_from(lost).unwrap_or(0) + 1);
        Self {
            rate: rate.clone(),
            all: bursts.last().copied().unwrap_or(0),
            ordinary: ordinary.last().copied().unwrap_or(0),
            admitted: is_censored.then(|| by_key.bursts(rate, true).into_iter().max().unwrap_or(0)),
            tight: ordinary.get(place).copied().unwrap_or(1).max(1),
            refused,
        }
    }
}

/// Rate and burst of each choice. A rate is chosen by what burst it takes: the slowest whose burst is at most what it
/// yields in a minute.
fn choose(needs: &[AtRate], blur: u64) -> Vec<(&'static str, Rate, u64)> {
    let fits = |rate: &Rate, burst: u64| {
        u128::from(burst) * u128::from(rate.period) <= u128::from(rate.amount) * u128::from(MINUTE)
    };
    let safe = |at: &AtRate| at.ordinary.saturating_add(at.rate.bar(blur)).max(1);
    let Some(last) = needs.len().checked_sub(1) else {
        return Vec::new();
    };
    let tight = needs.iter().position(|at| fits(&at.rate, at.tight));
    let balanced = needs.iter().position(|at| fits(&at.rate, safe(at)));
    let (tight, balanced) = (&needs[tight.unwrap_or(last)], balanced.unwrap_or(last));
    let loose = &needs[(balanced + 1).min(last)];
    let balanced = &needs[balanced];
    vec![
        ("tight", tight.rate.clone(), tight.tight),
        ("balanced", balanced.rate.clone(), safe(balanced)),
        (
            "loose",
            loose.rate.clone(),
            safe(balanced).saturating_mul(2),
        ),
    ]
}

/// The ten keys that need most at the rate of `balanced`, floods left out.
fn nearest(
    by_key: &ByKey,
    is_flood: &[bool],
    choices: &[(&str, Choice)],
    needs: &[AtRate],
    words: impl Fn(usize) -> String,
) -> Vec<(String, Vec<u64>)> {
    let balanced = choices.iter().find(|(name, _)| *name == "balanced");
    let is_chosen = |at: &&AtRate| balanced.is_some_and(|(_, choice)| choice.rate == at.rate.text);
    let Some(chosen) = needs.iter().find(is_chosen) else {
        return Vec::new();
    };
    let bursts = by_key.bursts(&chosen.rate, false);
    let is_ordinary = |key: &usize| by_key.keys[*key].requests > 0 && !is_flood[*key];
    let mut keys: Vec<usize> = (0..bursts.len()).filter(is_ordinary).collect();
    keys.sort_by_key(|key| std::cmp::Reverse(bursts[*key]));
    keys.truncate(NEAREST);
    let mut nearest: Vec<_> = keys.iter().map(|key| (words(*key), Vec::new())).collect();
    for at in needs {
        let bursts = by_key.bursts(&at.rate, false);
        for (key, (_, of_key)) in keys.iter().zip(&mut nearest) {
            of_key.push(bursts[*key]);
        }
    }
    nearest
}

fn map(needs: &[AtRate]) -> Map {
    let most = needs.iter().map(|at| at.all).max().unwrap_or(1);
    let bursts: Vec<u64> = ladder().take_while(|burst| *burst / 3 <= most).collect();
    let row = |row: usize| needs.iter().map(|at| at.refused[row]).collect();
    Map {
        rates: needs.iter().map(|at| at.rate.clone()).collect(),
        refused: (0..bursts.len()).map(row).collect(),
        bursts,
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

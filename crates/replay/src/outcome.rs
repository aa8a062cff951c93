//! What came of a replay: by limit and key, between two policies, over time.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::classes::Class;
use crate::keys::Window;
use crate::replay::{Judgement, Traffic};
use crate::report::counted;
use crate::subject::Subject;

#[derive(Debug, Default)]
pub struct Outcome {
    /// The limits of the candidate, in the order of its file.
    pub limits: Vec<LimitOutcome>,
    pub admitted: u64,
    pub refused: u64,
    /// Requests whose verdict is in the log, and how many of them the candidate judges otherwise.
    pub recorded: Recorded,
    /// Compared with a second policy.
    pub against: Option<Against>,
    /// Admitted and refused, in steps of `step` microseconds from the log's beginning.
    pub series: Vec<[u64; 2]>,
    pub step: u64,
    pub warnings: Vec<String>,
    from: u64,
    stats: Vec<RuleStats>,
    newly: [BTreeMap<(u32, u32), u64>; 2],
}

/// What Tollgate's own log says of its requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Recorded {
    pub admitted: u64,
    pub refused: u64,
    /// Of these, how many the candidate judges otherwise.
    pub differ: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct LimitOutcome {
    pub name: String,
    /// Why it was not judged; `None`: it was.
    #[serde(skip)]
    pub not_judged: Option<String>,
    pub mode: &'static str,
    pub words: String,
    /// Requests that its buckets could pay, and those they could not.
    #[serde(flatten)]
    pub counts: Counts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Counts>,
    /// The most units of the busiest key in any second and any minute.
    pub peak: Peak,
    /// The keys that lost most.
    pub top: Vec<Key>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    pub admitted: u64,
    pub refused: u64,
    pub keys: u64,
    pub keys_refused: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Peak {
    pub per_second: u64,
    pub per_minute: u64,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Key {
    pub key: String,
    pub requests: u64,
    pub refused: u64,
}

/// What the candidate judges otherwise than the policy it is compared with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Against {
    /// Refused by the candidate only.
    pub newly_refused: Change,
    /// Refused by the other only.
    pub newly_admitted: Change,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Change {
    pub keys: u64,
    pub requests: u64,
    /// The ten keys with most of them.
    pub examples: Vec<Example>,
}

impl Change {
    pub(crate) fn words(&self) -> String {
        let (requests, keys) = (counted(self.requests, "request"), counted(self.keys, "key"));
        format!("{requests} of {keys}")
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Example {
    pub limit: String,
    pub key: String,
    pub requests: u64,
}

#[derive(Debug)]
struct RuleStats {
    live: Vec<KeyStats>,
    candidate: Vec<KeyStats>,
    second: Window,
    minute: Window,
}

impl RuleStats {
    fn new() -> Self {
        Self {
            live: Vec::new(),
            candidate: Vec::new(),
            second: Window::of(1_000_000),
            minute: Window::of(60_000_000),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct KeyStats {
    requests: u64,
    refused: u64,
}

impl Outcome {
    pub(crate) fn new(traffic: &Traffic<'_>) -> Self {
        let span = traffic.survey.to.saturating_sub(traffic.survey.from);
        // Steps of whole seconds, at most a few hundred of them.
        let step = (span / SERIES + 1).div_ceil(1_000_000) * 1_000_000;
        let steps = usize::try_from(span / step + 1).unwrap_or(1);
        let rules = traffic
            .subjects
            .first()
            .map_or(0, |subject| subject.policy.rules.len());
        Self {
            series: vec![[0; 2]; steps],
            step,
            from: traffic.survey.from,
            stats: (0..rules).map(|_| RuleStats::new()).collect(),
            against: (traffic.subjects.len() > 1).then(Against::default),
            ..Self::default()
        }
    }

    pub(crate) fn count(&mut self, class: &Class, verdict: &Judgement, at: u64) {
        self.admitted += u64::from(verdict.admitted);
        self.refused += u64::from(!verdict.admitted);
        let step = usize::try_from((at - self.from) / self.step).unwrap_or(usize::MAX);
        if let Some(counts) = self.series.get_mut(step) {
            counts[usize::from(!verdict.admitted)] += 1;
        }
        if let Some(recorded) = class.recorded {
            self.recorded.admitted += u64::from(recorded);
            self.recorded.refused += u64::from(!recorded);
            self.recorded.differ += u64::from(recorded != verdict.admitted);
        }
        let mut last = None;
        for (charge, paid) in class.sides[0].charges.iter().zip(&verdict.paid) {
            let Some(paid) = *paid else { continue };
            let stats = &mut self.stats[charge.rule as usize];
            // The candidate follows its limit.
            let keys = if last.replace(charge.rule) == Some(charge.rule) {
                &mut stats.candidate
            } else {
                stats.second.add(at, charge.key, charge.cost);
                stats.minute.add(at, charge.key, charge.cost);
                &mut stats.live
            };
            let stats = at_least(keys, charge.key as usize);
            stats.requests += 1;
            stats.refused += u64::from(!paid);
        }
    }

    pub(crate) fn compare(&mut self, class: &Class, admitted: &[bool]) {
        let (Some(against), [candidate, live]) = (&mut self.against, admitted) else {
            return;
        };
        let (change, place) = match (candidate, live) {
            (false, true) => (&mut against.newly_refused, 0),
            (true, false) => (&mut against.newly_admitted, 1),
            _ => return,
        };
        change.requests += 1;
        // By the key of the first limit that the one who refuses would enforce.
        let charges = &class.sides[place].charges;
        let enforced = charges.iter().find(|charge| charge.enforced);
        if let Some(charge) = enforced.or(charges.first()) {
            let key = (charge.rule, charge.key);
            *self.newly[place].entry(key).or_default() += 1;
        }
    }

    pub(crate) fn finish(&mut self, traffic: &Traffic<'_>) {
        let survey = &traffic.survey;
        self.warnings = survey.warnings.clone();
        let Some(subject) = traffic.subjects.first() else {
            return;
        };
        for rule in 0..subject.policy.rules.len() {
            let limit = self.limit(rule, subject, traffic);
            self.limits.push(limit);
        }
        if let Some(against) = &mut self.against {
            let changes = [&mut against.newly_refused, &mut against.newly_admitted];
            for (place, change) in changes.into_iter().enumerate() {
                let subject = &traffic.subjects[place];
                let mut keys: Vec<_> = std::mem::take(&mut self.newly[place]).into_iter().collect();
                change.keys = keys.len() as u64;
                keys.sort_by_key(|(key, requests)| (u64::MAX - requests, *key));
                let words = |((rule, key), requests): ((u32, u32), u64)| {
                    let rule = rule as usize;
                    Example {
                        limit: subject.policy.rules[rule].name.to_string(),
                        key: subject.key_words(rule, key, &traffic.names),
                        requests,
                    }
                };
                change.examples = keys.into_iter().take(EXAMPLES).map(words).collect();
            }
        }
        crate::lint::lint(self, traffic);
    }

    fn limit(&self, rule: usize, subject: &Subject<'_>, traffic: &Traffic<'_>) -> LimitOutcome {
        let file = &subject.policy.rules[rule];
        let stats = &self.stats[rule];
        let mut lost: Vec<(usize, &KeyStats)> = stats.live.iter().enumerate().collect();
        lost.retain(|(_, key)| key.refused > 0);
        lost.sort_by_key(|(place, key)| (u64::MAX - key.refused, *place));
        let top = lost.into_iter().take(EXAMPLES).map(|(place, key)| {
            let number = u32::try_from(place).unwrap_or(u32::MAX);
            Key {
                key: subject.key_words(rule, number, &traffic.names),
                requests: key.requests,
                refused: key.refused,
            }
        });
        LimitOutcome {
            name: file.name.to_string(),
            not_judged: subject.not_judged(rule, &traffic.survey),
            mode: match file.live.mode {
                tollgate_limit::Mode::Enforce => "enforce",
                tollgate_limit::Mode::Shadow => "shadow",
                tollgate_limit::Mode::Off => "off",
            },
            words: file.live.words(),
            counts: Counts::of(&stats.live),
            candidate: file
                .candidate
                .is_some()
                .then(|| Counts::of(&stats.candidate)),
            peak: Peak {
                per_second: stats.second.most,
                per_minute: stats.minute.most,
            },
            top: top.collect(),
        }
    }
}

impl LimitOutcome {
    /// The figures of a table: admitted, refused, keys, keys refused, and the peaks in a second and a minute.
    pub(crate) const fn figures(&self) -> [u64; 6] {
        let (counts, peak) = (&self.counts, &self.peak);
        [
            counts.admitted,
            counts.refused,
            counts.keys,
            counts.keys_refused,
            peak.per_second,
            peak.per_minute,
        ]
    }
}

impl Counts {
    fn of(keys: &[KeyStats]) -> Self {
        let mut counts = Self::default();
        for key in keys.iter().filter(|key| key.requests > 0) {
            counts.admitted += key.requests - key.refused;
            counts.refused += key.refused;
            counts.keys += 1;
            counts.keys_refused += u64::from(key.refused > 0);
        }
        counts
    }
}

/// The element at `place`, made where it is missing.
pub(crate) fn at_least<T: Clone + Default>(list: &mut Vec<T>, place: usize) -> &mut T {
    if list.len() <= place {
        list.resize(place + 1, T::default());
    }
    &mut list[place]
}

const EXAMPLES: usize = 10;
/// Steps of the picture over time, at most.
const SERIES: u64 = 240;

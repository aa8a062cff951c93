//! The files of envoyproxy/ratelimit: a domain with a tree of descriptors.
//!
//! [`read`] returns every mistake with its place. The configuration refuses a file with a mistake;
//! an import goes on without the part that has it.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use crate::reading::nearest;
use crate::yaml::{self, Node, Value, YamlError, boolean};
use tollgate_limit::Micros;

pub const DEEPEST: usize = 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimitFile {
    pub domain: String,
    pub place: Position,
    pub descriptors: Vec<Descriptor>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Descriptor {
    pub key: String,
    pub value: Option<String>,
    pub rate_limit: Option<RateLimit>,
    /// Whether its limit never refuses.
    pub shadow_mode: bool,
    /// Whether its limit refuses only together with all other such limits.
    pub quota_mode: bool,
    /// Whether all values that it matches share one bucket.
    pub share_threshold: bool,
    pub descriptors: Vec<Descriptor>,
    pub place: Position,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Its name, by which other limits replace it.
    pub name: Option<String>,
    pub replaces: Vec<String>,
    pub quota: Quota,
    pub place: Position,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Unlimited,
    /// So many in each period; the number may be zero.
    Per {
        requests: u64,
        period: Micros,
    },
    Broken,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Position {
    pub line: usize,
    pub column: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    pub place: Position,
    /// The part of the file that cannot be used.
    pub what: String,
    pub why: String,
}

/// Reads a text, the file `name`.
pub fn read(name: &str, text: &str) -> Result<(Vec<RateLimitFile>, Vec<Mistake>), YamlError> {
    let (mut documents, mut left) = (Vec::new(), yaml::MOST);
    yaml::read(name, text, &mut left, &mut documents)?;
    Ok(of_documents(&documents))
}

/// The same of documents that have been parsed; those without a domain are left out, with a mistake.
pub fn of_documents(documents: &[Node]) -> (Vec<RateLimitFile>, Vec<Mistake>) {
    let mut mistakes = Mistakes::default();
    let files = documents
        .iter()
        .filter(|document| !matches!(document.value, Value::Null))
        .filter_map(|document| file(document, &mut mistakes))
        .collect();
    (files, mistakes.0)
}

fn file(document: &Node, mistakes: &mut Mistakes) -> Option<RateLimitFile> {
    check_keys(document, &["domain", "descriptors"], "the file", mistakes);
    let Some(domain) = text(document, "domain", mistakes) else {
        mistakes.add(document, "the file", "it has no `domain`");
        return None;
    };
    Some(RateLimitFile {
        domain,
        place: Position::of(document),
        descriptors: siblings(document, mistakes, 0),
    })
}

fn siblings(node: &Node, mistakes: &mut Mistakes, depth: usize) -> Vec<Descriptor> {
    let Some(within) = node.get("descriptors") else {
        return Vec::new();
    };
    let Value::List(list) = &within.value else {
        mistakes.add(within, "descriptors", "a list was expected");
        return Vec::new();
    };
    let mut made: Vec<Descriptor> = Vec::new();
    let mut lines: HashMap<(String, Option<String>), usize> = HashMap::new();
    for item in list {
        let Some(one) = descriptor(item, mistakes, depth) else {
            continue;
        };
        match lines.entry((one.key.clone(), one.value.clone())) {
            Entry::Occupied(first) => {
                let why = format!("line {} has the same key and value", first.get());
                mistakes.add(item, &one.words(), why);
            }
            Entry::Vacant(free) => {
                free.insert(one.place.line);
                made.push(one);
            }
        }
    }
    made
}

fn descriptor(node: &Node, mistakes: &mut Mistakes, depth: usize) -> Option<Descriptor> {
    let Some(key) = text(node, "key", mistakes) else {
        mistakes.add(node, "descriptor", "it has no key");
        return None;
    };
    let mut made = Descriptor {
        key,
        value: text(node, "value", mistakes),
        rate_limit: None,
        shadow_mode: flag(node, "shadow_mode", mistakes),
        quota_mode: flag(node, "quota_mode", mistakes),
        share_threshold: flag(node, "share_threshold", mistakes),
        descriptors: Vec::new(),
        place: Position::of(node),
    };
    let what = made.words();
    // Metrics by value and dynamic metadata change no decision.
    const KNOWN: [&str; 10] = [
        "key",
        "value",
        "rate_limit",
        "shadow_mode",
        "quota_mode",
        "share_threshold",
        "descriptors",
        "detailed_metric",
        "value_to_metric",
        "metadata",
    ];
    check_keys(node, &KNOWN, &what, mistakes);
    if depth >= DEEPEST {
        mistakes.add(node, &what, "it is nested too deep");
        return None;
    }
    if made.key.contains('*') {
        mistakes.add(
            node,
            &what,
            "`*` stands for characters of a value, not of a key",
        );
        return None;
    }
    let pattern = made
        .value
        .as_deref()
        .is_some_and(|value| value.contains('*'));
    if made.share_threshold && !pattern {
        mistakes.add(node, &what, "`share_threshold` is for values with `*`");
    }
    made.rate_limit = node
        .get("rate_limit")
        .map(|limit| rate_limit(limit, &what, mistakes));
    made.descriptors = siblings(node, mistakes, depth + 1);
    Some(made)
}

fn rate_limit(node: &Node, what: &str, mistakes: &mut Mistakes) -> RateLimit {
    const KNOWN: [&str; 5] = ["requests_per_unit", "unit", "unlimited", "name", "replaces"];
    check_keys(node, &KNOWN, what, mistakes);
    let name = text(node, "name", mistakes);
    let mut replaces = Vec::new();
    for item in node.items_at(&["replaces"]) {
        match item.text_at("name").filter(|other| !other.is_empty()) {
            Some(other) if name.as_deref() == Some(other) => {
                mistakes.add(item, what, "a limit cannot replace itself");
            }
            Some(other) => replaces.push(other.to_owned()),
            None => mistakes.add(item, what, "an entry of `replaces` is `name: NAME`"),
        }
    }
    RateLimit {
        name,
        replaces,
        quota: quota(node, what, mistakes),
        place: Position::of(node),
    }
}

fn quota(node: &Node, what: &str, mistakes: &mut Mistakes) -> Quota {
    let unit = text(node, "unit", mistakes);
    let number = text(node, "requests_per_unit", mistakes);
    if flag(node, "unlimited", mistakes) {
        if unit.is_some() {
            mistakes.add(node, what, "an unlimited limit has no unit");
        }
        return Quota::Unlimited;
    }
    let words = format!(
        "{what}: {} per {}",
        number.as_deref().unwrap_or("0"),
        unit.as_deref().unwrap_or_default()
    );
    let period = unit.as_deref().and_then(period);
    let requests = number
        .as_deref()
        .and_then(|number| number.parse::<u32>().ok());
    match (requests, period) {
        (Some(requests), Some(period)) => Quota::Per {
            requests: requests.into(),
            period,
        },
        (_, None) => {
            let why = "the unit is not one of second, minute, hour, day, week, month and year";
            mistakes.add(node, &words, why);
            Quota::Broken
        }
        (None, _) => {
            mistakes.add(
                node,
                &words,
                "`requests_per_unit` is not a number of 32 bits",
            );
            Quota::Broken
        }
    }
}

/// The units: a month has 30 days and a year 365, and all begin at multiples since 1970.
fn period(unit: &str) -> Option<Micros> {
    const DAY: u64 = 86_400;
    Some(Micros::from_secs(match &*unit.to_ascii_lowercase() {
        "second" => 1,
        "minute" => 60,
        "hour" => 3_600,
        "day" => DAY,
        "week" => 7 * DAY,
        "month" => 30 * DAY,
        "year" => 365 * DAY,
        _ => return None,
    }))
}

impl Descriptor {
    /// What messages call it: `descriptor KEY=VALUE`.
    pub fn words(&self) -> String {
        match &self.value {
            Some(value) => format!("descriptor {}={value}", self.key),
            None => format!("descriptor {}", self.key),
        }
    }
}

impl Position {
    fn of(node: &Node) -> Self {
        Self {
            line: node.line,
            column: node.column,
        }
    }
}

#[derive(Default)]
struct Mistakes(Vec<Mistake>);

impl Mistakes {
    fn add(&mut self, node: &Node, what: &str, why: impl Into<String>) {
        self.0.push(Mistake {
            place: Position::of(node),
            what: what.to_owned(),
            why: why.into(),
        });
    }
}

fn text(node: &Node, key: &str, mistakes: &mut Mistakes) -> Option<String> {
    let member = node.get(key)?;
    if member.text().is_none() {
        mistakes.add(member, key, "a single value was expected");
    }
    let text = member.text().filter(|text| !text.is_empty());
    text.map(str::to_owned)
}

fn flag(node: &Node, key: &str, mistakes: &mut Mistakes) -> bool {
    let Some(member) = node.get(key) else {
        return false;
    };
    let value = member.text().and_then(boolean);
    if value.is_none() {
        mistakes.add(member, key, "`true` or `false` was expected");
    }
    value.unwrap_or_default()
}

fn check_keys(node: &Node, known: &[&str], what: &str, mistakes: &mut Mistakes) {
    if !matches!(node.value, Value::Map(_)) {
        mistakes.add(node, what, "a mapping was expected");
    }
    for (key, member) in node.entries() {
        if !known.contains(&key.as_str()) {
            let why = match nearest(key, known.iter().copied()) {
                Some(near) => format!("unknown key `{key}`; did you mean `{near}`?"),
                None => format!("unknown key `{key}`"),
            };
            mistakes.add(member, what, why);
        }
    }
}

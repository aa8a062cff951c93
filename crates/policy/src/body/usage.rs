//! What a response says that it used: numbers of its body, each with a weight, and the kinds of
//! tokens that language models state.
//!
//! A format may state a number that contains another one (OpenAI's prompt tokens contain the cached
//! ones), or both beside each other (Anthropic's do not). Each token is counted once, by its own kind.

use std::sync::Arc;

use smallvec::SmallVec;

use super::json::{PathSet, Paths};

mod formats;

pub use formats::OutputMembers;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum TokenKind {
    /// Read from the request, neither from a cache nor into one.
    #[default]
    Input,
    CachedInput,
    CacheWrite,
    Output,
    /// Thought by the model, and not shown.
    Reasoning,
}

impl TokenKind {
    /// All of them, in the order of [`Weights`].
    pub const ALL: [Self; 5] = [
        Self::Input,
        Self::CachedInput,
        Self::CacheWrite,
        Self::Output,
        Self::Reasoning,
    ];

    pub const fn words(self) -> &'static str {
        match self {
            Self::Input => "input",
            Self::CachedInput => "cached_input",
            Self::CacheWrite => "cache_write",
            Self::Output => "output",
            Self::Reasoning => "reasoning",
        }
    }
}

/// What a token of each kind costs, in the order of [`TokenKind::ALL`].
pub type Weights = [u64; TokenKind::ALL.len()];

/// Units that a reservation holds for a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerToken {
    /// For each that the request allows the model to write.
    pub output: u64,
    /// For each of its body.
    pub input: u64,
}

impl PerToken {
    /// A unit for every token.
    pub const ONE: Self = Self {
        output: 1,
        input: 1,
    };

    pub fn greatest(self) -> u64 {
        self.output.max(self.input)
    }
}

impl Default for PerToken {
    fn default() -> Self {
        Self::ONE
    }
}

/// One number of a response, or several of which the largest counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    /// The members that state it, by their places in the paths.
    places: SmallVec<[usize; 4]>,
    pub(crate) kind: TokenKind,
    /// Units for each, if there is no price.
    weight: u64,
    /// The part, by its place in the same format, that contains this one.
    inside: Option<usize>,
}

/// A way to state what was used. It holds for a response that has one of its signs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Format {
    parts: Vec<Part>,
    /// The members by which it is recognised, by their places in the paths.
    signs: Vec<usize>,
    /// The members that state the total, by their places in the paths. What it has beyond all parts
    /// was reasoning, which some servers state beside the output.
    totals: Vec<usize>,
}

/// How a response states its cost in its body.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    paths: Arc<Paths>,
    /// The first that a response has a sign of holds.
    formats: Vec<Format>,
    /// Names of the events that end a stream.
    last_events: &'static [&'static str],
    /// The most units that a token of a request's output, and of its body, may come to.
    pub reserved: PerToken,
    /// The members that name the model, where they are read.
    models: PathSet,
    words: String,
}

/// The members in which responses name their model: at their outermost level, in the events of
/// OpenAI's responses and of Anthropic's messages.
const MODELS: [&str; 3] = ["model", "response.model", "message.model"];

/// The names that lead to a member, which are joined by dots.
fn path(member: &str) -> Vec<String> {
    member.split('.').map(str::to_owned).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Number {
    /// The members that state it, of which the largest counts.
    pub paths: Vec<Vec<String>>,
    pub kind: TokenKind,
    pub weight: u64,
    /// Another number, by its place in the list, that contains this one.
    pub inside: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preset {
    OpenAi,
    Anthropic,
}

impl Usage {
    pub fn one(path: Vec<String>) -> Self {
        let number = Number {
            paths: vec![path],
            kind: TokenKind::Input,
            weight: 1,
            inside: None,
        };
        // One path always has room.
        Self::of_numbers(&[number]).unwrap_or_default()
    }

    /// The sum of these numbers; `None`: they have too many paths.
    pub fn of_numbers(numbers: &[Number]) -> Option<Self> {
        let mut usage = Self::default();
        let mut format = Format::default();
        for number in numbers {
            let part = usage.part(number)?;
            format.signs.extend(part.places.iter().copied());
            format.parts.push(part);
        }
        usage.formats.push(format);
        let words = usage.paths.words().join(" + ");
        // The file need not say which of the numbers the request bounds.
        let greatest = numbers.iter().map(|number| number.weight).max();
        let greatest = greatest.unwrap_or(1);
        usage.reserved = PerToken {
            output: greatest,
            input: greatest,
        };
        Some(Self { words, ..usage })
    }

    /// The tokens that these formats state, each with the weight of its kind.
    pub fn of_presets(presets: &[Preset], weights: &Weights) -> Self {
        let mut usage = Self::default();
        let has = |preset| presets.contains(&preset);
        for known in formats::KNOWN.iter().filter(|known| has(known.preset)) {
            let format = usage.known(known, weights);
            usage.formats.extend(format);
        }
        usage.last_events = match (has(Preset::OpenAi), has(Preset::Anthropic)) {
            (true, true) => &formats::LAST_EVENTS,
            (true, false) => &formats::LAST_EVENTS[..formats::LAST_OF_OPENAI],
            (false, _) => &formats::LAST_EVENTS[formats::LAST_OF_OPENAI..],
        };
        let [input, cached_input, cache_write, output, reasoning] = *weights;
        usage.reserved = PerToken {
            output: output.max(reasoning),
            input: input.max(cached_input).max(cache_write),
        };
        let names: Vec<&str> = presets.iter().map(|preset| preset.words()).collect();
        usage.words = format!("the tokens of {}", names.join(" and "));
        usage
    }

    fn known(&mut self, known: &formats::KnownFormat, weights: &Weights) -> Option<Format> {
        let mut format = Format::default();
        for (kind, inside, members) in known.parts {
            let number = Number {
                paths: members.iter().map(|member| path(member)).collect(),
                kind: *kind,
                weight: weights[*kind as usize],
                inside: *inside,
            };
            format.parts.push(self.part(&number)?);
        }
        for (members, places) in [
            (known.signs, &mut format.signs),
            (known.totals, &mut format.totals),
        ] {
            for member in members {
                places.push(Arc::make_mut(&mut self.paths).add(&path(member))?);
            }
        }
        Some(format)
    }

    fn part(&mut self, number: &Number) -> Option<Part> {
        let paths = Arc::make_mut(&mut self.paths);
        let places: Option<_> = number.paths.iter().map(|path| paths.add(path)).collect();
        Some(Part {
            places: places?,
            kind: number.kind,
            weight: number.weight,
            inside: number.inside,
        })
    }

    /// The same, and the model that the response names; `None`: there are too many members.
    pub fn with_models(mut self) -> Option<Self> {
        for member in MODELS {
            self.models |= 1 << Arc::make_mut(&mut self.paths).add(&path(member))?;
        }
        Some(self)
    }

    pub const fn models(&self) -> PathSet {
        self.models
    }

    /// The members of the body that it needs.
    pub fn paths(&self) -> &Arc<Paths> {
        &self.paths
    }

    /// The names of the events after which a stream is complete. Empty: only `data: [DONE]` says
    /// so, and a stream may end without it.
    pub fn last_events(&self) -> &'static [&'static str] {
        self.last_events
    }

    /// Where it is read, in words.
    pub fn words(&self) -> &str {
        &self.words
    }

    /// The units of a response with these numbers at its paths; `None`: it states none of them.
    ///
    /// A part that is not stated counts zero. A sum that is too large is the maximum.
    pub fn units(&self, numbers: &[Option<u64>]) -> Option<u64> {
        let sum = self.sum(numbers, |part| part.weight)?;
        Some(u64::try_from(sum).unwrap_or(u64::MAX))
    }

    /// The tokens of each kind that a response states by these numbers, in the order of [`TokenKind::ALL`];
    /// `None`: it states none, or numbers without kinds.
    pub fn tokens(&self, numbers: &[Option<u64>]) -> Option<Weights> {
        if self.last_events.is_empty() {
            return None;
        }
        let mut tokens = Weights::default();
        for (kind, count) in TokenKind::ALL.into_iter().zip(&mut tokens) {
            let sum = self.sum(numbers, |part| u64::from(part.kind == kind))?;
            *count = u64::try_from(sum).unwrap_or(u64::MAX);
        }
        Some(tokens)
    }

    /// The sum of what `each` part costs for a token.
    pub(crate) fn sum(&self, numbers: &[Option<u64>], each: impl Fn(&Part) -> u64) -> Option<u128> {
        let at = |place: &usize| numbers.get(*place).copied().flatten();
        let is_stated = |format: &&Format| format.signs.iter().any(|sign| at(sign).is_some());
        let format = self.formats.iter().find(is_stated)?;
        let stated = |part: &Part| part.places.iter().filter_map(at).max().unwrap_or(0);
        let mut counts: SmallVec<[u64; 8]> = format.parts.iter().map(stated).collect();
        let total = format.totals.iter().filter_map(at).max().unwrap_or(0);
        for (place, part) in format.parts.iter().enumerate() {
            if let Some(whole) = part.inside {
                let mut within = counts[place];
                // It is the last part of its format: the others are counted.
                if part.kind == TokenKind::Reasoning {
                    let others = counts[..place].iter().copied();
                    let beside = total.saturating_sub(others.fold(0, u64::saturating_add));
                    counts[place] = within.max(beside);
                    within = within.saturating_sub(beside);
                }
                if let Some(whole) = counts.get_mut(whole) {
                    // Some servers state a part beside its whole: then it may be the larger.
                    *whole = whole.checked_sub(within).unwrap_or(*whole);
                }
            }
        }
        let costs = format.parts.iter().zip(&counts);
        let cost = |(part, count): (&Part, &u64)| u128::from(each(part)) * u128::from(*count);
        Some(costs.map(cost).fold(0, u128::saturating_add))
    }
}

impl Preset {
    pub const fn words(self) -> &'static str {
        match self {
            Self::OpenAi => "openai",
            Self::Anthropic => "anthropic",
        }
    }
}

#[cfg(test)]
mod tests;

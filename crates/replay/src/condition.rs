//! `--fail-if 'keys_refused > 0.1%'`: when a pipeline fails. It never passes on what was not judged.

use crate::log::Survey;
use crate::outcome::{LimitOutcome, Outcome};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    pub text: String,
    limit: Option<String>,
    what: What,
    /// Whether the value itself counts: `>=`.
    or_equal: bool,
    /// Millionths of the whole where `share`, else a count.
    value: u64,
    share: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Refused,
    KeysRefused,
    NewlyRefused,
    KeysNewlyRefused,
    Unreadable,
    Differ,
}

impl Condition {
    /// Reads `[LIMIT.]WHAT > NUMBER[%]`, or with `>=`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (left, right) = text
            .split_once('>')
            .ok_or_else(|| format!("`{text}`: {GRAMMAR}"))?;
        let left = left.trim();
        let (or_equal, right) = match right.strip_prefix('=') {
            Some(right) => (true, right.trim()),
            None => (false, right.trim()),
        };
        let (limit, what) = match left.rsplit_once('.') {
            Some((limit, what)) => (Some(limit.to_owned()), what),
            None => (None, left),
        };
        let what = match what {
            "refused" | "requests_refused" => What::Refused,
            "keys_refused" => What::KeysRefused,
            "newly_refused" | "requests_newly_refused" => What::NewlyRefused,
            "keys_newly_refused" => What::KeysNewlyRefused,
            "unreadable" => What::Unreadable,
            "differ" => What::Differ,
            other => return Err(format!("`{other}` is nothing that is counted: {GRAMMAR}")),
        };
        let share = right.ends_with('%');
        let value = if share {
            self::share(right)
        } else {
            right.parse().ok()
        };
        let value = value.ok_or_else(|| format!("`{right}` is no number: {GRAMMAR}"))?;
        Ok(Self {
            text: text.to_owned(),
            limit,
            what,
            or_equal,
            value,
            share,
        })
    }

    pub fn parse_all(texts: &[String]) -> Result<Vec<Self>, String> {
        texts.iter().map(|text| Self::parse(text)).collect()
    }

    /// Why it says no; `None`: it does not.
    pub fn fails(&self, survey: &Survey, outcome: &Outcome) -> Option<String> {
        let said = self.said(survey, outcome)?;
        Some(format!("`{}`{said}", self.text))
    }

    fn said(&self, survey: &Survey, outcome: &Outcome) -> Option<String> {
        if survey.requests == 0 {
            return Some(": the log has no request to judge".to_owned());
        }
        if survey.broken_files > 0 {
            return Some(": a file of the log cannot be read to its end".to_owned());
        }
        if !matches!(self.what, What::Refused | What::KeysRefused) {
            return self.whole(survey, outcome);
        }
        let is_meant = |limit: &&LimitOutcome| {
            limit.mode != "off" && self.limit.as_ref().is_none_or(|name| *name == limit.name)
        };
        let mut meant = outcome.limits.iter().filter(is_meant).peekable();
        if meant.peek().is_none() {
            return Some(": the file has no such limit".to_owned());
        }
        meant.find_map(|limit| {
            let name = &limit.name;
            if let Some(why) = &limit.not_judged {
                return Some(format!(": limit `{name}` is not judged: {why}"));
            }
            let counts = &limit.counts;
            let (count, whole) = match self.what {
                What::KeysRefused => (counts.keys_refused, counts.keys),
                _ => (counts.refused, counts.admitted + counts.refused),
            };
            let holds = self.holds(count, whole);
            holds.then(|| format!(": limit `{name}`: {count} of {whole}"))
        })
    }

    fn whole(&self, survey: &Survey, outcome: &Outcome) -> Option<String> {
        if self.what == What::Unreadable {
            let (count, whole) = (survey.unreadable, survey.lines);
            let holds = self.holds(count, whole);
            return holds.then(|| format!(": {count} of {whole} lines"));
        }
        let mut limits = outcome.limits.iter();
        if let Some(limit) = limits.find(|limit| limit.not_judged.is_some()) {
            return Some(format!(": limit `{}` is not judged", limit.name));
        }
        let recorded = outcome.recorded.admitted + outcome.recorded.refused;
        let (count, whole) = match (self.what, &outcome.against) {
            (What::Differ, _) if recorded > 0 => (outcome.recorded.differ, recorded),
            (What::Differ, _) => return Some(": the log holds no verdicts".to_owned()),
            (_, None) => return Some(" compares two files: add --against".to_owned()),
            (What::KeysNewlyRefused, Some(against)) => {
                let keys = outcome.limits.iter().map(|limit| limit.counts.keys).max();
                (against.newly_refused.keys, keys.unwrap_or_default())
            }
            (_, Some(against)) => (against.newly_refused.requests, survey.requests),
        };
        let holds = self.holds(count, whole);
        holds.then(|| format!(": {count} of {whole}"))
    }

    fn holds(&self, count: u64, whole: u64) -> bool {
        let (left, right) = if self.share {
            let parts = u128::from(count) * 1_000_000;
            (parts, u128::from(self.value) * u128::from(whole))
        } else {
            (u128::from(count), u128::from(self.value))
        };
        left > right || (self.or_equal && left == right)
    }
}

/// A share in percent, such as `0.1%`, in millionths.
pub fn share(text: &str) -> Option<u64> {
    let number = text.strip_suffix('%')?.trim_end();
    crate::log::decimal(number.as_bytes(), 4)
}

const GRAMMAR: &str = "write `keys_refused > 0.1%` or `LIMIT.refused > 10`; refused, keys_refused, newly_refused, \
                       keys_newly_refused, unreadable and differ are counted";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fail_if_is_read_and_compared_exactly() {
        let holds =
            |text: &str, count, whole| Condition::parse(text).expect(text).holds(count, whole);
        assert!(!holds("keys_refused > 0.1%", 1, 1_000));
        assert!(holds("keys_refused > 0.1%", 2, 1_000));
        assert!(holds("keys_refused>=0.1 %", 1, 1_000));
        assert!(holds("api.refused > 0", 1, 1));
        assert!(!holds("refused > 0", 0, 0));
        for bad in [
            "",
            "keys_refused",
            "x > 1",
            "refused > x",
            "refused > 0.5",
            "refused > -1",
            "refused < 1",
        ] {
            assert!(Condition::parse(bad).is_err(), "{bad}");
        }
    }
}

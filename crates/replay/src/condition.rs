//! `--fail-if 'keys_refused > 0.1%'`: when a pipeline fails. It never passes on what was not judged.

use crate::log::Survey;
use crate::outcome::{LimitOutcome, Outcome};

/// A condition under which a replay says no.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Condition {
    /// As given.
    pub text: String,
    limit: Option<String>,
    what: What,
    than: Than,
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Than {
    More,
    AtLeast,
}

impl Condition {
    /// Reads `[LIMIT.]WHAT > NUMBER[%]`, or with `>=`.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let at = text
            .find('>')
            .ok_or_else(|| format!("`{text}`: {GRAMMAR}"))?;
        let (left, right) = (text[..at].trim(), &text[at + 1..]);
        let (than, right) = match right.strip_prefix('=') {
            Some(right) => (Than::AtLeast, right.trim()),
            None => (Than::More, right.trim()),
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
        let (number, share) = match right.strip_suffix('%') {
            Some(number) => (number.trim_end(), true),
            None => (right, false),
        };
        // Percent with four decimals are millionths.
        let places = if share { 4 } else { 0 };
        let value = crate::log::decimal(number.as_bytes(), places)
            .filter(|_| share || !number.contains('.'))
            .ok_or_else(|| format!("`{right}` is no number: {GRAMMAR}"))?;
        Ok(Self {
            text: text.to_owned(),
            limit,
            what,
            than,
            value,
            share,
        })
    }

    /// Why it says no; `None`: it does not.
    pub fn fails(&self, survey: &Survey, outcome: &Outcome) -> Option<String> {
        if survey.requests == 0 {
            return Some(format!("`{}`: the log has no request to judge", self.text));
        }
        if survey.broken_files > 0 {
            return Some(format!(
                "`{}`: a file of the log cannot be read to its end",
                self.text
            ));
        }
        let per_limit = matches!(self.what, What::Refused | What::KeysRefused);
        if !per_limit {
            return self.whole(survey, outcome);
        }
        let named =
            |limit: &&LimitOutcome| self.limit.as_ref().is_none_or(|name| *name == limit.name);
        let mut any = false;
        for limit in outcome
            .limits
            .iter()
            .filter(named)
            .filter(|limit| limit.mode != "off")
        {
            any = true;
            if let Some(why) = &limit.not_judged {
                return Some(format!(
                    "`{}`: limit `{}` is not judged: {why}",
                    self.text, limit.name
                ));
            }
            let counts = &limit.counts;
            let (count, whole) = match self.what {
                What::KeysRefused => (counts.keys_refused, counts.keys),
                _ => (counts.refused, counts.admitted + counts.refused),
            };
            if self.holds(count, whole) {
                return Some(format!(
                    "`{}`: limit `{}`: {count} of {whole}",
                    self.text, limit.name
                ));
            }
        }
        (!any).then(|| format!("`{}`: the file has no such limit", self.text))
    }

    fn whole(&self, survey: &Survey, outcome: &Outcome) -> Option<String> {
        if self.what == What::Unreadable {
            let holds = self.holds(survey.unreadable, survey.lines);
            return holds.then(|| {
                format!(
                    "`{}`: {} of {} lines",
                    self.text, survey.unreadable, survey.lines
                )
            });
        }
        if let Some(limit) = outcome
            .limits
            .iter()
            .find(|limit| limit.not_judged.is_some())
        {
            return Some(format!(
                "`{}`: limit `{}` is not judged",
                self.text, limit.name
            ));
        }
        let recorded = outcome.recorded.admitted + outcome.recorded.refused;
        let (count, whole) = match (self.what, &outcome.against) {
            (What::Differ, _) if recorded > 0 => (outcome.recorded.differ, recorded),
            (What::Differ, _) => {
                return Some(format!("`{}`: the log holds no verdicts", self.text));
            }
            (_, None) => return Some(format!("`{}` compares two files: add --against", self.text)),
            (What::KeysNewlyRefused, Some(against)) => {
                let keys = outcome.limits.iter().map(|limit| limit.counts.keys).max();
                (against.newly_refused.keys, keys.unwrap_or_default())
            }
            (_, Some(against)) => (against.newly_refused.requests, survey.requests),
        };
        self.holds(count, whole)
            .then(|| format!("`{}`: {count} of {whole}", self.text))
    }

    fn holds(&self, count: u64, whole: u64) -> bool {
        let (left, right) = if self.share {
            let parts = u128::from(count) * 1_000_000;
            (parts, u128::from(self.value) * u128::from(whole))
        } else {
            (u128::from(count), u128::from(self.value))
        };
        match self.than {
            Than::More => left > right,
            Than::AtLeast => left >= right,
        }
    }
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

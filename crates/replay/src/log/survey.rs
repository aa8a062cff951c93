//! What a log holds and what it lacks, taken down while it is read.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::Path;

use serde::Serialize;
use tollgate_limit::printable::printable;

use super::decisions::Decisions;
use super::{Kind, Options, Record, Stamp};

/// What a log holds and what it lacks.
#[derive(Clone, Debug, Default)]
pub struct Survey {
    pub lines: u64,
    /// Lines that are no request and say nothing of others.
    pub unreadable: u64,
    /// The first of them, made safe to print.
    pub samples: Vec<Sample>,
    pub requests: u64,
    /// The first moment, microseconds since the Unix epoch; of the starts of requests.
    pub from: u64,
    pub to: u64,
    pub kinds: BTreeMap<Kind, u64>,
    /// How far a difference of two moments may be off, microseconds: by rounding, and by durations that are not known.
    pub blur: u64,
    /// Names of request headers that some line holds.
    pub headers: BTreeSet<String>,
    /// Requests that say who forwarded them (`X-Forwarded-For`, `Forwarded`).
    pub forwarded: u64,
    /// Requests with a client, a host, a query, a duration, a key, a cost, a body length.
    pub with: With,
    /// Requests that a limiter had refused when the log was written.
    pub recorded_refused: u64,
    /// Names of limits that Tollgate's own log names.
    pub own_limits: BTreeSet<String>,
    /// Why nothing can be judged by this log, if so.
    pub sampled: Option<String>,
    /// Files that could not be read to their end.
    pub broken_files: u64,
    pub warnings: Vec<String>,
    stamps: Option<Stamp>,
    now: u64,
    /// Requests that are stamped later than the present.
    future: u64,
    longest: u64,
    show_keys: bool,
    unknown_ends: u64,
    decisions: Decisions,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct With {
    pub client: u64,
    pub host: u64,
    pub query: u64,
    pub user: u64,
    pub duration: u64,
    pub status: u64,
    pub key: u64,
    pub cost: u64,
    pub received: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Sample {
    pub file: String,
    pub line: u64,
    /// Its beginning, escaped; addresses are masked.
    pub text: String,
}

impl Survey {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            from: u64::MAX,
            stamps: options.stamps,
            now: options.now,
            longest: options.longest,
            show_keys: options.show_keys,
            ..Self::default()
        }
    }

    /// Takes a request down; the moment it began.
    pub(super) fn add(&mut self, record: &Record<'_>) -> u64 {
        self.requests += 1;
        *self.kinds.entry(record.kind).or_default() += 1;
        let stamp = match (record.kind, self.stamps) {
            // It is known of our own.
            (Kind::Tollgate, _) | (_, None) => record.kind.default_stamp(),
            (_, Some(said)) => said,
        };
        let mut at = record.at;
        let mut blur = match record.resolution {
            0 | 1 => 0,
            resolution => u64::from(resolution),
        };
        if stamp == Stamp::End {
            match record.duration {
                Some(duration) => at = at.saturating_sub(duration),
                None => {
                    blur += self.longest;
                    self.unknown_ends += 1;
                }
            }
        }
        self.blur = self.blur.max(blur);
        (self.from, self.to) = (self.from.min(at), self.to.max(at));
        self.future += u64::from(at > self.now);
        let with = &mut self.with;
        let count = |count: &mut u64, given: bool| *count += u64::from(given);
        count(&mut with.client, record.client.is_some());
        count(&mut with.host, record.host.is_some());
        count(
            &mut with.query,
            memchr::memchr(b'?', &record.target).is_some(),
        );
        count(&mut with.user, record.user.is_some());
        count(&mut with.duration, record.duration.is_some());
        count(&mut with.status, record.status.is_some());
        count(&mut with.key, record.key.is_some());
        count(&mut with.cost, record.cost.is_some());
        count(&mut with.received, record.received.is_some());
        self.headers(record);
        self.recorded_refused += u64::from(is_recorded_refusal(record));
        if record.sampled && self.sampled.is_none() {
            self.sampled = Some("its lines say that only a sample of requests is in it".into());
        }
        if let Some(own) = &record.own {
            if let Some(id) = own.id {
                self.decisions.add(id);
            }
            for limit in &own.limits {
                if !self.own_limits.contains(&limit.name) && self.own_limits.len() < NAMES_MAX {
                    self.own_limits.insert(limit.name.clone());
                }
            }
        }
        at
    }

    fn headers(&mut self, record: &Record<'_>) {
        for (name, _) in &record.headers {
            // The two that every combined log has need no set.
            if matches!(&**name, b"referer" | b"user-agent") {
                continue;
            }
            let name = String::from_utf8_lossy(name);
            self.forwarded += u64::from(matches!(&*name, "x-forwarded-for" | "forwarded"));
            if !self.headers.contains(&*name) && self.headers.len() < NAMES_MAX {
                self.headers.insert(name.into_owned());
            }
        }
    }

    pub(super) fn unreadable(&mut self, file: &Path, line: u64, text: &[u8]) {
        self.unreadable += 1;
        if self.samples.len() < SAMPLES {
            let text = &text[..text.len().min(SAMPLE_BYTES)];
            let mut text = String::from_utf8_lossy(text).into_owned();
            if !self.show_keys {
                text = masked(&text);
            }
            self.samples.push(Sample {
                file: printable(&file.display().to_string()).into_owned(),
                line,
                text: printable(&text).into_owned(),
            });
        }
    }

    /// A file could not be read to its end.
    pub(super) fn broken(&mut self, file: &Path, line: u64, error: &io::Error) {
        let file = file.display().to_string();
        let file = printable(&file);
        self.broken_files += 1;
        self.warnings.push(format!(
            "{file}: cannot be read beyond line {line}: {error}"
        ));
    }

    pub(super) fn finish(&mut self) {
        if self.requests == 0 {
            (self.from, self.to) = (0, 0);
            return;
        }
        for &kind in self.kinds.keys() {
            if kind.is_ambiguous() && self.stamps.is_none() {
                self.warnings.push(format!(
                    "{}: a line's time is taken for the end of its request, as NGINX writes it; Apache writes the start: --stamps start",
                    kind.name()
                ));
            }
        }
        if self.future > 0 {
            self.warnings.push(format!(
                "{} of {} requests are stamped later than the present, the last at {}: a clock was wrong, or a zone is missing (--zone)",
                self.future,
                self.requests,
                crate::report::moment(self.to)
            ));
        }
        if self.unknown_ends > 0 && self.longest == 0 {
            self.warnings.push(format!(
                "{} requests are stamped at their end and have no duration: say how long the longest took (--longest 30s), and the numbers allow for it",
                self.unknown_ends
            ));
        }
        if self.recorded_refused > 0 {
            self.warnings.push(format!(
                "{} of {} requests were refused by a limiter when the log was written: what callers would have sent without it is not known, so what was offered and what was admitted are computed apart",
                self.recorded_refused, self.requests
            ));
        }
        let missing = std::mem::take(&mut self.decisions).missing();
        // A few lines are written late or belong to the file before.
        if missing > self.requests / 1_000 + 100 && self.sampled.is_none() {
            self.sampled = Some(format!(
                "by the numbers of its decisions at least {missing} lines are missing (`sample`, or lines that were dropped)"
            ));
        }
        if let Some(why) = &self.sampled {
            self.warnings
                .push(format!("the log is not whole: {why}; it is not judged"));
        }
    }
}

/// Whether a limiter had refused it when the log was written.
pub(crate) fn is_recorded_refusal(record: &Record<'_>) -> bool {
    match &record.own {
        Some(own) => own.refused && matches!(own.reason.as_ref(), "denied" | "budget_exhausted"),
        None => record.status == Some(429),
    }
}

/// The text without addresses: every digit, every word with colons, and the first word, which names the client.
fn masked(text: &str) -> String {
    let mut masked = String::new();
    let is_mark = |c: char| {
        c.is_whitespace() || matches!(c, '"' | '[' | ']' | ',' | '(' | ')' | '{' | '}' | '=')
    };
    for (place, piece) in text.split_inclusive(is_mark).enumerate() {
        let word = piece.trim_end_matches(is_mark);
        let behind = &piece[word.len()..];
        let colons = word.chars().filter(|c| *c == ':').count();
        let dotted = word.contains('.') && !word.contains('/');
        if (place == 0 && !word.is_empty()) || colons > 1 || dotted {
            masked.push('*');
        } else {
            masked.push_str(&word.replace(|c: char| c.is_ascii_digit(), "#"));
        }
        masked.push_str(behind);
    }
    masked
}

const SAMPLES: usize = 5;
const SAMPLE_BYTES: usize = 160;
/// Names are of the file's or of NGINX's, hardly hundreds; a hostile log must not fill the memory with them.
const NAMES_MAX: usize = 10_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn survey_samples_name_no_address_and_obey_no_terminal() {
        let text = "192.0.2.7 - - \x1b[31m \"GET /a?ip=2001:db8::1 and 10.0.0.1\" \u{202e}";
        let masked = masked(text);
        let safe = printable(&masked);
        for secret in ["192.0.2.7", "2001:db8", "10.0.0.1", "\x1b", "\u{202e}"] {
            assert!(!safe.contains(secret), "{safe}");
        }
        assert!(safe.contains("GET /a"), "{safe}");
    }
}

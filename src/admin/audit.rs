//! `/api/v1/audit`: the changes that operators made. Each is also a line of JSON in a file of its
//! own, or else in the operations log.

#[cfg(test)]
mod tests;
mod words;

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tollgate_limit::printable::printable;
use tollgate_limit::{Micros, Timestamp};
use tollgate_store::clock::Clock;

use super::live::{Key, Now};
use crate::overrides::Setting;

pub use words::words;

/// The changes of this gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Audit {
    file: Option<PathBuf>,
    clock: Clock,
    entries: Arc<Mutex<VecDeque<Value>>>,
    /// What operators may still write.
    changes: Budget,
    /// What penalties may still write: callers cause them, and must not be able to keep operators
    /// from making changes.
    penalties: Budget,
}

/// A bound of the lines that are written.
#[derive(Clone, Debug, Default)]
struct Budget {
    /// When the lines written so far are paid for, at [`EACH`].
    paid_at: Arc<Mutex<Timestamp>>,
}

impl Budget {
    /// How long no line may be written; `None`: one may.
    fn full_for(&self, now: Timestamp) -> Option<Micros> {
        let ahead = self.paid_at.lock().since(now);
        let over = ahead.0.saturating_sub((LINES_AT_ONCE - 1) * EACH.0);
        (over > 0).then_some(Micros(over))
    }

    fn pay(&self, now: Timestamp) {
        let mut paid_at = self.paid_at.lock();
        *paid_at = (*paid_at).max(now).after(EACH);
    }
}

/// The document of the audit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entries {
    /// The version of this document.
    pub format: u32,
    /// The last changes since the gateway started, the newest first.
    pub entries: Vec<Value>,
}

/// A line of the audit.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Line<'l, T> {
    /// When the change was made.
    pub(super) at: String,
    /// The operator who made it.
    pub(super) operator: &'l str,
    /// Where the request came from.
    pub(super) from: &'l str,
    /// What was done.
    pub(super) action: &'l str,
    #[serde(flatten)]
    pub(super) details: T,
}

/// Whether a change was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It was made.
    #[default]
    Made,
    /// The store did not confirm it: it may or may not have been made.
    Unconfirmed,
}

impl Outcome {
    /// The outcome of a change that was sent; `unsure`: the store did not confirm it.
    pub(super) fn of(unsure: bool) -> Self {
        match unsure {
            true => Self::Unconfirmed,
            false => Self::Made,
        }
    }
}

/// A change of one bucket.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry {
    /// Whether it was made.
    pub outcome: Outcome,
    /// Why, in the operator's words.
    pub reason: String,
    /// The limit.
    pub limit: String,
    /// The tier whose numbers apply.
    pub tier: Option<String>,
    /// The key of the bucket.
    #[serde(flatten)]
    pub key: Key,
    /// `local` or `shared`.
    pub store: String,
    /// How the bucket stood before.
    pub before: Now,
    /// How it stood after.
    pub after: Now,
    /// The override before; only of changes of overrides, and if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_before: Option<Setting>,
    /// The override after.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub override_after: Option<Setting>,
    /// The end of the override that was set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl Audit {
    /// An audit that appends to `file`; `None`: to the operations log.
    pub fn new(file: Option<PathBuf>, clock: Clock) -> Self {
        Self {
            file,
            clock,
            entries: Arc::default(),
            changes: Budget::default(),
            penalties: Budget::default(),
        }
    }

    /// How long no change may be made, so that operators cannot fill the disk; `None`: one may.
    pub(super) fn full_for(&self) -> Option<Micros> {
        self.changes.full_for(self.clock.now())
    }

    /// Makes sure that a change can be recorded. A change that cannot is not made.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn prepare(&self) -> io::Result<Prepared<'_>> {
        self.open(&self.changes)
    }

    /// The same for lines about penalties, of which those above their bound are left out of the file.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn prepare_for_penalties(&self) -> io::Result<Prepared<'_>> {
        self.open(&self.penalties)
    }

    fn open<'a>(&'a self, budget: &'a Budget) -> io::Result<Prepared<'a>> {
        let file = self.file.as_ref().map(|path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
        });
        Ok(Prepared {
            audit: self,
            budget,
            file: file.transpose()?,
        })
    }

    /// The last changes.
    pub(super) fn entries(&self) -> Entries {
        Entries {
            format: FORMAT,
            entries: self.entries.lock().iter().rev().cloned().collect(),
        }
    }
}

/// An audit whose file is open.
pub(super) struct Prepared<'a> {
    audit: &'a Audit,
    budget: &'a Budget,
    file: Option<File>,
}

impl Prepared<'_> {
    /// Records a change.
    ///
    /// # Errors
    /// If the file cannot be written. The line is then in the operations log.
    pub(super) fn record(&mut self, entry: &impl Serialize) -> io::Result<()> {
        let line = serde_json::to_string(entry).expect("text and numbers are JSON");
        // In JSON these characters are in texts only, where their escapes mean the same.
        let line = printable(&line);
        let now = self.audit.clock.now();
        let is_change = std::ptr::eq(self.budget, &self.audit.changes);
        // A change was permitted before it was made, so it is always recorded.
        if !is_change && self.budget.full_for(now).is_some() {
            return Ok(());
        }
        self.budget.pay(now);
        let written = match &mut self.file {
            Some(file) => file.write_all(format!("{line}\n").as_bytes()),
            None => {
                tracing::info!(target: TARGET, "audit: {line}");
                Ok(())
            }
        };
        if let Err(error) = &written {
            tracing::error!(target: TARGET, %error, "the audit cannot be written: {line}");
        }
        let mut entries = self.audit.entries.lock();
        if entries.len() >= ENTRIES_MAX {
            entries.pop_front();
        }
        let mut entry = serde_json::to_value(entry).expect("text and numbers are JSON");
        let words = words(&entry);
        if let Some(entry) = entry.as_object_mut() {
            entry.insert("words".to_owned(), words.into());
        }
        entries.push_back(entry);
        written
    }
}

/// The name under which the operations log knows these lines: they are logged at every level.
pub const TARGET: &str = "audit";

/// [`Entries::format`] of this version.
const FORMAT: u32 = 1;

/// The changes that are kept for `/api/v1/audit`; the file has all.
const ENTRIES_MAX: usize = 1_000;

/// The lines that may be written at once, and the time after which there may be one more. A line has
/// about a kilobyte at most, so operators write at most 100 MB a day.
const LINES_AT_ONCE: u64 = 10_000;
const EACH: Micros = Micros::from_secs(1);

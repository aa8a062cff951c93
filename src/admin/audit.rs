//! `/api/v1/audit`: the changes that operators made. Each is also a line of JSON in a file of its
//! own, or else in the operations log.

#[cfg(test)]
mod tests;
mod words;

use std::collections::{HashMap, VecDeque};
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

pub(super) use words::AuditLine;

/// The changes of this gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Audit {
    file: Option<PathBuf>,
    clock: Clock,
    entries: Arc<Mutex<VecDeque<Value>>>,
    /// Of each operator, and of penalties: when the lines written so far are paid for, at [`EACH`].
    /// One stolen token, or callers who cause penalties, must not keep the others from their changes.
    paid_at: Arc<Mutex<HashMap<String, Timestamp>>>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entries {
    pub format: u32,
    /// The product and version of the shared database, once it is known.
    #[serde(default)]
    pub store: Option<String>,
    /// The last changes since the gateway started, the newest first.
    pub entries: Vec<Value>,
}

#[derive(Clone, Debug, Serialize)]
pub(super) struct Line<'l, T> {
    pub(super) at: String,
    pub(super) operator: &'l str,
    pub(super) from: &'l str,
    pub(super) action: &'l str,
    #[serde(flatten)]
    pub(super) details: T,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
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

#[derive(Clone, Debug, Default, Serialize)]
pub struct Entry {
    pub outcome: Outcome,
    pub reason: String,
    pub limit: String,
    pub tier: Option<String>,
    #[serde(flatten)]
    pub key: Key,
    pub store: String,
    pub before: Now,
    pub after: Now,
    /// The override before; only of changes of overrides, and if there was one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_before: Option<Setting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub override_after: Option<Setting>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
}

impl Audit {
    /// An audit that appends to `file`; `None`: to the operations log.
    pub fn new(file: Option<PathBuf>, clock: Clock) -> Self {
        Self {
            file,
            clock,
            entries: Arc::default(),
            paid_at: Arc::default(),
        }
    }

    /// How long the audit takes no line of this operator, whose flood would fill the disk; `None`: it takes one.
    pub(super) fn full_for(&self, operator: &str) -> Option<Micros> {
        let paid_at = self.paid_at.lock().get(operator).copied()?;
        let over = paid_at.since(self.clock.now()).0;
        let over = over.saturating_sub((LINES_AT_ONCE - 1) * EACH.0);
        (over > 0).then_some(Micros(over))
    }

    /// Makes sure that a change by this operator can be recorded. A change that cannot is not made.
    pub(super) fn prepare<'a>(&'a self, operator: &'a str) -> io::Result<Prepared<'a>> {
        let file = self.file.as_ref().map(|path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
        });
        Ok(Prepared {
            audit: self,
            operator,
            file: file.transpose()?,
        })
    }

    fn pay(&self, operator: &str) {
        let now = self.clock.now();
        let mut paid_at = self.paid_at.lock();
        // Operators that a reload has removed are forgotten.
        paid_at.retain(|_, until| *until > now);
        let paid_at = paid_at.entry(operator.to_owned()).or_insert(now);
        *paid_at = paid_at.after(EACH);
    }

    pub(super) fn entries(&self, store: Option<String>) -> Entries {
        Entries {
            format: FORMAT,
            store,
            entries: self.entries.lock().iter().rev().cloned().collect(),
        }
    }
}

pub(super) struct Prepared<'a> {
    audit: &'a Audit,
    operator: &'a str,
    file: Option<File>,
}

impl Prepared<'_> {
    /// Records a change.
    /// If the file cannot be written, the line is in the operations log.
    pub(super) fn record(&mut self, entry: &impl AuditLine) -> io::Result<()> {
        let line = serde_json::to_string(entry).expect("text and numbers are JSON");
        // In JSON these characters are in texts only, where their escapes mean the same.
        let line = printable(&line);
        // A change was permitted before it was made, so it is always recorded.
        if self.operator == PENALTIES && self.audit.full_for(PENALTIES).is_some() {
            return Ok(());
        }
        self.audit.pay(self.operator);
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
        let mut value = serde_json::to_value(entry).expect("text and numbers are JSON");
        if let Some(members) = value.as_object_mut() {
            members.insert("words".to_owned(), entry.words().into());
        }
        entries.push_back(value);
        written
    }
}

/// The name under which the operations log knows these lines: they are logged at every level.
pub const TARGET: &str = "audit";

const FORMAT: u32 = 1;

/// The changes that are kept for `/api/v1/audit`; the file has all.
const ENTRIES_MAX: usize = 1_000;

/// In place of an operator: the lines about penalties.
pub(super) const PENALTIES: &str = "";

/// The lines that an operator may have written at once, and the time after which there may be one
/// more. A line has about a kilobyte at most, so each operator writes at most 100 MB a day.
const LINES_AT_ONCE: u64 = 10_000;
const EACH: Micros = Micros::from_secs(1);

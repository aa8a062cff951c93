//! `/api/v1/audit`: the changes that operators made. Each is also a line of JSON in a file of its
//! own, or else in the operations log.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::live::{Key, Now};
use crate::overrides::Setting;

/// The changes of this gateway. Clones share them.
#[derive(Clone, Debug)]
pub struct Audit {
    file: Option<PathBuf>,
    entries: Arc<Mutex<VecDeque<Value>>>,
}

/// The document of the audit.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Entries {
    /// The version of this document.
    pub format: u32,
    /// The last changes since the gateway started, the newest first.
    pub entries: Vec<Value>,
}

/// A change of one bucket.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    /// When it was made.
    pub at: String,
    /// The operator who made it.
    pub operator: String,
    /// Where the request came from.
    pub from: String,
    /// What was done: `reset`, `override` or `lift`.
    pub action: String,
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
    pub fn new(file: Option<PathBuf>) -> Self {
        Self {
            file,
            entries: Arc::default(),
        }
    }

    /// Makes sure that a change can be recorded. A change that cannot is not made.
    ///
    /// # Errors
    /// If the file cannot be opened.
    pub(super) fn prepare(&self) -> io::Result<Prepared<'_>> {
        let file = self.file.as_ref().map(|path| {
            OpenOptions::new()
                .append(true)
                .create(true)
                .mode(0o600)
                .open(path)
        });
        Ok(Prepared {
            audit: self,
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
    file: Option<File>,
}

impl Prepared<'_> {
    /// Records a change.
    ///
    /// # Errors
    /// If the file cannot be written. The line is then in the operations log.
    pub(super) fn record(&mut self, entry: &impl Serialize) -> io::Result<()> {
        let line = serde_json::to_string(entry).expect("text and numbers are JSON");
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
        entries.push_back(serde_json::to_value(entry).expect("text and numbers are JSON"));
        written
    }
}

/// The name under which the operations log knows these lines: they are logged at every level.
pub const TARGET: &str = "audit";

/// [`Entries::format`] of this version.
const FORMAT: u32 = 1;

/// The changes that are kept for `/api/v1/audit`; the file has all.
const ENTRIES_MAX: usize = 1_000;

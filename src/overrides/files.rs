//! The files of overrides: those of limits in the process, and what the store told last of its own. A
//! gateway that starts while its store does not respond obeys the latter, so that a blocked key stays blocked.

use std::fs;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::Document;
use crate::app::state_file::{beside, private, replace_whole};
use tollgate_store::{Document as StoreDocument, clock::Clock};

#[derive(Debug)]
pub(super) struct CacheFile {
    path: PathBuf,
    content: Mutex<Content>,
}

#[derive(Debug)]
struct Content {
    written: Option<Cached>,
    /// Whether something newer could not be written.
    outdated: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Cached {
    /// By how many microseconds the store's clock was ahead of the wall clock.
    ahead: i64,
    text: String,
}

impl CacheFile {
    pub(super) fn of(state_file: &Path) -> Self {
        let path = beside(state_file, ".store-overrides");
        let content = Content {
            written: read(&path),
            outdated: false,
        };
        Self {
            path,
            content: Mutex::new(content),
        }
    }

    /// The document in the file, and by how much the store's clock is ahead of `clock`. `None`: there is
    /// none that can be used.
    pub(super) fn document(&self, clock: &Clock) -> Option<(Document, i64)> {
        let cached = self.content.lock().written.clone()?;
        match Document::read(&cached.text) {
            Ok(document) => Some((document, cached.ahead.saturating_add(wall_ahead(clock)))),
            Err(error) => {
                tracing::warn!(%error, "what the store said of overrides is not obeyed until it says more");
                None
            }
        }
    }

    /// Writes what the store has told, if it can be read and is not in the file.
    pub(super) fn keep(&self, watched: &watch::Receiver<StoreDocument>, clock: &Clock) {
        // Locked first, so that an older text never replaces a newer one.
        let mut content = self.content.lock();
        let cached = {
            let heard = watched.borrow();
            let ahead = heard.ahead.saturating_sub(wall_ahead(clock));
            let is_written = |cached: &Cached| {
                cached.text == *heard.text && cached.ahead.abs_diff(ahead) < DRIFT_MICROS
            };
            content.outdated = false;
            // One that cannot be read does not replace those that are obeyed.
            if !heard.heard
                || content.written.as_ref().is_some_and(is_written)
                || Document::read(&heard.text).is_err()
            {
                return;
            }
            Cached {
                ahead,
                text: heard.text.to_string(),
            }
        };
        let text = serde_json::to_string(&cached).expect("text and numbers are JSON");
        // A crash leaves the old one or the new one.
        let written = replace_whole(&self.path, |new| new.write_all(text.as_bytes()));
        content.outdated = written.is_err();
        match written {
            Ok(()) => content.written = Some(cached),
            Err(error) => {
                tracing::warn!(file = %self.path.display(), %error, "what the store said of overrides cannot be kept");
            }
        }
    }

    /// Whether the file lacks what the store told last, so that [`CacheFile::keep`] is to be called again.
    pub(super) fn is_outdated(&self) -> bool {
        self.content.lock().outdated
    }
}

fn read(path: &Path) -> Option<Cached> {
    let read = || -> io::Result<Cached> {
        let mut bytes = Vec::new();
        let file = private().read(true).open(path)?;
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    match read() {
        Ok(cached) => Some(cached),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => {
            tracing::warn!(file = %path.display(), %error, "what the store said of overrides cannot be read");
            None
        }
    }
}

/// By how many microseconds the wall clock is ahead of `clock`: the next process has another clock.
fn wall_ahead(clock: &Clock) -> i64 {
    let (wall, now) = (clock.wall().as_micros(), clock.now().as_micros());
    wall.cast_signed().saturating_sub(now.cast_signed())
}

/// A smaller change of the difference between the clocks is not written.
const DRIFT_MICROS: u64 = 1_000_000;

/// A file that is replaced as a whole, with access for its owner only.
#[derive(Debug)]
pub(super) struct LocalFile(PathBuf);

/// A larger file is not one of ours.
pub(super) const BYTES_MAX: u64 = 4 << 20;

impl LocalFile {
    pub(super) fn of(state_file: &std::path::Path) -> Self {
        Self(beside(state_file, ".overrides"))
    }

    /// Reads it; without a file there are no overrides. A file that is no document of this version, or
    /// that is empty, is renamed, so that the next change does not overwrite it.
    pub(super) fn read(&self) -> Result<Document, String> {
        let said = |error: &dyn std::fmt::Display| format!("{}: {error}", self.0.display());
        let mut bytes = Vec::new();
        match private().read(true).open(&self.0) {
            Ok(file) => file.take(BYTES_MAX).read_to_end(&mut bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Document::default());
            }
            Err(error) => Err(error),
        }
        .map_err(|error| said(&error))?;
        let read = match bytes.as_slice() {
            [] => Err("it is empty; a gateway never writes it so".to_owned()),
            bytes => Document::read(&String::from_utf8_lossy(bytes)),
        };
        read.map_err(|error| {
            self.set_aside();
            said(&error)
        })
    }

    fn set_aside(&self) {
        let aside = beside(&self.0, ".unreadable");
        match fs::rename(&self.0, &aside) {
            Ok(()) => tracing::error!(file = %aside.display(), "they are kept here"),
            Err(error) => {
                tracing::error!(file = %self.0.display(), %error, "they cannot be kept: the next change replaces them");
            }
        }
    }

    pub(super) fn write(&self, document: &Document) -> io::Result<()> {
        replace_whole(&self.0, |new| new.write_all(document.text().as_bytes()))
    }
}

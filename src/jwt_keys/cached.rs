//! The file of the keys that were fetched last, beside the state file: a gateway that starts while
//! their provider does not respond verifies tokens by them.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::fetch::DOCUMENT_MAX;
use crate::app::state_file::{beside, private, replace_whole};

#[derive(Debug)]
pub(super) struct CacheFile {
    path: PathBuf,
    /// By identity.
    documents: Mutex<BTreeMap<String, Cached>>,
}

/// A document that was fetched.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Cached {
    pub(super) url: String,
    /// When it was fetched: seconds since the Unix epoch.
    pub(super) at: u64,
    pub(super) document: String,
}

impl CacheFile {
    /// The file beside this state file.
    pub(super) fn of(state_file: &Path) -> Self {
        let path = beside(state_file, ".jwt-keys");
        let documents = Mutex::new(read(&path));
        Self { path, documents }
    }

    pub(super) fn find(&self, identity: &str) -> Option<Cached> {
        self.documents.lock().get(identity).cloned()
    }

    /// Writes a document, in place of the one that the identity had.
    pub(super) fn keep(&self, identity: &str, cached: Cached) {
        // Locked while the file is written: an older text never replaces a newer one.
        let mut documents = self.documents.lock();
        documents.insert(identity.to_owned(), cached);
        let text = serde_json::to_vec(&*documents).expect("texts and numbers are JSON");
        if let Err(error) = replace_whole(&self.path, |new| new.write_all(&text)) {
            tracing::warn!(file = %self.path.display(), %error, "fetched keys cannot be kept for the next start");
        }
    }
}

fn read(path: &Path) -> BTreeMap<String, Cached> {
    let read = || -> io::Result<BTreeMap<String, Cached>> {
        let mut bytes = Vec::new();
        let file = private().read(true).open(path)?;
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        Ok(serde_json::from_slice(&bytes)?)
    };
    read().unwrap_or_else(|error| {
        if error.kind() != io::ErrorKind::NotFound {
            tracing::warn!(file = %path.display(), %error, "the keys of the last run cannot be read");
        }
        BTreeMap::new()
    })
}

/// A larger file is not one of ours: dozens of identities.
const BYTES_MAX: u64 = 64 * DOCUMENT_MAX as u64;

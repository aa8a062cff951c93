//! The file of the overrides of limits in the process.

use std::fs;
use std::io::{self, Read, Write};
use std::path::PathBuf;

use super::Document;
use crate::app::state_file::{beside, private, replace_whole};

/// A file that is replaced as a whole, with access for its owner only.
#[derive(Debug)]
pub(super) struct LocalFile(PathBuf);

/// A larger file is not one of ours.
pub(super) const BYTES_MAX: u64 = 4 << 20;

impl LocalFile {
    /// The file beside this state file.
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

    /// Replaces it. A crash leaves the old one or the new one.
    pub(super) fn write(&self, document: &Document) -> io::Result<()> {
        replace_whole(&self.0, |new| new.write_all(document.text().as_bytes()))
    }
}

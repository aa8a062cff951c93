//! Reads YAML into trees.

use crate::tree::Node;
use crate::{ImportError, Place, Source};
use tollgate_config::yaml::{self, YamlError};

/// All documents of all files.
pub(crate) fn documents(sources: &[Source]) -> Result<Vec<Node>, ImportError> {
    let mut documents = Vec::new();
    let mut left = yaml::MOST;
    for source in sources {
        yaml::read(&source.name, &source.text, &mut left, &mut documents)
            .map_err(|error| not_read(&source.name, error))?;
    }
    Ok(documents)
}

/// The error about a file that is not YAML, or too much of it.
pub(crate) fn not_read(file: &str, error: YamlError) -> ImportError {
    if error.too_much {
        return ImportError::TooMuch(error.what);
    }
    let place = Place {
        file: file.to_owned(),
        line: error.line,
    };
    ImportError::broken(place, error.what)
}

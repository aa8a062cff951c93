//! Why a layer cannot be made, or not be changed.

use tollgate_config::ConfigError;

/// Why a layer cannot be made or changed; after a failed change the limits in force stay.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file, or what the builder says, has mistakes. The text names each, with its place.
    #[error("{0}")]
    Config(String),
    /// The shared store cannot be used: its settings are invalid, this build has no such store, or
    /// its audit refuses it.
    #[error("the shared store: {0}")]
    Store(String),
    /// The layer was made without a file, so there is none to read again.
    #[error("the limits were not read from a file")]
    NoFile,
}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.render(false))
    }
}

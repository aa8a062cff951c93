//! Why a layer cannot be made, or not be changed.

use tollgate_config::ConfigError;

/// Why a layer cannot be made or changed; after a failed change the limits in force stay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// The file, or what the builder says, has mistakes. The text names each, with its place.
    Config(String),
    /// The shared store cannot be used: its settings are invalid, this build has no such store, or
    /// its audit refuses it.
    Store(String),
    /// The layer was made without a file, so there is none to read again.
    NoFile,
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Config(problems) => f.write_str(problems),
            Self::Store(why) => write!(f, "the shared store: {why}"),
            Self::NoFile => f.write_str("the limits were not read from a file"),
        }
    }
}

impl std::error::Error for Error {}

impl From<ConfigError> for Error {
    fn from(error: ConfigError) -> Self {
        Self::Config(error.render(false))
    }
}

//! Why a verb ends before it has a result.

use std::process::ExitCode;

use tollgate_config::ConfigError;

use super::{BAD, colour, print_err, wrong_use};

/// How a verb ends: with an exit code, after what it has printed itself, or early.
pub(super) type Ended = Result<ExitCode, Stop>;

pub(super) enum Stop {
    Bad(String),
    Misuse(String),
    /// The configuration is not valid.
    Config(ConfigError),
}

impl From<String> for Stop {
    fn from(what: String) -> Self {
        Self::Bad(what)
    }
}

impl From<ConfigError> for Stop {
    fn from(error: ConfigError) -> Self {
        Self::Config(error)
    }
}

impl Stop {
    /// Tells the reason on standard error; `verb` is the command that ends.
    pub(super) fn exit_code(self, verb: &str) -> ExitCode {
        match self {
            Self::Bad(what) => {
                tell!("{verb}: {what}");
                BAD
            }
            Self::Misuse(what) => {
                tell!("{verb}: {what}");
                wrong_use()
            }
            Self::Config(error) => {
                // It escapes what it shows of the file itself, and may be in colour.
                print_err(&error.render(colour()));
                BAD
            }
        }
    }
}

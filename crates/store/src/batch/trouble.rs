//! Why a call or a connection fails.

use crate::StoreError;

/// Why a call got no usable response.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The server has not responded in time, and every request's deadline has passed.
    Late,
    /// The connection is gone: reconnect. What the server has done is unknown.
    Lost(String),
    /// Nothing was done, and nothing will be over this connection, which the server has made read-only
    /// or which had ended before: reconnect.
    Unfit(String),
    /// The server responded with an error; the connection remains usable.
    Refused(String),
    Corrupt(String),
    /// The server redirected us, and nothing was done. This does not count against it.
    Moved(String),
    /// The server redirected us to one that gave no response. This does not count against it.
    Astray(String),
}

impl Trouble {
    /// The failure of a read after a successful write. Its caller must learn that the write may stand.
    pub(crate) fn after_a_write(self) -> Self {
        match self {
            Self::Late => Self::Late,
            other => Self::Lost(other.into_words()),
        }
    }

    pub(crate) fn into_words(self) -> String {
        match self {
            Self::Late => "no response in time".into(),
            Self::Lost(words)
            | Self::Unfit(words)
            | Self::Refused(words)
            | Self::Corrupt(words)
            | Self::Moved(words)
            | Self::Astray(words) => words,
        }
    }
}

impl From<&Trouble> for StoreError {
    /// The error that each request of the call gets.
    fn from(trouble: &Trouble) -> Self {
        match trouble {
            Trouble::Late => Self::Timeout,
            Trouble::Unfit(error) | Trouble::Refused(error) | Trouble::Moved(error) => {
                Self::Unavailable(error.clone())
            }
            Trouble::Lost(error) | Trouble::Astray(error) => Self::Lost(error.clone()),
            Trouble::Corrupt(error) => Self::Garbled(error.clone()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Obstacle {
    pub(crate) words: String,
    /// An operator must correct credentials or a setting, so the server is seldom probed.
    pub(crate) lasting: bool,
}

impl From<String> for Obstacle {
    fn from(words: String) -> Self {
        Self {
            words,
            lasting: false,
        }
    }
}

impl Obstacle {
    pub(crate) fn lasting(words: String) -> Self {
        Self {
            words,
            lasting: true,
        }
    }
}

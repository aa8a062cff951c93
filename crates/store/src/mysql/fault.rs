//! Why a text of statements failed, and the effect on the requests that wait for it.

use mysql_async::Error;

use super::client::{Client, Failed};
use crate::batch::{Obstacle, Trouble};

#[derive(Debug)]
pub(super) enum Fault {
    /// It conflicted with another one, and was rolled back.
    Conflict(String),
    /// There is no valid mark of the data, which a limit of the batch needs; nothing was done.
    Unmarked,
    /// The server refused it, and nothing was done.
    Refused(String),
    /// Nothing was done, and nothing will be over this session.
    Unfit(String),
    /// The statement or its session was killed. The server notices that between two statements of a
    /// procedure or a text, too: if one of them is a COMMIT, it may be done.
    Killed {
        words: String,
        session: bool,
    },
    /// The session has ended, and what was done is unknown.
    Lost(String),
    Corrupt(&'static str),
}

/// The server's numbers for a conflict: a deadlock, a lock that was waited for in vain, a row that
/// has changed since it was read, a transaction that a Galera node has taken back (which the write
/// of the rows finds).
const CONFLICTS: [u16; 4] = [1213, 1205, 1020, 1242];
/// A server that cannot be written to, a Galera node that has lost the others, tables or procedures that are gone, a session that was idle for
/// too long. The statement was not completed.
const UNFIT: [u16; 8] = [1047, 1290, 1792, 1836, 1146, 1305, 4031, 1152];
/// A statement that an operator killed, or that took longer than the server allows.
const KILLED: [u16; 3] = [1317, 1969, 3024];
/// A session that an operator killed, or whose server shuts down.
const KILLED_SESSION: [u16; 3] = [1927, 1053, 3169];
/// "Got error during COMMIT": the server does not say how far it came.
const DURING_COMMIT: u16 = 1180;
/// Credentials, databases and rights, which remain wrong until an operator changes them.
const LASTING: [u16; 8] = [1044, 1045, 1049, 1142, 1143, 1227, 1370, 1698];

impl From<Failed> for Fault {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Ended => Self::Unfit("the session has ended".into()),
            Failed::Error(error) => {
                let words = words(&error);
                let Error::Server(error) = error else {
                    return Self::Lost(words);
                };
                match error.code {
                    code if CONFLICTS.contains(&code) => Self::Conflict(words),
                    code if UNFIT.contains(&code) => Self::Unfit(words),
                    code if KILLED.contains(&code) => Self::Killed {
                        words,
                        session: false,
                    },
                    code if KILLED_SESSION.contains(&code) => Self::Killed {
                        words,
                        session: true,
                    },
                    DURING_COMMIT => Self::Lost(words),
                    _ => Self::Refused(words),
                }
            }
        }
    }
}

impl Fault {
    /// Of statements that commit nothing: however their session ended, nothing was charged.
    pub(super) fn before_commit(self) -> Self {
        match self {
            Self::Lost(words)
            | Self::Killed {
                words,
                session: true,
            } => Self::Unfit(words),
            Self::Killed { words, .. } => Self::Refused(words),
            other => other,
        }
    }

    /// The trouble, with the reason why the session ended.
    pub(super) fn into_trouble(self, client: &Client) -> Trouble {
        let with_reason = |words: String| match client.ended() {
            Some(why) if !words.contains(why) => format!("{words}: {why}"),
            _ => words,
        };
        match self {
            Self::Corrupt(what) => Trouble::Corrupt(what.into()),
            Self::Conflict(words) | Self::Refused(words) => Trouble::Refused(words),
            Self::Unmarked => {
                Trouble::Refused("the mark of the data was lost again and again".into())
            }
            Self::Unfit(words) => Trouble::Unfit(with_reason(words)),
            Self::Killed { words, .. } | Self::Lost(words) => Trouble::Lost(with_reason(words)),
        }
    }

    /// Why there is no session.
    pub(super) fn into_obstacle(self, client: &Client) -> Obstacle {
        Obstacle::from(self.into_trouble(client).into_words())
    }
}

/// Why there is no connection.
pub(super) fn obstacle(error: &Error) -> Obstacle {
    let lasting = matches!(error, Error::Server(error) if LASTING.contains(&error.code));
    Obstacle {
        words: words(error),
        lasting,
    }
}

fn words(error: &Error) -> String {
    match error {
        Error::Server(error) => format!("{} ({})", error.message, error.code),
        other => other.to_string(),
    }
}

//! Why a statement failed, and the effect on the requests that wait for it.

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

use crate::batch::{Obstacle, Trouble};

#[derive(Debug)]
pub(in crate::postgres) enum Fault {
    /// It conflicted with another one, and the server rolled it back.
    Conflict(String),
    Failed(tokio_postgres::Error),
    /// A spanning database reported a conflict at COMMIT: the transaction may be made.
    Doubtful(String),
    /// The session ended before COMMIT was sent, and the transaction with it.
    Undone(String),
    Corrupt(&'static str),
    /// The functions have another version now: reconnecting creates ours, or says what to do.
    Replaced,
}

/// A conflict in the words of YugabyteDB, whose code depends on where it was noticed.
const CONFLICTS: [&str; 3] = [
    "Restart read required",
    "All transparent retries exhausted",
    "expired or aborted by a conflict",
];

impl From<tokio_postgres::Error> for Fault {
    fn from(error: tokio_postgres::Error) -> Self {
        let conflict = [
            SqlState::T_R_SERIALIZATION_FAILURE,
            SqlState::T_R_DEADLOCK_DETECTED,
            SqlState::T_R_STATEMENT_COMPLETION_UNKNOWN,
            // A session that does not take our lock makes the tables at the same time.
            SqlState::UNIQUE_VIOLATION,
        ];
        let text = words(&error);
        let is_conflict = error.code().is_some_and(|code| conflict.contains(code))
            || CONFLICTS.iter().any(|words| text.contains(words));
        match is_conflict {
            true => Self::Conflict(text),
            false => Self::Failed(error),
        }
    }
}

impl Fault {
    /// Of a transaction whose COMMIT was not sent: however its session ended, nothing was charged.
    pub(super) fn before_commit(self, client: &Client) -> Self {
        match self {
            Self::Failed(error) if matches!(sort(&error, client.is_closed()), Sort::Ended) => {
                Self::Undone(words(&error))
            }
            other => other,
        }
    }

    pub(super) fn into_trouble(self, client: &Client) -> Trouble {
        match self {
            Self::Corrupt(what) => Trouble::Corrupt(what.into()),
            Self::Conflict(error) => Trouble::Refused(error),
            Self::Replaced => {
                Trouble::Unfit("the functions were replaced by those of another version".into())
            }
            Self::Undone(error) => Trouble::Unfit(error),
            Self::Doubtful(error) => Trouble::Lost(error),
            Self::Failed(error) => {
                let words = words(&error);
                match sort(&error, client.is_closed()) {
                    Sort::Unfit => Trouble::Unfit(words),
                    Sort::Refused => Trouble::Refused(words),
                    Sort::Ended => Trouble::Lost(words),
                }
            }
        }
    }
}

/// What an error means for the statement and the session.
enum Sort {
    /// The server has done nothing, and will do nothing over this session.
    Unfit,
    /// The server refused the statement; the session remains usable.
    Refused,
    /// The session has ended: the outcome of a COMMIT is then unknown.
    Ended,
}

fn sort(error: &tokio_postgres::Error, closed: bool) -> Sort {
    // The server ends the session.
    let ended = [SqlState::CRASH_SHUTDOWN, SqlState::CANNOT_CONNECT_NOW];
    let unfit = [
        // It ended the session before it had completed the statement, and rolled back. (The end of an
        // idle session is often noticed only by the next statement, which it answers.)
        SqlState::ADMIN_SHUTDOWN,
        SqlState::IDLE_IN_TRANSACTION_SESSION_TIMEOUT,
        SqlState::READ_ONLY_SQL_TRANSACTION,
        // An unlogged table is gone after a promotion: reconnecting creates it again.
        SqlState::UNDEFINED_TABLE,
        SqlState::UNDEFINED_FUNCTION,
    ];
    match error.code() {
        Some(code) if unfit.contains(code) => Sort::Unfit,
        Some(code) if !ended.contains(code) && !closed && !error.is_closed() => Sort::Refused,
        _ => Sort::Ended,
    }
}

/// Why there is no session. Wrong credentials, a missing database or a missing right remain until
/// an operator changes them.
pub(super) fn obstacle(error: &tokio_postgres::Error) -> Obstacle {
    let lasting = error.code().is_some_and(|code| {
        // (Error classes 28, 3D and 42.)
        ["28", "3D", "42"]
            .iter()
            .any(|class| code.code().starts_with(class))
    });
    Obstacle {
        words: words(error),
        lasting,
    }
}

/// An error with its cause; tokio-postgres's own text stops at "db error".
pub(super) fn words(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(error), _) => format!("{} ({})", error.message(), error.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}

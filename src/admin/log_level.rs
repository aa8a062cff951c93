//! `/api/v1/log-level`: the least serious message of the operations log, changed while the gateway runs.

use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

use super::api::Problem;
use super::audit::{AuditLine, Line};
use super::changes::{By, reason, unrecorded};
use crate::moments::moment;
use tollgate_config::settings::{LogLevel, Word as _};
use tollgate_limit::{Micros, Timestamp};
use tollgate_store::clock::Clock;

/// The level of the operations log. Clones share it.
#[derive(Clone)]
pub struct LogLevels {
    shared: Arc<Shared>,
}

struct Shared {
    written: LogLevel,
    clock: Clock,
    apply: Box<dyn Fn(LogLevel) -> Result<(), String> + Send + Sync>,
    state: Mutex<State>,
}

struct State {
    level: LogLevel,
    until: Option<Timestamp>,
    /// The number of changes, so that the end of an earlier one does not end a later one.
    changes: u64,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LogLevelRequest {
    /// The level: `error`, `warn`, `info`, `debug` or `trace`.
    level: String,
    reason: String,
    /// For how long; without it until the next change, or the end of the process.
    r#for: Option<String>,
    #[serde(default)]
    dry_run: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Level {
    pub format: u32,
    pub level: String,
    /// The level of the file, which is in force again after `until`.
    pub written: String,
    /// The end of a change; `null`: there is none.
    pub until: Option<String>,
}

#[derive(Serialize)]
struct Change<'c> {
    reason: &'c str,
    before: Level,
    after: Level,
}

impl AuditLine for Line<'_, Change<'_>> {
    fn words(&self) -> String {
        let Change { before, after, .. } = &self.details;
        let end = after.until.as_ref();
        let end = end.map_or_else(String::new, |until| format!(" until {until}"));
        format!(
            "{} set the log level to {}{end} (before: {})",
            self.operator, after.level, before.level
        )
    }
}

impl LogLevels {
    /// The level `written` in the file is in force; `apply` puts another one in force.
    pub fn new(
        written: LogLevel,
        clock: Clock,
        apply: impl Fn(LogLevel) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        let state = State {
            level: written,
            until: None,
            changes: 0,
        };
        Self {
            shared: Arc::new(Shared {
                written,
                clock,
                apply: Box::new(apply),
                state: Mutex::new(state),
            }),
        }
    }

    pub(super) fn level(&self) -> Level {
        let state = self.shared.state.lock();
        self.document(state.level, state.until)
    }

    fn document(&self, level: LogLevel, until: Option<Timestamp>) -> Level {
        Level {
            format: FORMAT,
            level: level.word().to_owned(),
            written: self.shared.written.word().to_owned(),
            until: until.map(moment),
        }
    }

    pub(super) fn change(&self, asked: &LogLevelRequest, by: &By<'_>) -> Result<Level, Problem> {
        let wrong = Problem::bad_request::<String>;
        let reason = reason(&asked.reason)?;
        let mut known = LogLevel::WORDS.iter();
        let known = known.find(|(_, word)| *word == asked.level);
        let (level, _) = known.ok_or_else(|| {
            let shown = asked.level.escape_default();
            wrong(format!(
                "`{shown}` is no level: `error`, `warn`, `info`, `debug`, `trace`"
            ))
        })?;
        let until = match &asked.r#for {
            None => None,
            Some(span) => match tollgate_config::duration(span).map_err(wrong)? {
                span if span == Micros::ZERO || span > LONGEST => {
                    return Err(wrong("`for` is above 0s and at most 30d".to_owned()));
                }
                span => Some(self.shared.clock.now().after(span)),
            },
        };
        let before = self.level();
        let after = self.document(*level, until);
        if asked.dry_run {
            return Ok(after);
        }
        let mut audit = by.prepared()?;
        (self.shared.apply)(*level).map_err(|error| Problem::new(StatusCode::CONFLICT, error))?;
        let changes = {
            let mut state = self.shared.state.lock();
            (state.level, state.until) = (*level, until);
            state.changes += 1;
            state.changes
        };
        if let Some(until) = until {
            tokio::spawn(self.clone().fall_back(until, changes));
        }
        let change = Change {
            reason,
            before,
            after: after.clone(),
        };
        let line = by.line(self.shared.clock.now(), "log_level", change);
        let recorded = audit.record(&line);
        recorded.map_err(|error| unrecorded("log level", &error))?;
        Ok(after)
    }

    /// Puts the level of the file in force again at `until`, unless it was changed again.
    async fn fall_back(self, until: Timestamp, change: u64) {
        loop {
            if self.shared.state.lock().changes != change {
                return;
            }
            let left = Duration::from(until.since(self.shared.clock.now()));
            if left.is_zero() {
                break;
            }
            // Clocks are set, so the end is looked for again and again.
            tokio::time::sleep(left.min(LOOK_EVERY)).await;
        }
        let mut state = self.shared.state.lock();
        if state.changes != change {
            return;
        }
        let level = self.shared.written;
        match (self.shared.apply)(level) {
            Ok(()) => {
                (state.level, state.until) = (level, None);
                tracing::info!(
                    level = level.word(),
                    "the log level is that of the file again"
                );
            }
            Err(error) => tracing::error!(%error, "the log level cannot be changed back"),
        }
    }
}

const FORMAT: u32 = 1;

/// The longest time of a change that has an end.
const LONGEST: Micros = Micros::from_secs(30 * 86_400);

/// How often the end of a change is looked for.
const LOOK_EVERY: Duration = Duration::from_millis(500);

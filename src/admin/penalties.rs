//! Tells of the keys that penalties block: as events, and in the audit.
//!
//! They are told one by one as long as there are few. A flood of blocked keys costs one line each
//! time it is looked at, so that no caller fills the disk.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use serde::Serialize;
use tollgate_limit::{Limit, Mode, Role, Timestamp};
use tollgate_limiter::{Block, Effect, Imposed};
use tollgate_policy::identity::keys;

use super::Options;
use super::audit::{Audit, AuditLine, PENALTIES, Prepared};
use super::live::Live;
use super::overrides::{Overridden, emit, overridden_by, own_line};
use crate::moments::moment;
use crate::overrides::{Event, InForce, Setting};

/// The penalties that were told and have not ended. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Penalties(Arc<Mutex<Vec<Event>>>);

/// More penalties than are told one by one.
#[derive(Serialize)]
struct More {
    at: String,
    operator: &'static str,
    action: &'static str,
    more: usize,
}

impl AuditLine for More {
    fn words(&self) -> String {
        format!("penalties blocked {} more keys", self.more)
    }
}

/// Tells of penalties as long as it is polled.
pub(super) async fn watch(options: Arc<Options>) {
    let mut tick = tokio::time::interval(EVERY);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tick.tick().await;
        options.live.tell_penalties(&options.audit);
        options.live.tell_ends();
    }
}

impl Live {
    /// Reports the penalties that were imposed since the last call. The list is locked meanwhile, so that the end of
    /// one is never reported before its beginning.
    fn tell_penalties(&self, audit: &Audit) {
        let mut begun = self.penalties.0.lock();
        let imposed = self.current.load().limiter.take_penalties();
        if imposed.is_empty() {
            return;
        }
        // A block is in force whether or not it can be recorded; the operations log then has it.
        let mut audit = match audit.prepare(PENALTIES) {
            Ok(audit) => Some(audit),
            Err(error) => {
                tracing::error!(%error, "the audit cannot be written: {} penalties", imposed.len());
                None
            }
        };
        for one in imposed.iter().take(ONE_BY_ONE) {
            let event = Event {
                set: true,
                lifted: false,
                one: self.block(one),
            };
            emit(&self.events, &event);
            record(&mut audit, &own_line(&event.one, true));
            if begun.len() < BEGUN_MAX {
                begun.push(event);
            }
        }
        let more = imposed.len().saturating_sub(ONE_BY_ONE);
        if more > 0 {
            let line = More {
                at: moment(self.now()),
                operator: OPERATOR,
                action: "penalty",
                more,
            };
            record(&mut audit, &line);
        }
    }

    fn tell_ends(&self) {
        let now = self.now();
        self.penalties.0.lock().retain_mut(|event| {
            let ends = event.one.until <= now;
            if ends {
                event.set = false;
                emit(&self.events, event);
            }
            !ends
        });
    }

    fn block(&self, one: &Imposed) -> InForce {
        InForce {
            limit: one.limit.to_string(),
            placement: one.placement,
            bucket: None,
            key: keys::words(&one.key, true),
            name: self.key(&one.key).name,
            setting: blocked(),
            since: one.since,
            until: one.until,
            operator: OPERATOR.to_owned(),
            reason: one.penalty.after(),
            grants: Vec::new(),
        }
    }

    /// The override in force for the bucket of `limit` for `key`, or its penalty where that decides.
    pub(super) fn overridden(&self, limit: &Limit, key: &[u8]) -> Option<Overridden> {
        let found = self.overrides.find(limit, key);
        let effect = found.as_ref().and_then(|found| found.setting.effect().ok());
        let penalty = self.penalty(limit, key).filter(|penalty| match effect {
            Some(Effect::Unlimited) => false,
            Some(Effect::Block) => found.as_ref().is_none_or(|one| one.until < penalty.until),
            _ => true,
        });
        match penalty {
            Some(block) => Some(penalized(limit, &block)),
            None => found.map(|one| overridden_by(&one, &self.current.load())),
        }
    }

    /// The penalty that refuses requests of `key` under `limit`.
    fn penalty(&self, limit: &Limit, key: &[u8]) -> Option<Block> {
        let is_enforced = limit.mode == Mode::Enforce && limit.role == Role::Live;
        let limiter = &self.current.load().limiter;
        limiter.penalty(limit, key).filter(|_| is_enforced)
    }

    pub(super) fn lift_penalty(&self, limit: &Limit, key: &[u8], audit: &Audit) {
        self.current.load().limiter.lift_penalty(limit, key);
        // The event of the beginning comes before that of the end.
        self.tell_penalties(audit);
        let name = self.names.text(key);
        self.penalties.0.lock().retain_mut(|event| {
            let is_it = event.one.limit == *limit.name && event.one.name == name;
            if is_it {
                (event.set, event.lifted) = (false, true);
                emit(&self.events, event);
            }
            !is_it
        });
    }
}

fn penalized(limit: &Limit, block: &Block) -> Overridden {
    let numbers = limit.penalty;
    let span = numbers.map_or(0, |numbers| numbers.block.0);
    let since = block.until.as_micros().saturating_sub(span);
    Overridden {
        setting: blocked(),
        since: moment(Timestamp::from_micros(since)),
        until: moment(block.until),
        operator: OPERATOR.to_owned(),
        // A later file may have no penalty any more.
        reason: numbers.map_or_else(|| "too many refusals".to_owned(), |numbers| numbers.after()),
        why_not: None,
    }
}

fn record(audit: &mut Option<Prepared<'_>>, line: &impl AuditLine) {
    if let Some(audit) = audit {
        // A line that cannot be written is in the operations log.
        let _ = audit.record(line);
    }
}

impl Overridden {
    /// Whether no operator has set it: it is the block of a penalty.
    pub(super) fn is_penalty(&self) -> bool {
        self.operator == OPERATOR && self.setting == blocked()
    }
}

fn blocked() -> Setting {
    Setting {
        block: true,
        ..Setting::default()
    }
}

/// Who sets a penalty, as documents, events and the audit have it.
const OPERATOR: &str = "penalty";

/// How often the gateway looks for new penalties.
const EVERY: Duration = Duration::from_millis(100);

/// The most penalties of one look that are reported one by one.
const ONE_BY_ONE: usize = 8;

/// The most penalties whose ends are reported.
const BEGUN_MAX: usize = 1_024;

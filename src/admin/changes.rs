//! What every change by an operator needs: the operator, the reason, the limits and the record.

use http::StatusCode;

use super::api::Problem;
use super::audit::{Audit, Line, Prepared};
use super::callers::similar;
use super::operators::Peer;
use super::overrides::Wanted;
use crate::moments::moment;
use tollgate_config::settings::Operator;
use tollgate_limit::{Placement, Timestamp};
use tollgate_policy::Rule;

/// The operator who asks for a change, and the connection of the request.
pub(super) struct By<'b> {
    pub(super) operator: &'b Operator,
    pub(super) peer: &'b Peer,
    pub(super) audit: &'b Audit,
}

impl<'b> By<'b> {
    /// The line of the audit about what was done at `at`.
    pub(super) fn line<T>(&self, at: Timestamp, action: &'b str, details: T) -> Line<'b, T> {
        Line {
            at: moment(at),
            operator: &self.operator.name,
            from: &self.peer.from,
            action,
            details,
        }
    }

    /// The audit, ready for a record. A change that cannot be recorded is not made.
    pub(super) fn prepared(&self) -> Result<Prepared<'b>, Problem> {
        if let Some(wait) = self.audit.full_for(&self.operator.name) {
            let seconds = wait.0.div_ceil(1_000_000);
            let detail = format!(
                "operator `{}` has made so many changes that the audit takes no more for now: the next one in {seconds} s",
                self.operator.name
            );
            let problem = Problem::new(StatusCode::TOO_MANY_REQUESTS, detail);
            return Err(problem.retry_after(seconds));
        }
        self.audit.prepare(&self.operator.name).map_err(|error| {
            let detail = format!("the audit cannot be written, so nothing is changed: {error}");
            Problem::new(StatusCode::SERVICE_UNAVAILABLE, detail)
        })
    }
}

pub(super) fn reason(text: &str) -> Result<&str, Problem> {
    let reason = text.trim();
    if reason.is_empty() || reason.chars().count() > REASON_MAX {
        let detail = format!("`reason` has 1 to {REASON_MAX} characters");
        return Err(Problem::bad_request(detail));
    }
    if reason.chars().any(char::is_control) {
        let detail = "`reason` has no control characters";
        return Err(Problem::bad_request(detail));
    }
    Ok(reason)
}

/// A change of `what` was made whose record could not be written.
pub(super) fn unrecorded(what: &str, error: &std::io::Error) -> Problem {
    let detail = format!("the {what} is changed, but the audit cannot be written: {error}");
    Problem::new(StatusCode::INTERNAL_SERVER_ERROR, detail)
}

/// The limits that a change is for: the one that it names, or all that the identity alone decides,
/// those of the process first: they wait for no store, and a store that does not respond ends the
/// change. `why_not` says why a limit cannot be changed so.
pub(super) fn chosen<'r>(
    rules: &'r [Rule],
    name: Option<&str>,
    decides: impl Fn(&Rule) -> bool,
    why_not: impl Fn(&Rule) -> Option<&'static str>,
) -> Result<Vec<&'r Rule>, Problem> {
    let Some(name) = name else {
        let mut all: Vec<&Rule> = rules
            .iter()
            .filter(|rule| decides(rule) && why_not(rule).is_none())
            .collect();
        all.sort_by_key(|rule| rule.live.placement == Placement::Shared);
        return if all.is_empty() {
            let detail = "no limit has buckets to change so that this identity alone decides";
            Err(Problem::not_found(detail))
        } else {
            Ok(all)
        };
    };
    let shown = name.escape_default();
    let Some(rule) = rules.iter().find(|rule| &*rule.name == name) else {
        let known: Vec<&str> = rules.iter().map(|rule| &*rule.name).collect();
        let near = similar("limit", name, &known);
        let detail = format!("no limit is called `{shown}`{near}");
        return Err(Problem::not_found(detail));
    };
    if !decides(rule) {
        let detail = format!("limit `{shown}` is not by this identity alone");
        return Err(Problem::not_found(detail));
    }
    if let Some(why) = why_not(rule) {
        let detail = format!("limit `{shown}` {why}");
        return Err(Problem::new(StatusCode::CONFLICT, detail));
    }
    Ok(vec![rule])
}

/// Leaves out the limits that another gateway of their store is asked for; returns the notes that say so.
pub(super) fn left_to_others(rules: &mut Vec<&Rule>, wanted: &Wanted<'_>) -> Vec<String> {
    let is_mine = |rule: &&Rule| wanted.is_for(rule.live.placement);
    let others = rules.iter().filter(|rule| !is_mine(rule));
    let note = |rule: &&Rule| {
        let name = &rule.name;
        format!("limit `{name}` is in the shared store: another gateway of it is asked")
    };
    let notes = others.map(note).collect();
    rules.retain(is_mine);
    notes
}

const REASON_MAX: usize = 200;

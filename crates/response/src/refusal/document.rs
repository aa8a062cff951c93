//! The problem document of a refusal (RFC 9457).

use bytes::Bytes;

use tollgate_limit::Micros;

use super::{Reason, Refusal, Refused, escape_json};
use crate::SpentBudget;
use crate::problem::{END, Problem};

impl Refusal<'_> {
    pub fn document(&self, id: &str) -> Bytes {
        complete(self.members().as_bytes(), self.wait(), id)
    }

    /// The same with an `error`, whose message the clients of language models print.
    pub(super) fn document_with_error(&self, id: &str) -> Bytes {
        let mut members = self.members();
        members.push_str(ERROR);
        escape_json(&mut members, &self.message());
        for name in ["type", "code"] {
            members.push_str("\",\"");
            members.push_str(name);
            members.push_str("\":\"");
            members.push_str(self.label);
        }
        members.push_str("\"}");
        complete(members.as_bytes(), self.wait(), id)
    }

    fn wait(&self) -> Option<Micros> {
        self.retry_after
            .filter(|_| matches!(self.reason, Reason::Denied(_)))
    }

    fn members(&self) -> String {
        let mut members = constant_part(&self.problem, self.detail, self.limits());
        if !self.budgets().is_empty() {
            members.push_str(BUDGETS);
            SpentBudget::write_list(self.budgets(), &mut members);
        }
        members
    }
}

/// The part of the document that is the same for all requests that one limit refuses; built once.
#[derive(Debug)]
pub struct Denial(Box<[u8]>);

impl Denial {
    /// Creates it for the limit of this name; `budget`: it says `refuse_status = 402`.
    pub fn by(limit: &str, budget: bool) -> Self {
        let refused = Refused {
            retry_after: Some(Micros::ZERO),
            budget,
            ..Refused::default()
        };
        let part = constant_part(&refused.problem(), None, &[limit]);
        Self(part.into_bytes().into())
    }

    /// The document for a caller that may retry after `wait`, refused by the decision `id`.
    pub fn document(&self, wait: Micros, id: &str) -> Bytes {
        complete(&self.0, Some(wait), id)
    }
}

/// The beginning of a document: the members of `problem`, with another detail if there is one, and
/// the names of the limits that refused.
fn constant_part<N: AsRef<str>>(problem: &Problem, detail: Option<&str>, violated: &[N]) -> String {
    let mut out = String::with_capacity(384);
    match detail {
        Some(detail) => {
            problem.write_head(&mut out);
            escape_json(&mut out, detail);
            out.push('"');
        }
        None => problem.write_members(&mut out),
    }
    for (place, name) in violated.iter().enumerate() {
        out.push_str(if place == 0 { VIOLATED } else { "\",\"" });
        escape_json(&mut out, name.as_ref());
    }
    if !violated.is_empty() {
        out.push_str("\"]");
    }
    out
}

fn complete(constant: &[u8], wait: Option<Micros>, id: &str) -> Bytes {
    let mut digits = itoa::Buffer::new();
    let millis = wait.map_or("", |wait| digits.format(wait.ceil_millis()));
    // Hexadecimal digits need no escaping.
    let pieces: [&[u8]; 6] = [
        if millis.is_empty() {
            b""
        } else {
            RETRY_AFTER_MS
        },
        millis.as_bytes(),
        if id.is_empty() { b"" } else { DECISION_ID },
        id.as_bytes(),
        if id.is_empty() { b"" } else { b"\"" },
        END.as_bytes(),
    ];
    // Allocated at its final length, so that it becomes `Bytes` without a copy.
    let rest: usize = pieces.iter().map(|piece| piece.len()).sum();
    let mut out = Vec::with_capacity(constant.len() + rest);
    out.extend_from_slice(constant);
    pieces.iter().for_each(|piece| out.extend_from_slice(piece));
    out.into()
}

const VIOLATED: &str = ",\"violated-policies\":[\"";
const ERROR: &str = ",\"error\":{\"message\":\"";
const BUDGETS: &str = ",\"budgets\":";
const RETRY_AFTER_MS: &[u8] = b",\"retry_after_ms\":";
const DECISION_ID: &[u8] = b",\"decision_id\":\"";

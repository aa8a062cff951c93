//! Ends of values and of calls: what was found is noted.

use super::paths::{PathSet, Value, bit};
use super::tokens::Literal;
use super::{Next, Reader, Token, is_delimiter, places};
use crate::body::flaw::BodyFlaw;

impl Reader {
    /// The wanted paths that end at the value that begins now.
    pub(super) fn ended(&mut self) -> PathSet {
        let lead = std::mem::take(&mut self.lead);
        if lead == 0 {
            return 0;
        }
        self.paths.ended(lead, self.matched.len())
    }

    pub(super) fn read_literal(&mut self, literal: Literal, paths: PathSet, byte: u8) {
        match literal.next(byte) {
            Ok(Some(literal)) => self.token = Token::Literal(literal, paths),
            Ok(None) => {
                let value = literal.value();
                if let Some(calls) = &mut self.calls {
                    calls.literal(paths, value.is_none());
                }
                for place in places(if value.is_none() { paths } else { 0 }) {
                    self.found.list[place].null = true;
                }
                self.found(paths, value);
                self.end_value();
            }
            Err(()) if self.is_strict() => self.fail(BodyFlaw::Malformed),
            Err(()) => {
                self.found(paths, Some(Value::Odd));
                self.token = Token::Other;
                if is_delimiter(byte) {
                    self.end_value();
                    self.between(byte);
                }
            }
        }
    }

    pub(super) fn end_number(&mut self) {
        let Token::Number(number, paths) = self.token else {
            return;
        };
        if self.is_strict() && !number.is_whole() {
            return self.fail(BodyFlaw::Malformed);
        }
        if let Some(calls) = &mut self.calls {
            calls.number(paths);
        }
        self.found(paths, Some(number.value()));
        self.end_value();
    }

    /// Notes the value at the end of `paths`.
    pub(super) fn found(&mut self, paths: PathSet, value: Option<Value>) {
        match &value {
            _ if self.is_strict() => {}
            Some(Value::Number { .. }) => self.unreadable &= !paths,
            Some(Value::Text(_)) => {}
            // It leaves an earlier number, or text.
            Some(Value::Flag(_) | Value::Odd) => {
                self.unreadable |= paths;
                return;
            }
            None => return,
        }
        for place in places(paths) {
            self.values[place].clone_from(&value);
        }
    }

    pub(super) fn end_value(&mut self) {
        self.token = Token::Between;
        (self.named, self.lead, self.after_colon) = (0, 0, false);
        self.next = Next::CommaOrEnd;
        if self.is_strict() && self.depth == self.base {
            self.end_call();
            if self.depth == 0 {
                self.next = Next::Nothing;
            }
        }
    }

    /// A call of a batch, or the only one, has ended.
    pub(super) fn end_call(&mut self) {
        let batch = self.is_batch();
        if let Some(calls) = &mut self.calls {
            calls.end_message(batch);
        }
        let first = self.found.calls == 0;
        self.found.calls += 1;
        if self.found.calls > CALLS_MAX {
            return self.fail(BodyFlaw::TooManyCalls);
        }
        let mut mixed = false;
        for place in places(self.wanted) {
            let value = self.values[place].take();
            let member = &mut self.found.list[place];
            match &value {
                Some(Value::Number { units, .. }) => {
                    member.sum = member.sum.saturating_add(*units);
                    member.stated += 1;
                }
                Some(_) => member.unreadable = true,
                None => {}
            }
            if first {
                member.value = value;
            } else {
                let same = self.same.is_some_and(|same| same & bit(place) != 0);
                mixed |= same && member.value != value;
            }
        }
        if mixed {
            self.fail(BodyFlaw::Mixed);
        }
    }
}

/// The most calls of a batch.
pub(super) const CALLS_MAX: u64 = 1000;

//! Objects, lists and what stands between values: how deep the text is, and what may follow.

use super::paths::Value;
use super::tokens::{Literal, Number};
use super::{DEPTH_MAX, Matched, Next, Reader, Token};
use crate::body::flaw::BodyFlaw;

impl Reader {
    /// Whether a valid text may continue with a value here; notes that it does.
    pub(super) fn takes_value(&mut self) -> bool {
        if self.is_strict() && !matches!(self.next, Next::Value | Next::ValueOrEnd) {
            self.fail(BodyFlaw::Malformed);
            return false;
        }
        self.after_colon = false;
        true
    }

    pub(super) fn expects(&self, next: Next) -> bool {
        !self.is_strict() || self.next == next
    }

    /// Whether the innermost open value is an object that wanted paths lead through.
    pub(super) fn in_matched(&self) -> bool {
        !self.matched.is_empty() && self.matched.len() == self.depth - self.base
    }

    pub(super) fn between(&mut self, byte: u8) {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => {}
            b'"' => self.open_text(),
            b'{' => self.open(true),
            b'[' => self.open(false),
            b'}' => self.close(true),
            b']' => self.close(false),
            b':' if self.expects(Next::Colon) => {
                self.lead = std::mem::take(&mut self.named);
                self.after_colon = true;
                self.next = Next::Value;
            }
            b',' if self.expects(Next::CommaOrEnd) => {
                (self.named, self.lead, self.after_colon) = (0, 0, false);
                self.next = if self.is_object() {
                    Next::Name
                } else {
                    Next::Value
                };
            }
            b'-' | b'0'..=b'9' => {
                if self.takes_value() {
                    let paths = self.ended();
                    if let Some(calls) = &mut self.calls {
                        calls.digit(paths, byte);
                    }
                    self.token = Token::Number(Number::new(byte), paths);
                }
            }
            _ => match Literal::new(byte) {
                Some(literal) if self.takes_value() => {
                    let paths = self.ended();
                    self.token = Token::Literal(literal, paths);
                }
                _ if self.is_strict() => self.fail(BodyFlaw::Malformed),
                _ if matches!(byte, b':' | b',') => {}
                _ => {
                    let paths = self.ended();
                    self.found(paths, Some(Value::Odd));
                    self.token = Token::Other;
                }
            },
        }
    }

    pub(super) fn open(&mut self, object: bool) {
        if !self.takes_value() {
            return;
        }
        if self.is_strict() && self.depth == DEPTH_MAX {
            return self.fail(BodyFlaw::Malformed);
        }
        let is_call = self.depth == self.base;
        let is_batch = self.is_strict() && self.depth == 0 && !object;
        if is_batch {
            self.base = 1;
        } else if is_call && object {
            let (paths, seen) = (self.wanted, 0);
            self.matched.push(Matched { paths, seen });
            self.lead = 0;
        } else {
            let lead = self.lead;
            let ended = self.ended();
            let (paths, seen) = (lead & !ended, 0);
            if let Some(calls) = &mut self.calls {
                calls.open(ended);
            }
            self.found(ended, Some(Value::Odd));
            if object && paths != 0 {
                self.matched.push(Matched { paths, seen });
            } else if self.is_strict() {
                // A path leads through objects only: some servers may read a list as well.
                self.found(paths, Some(Value::Odd));
            }
        }
        self.named = 0;
        if let Some(word) = self.objects.get_mut(self.depth / 64) {
            let bit = 1 << (self.depth % 64);
            *word = if object { *word | bit } else { *word & !bit };
        }
        self.depth += 1;
        self.next = if object {
            Next::NameOrEnd
        } else {
            Next::ValueOrEnd
        };
    }

    pub(super) fn is_object(&self) -> bool {
        let Some(at) = self.depth.checked_sub(1) else {
            return false;
        };
        self.objects
            .get(at / 64)
            .is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    pub(super) fn close(&mut self, object: bool) {
        let next = matches!(
            (object, self.next),
            (true, Next::NameOrEnd) | (false, Next::ValueOrEnd) | (_, Next::CommaOrEnd)
        );
        if self.is_strict() && !(next && self.depth > 0 && self.is_object() == object) {
            return self.fail(BodyFlaw::Malformed);
        }
        self.depth = self.depth.saturating_sub(1);
        if self.depth < self.base {
            // The end of a batch is no call of its own.
            self.token = Token::Between;
            self.next = Next::Nothing;
            return;
        }
        self.matched.truncate(self.depth - self.base);
        self.end_value();
    }
}

//! Strings: names of members, wanted values, and those that are passed over.

use super::escape::{self, Escape, Read};
use super::paths::Value;
use super::{Next, Reader, Role, Token, tokens};
use crate::body::flaw::BodyFlaw;

impl Reader {
    pub(super) fn open_text(&mut self) {
        let is_name = match self.next {
            _ if !self.is_strict() => self.in_matched() && !self.after_colon,
            Next::Name | Next::NameOrEnd => {
                self.next = Next::Colon;
                true
            }
            _ => {
                if !self.takes_value() {
                    return;
                }
                false
            }
        };
        let role = if is_name {
            if self.in_matched() {
                Role::Name(true)
            } else {
                Role::Skipped
            }
        } else {
            self.after_colon = false;
            match self.ended() {
                0 => Role::Skipped,
                paths if !self.is_strict() => {
                    self.found(paths & !self.texts, Some(Value::Odd));
                    match paths & self.texts {
                        0 => Role::Skipped,
                        texts => Role::Value(texts),
                    }
                }
                paths => Role::Value(paths),
            }
        };
        self.text.clear();
        self.token = Token::Text(role, Escape::None);
    }

    /// Reads on in a string; returns the bytes after what was read.
    pub(super) fn read_text<'p>(
        &mut self,
        mut role: Role,
        escape: Escape,
        piece: &'p [u8],
    ) -> &'p [u8] {
        if escape == Escape::None {
            // Most bytes are passed in one step, and so are the escapes of a string that is not wanted.
            let end = match role {
                Role::Skipped | Role::Name(false) => escape::passed(piece),
                Role::Name(true) | Role::Value(_) => {
                    memchr::memchr2(b'"', b'\\', piece).unwrap_or(piece.len())
                }
            };
            let (run, rest) = piece.split_at(end);
            if !self.is_printable && self.is_strict() && tokens::has_control(run) {
                self.fail(BodyFlaw::Malformed);
                return rest;
            }
            self.keep(&mut role, run);
            match rest.split_first() {
                Some((b'"', after)) => {
                    self.end_text(role);
                    return after;
                }
                Some((byte, after)) => {
                    self.token = Token::Text(role, escape.next(*byte).0);
                    return after;
                }
                None => {
                    self.token = Token::Text(role, escape);
                    return rest;
                }
            }
        }
        let byte = piece[0];
        if let (b'"', Escape::High(_)) = (byte, escape) {
            self.spoil(&mut role);
            self.end_text(role);
            return &piece[1..];
        }
        let (escape, read) = escape.next(byte);
        match read {
            Read::Nothing => {}
            Read::Byte(byte) => self.keep(&mut role, &[byte]),
            Read::Character(character) => {
                self.keep(&mut role, character.encode_utf8(&mut [0; 4]).as_bytes());
            }
            Read::Broken => self.spoil(&mut role),
        }
        self.token = Token::Text(role, escape);
        &piece[1..]
    }

    pub(super) fn keep(&mut self, role: &mut Role, bytes: &[u8]) {
        match role {
            Role::Skipped | Role::Name(false) => {}
            // A name that folds to a wanted one may have two bytes more for each letter.
            Role::Name(_) if self.text.len() + bytes.len() > self.longest_name * 3 => {
                *role = Role::Name(false);
            }
            Role::Value(_) if !self.is_strict() && self.text.len() + bytes.len() > TEXT_MAX => {
                *role = Role::Skipped;
            }
            Role::Name(_) | Role::Value(_) => self.text.extend_from_slice(bytes),
        }
    }

    /// A string is broken: a request is malformed, and a name of a response is none that is wanted.
    pub(super) fn spoil(&mut self, role: &mut Role) {
        if self.is_strict() {
            self.fail(BodyFlaw::Malformed);
        } else if let Role::Name(fits) = role {
            *fits = false;
        } else {
            *role = Role::Skipped;
        }
    }

    pub(super) fn end_text(&mut self, role: Role) {
        self.token = Token::Between;
        match role {
            Role::Name(fits) => {
                self.named = 0;
                let level = self.matched.len() - 1;
                let Some(object) = self.matched.last_mut().filter(|_| fits) else {
                    return;
                };
                let (named, alike) = self.paths.named(object.paths, level, &self.text);
                let twice = named & object.seen != 0;
                object.seen |= named;
                self.named = named;
                if (alike || twice) && self.is_strict() {
                    self.fail(BodyFlaw::Ambiguous);
                }
            }
            Role::Value(paths) => {
                let text = std::mem::take(&mut self.text);
                if let Some(calls) = &mut self.calls {
                    calls.text(paths, &text);
                }
                self.found(paths, Some(Value::Text(text)));
                self.end_value();
            }
            Role::Skipped if self.is_strict() && self.next == Next::Colon => {}
            Role::Skipped => self.end_value(),
        }
    }
}

/// The longest text of a response that counts, in bytes.
const TEXT_MAX: usize = 256;

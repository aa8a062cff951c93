//! The ids of JSON-RPC calls, which a refusal must repeat.

use smallvec::SmallVec;

use super::paths::PathSet;

/// The id of a JSON-RPC call, as its client sent it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CallId {
    Null,
    Number(Box<str>),
    Text(Box<str>),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calls {
    /// Whether the body is a list of calls.
    pub batch: bool,
    /// The ids of those calls that get a response: a notification has none.
    pub ids: SmallVec<[CallId; 1]>,
}

#[derive(Debug, Default)]
pub(super) struct CallReader {
    id: PathSet,
    /// The path `method`, which makes a message a call.
    method: PathSet,
    current: Option<CallId>,
    is_call: bool,
    /// The number, as far as it was read.
    digits: SmallVec<[u8; 24]>,
    calls: Calls,
    /// Whether an id is too long or no id at all, or there are too many of them.
    is_unclear: bool,
}

impl CallReader {
    pub(super) fn new(id: PathSet, method: PathSet) -> Self {
        Self {
            id,
            method,
            ..Self::default()
        }
    }

    /// A number begins, or goes on, at the end of `paths`.
    pub(super) fn digit(&mut self, paths: PathSet, byte: u8) {
        if paths & self.id != 0 && self.digits.len() <= ID_MAX {
            self.digits.push(byte);
        }
    }

    pub(super) fn number(&mut self, paths: PathSet) {
        if paths & self.id == 0 {
            return;
        }
        let digits = std::mem::take(&mut self.digits);
        self.set(&digits, CallId::Number);
    }

    pub(super) fn text(&mut self, paths: PathSet, text: &[u8]) {
        self.is_call |= paths & self.method != 0;
        if paths & self.id != 0 {
            self.set(text, CallId::Text);
        }
    }

    fn set(&mut self, bytes: &[u8], make: fn(Box<str>) -> CallId) {
        match std::str::from_utf8(bytes) {
            Ok(text) if text.len() <= ID_MAX => self.current = Some(make(text.into())),
            _ => self.is_unclear = true,
        }
    }

    pub(super) fn literal(&mut self, paths: PathSet, is_null: bool) {
        if paths & self.id != 0 {
            self.current = Some(CallId::Null);
            self.is_unclear |= !is_null;
        }
    }

    /// A list or an object begins at the end of `paths`.
    pub(super) fn open(&mut self, paths: PathSet) {
        self.is_unclear |= paths & self.id != 0;
    }

    pub(super) fn end_message(&mut self, batch: bool) {
        self.calls.batch = batch;
        let id = self.current.take();
        if !std::mem::take(&mut self.is_call) || self.is_unclear {
            return;
        }
        if self.calls.ids.len() == IDS_MAX {
            self.is_unclear = true;
            return;
        }
        self.calls.ids.extend(id);
    }

    /// The calls that get a response; `None`: there are none, or their ids cannot be repeated.
    pub(super) fn finish(self) -> Option<Calls> {
        Some(self.calls).filter(|calls| !self.is_unclear && !calls.ids.is_empty())
    }
}

const ID_MAX: usize = 256;
/// The most calls of a batch whose refusals are told one by one.
const IDS_MAX: usize = 64;

//! Reads the wanted members of a JSON text while it streams past. The text is not stored: the
//! state is a few words and the values found.
//!
//! Two kinds of text are read. A *request* comes from a client, and decides how the client is
//! limited: it must be valid, and a wanted member that two servers could read differently is an
//! error. If its outermost value is a list (a batch of JSON-RPC calls), each element is a call. A
//! *response* comes from an upstream: the last number at each path counts, and malformed text
//! finds nothing.

mod calls;
mod escape;
mod paths;
mod tokens;

use std::sync::Arc;

use smallvec::SmallVec;

pub use calls::{CallId, Calls};
pub use paths::{Flaw, Member, Members, PATHS_MAX, PathSet, Paths, Value};

use calls::CallReader;
use escape::{Escape, Read};
use paths::bit;
pub(crate) use paths::places;
use tokens::{Literal, Number, Utf8};

/// Reads one text.
#[derive(Debug)]
pub struct Reader {
    paths: Arc<Paths>,
    /// The paths that are looked for.
    wanted: PathSet,
    /// The paths whose members must be the same in all calls; `None`: the text is a response.
    same: Option<PathSet>,
    /// A response: the paths whose texts count beside their numbers.
    texts: PathSet,
    /// The length of the longest wanted name.
    longest_name: usize,
    token: Token,
    /// What a valid text continues with; only for requests.
    next: Next,
    utf8: Utf8,
    /// Whether the piece that is read has no control character at all.
    is_printable: bool,
    flaw: Option<Flaw>,
    /// The number of open objects and lists.
    depth: usize,
    /// The number of open lists around a call: 1 in a batch.
    base: usize,
    /// Which of the open values are objects, for the first [`DEPTH_MAX`].
    objects: [u64; DEPTH_MAX / 64],
    /// The open objects that wanted paths lead through, outermost first.
    matched: SmallVec<[Matched; 4]>,
    /// The paths that the name just read belongs to.
    named: PathSet,
    /// The paths that lead to or through the value to come.
    lead: PathSet,
    /// Whether a colon came, and the value has not begun.
    after_colon: bool,
    /// The name or the wanted string that is being read.
    text: SmallVec<[u8; 24]>,
    /// The wanted values of this call.
    values: SmallVec<[Option<Value>; 2]>,
    found: Members,
    /// Reads the ids of JSON-RPC calls, where they are asked for.
    calls: Option<Box<CallReader>>,
}

/// An open object that wanted paths lead through.
#[derive(Clone, Copy, Debug)]
struct Matched {
    paths: PathSet,
    /// The paths whose next name was seen in it.
    seen: PathSet,
}

/// The token that is being read.
#[derive(Clone, Copy, Debug)]
enum Token {
    Between,
    Text(Role, Escape),
    /// A number, and the paths that end at it.
    Number(Number, PathSet),
    /// `true`, `false` or `null`, and the paths that end at it.
    Literal(Literal, PathSet),
    /// A response: the characters of a value that is no JSON.
    Other,
}

/// What a string is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A name that may be wanted; `false`: it is too long for that, or broken.
    Name(bool),
    /// The value of these paths.
    Value(PathSet),
    /// Neither.
    Skipped,
}

/// What a valid text continues with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Value,
    ValueOrEnd,
    NameOrEnd,
    Name,
    Colon,
    CommaOrEnd,
    Nothing,
}

impl Reader {
    /// Whether it reads a batch of calls.
    pub const fn is_batch(&self) -> bool {
        self.base == 1
    }

    /// A reader of a request for the members in `wanted`; those in `same` must be the same in all
    /// calls of a batch.
    pub fn request(paths: &Arc<Paths>, wanted: PathSet, same: PathSet) -> Self {
        Self::new(paths, wanted, Some(same))
    }

    /// A reader of a response for the last number at each path.
    pub fn response(paths: &Arc<Paths>) -> Self {
        Self::new(paths, paths.all(), None)
    }

    fn new(paths: &Arc<Paths>, wanted: PathSet, same: Option<PathSet>) -> Self {
        let count = paths.len();
        Self {
            paths: Arc::clone(paths),
            wanted,
            same,
            texts: 0,
            longest_name: paths.longest_name(),
            token: Token::Between,
            next: Next::Value,
            utf8: Utf8::default(),
            is_printable: false,
            flaw: None,
            depth: 0,
            base: 0,
            objects: [0; DEPTH_MAX / 64],
            matched: SmallVec::new(),
            named: 0,
            lead: 0,
            after_colon: false,
            text: SmallVec::new(),
            values: SmallVec::from_elem(None, count),
            found: Members {
                calls: 0,
                list: SmallVec::from_elem(Member::default(), count),
                calls_of_rpc: None,
            },
            calls: None,
        }
    }

    /// The same reader, which also reads the ids of JSON-RPC calls: the paths of `id` and `method`.
    #[must_use]
    pub fn with_calls(self, id: PathSet, method: PathSet) -> Self {
        Self {
            calls: Some(Box::new(CallReader::new(id, method))),
            ..self
        }
    }

    /// A reader of a response for the last text at each of these paths, too.
    #[must_use]
    pub fn with_texts(self, texts: PathSet) -> Self {
        Self { texts, ..self }
    }

    /// The last text at each path of a response where texts count.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        let text = |place: usize| match self.values.get(place)? {
            Some(Value::Text(text)) => std::str::from_utf8(text).ok(),
            _ => None,
        };
        places(self.texts).filter_map(text)
    }

    /// Reads the next piece.
    pub fn feed(&mut self, piece: &[u8]) {
        if self.flaw.is_some() {
            return;
        }
        if self.is_strict() && !self.utf8.feed(piece) {
            return self.fail(Flaw::Malformed);
        }
        self.is_printable = self.is_strict() && !tokens::has_control(piece);
        let mut rest = piece;
        while let Some((&byte, after)) = rest.split_first() {
            rest = match self.token {
                Token::Between => {
                    self.between(byte);
                    after
                }
                Token::Text(role, escape) => self.read_text(role, escape, rest),
                Token::Number(number, paths) => match number.next(byte) {
                    Some(number) => {
                        if let Some(calls) = &mut self.calls {
                            calls.digit(paths, byte);
                        }
                        self.token = Token::Number(number, paths);
                        after
                    }
                    None => {
                        self.end_number();
                        rest
                    }
                },
                Token::Literal(literal, paths) => {
                    self.read_literal(literal, paths, byte);
                    after
                }
                Token::Other if is_delimiter(byte) => {
                    self.end_value();
                    rest
                }
                Token::Other => after,
            };
            if self.flaw.is_some() {
                return;
            }
        }
    }

    /// The members of a request.
    ///
    /// # Errors
    /// The first flaw of the text.
    pub fn finish(mut self) -> Result<Members, Flaw> {
        self.end_number();
        let whole = self.next == Next::Nothing
            && matches!(self.token, Token::Between)
            && self.utf8.is_whole();
        match self.flaw {
            Some(flaw) => Err(flaw),
            None if whole => {
                self.found.calls_of_rpc = self.calls.and_then(|calls| calls.finish());
                Ok(self.found)
            }
            None => Err(Flaw::Malformed),
        }
    }

    /// The last number at each path of a response.
    pub fn numbers(mut self) -> SmallVec<[Option<u64>; 2]> {
        self.end_number();
        let number = |value: &Option<Value>| match value {
            Some(Value::Number { units, .. }) => Some(*units),
            _ => None,
        };
        self.values.iter().map(number).collect()
    }

    /// A response: another text begins, and what is unfinished is discarded.
    pub fn restart(&mut self) {
        self.end_number();
        self.token = Token::Between;
        self.depth = 0;
        self.matched.clear();
        (self.named, self.lead, self.after_colon) = (0, 0, false);
    }

    const fn is_strict(&self) -> bool {
        self.same.is_some()
    }

    #[cold]
    fn fail(&mut self, flaw: Flaw) {
        self.flaw = Some(flaw);
    }

    /// Whether a valid text may continue with a value here; notes that it does.
    fn takes_value(&mut self) -> bool {
        if self.is_strict() && !matches!(self.next, Next::Value | Next::ValueOrEnd) {
            self.fail(Flaw::Malformed);
            return false;
        }
        self.after_colon = false;
        true
    }

    fn expects(&self, next: Next) -> bool {
        !self.is_strict() || self.next == next
    }

    /// Whether the innermost open value is an object that wanted paths lead through.
    fn in_matched(&self) -> bool {
        !self.matched.is_empty() && self.matched.len() == self.depth - self.base
    }

    fn between(&mut self, byte: u8) {
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
                _ if self.is_strict() => self.fail(Flaw::Malformed),
                _ if matches!(byte, b':' | b',') => {}
                _ => {
                    self.lead = 0;
                    self.token = Token::Other;
                }
            },
        }
    }

    /// The wanted paths that end at the value that begins now.
    fn ended(&mut self) -> PathSet {
        let lead = std::mem::take(&mut self.lead);
        if lead == 0 {
            return 0;
        }
        self.paths.ended(lead, self.matched.len())
    }

    fn open_text(&mut self) {
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
                paths if !self.is_strict() => match paths & self.texts {
                    0 => Role::Skipped,
                    texts => Role::Value(texts),
                },
                paths => Role::Value(paths),
            }
        };
        self.text.clear();
        self.token = Token::Text(role, Escape::None);
    }

    /// Reads on in a string; returns the bytes after what was read.
    fn read_text<'p>(&mut self, mut role: Role, escape: Escape, piece: &'p [u8]) -> &'p [u8] {
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
                self.fail(Flaw::Malformed);
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

    /// Keeps bytes of a string that is wanted.
    fn keep(&mut self, role: &mut Role, bytes: &[u8]) {
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
    fn spoil(&mut self, role: &mut Role) {
        if self.is_strict() {
            self.fail(Flaw::Malformed);
        } else if let Role::Name(fits) = role {
            *fits = false;
        } else {
            *role = Role::Skipped;
        }
    }

    fn end_text(&mut self, role: Role) {
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
                    self.fail(Flaw::Ambiguous);
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

    fn read_literal(&mut self, literal: Literal, paths: PathSet, byte: u8) {
        match literal.next(byte) {
            Ok(Some(literal)) => self.token = Token::Literal(literal, paths),
            Ok(None) => {
                let value = literal.value();
                if let Some(calls) = &mut self.calls {
                    calls.literal(paths, value.is_none());
                }
                self.found(paths, value);
                self.end_value();
            }
            Err(()) if self.is_strict() => self.fail(Flaw::Malformed),
            Err(()) if is_delimiter(byte) => {
                self.end_value();
                self.between(byte);
            }
            Err(()) => self.token = Token::Other,
        }
    }

    fn end_number(&mut self) {
        let Token::Number(number, paths) = self.token else {
            return;
        };
        if self.is_strict() && !number.is_whole() {
            return self.fail(Flaw::Malformed);
        }
        if let Some(calls) = &mut self.calls {
            calls.number(paths);
        }
        self.found(paths, Some(number.value()));
        self.end_value();
    }

    /// Notes the value at the end of `paths`.
    fn found(&mut self, paths: PathSet, value: Option<Value>) {
        // A later member of a response of another kind leaves an earlier number, or text.
        let counts = matches!(value, Some(Value::Number { .. } | Value::Text(_)));
        if paths == 0 || !self.is_strict() && !counts {
            return;
        }
        for place in places(paths) {
            self.values[place].clone_from(&value);
        }
    }

    fn end_value(&mut self) {
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
    fn end_call(&mut self) {
        let batch = self.is_batch();
        if let Some(calls) = &mut self.calls {
            calls.end_message(batch);
        }
        let first = self.found.calls == 0;
        self.found.calls += 1;
        let mut mixed = self.found.calls > CALLS_MAX;
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
            self.fail(Flaw::Mixed);
        }
    }

    fn open(&mut self, object: bool) {
        if !self.takes_value() {
            return;
        }
        if self.is_strict() && self.depth == DEPTH_MAX {
            return self.fail(Flaw::Malformed);
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
            } else {
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

    /// Whether the innermost open value is an object.
    fn is_object(&self) -> bool {
        let Some(at) = self.depth.checked_sub(1) else {
            return false;
        };
        self.objects
            .get(at / 64)
            .is_some_and(|word| word & (1 << (at % 64)) != 0)
    }

    fn close(&mut self, object: bool) {
        let next = matches!(
            (object, self.next),
            (true, Next::NameOrEnd) | (false, Next::ValueOrEnd) | (_, Next::CommaOrEnd)
        );
        if self.is_strict() && !(next && self.depth > 0 && self.is_object() == object) {
            return self.fail(Flaw::Malformed);
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

/// Whether a byte ends a value that is no JSON.
const fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b'\n' | b' ' | b'\t' | b'\r')
}

/// The deepest nesting of a request; many servers refuse more than 100.
const DEPTH_MAX: usize = 128;
/// The longest text of a response that counts, in bytes.
const TEXT_MAX: usize = 256;
/// The most calls of a batch.
const CALLS_MAX: u64 = 1000;

#[cfg(test)]
mod tests;

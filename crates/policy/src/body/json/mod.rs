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
mod strings;
mod structure;
mod tokens;
mod values;

use std::sync::Arc;

use smallvec::SmallVec;

pub use calls::{CallId, Calls};
pub use paths::{Member, Members, PATHS_MAX, PathSet, Paths, Value};

use crate::body::flaw::BodyFlaw;
use calls::CallReader;
use escape::Escape;
pub(crate) use paths::places;
use tokens::{Literal, Number, Utf8};

#[derive(Debug, Default)]
pub struct Reader {
    paths: Arc<Paths>,
    wanted: PathSet,
    /// The paths whose members must be the same in all calls; `None`: the text is a response.
    same: Option<PathSet>,
    /// A response: the paths whose texts count beside their numbers.
    texts: PathSet,
    /// A response: the paths at which the last value is no number.
    unreadable: PathSet,
    longest_name: usize,
    token: Token,
    /// What a valid text continues with; only for requests.
    next: Next,
    utf8: Utf8,
    /// Whether the piece that is read has no control character at all.
    is_printable: bool,
    flaw: Option<BodyFlaw>,
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
    values: SmallVec<[Option<Value>; 2]>,
    found: Members,
    calls: Option<Box<CallReader>>,
}

/// An open object that wanted paths lead through.
#[derive(Clone, Copy, Debug)]
struct Matched {
    paths: PathSet,
    /// The paths whose next name was seen in it.
    seen: PathSet,
}

#[derive(Clone, Copy, Debug, Default)]
enum Token {
    #[default]
    Between,
    Text(Role, Escape),
    /// A number, and the paths that end at it.
    Number(Number, PathSet),
    /// `true`, `false` or `null`, and the paths that end at it.
    Literal(Literal, PathSet),
    /// A response: the characters of a value that is no JSON.
    Other,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    /// A name that may be wanted; `false`: it is too long for that, or broken.
    Name(bool),
    Value(PathSet),
    Skipped,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    #[default]
    Value,
    ValueOrEnd,
    NameOrEnd,
    Name,
    Colon,
    CommaOrEnd,
    Nothing,
}

impl Reader {
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
            longest_name: paths.longest_name(),
            values: SmallVec::from_elem(None, count),
            found: Members {
                list: SmallVec::from_elem(Member::default(), count),
                ..Members::default()
            },
            ..Self::default()
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

    pub fn feed(&mut self, piece: &[u8]) {
        if self.flaw.is_some() {
            return;
        }
        if self.is_strict() {
            // Most pieces are found to be valid and printable in one pass.
            let plain = self.utf8.is_whole() && tokens::is_printable_ascii(piece);
            if !plain && !self.utf8.feed(piece) {
                return self.fail(BodyFlaw::Malformed);
            }
            self.is_printable = plain || !tokens::has_control(piece);
        }
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

    pub fn finish(mut self) -> Result<Members, BodyFlaw> {
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
            None => Err(BodyFlaw::Malformed),
        }
    }

    /// Whether a response has something else than a number, `null` aside, where a number is looked for.
    pub const fn is_unreadable(&self) -> bool {
        self.unreadable & !self.texts != 0
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
    fn fail(&mut self, flaw: BodyFlaw) {
        self.flaw = Some(flaw);
    }
}

/// Whether a byte ends a value that is no JSON.
const fn is_delimiter(byte: u8) -> bool {
    matches!(byte, b',' | b'}' | b']' | b'\n' | b' ' | b'\t' | b'\r')
}

/// The deepest nesting of a request; many servers refuse more than 100.
const DEPTH_MAX: usize = 128;

#[cfg(test)]
mod tests;

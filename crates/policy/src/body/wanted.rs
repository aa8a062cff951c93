//! What a policy asks of bodies, and what is asked of one of them.

use std::sync::Arc;

use super::facts::{HASH, STORED_WITHIN, document_names};
use crate::body::json::{PathSet, Paths};
use crate::identity::source::Source;

/// Everything that a policy may ask of bodies.
#[derive(Debug, Default)]
pub struct Wanted {
    pub(super) paths: Arc<Paths>,
    pub(super) forms: Vec<String>,
    /// The members of which a digest is asked for.
    pub(super) digests: Vec<Vec<String>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WantedFacts {
    pub(super) json: PathSet,
    /// Those of them that make a key or a route, so that all calls of a batch must agree on them.
    pub(super) same: PathSet,
    pub(super) forms: u64,
    pub(super) digests: u64,
    pub(super) graphql: bool,
    pub(super) calls: bool,
    pub(super) usage: bool,
    routes: bool,
}

impl WantedFacts {
    pub const fn is_empty(self) -> bool {
        self.json == 0 && self.forms == 0
    }

    /// Whether the choice of a route depends on the body.
    pub const fn routes(self) -> bool {
        self.routes
    }

    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            json: self.json | other.json,
            same: self.same | other.same,
            forms: self.forms | other.forms,
            digests: self.digests | other.digests,
            graphql: self.graphql | other.graphql,
            calls: self.calls | other.calls,
            usage: self.usage | other.usage,
            routes: self.routes | other.routes,
        }
    }

    #[must_use]
    pub const fn for_routes(self) -> Self {
        Self {
            routes: true,
            ..self
        }
    }
}

impl Wanted {
    /// Notes that `source` is asked for; `None`: there are too many. A source that is no part of a
    /// body asks for nothing.
    pub(crate) fn ask(&mut self, source: &Source) -> Option<WantedFacts> {
        let mut asked = WantedFacts::default();
        match source {
            Source::Json(path) => asked.same = self.path(path)?,
            Source::Form(name) => asked.forms = bit_of(&mut self.forms, name)?,
            Source::JsonDigest(path) => {
                asked.digests = bit_of(&mut self.digests, path)?;
                // A member of this name that is there twice is refused, as others are.
                asked.json = self.path(path)?;
            }
            Source::GraphqlOperation => {
                for name in document_names() {
                    asked.same |= self.path(&[name.to_owned()])?;
                }
                let hash = HASH.map(str::to_owned);
                asked.same |= self.path(&hash[..2])? | self.path(&hash)?;
                asked.same |= self.path(&STORED_WITHIN.map(str::to_owned))?;
                asked.graphql = true;
            }
            _ => {}
        }
        asked.json |= asked.same;
        Some(asked)
    }

    /// Notes that the number at `path` is asked for; `None`: there are too many members.
    pub(crate) fn ask_number(&mut self, path: &[String]) -> Option<WantedFacts> {
        Some(WantedFacts {
            json: self.path(path)?,
            ..WantedFacts::default()
        })
    }

    /// Notes that the ids of JSON-RPC calls are asked for; `None`: there are too many members.
    pub(crate) fn ask_calls(&mut self) -> Option<WantedFacts> {
        let mut json = 0;
        for name in RPC {
            json |= self.path(&[name.to_owned()])?;
        }
        Some(WantedFacts {
            json,
            calls: true,
            ..WantedFacts::default()
        })
    }

    /// Notes that it is asked whether the response is a stream that leaves its usage out; `None`: there
    /// are too many members.
    pub(crate) fn ask_usage(&mut self) -> Option<WantedFacts> {
        let [stream, options] = STREAM.map(|name| self.path(&[name.to_owned()]));
        Some(WantedFacts {
            json: stream? | options?,
            usage: true,
            ..WantedFacts::default()
        })
    }

    fn path(&mut self, path: &[String]) -> Option<PathSet> {
        Arc::make_mut(&mut self.paths)
            .add(path)
            .map(|place| 1 << place)
    }
}

/// The members by which a chat completion asks for a stream, and for its usage.
pub(super) const STREAM: [&str; 2] = ["stream", "stream_options"];

/// The bit of the place of `one` in the list, to which it is added if it is new; `None`: there are too many.
fn bit_of<T: Clone + PartialEq>(list: &mut Vec<T>, one: &T) -> Option<u64> {
    let known = list.iter().position(|known| known == one);
    let place = known.unwrap_or_else(|| {
        list.push(one.clone());
        list.len() - 1
    });
    1_u64.checked_shl(u32::try_from(place).ok()?)
}

/// The members of a JSON-RPC call by which it is refused: its id, and what makes it a call.
pub(super) const RPC: [&str; 2] = ["id", "method"];

//! What the body of one request says.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest, Sha256};
use smallvec::SmallVec;

use super::flaw::{BodyFlaw, OperationFlaw};
use super::graphql;
use super::wanted::{Wanted, WantedFacts};
use crate::body::json::{self, Calls, Member, Members, PathSet, Value};
use crate::identity::source::{self, Source};
use tollgate_limit::hex;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadState {
    Whole,
    /// Not at all: it is too long, or compressed.
    Skipped,
    /// Not at all: another program has it. If it has no known length, it is taken to have so many
    /// bytes; `None`: any number.
    Elsewhere(Option<u64>),
}

#[derive(Clone, Debug)]
pub struct BodyFacts {
    pub(super) wanted: Arc<Wanted>,
    pub(super) length: Option<u64>,
    pub(super) state: ReadState,
    pub(super) members: Option<Members>,
    pub(super) fields: SmallVec<[(usize, Vec<u8>); 1]>,
    pub(super) digests: SmallVec<[(usize, Vec<u8>); 1]>,
    pub(super) operation: Option<Vec<u8>>,
    /// Whether it asks for a stream without its usage, which is asked for in its place.
    pub lacks_usage: bool,
}

impl BodyFacts {
    /// Of a request without a body.
    pub fn none(wanted: &Arc<Wanted>) -> Self {
        Self {
            state: ReadState::Whole,
            ..Self::unread(wanted, Some(0))
        }
    }

    /// Of a body that is not read: too long, or compressed. `length`: its length, if that is known.
    pub fn unread(wanted: &Arc<Wanted>, length: Option<u64>) -> Self {
        Self {
            wanted: Arc::clone(wanted),
            length,
            state: ReadState::Skipped,
            members: None,
            fields: SmallVec::new(),
            digests: SmallVec::new(),
            operation: None,
            lacks_usage: false,
        }
    }

    /// Of a body that another program has. `assumed`: the bytes that it is taken to have if its
    /// length is not known; `None`: any number.
    pub(crate) fn elsewhere(
        wanted: &Arc<Wanted>,
        length: Option<u64>,
        assumed: Option<u64>,
    ) -> Self {
        Self {
            state: ReadState::Elsewhere(assumed),
            ..Self::unread(wanted, length)
        }
    }

    /// Whether another program has the body: its client did not cause that it is not read.
    pub(crate) const fn is_elsewhere(&self) -> bool {
        matches!(self.state, ReadState::Elsewhere(_))
    }

    pub(crate) const fn is_skipped(&self) -> bool {
        matches!(self.state, ReadState::Skipped)
    }

    /// The bytes that a body of unknown length is taken to have; `None`: it may have any number.
    pub(crate) const fn assumed_length(&self) -> Option<u64> {
        match self.state {
            ReadState::Elsewhere(assumed) => assumed,
            ReadState::Whole | ReadState::Skipped => None,
        }
    }

    /// Whether there is a body of which no member is known, so that costs by it are the highest: it
    /// was not read, or is not JSON. An upstream may understand another format.
    pub const fn is_opaque(&self) -> bool {
        !matches!(self.state, ReadState::Whole)
            || self.members.is_none() && !matches!(self.length, Some(0))
    }

    pub const fn length(&self) -> Option<u64> {
        self.length
    }

    /// The number of calls that the body makes: the elements of a batch, otherwise 1.
    pub fn calls(&self) -> u64 {
        self.members
            .as_ref()
            .map_or(1, |members| members.calls.max(1))
    }

    /// Takes out the JSON-RPC calls that get a response, where the route asks for them.
    pub fn take_calls(&mut self) -> Option<Calls> {
        self.members.as_mut()?.calls_of_rpc.take()
    }

    /// The value of a source, if it is a part of the body.
    pub fn value(&self, source: &Source) -> Option<Cow<'_, [u8]>> {
        let value = match source {
            Source::Json(path) => self.member(path)?.value.as_ref().and_then(words),
            Source::Form(name) => {
                let place = self.wanted.forms.iter().position(|known| known == name)?;
                found_at(&self.fields, place)
            }
            Source::JsonDigest(path) => {
                let place = self.wanted.digests.iter().position(|known| known == path)?;
                found_at(&self.digests, place)
            }
            Source::GraphqlOperation => self.operation.as_deref().map(Cow::Borrowed),
            _ => None,
        };
        value.filter(|value| !value.is_empty())
    }

    pub fn member<Name>(&self, path: &[Name]) -> Option<&Member>
    where
        String: PartialEq<Name>,
    {
        self.members
            .as_ref()?
            .list
            .get(self.wanted.paths.place(path)?)
    }

    /// Refuses values that make no key, and those of `asked` sources that routes would compare
    /// although servers read them in different ways.
    pub(super) fn check(&mut self, asked: WantedFacts) -> Result<(), BodyFlaw> {
        self.check_members(asked)?;
        if asked.routes() {
            let members = json::places(asked.same & !self.documents(asked))
                .filter_map(|place| self.members.as_ref()?.list.get(place)?.value.as_ref())
                .filter_map(words);
            let fields = self.fields.iter().map(|(_, value)| Cow::from(value));
            for value in members.chain(fields) {
                source::one_spelling(value).map_err(|_| BodyFlaw::Ambiguous)?;
            }
        }
        Ok(())
    }

    /// The member that has a GraphQL document, which has lines and is no value that routes compare.
    fn documents(&self, asked: WantedFacts) -> PathSet {
        self.of_graphql(asked, &GRAPHQL[..1])
    }

    /// The members of a GraphQL request that are objects, and no values.
    fn objects(&self, asked: WantedFacts) -> PathSet {
        self.of_graphql(asked, &HASH[..1]) | self.of_graphql(asked, &HASH[..2])
    }

    fn of_graphql(&self, asked: WantedFacts, path: &[&str]) -> PathSet {
        let place = self.wanted.paths.place(path);
        place
            .filter(|_| asked.graphql)
            .map_or(0, |place| 1 << place)
    }

    fn check_members(&mut self, asked: WantedFacts) -> Result<(), BodyFlaw> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        for place in json::places(asked.same & !self.objects(asked)) {
            let value = members
                .list
                .get(place)
                .and_then(|member| member.value.as_ref());
            if value.is_some_and(|value| words(value).is_none()) {
                return Err(BodyFlaw::Ambiguous);
            }
        }
        if asked.graphql {
            let text = |name: &str| self.value(&Source::Json(vec![name.to_owned()]));
            let [query, operation] = GRAPHQL.map(text);
            if query
                .as_deref()
                .is_some_and(|query| !is_only_document(query, self))
            {
                return Err(OperationFlaw::Beside.into());
            }
            let named =
                graphql::operation(query.as_deref(), operation.as_deref())?.map(<[u8]>::to_vec);
            self.operation = named;
        }
        Ok(())
    }
}

/// The body of a request, as far as costs depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentBody<'b> {
    pub length: Option<u64>,
    pub facts: Option<&'b BodyFacts>,
}

impl SentBody<'_> {
    pub fn calls(self) -> u64 {
        self.facts.map_or(1, BodyFacts::calls)
    }

    /// The most bytes that it is taken to have; `None`: there is no bound.
    pub(crate) fn most_bytes(self) -> Option<u64> {
        self.length
            .or_else(|| self.facts.and_then(BodyFacts::assumed_length))
    }
}

impl From<Option<u64>> for SentBody<'_> {
    fn from(length: Option<u64>) -> Self {
        Self {
            length,
            facts: None,
        }
    }
}

fn found_at(found: &[(usize, Vec<u8>)], place: usize) -> Option<Cow<'_, [u8]>> {
    let (_, value) = found.iter().find(|(known, _)| *known == place)?;
    Some(Cow::Borrowed(value))
}

/// A value as a key; `None`: servers could read it as different ones.
fn words(value: &Value) -> Option<Cow<'_, [u8]>> {
    match value {
        Value::Text(text) => Some(Cow::Borrowed(text)),
        Value::Number { units, whole: true } if *units <= WHOLE_MAX => {
            Some(Cow::Owned(units.to_string().into_bytes()))
        }
        Value::Flag(true) => Some(Cow::Borrowed(b"true")),
        Value::Flag(false) => Some(Cow::Borrowed(b"false")),
        Value::Number { .. } | Value::Odd => None,
    }
}

/// The largest whole number that every server reads as it is written: those which read numbers as
/// IEEE 754 doubles round larger ones to another (RFC 8259, section 6).
const WHOLE_MAX: u64 = (1 << 53) - 1;

// Where a GraphQL request says which document is executed. Servers prefer different places, so one of
// them must be the only one.

/// The members of a request that name its operation.
pub(super) const GRAPHQL: [&str; 2] = ["query", "operationName"];
/// The members that name a document that the server has.
const STORED: [&str; 4] = ["documentId", "id", "doc_id", "operationId"];
/// The member that names such a document too, as clients of graphql-ruby's `OperationStore` send it.
pub(super) const STORED_WITHIN: [&str; 2] = [HASH[0], STORED[3]];
/// The member that has the hash of a document, as Apollo's clients send it.
pub(super) const HASH: [&str; 3] = ["extensions", "persistedQuery", "sha256Hash"];

/// The names of all of these, which many servers also read from the target, and prefer there.
pub(super) fn document_names() -> impl Iterator<Item = &'static str> {
    GRAPHQL.into_iter().chain(STORED).chain([HASH[0]])
}

/// Whether no server finds another document in the body than `query`.
fn is_only_document(query: &[u8], facts: &BodyFacts) -> bool {
    let value = |path: &[&str]| facts.member(path)?.value.as_ref();
    let is_stored = STORED.into_iter().any(|name| value(&[name]).is_some());
    if is_stored || value(&STORED_WITHIN).is_some() {
        return false;
    }
    match (value(&HASH[..1]), value(&HASH[..2]), value(&HASH)) {
        (None, ..) | (Some(Value::Odd), None, _) => true,
        // With a hash of its own the query is stored, and nothing else is executed.
        (Some(Value::Odd), Some(Value::Odd), Some(Value::Text(hash))) => {
            **hash == *hex::digits(&Sha256::digest(query)).as_bytes()
        }
        // Some servers read a text as JSON.
        _ => false,
    }
}

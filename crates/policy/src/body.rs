//! What the body of a request says: the members and form fields that identities, routes and costs
//! ask for, read while the body arrives.
//!
//! Gateway and upstream must read the same value, or a caller could be limited by one model and
//! served by another. So a body that two servers could read differently is refused.

mod admitted;
mod form;
mod graphql;

use std::borrow::Cow;
use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use smallvec::SmallVec;

use super::json::{self, Calls, Flaw, Member, Members, PathSet, Paths, Reader, Value};
use super::source::{self, Source};

pub use admitted::{BodyAdmission, BodyRefusal, BoundedReading, UnreadBody};

/// How bodies are read for what they say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodySettings {
    /// A body of more bytes says nothing.
    pub most: usize,
    /// Whether a compressed body says nothing; otherwise it is refused.
    pub skips_compressed: bool,
}

impl Default for BodySettings {
    fn default() -> Self {
        Self {
            most: 64 << 10,
            skips_compressed: false,
        }
    }
}

/// Everything that a policy may ask of bodies.
#[derive(Debug, Default)]
pub struct Wanted {
    paths: Arc<Paths>,
    forms: Vec<String>,
}

/// What one request's body is asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Asked {
    /// Members of JSON.
    json: PathSet,
    /// Those of them that make a key or a route, so that all calls of a batch must agree on them.
    same: PathSet,
    /// Fields of a form.
    forms: u64,
    graphql: bool,
    /// The ids of JSON-RPC calls.
    calls: bool,
    /// Whether a route depends on it.
    routes: bool,
}

impl Asked {
    /// Whether nothing is asked.
    pub const fn is_empty(self) -> bool {
        self.json == 0 && self.forms == 0
    }

    /// Whether the choice of a route depends on the body.
    pub const fn routes(self) -> bool {
        self.routes
    }

    /// Both together.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            json: self.json | other.json,
            same: self.same | other.same,
            forms: self.forms | other.forms,
            graphql: self.graphql | other.graphql,
            calls: self.calls | other.calls,
            routes: self.routes | other.routes,
        }
    }

    /// The same, for the choice of a route.
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
    pub(super) fn ask(&mut self, source: &Source) -> Option<Asked> {
        let mut asked = Asked::default();
        match source {
            Source::Json(path) => asked.same = self.path(path)?,
            Source::Form(name) => {
                let known = self.forms.iter().position(|known| known == name);
                let place = known.unwrap_or_else(|| {
                    self.forms.push(name.clone());
                    self.forms.len() - 1
                });
                asked.forms = 1_u64.checked_shl(u32::try_from(place).ok()?)?;
            }
            Source::GraphqlOperation => {
                for name in GRAPHQL {
                    asked.same |= self.path(&[name.to_owned()])?;
                }
                asked.graphql = true;
            }
            _ => {}
        }
        asked.json = asked.same;
        Some(asked)
    }

    /// Notes that the number at `path` is asked for; `None`: there are too many members.
    pub(super) fn ask_number(&mut self, path: &[String]) -> Option<Asked> {
        Some(Asked {
            json: self.path(path)?,
            ..Asked::default()
        })
    }

    /// Notes that the ids of JSON-RPC calls are asked for; `None`: there are too many members.
    pub(super) fn ask_calls(&mut self) -> Option<Asked> {
        let mut json = 0;
        for name in RPC {
            json |= self.path(&[name.to_owned()])?;
        }
        Some(Asked {
            json,
            calls: true,
            ..Asked::default()
        })
    }

    fn path(&mut self, path: &[String]) -> Option<PathSet> {
        Arc::make_mut(&mut self.paths)
            .add(path)
            .map(|place| 1 << place)
    }
}

/// Why a request is refused for its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyFlaw {
    /// It is not valid JSON in UTF-8, or nested too deeply: 400.
    #[error("the body is not valid JSON")]
    Malformed,
    /// A value that is asked for can be read in more than one way: 400.
    #[error("a value in the body can be read in more than one way")]
    Ambiguous,
    /// It is a batch of calls that are limited differently: 400.
    #[error("the calls of the batch differ")]
    Mixed,
    /// Its charset is not UTF-8: 415.
    #[error("the charset of the body is not UTF-8")]
    Charset,
    /// It is compressed: 415.
    #[error("the body is compressed")]
    Compressed,
}

impl BodyFlaw {
    /// The status of the refusal.
    pub const fn status(self) -> u16 {
        match self {
            Self::Malformed | Self::Ambiguous | Self::Mixed => 400,
            Self::Charset | Self::Compressed => 415,
        }
    }
}

crate::labels! {
    BodyFlaw {
        Self::Malformed => "body_malformed",
        Self::Ambiguous => "body_ambiguous",
        Self::Mixed => "body_mixed",
        Self::Charset => "body_charset",
        Self::Compressed => "body_compressed",
    }
}

impl From<Flaw> for BodyFlaw {
    fn from(flaw: Flaw) -> Self {
        match flaw {
            Flaw::Malformed => Self::Malformed,
            Flaw::Ambiguous => Self::Ambiguous,
            Flaw::Mixed => Self::Mixed,
        }
    }
}

/// A body that is being read.
#[derive(Debug)]
pub struct BodyReading {
    wanted: Arc<Wanted>,
    asked: Asked,
    length: u64,
    kind: Kind,
    json: Json,
    /// The text of a form, if fields of it are asked for.
    form: Option<Vec<u8>>,
}

/// The kind of a body, by its Content-Type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// JSON, or no type: many servers then take it for JSON.
    Json,
    Form,
    Other,
}

#[derive(Debug)]
enum Json {
    /// Only blanks have come.
    Nothing(Reader),
    Reading(Reader),
    /// The body is no JSON.
    Other,
}

impl BodyReading {
    /// Reads a body with these headers for what is `asked`. `None`: it is compressed, and such a
    /// body says nothing.
    ///
    /// # Errors
    /// If it cannot be read by its headers.
    pub fn new(
        wanted: &Arc<Wanted>,
        asked: Asked,
        settings: BodySettings,
        headers: &HeaderMap,
    ) -> Result<Option<Self>, BodyFlaw> {
        let plain = |coding: &http::HeaderValue| {
            let coding = coding.as_bytes().trim_ascii();
            coding.is_empty() || coding.eq_ignore_ascii_case(b"identity")
        };
        if !headers.get_all(CONTENT_ENCODING).iter().all(plain) {
            return if settings.skips_compressed {
                Ok(None)
            } else {
                Err(BodyFlaw::Compressed)
            };
        }
        let kind = kind(headers)?;
        let mut reader = Reader::request(&wanted.paths, asked.json, asked.same);
        if asked.calls {
            let [id, method] = RPC.map(|name| {
                let place = wanted.paths.place(&[name.to_owned()]);
                place.map_or(0, |place| 1 << place)
            });
            reader = reader.with_calls(id, method);
        }
        Ok(Some(Self {
            wanted: Arc::clone(wanted),
            asked,
            length: 0,
            kind,
            json: if asked.json == 0 {
                Json::Other
            } else {
                Json::Nothing(reader)
            },
            // Some servers take a body without a type for a form.
            form: ((kind == Kind::Form || !headers.contains_key(CONTENT_TYPE)) && asked.forms != 0)
                .then(Vec::new),
        }))
    }

    /// Reads the next piece.
    ///
    /// # Errors
    /// If the body is not JSON and should be.
    pub fn feed(&mut self, piece: &[u8]) -> Result<(), BodyFlaw> {
        self.length += piece.len() as u64;
        if let Some(form) = &mut self.form {
            form.extend_from_slice(piece);
        }
        if let Json::Nothing(_) = &self.json {
            let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n' | b'\r');
            match piece.iter().find(|byte| !is_blank(byte)) {
                None => return Ok(()),
                // A server may take the body for JSON whatever its type is.
                Some(b'{' | b'[') => {
                    if let Json::Nothing(reader) = std::mem::replace(&mut self.json, Json::Other) {
                        self.json = Json::Reading(reader);
                    }
                }
                Some(_) if self.kind == Kind::Json => return Err(BodyFlaw::Malformed),
                // Some servers detect other encodings of JSON.
                Some(_) if is_encoded_otherwise(piece) => return Err(BodyFlaw::Charset),
                Some(_) => self.json = Json::Other,
            }
        }
        if let Json::Reading(reader) = &mut self.json {
            reader.feed(piece);
        }
        Ok(())
    }

    /// Whether it may be a batch of calls, whose number decides the charges: it has begun as one, or
    /// only blanks have come.
    pub fn may_be_batch(&self) -> bool {
        self.is_undecided() || matches!(&self.json, Json::Reading(reader) if reader.is_batch())
    }

    /// Whether JSON is asked for and only blanks have come.
    pub const fn is_undecided(&self) -> bool {
        matches!(self.json, Json::Nothing(_))
    }

    /// What the whole body says.
    ///
    /// # Errors
    /// If it can be read in more than one way.
    pub fn finish(self) -> Result<BodyFacts, BodyFlaw> {
        let members = match self.json {
            Json::Reading(reader) => Some(reader.finish()?),
            Json::Nothing(_) if self.kind == Kind::Json && self.length > 0 => {
                return Err(BodyFlaw::Malformed);
            }
            Json::Nothing(_) | Json::Other => None,
        };
        let mut facts = BodyFacts {
            wanted: self.wanted,
            length: Some(self.length),
            state: ReadState::Whole,
            members,
            fields: SmallVec::new(),
            operation: None,
        };
        facts.check(self.asked)?;
        if let Some(text) = &self.form {
            facts.fields = form::fields(&facts.wanted.forms, self.asked.forms, text)?;
        }
        Ok(facts)
    }
}

/// Whether JSON may begin so in UTF-16 or UTF-32, or with a byte order mark.
fn is_encoded_otherwise(piece: &[u8]) -> bool {
    let begins = |byte: u8| matches!(byte, b'{' | b'[' | b' ' | b'\t' | b'\n' | b'\r');
    match piece {
        [0xEF, 0xBB, ..] | [0xFE, 0xFF, ..] | [0xFF, 0xFE, ..] | [0, 0, 0xFE, 0xFF, ..] => true,
        [0, 0, 0, byte @ (b'{' | b'['), ..] | [0, byte, ..] if begins(*byte) => true,
        [0, 0, 0, byte, 0, 0, 0, ..] => begins(*byte),
        // Too little to tell.
        [0 | 0xEF | 0xFE | 0xFF] | [0, 0] | [0, 0, _] => true,
        _ => false,
    }
}

/// Refuses a GraphQL request whose target names an operation too: many servers prefer it to the
/// body's.
///
/// # Errors
/// If the query has such a parameter.
pub(super) fn check_query(asked: Asked, query: Option<&str>) -> Result<(), BodyFlaw> {
    let is_said = |name: &str| {
        query.is_some_and(|query| !matches!(source::parameter(query.as_bytes(), name), Ok(None)))
    };
    if asked.graphql && GRAPHQL.into_iter().any(is_said) {
        return Err(BodyFlaw::Ambiguous);
    }
    Ok(())
}

/// The kind of a body with these headers.
fn kind(headers: &HeaderMap) -> Result<Kind, BodyFlaw> {
    let mut types = headers.get_all(CONTENT_TYPE).iter();
    let (Some(given), None) = (types.next(), types.next()) else {
        return match headers.contains_key(CONTENT_TYPE) {
            true => Err(BodyFlaw::Ambiguous),
            false => Ok(Kind::Json),
        };
    };
    let text = given.to_str().map_err(|_| BodyFlaw::Ambiguous)?;
    let mut parts = text.split(';').map(|part| part.trim().to_ascii_lowercase());
    let named = parts.next().unwrap_or_default();
    for part in parts {
        let charset = part
            .split_once('=')
            .filter(|(parameter, _)| parameter.trim() == "charset")
            .map(|(_, name)| name.trim().trim_matches('"'));
        if charset.is_some_and(|name| !matches!(name, "utf-8" | "utf8" | "us-ascii")) {
            return Err(BodyFlaw::Charset);
        }
    }
    // Some servers end the type at a comma or a blank.
    let named = named.split([',', ' ', '\t']).next().unwrap_or_default();
    Ok(match named {
        "" | "application/json" | "text/json" => Kind::Json,
        "application/x-www-form-urlencoded" => Kind::Form,
        _ if named.ends_with("+json") => Kind::Json,
        _ => Kind::Other,
    })
}

/// How far the body of a request was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ReadState {
    /// To its end.
    Whole,
    /// Not at all: it is too long, or compressed.
    Skipped,
    /// Not at all: another program has it. If it has no known length, it is taken to have so many
    /// bytes; `None`: any number.
    Elsewhere(Option<u64>),
}

/// What the body of one request says.
#[derive(Clone, Debug)]
pub struct BodyFacts {
    wanted: Arc<Wanted>,
    length: Option<u64>,
    state: ReadState,
    members: Option<Members>,
    fields: SmallVec<[(usize, Vec<u8>); 1]>,
    operation: Option<Vec<u8>>,
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
            operation: None,
        }
    }

    /// Of a body that another program has. `assumed`: the bytes that it is taken to have if its
    /// length is not known; `None`: any number.
    pub(super) fn elsewhere(
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
    pub(super) const fn is_elsewhere(&self) -> bool {
        matches!(self.state, ReadState::Elsewhere(_))
    }

    /// The bytes that a body of unknown length is taken to have; `None`: it may have any number.
    pub(super) const fn assumed_length(&self) -> Option<u64> {
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

    /// The length of the body in bytes.
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
        self.members.as_mut().and_then(Members::take_calls)
    }

    /// The value of a source, if it is a part of the body.
    pub fn value(&self, source: &Source) -> Option<Cow<'_, [u8]>> {
        let value = match source {
            Source::Json(path) => self.member(path)?.value.as_ref().and_then(words),
            Source::Form(name) => {
                let place = self.wanted.forms.iter().position(|known| known == name)?;
                let mut fields = self.fields.iter();
                fields
                    .find(|(field, _)| *field == place)
                    .map(|(_, value)| Cow::Borrowed(value.as_slice()))
            }
            Source::GraphqlOperation => self.operation.as_deref().map(Cow::Borrowed),
            _ => None,
        };
        value.filter(|value| !value.is_empty())
    }

    /// The member at `path`.
    pub fn member(&self, path: &[String]) -> Option<&Member> {
        self.members.as_ref()?.get(self.wanted.paths.place(path)?)
    }

    /// Refuses values that make no key.
    fn check(&mut self, asked: Asked) -> Result<(), BodyFlaw> {
        let Some(members) = &self.members else {
            return Ok(());
        };
        for place in json::places(asked.same) {
            let value = members.get(place).and_then(|member| member.value.as_ref());
            if value.is_some_and(|value| words(value).is_none()) {
                return Err(BodyFlaw::Ambiguous);
            }
        }
        if asked.graphql {
            let text = |name: &str| self.value(&Source::Json(vec![name.to_owned()]));
            let [query, operation] = GRAPHQL.map(text);
            let named = graphql::operation(query.as_deref(), operation.as_deref())
                .map_err(|graphql::Unclear| BodyFlaw::Ambiguous)?
                .map(<[u8]>::to_vec);
            self.operation = named;
        }
        Ok(())
    }
}

/// A value as a key; `None`: servers could read it as different ones.
fn words(value: &Value) -> Option<Cow<'_, [u8]>> {
    match value {
        Value::Text(text) => Some(Cow::Borrowed(text)),
        Value::Number { units, whole: true } if *units < u64::MAX => {
            Some(Cow::Owned(units.to_string().into_bytes()))
        }
        Value::Flag(true) => Some(Cow::Borrowed(b"true")),
        Value::Flag(false) => Some(Cow::Borrowed(b"false")),
        Value::Number { .. } | Value::Odd => None,
    }
}

/// The members of a GraphQL request that name its operation.
const GRAPHQL: [&str; 2] = ["query", "operationName"];
/// The members of a JSON-RPC call by which it is refused: its id, and what makes it a call.
const RPC: [&str; 2] = ["id", "method"];

#[cfg(test)]
mod tests;

//! What the body of a request says: the members and form fields that identities, routes and costs
//! ask for, read while the body arrives.
//!
//! Gateway and upstream must read the same value, or a caller could be limited by one model and
//! served by another. So a body that two servers could read differently is refused.

mod admitted;
mod digest;
mod facts;
mod flaw;
mod graphql;
pub mod json;
mod opening;
pub mod usage;
mod wanted;

use std::sync::Arc;

use http::HeaderMap;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use smallvec::SmallVec;

use super::identity::source::{self, Several, only_line};
use facts::ReadState;
use json::{Member, Reader, Value};
use opening::{Opened, Opening};
use wanted::{RPC, STREAM};

pub use admitted::{BodyAdmission, BodyRefusal, BoundedReading, UnreadBody};
pub use facts::{BodyFacts, SentBody};
pub use flaw::{BodyFlaw, OperationFlaw};
pub use wanted::{Wanted, WantedFacts};

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

#[derive(Debug)]
pub struct BodyReading {
    wanted: Arc<Wanted>,
    asked: WantedFacts,
    length: u64,
    kind: Kind,
    /// What the body begins with; `None`: that is known. While it is not, what has come does not say
    /// whether the body is JSON.
    opening: Option<Opening>,
    /// Boxed: the reader is large, and the state is moved several times. `None`: the body is not JSON, or no JSON is
    /// asked for.
    json: Option<Box<Reader>>,
    /// The text of a form, if fields of it are asked for.
    form: Option<Vec<u8>>,
    /// The text of the JSON, if a digest of it is asked for.
    text: Option<Vec<u8>>,
}

impl BodyReading {
    /// Reads a body with these headers for what is `asked`. `None`: it is compressed, and such a
    /// body says nothing.
    pub fn new(
        wanted: &Arc<Wanted>,
        asked: WantedFacts,
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
        let reader = || {
            let reader = Reader::request(&wanted.paths, asked.json, asked.same);
            if !asked.calls {
                return Box::new(reader);
            }
            let [id, method] = RPC.map(|name| {
                let place = wanted.paths.place(&[name.to_owned()]);
                place.map_or(0, |place| 1 << place)
            });
            Box::new(reader.with_calls(id, method))
        };
        Ok(Some(Self {
            wanted: Arc::clone(wanted),
            asked,
            length: 0,
            kind,
            opening: (asked.json != 0).then(Opening::default),
            json: (asked.json != 0).then(reader),
            // Some servers take a body without a type for a form.
            form: ((kind == Kind::Form || !headers.contains_key(CONTENT_TYPE)) && asked.forms != 0)
                .then(Vec::new),
            text: (asked.digests != 0).then(Vec::new),
        }))
    }

    pub fn feed(&mut self, piece: &[u8]) -> Result<(), BodyFlaw> {
        self.length += piece.len() as u64;
        if let Some(form) = &mut self.form {
            form.extend_from_slice(piece);
        }
        if let Some(text) = &mut self.text {
            text.extend_from_slice(piece);
        }
        let mut rest = piece;
        if let Some(opening) = &mut self.opening {
            match opening.feed(piece) {
                None => return Ok(()),
                // A server may take the body for JSON whatever its type is.
                Some(Opened::Json(at)) => rest = &piece[at..],
                Some(Opened::Refused(flaw)) => return Err(flaw),
                Some(Opened::Other) if self.must_be_json() => return Err(BodyFlaw::Malformed),
                Some(Opened::Other) => self.json = None,
            }
            self.opening = None;
        }
        if let Some(reader) = &mut self.json {
            reader.feed(rest);
        }
        Ok(())
    }

    /// Whether a body that is no JSON is refused. A GraphQL request may also be a document alone
    /// (`application/graphql`) or a form; its operation is looked for in JSON only.
    fn must_be_json(&self) -> bool {
        self.kind == Kind::Json || self.asked.graphql
    }

    /// Whether it may be a batch of calls, whose number decides the charges: it has begun as one, or
    /// may still do.
    pub fn may_be_batch(&self) -> bool {
        self.is_undecided() || self.json.as_ref().is_some_and(|reader| reader.is_batch())
    }

    /// Whether JSON is asked for, and what has come does not say whether the body is JSON.
    pub const fn is_undecided(&self) -> bool {
        self.opening.is_some()
    }

    /// What the whole body says.
    pub fn finish(self) -> Result<BodyFacts, BodyFlaw> {
        let must_be_json = self.must_be_json();
        let members = match (self.opening, self.json) {
            (Some(_), _) if must_be_json && self.length > 0 => return Err(BodyFlaw::Malformed),
            (None, Some(reader)) => Some(reader.finish()?),
            _ => None,
        };
        let mut facts = BodyFacts {
            state: ReadState::Whole,
            members,
            ..BodyFacts::unread(&self.wanted, Some(self.length))
        };
        if let Some(text) = &self.form {
            facts.fields = form_fields(&facts.wanted.forms, self.asked.forms, text)?;
        }
        facts.lacks_usage = self.asked.usage && lacks_usage(&facts);
        if let (Some(text), true) = (&self.text, facts.members.is_some()) {
            let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
            facts.digests = digest::digests(&facts.wanted.digests, self.asked.digests, text)?;
        }
        facts.check(self.asked)?;
        Ok(facts)
    }
}

/// Whether a body asks for a stream, and says nothing of its usage.
fn lacks_usage(facts: &BodyFacts) -> bool {
    let [stream, options] = STREAM.map(|name| facts.member(&[name]));
    stream.is_some_and(|member| member.value == Some(Value::Flag(true)))
        && options.is_none_or(|member| *member == Member::default())
}

/// Refuses a GraphQL request whose target names an operation too: many servers prefer it to the body's.
pub(super) fn check_query(asked: WantedFacts, query: Option<&str>) -> Result<(), BodyFlaw> {
    let is_said = |name: &str| {
        query.is_some_and(|query| !matches!(source::parameter(query.as_bytes(), name), Ok(None)))
    };
    if asked.graphql && facts::document_names().any(is_said) {
        return Err(OperationFlaw::InTarget.into());
    }
    Ok(())
}

/// The fields of `text` that are asked for, by their places in `names`.
fn form_fields(
    names: &[String],
    asked: u64,
    text: &[u8],
) -> Result<SmallVec<[(usize, Vec<u8>); 1]>, BodyFlaw> {
    let mut found = SmallVec::new();
    for place in crate::body::json::places(asked) {
        let value = source::parameter(text, &names[place]).map_err(|_| BodyFlaw::Ambiguous)?;
        found.extend(value.map(|value| (place, value.into_owned())));
    }
    Ok(found)
}

/// Refuses a field that the target of the request states as well, with another value: servlets, for
/// example, join the parameters of both and read the first.
fn check_fields_beside(facts: &BodyFacts, query: &str) -> Result<(), BodyFlaw> {
    for (place, value) in &facts.fields {
        match source::parameter(query.as_bytes(), &facts.wanted.forms[*place]) {
            Ok(None) => {}
            Ok(Some(other)) if *other == **value => {}
            Ok(Some(_)) | Err(_) => return Err(BodyFlaw::Ambiguous),
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// JSON, or no type: many servers then take it for JSON.
    Json,
    Form,
    Other,
}

fn kind(headers: &HeaderMap) -> Result<Kind, BodyFlaw> {
    let given = only_line(headers, &CONTENT_TYPE).map_err(|Several| BodyFlaw::Ambiguous)?;
    let Some(given) = given else {
        return Ok(Kind::Json);
    };
    let text = given.to_str().map_err(|_| BodyFlaw::Ambiguous)?;
    let mut parts = text.split(';').map(str::trim);
    let named = parts.next().unwrap_or_default();
    for part in parts {
        let charset = part
            .split_once('=')
            .filter(|(parameter, _)| parameter.trim().eq_ignore_ascii_case("charset"))
            .map(|(_, name)| name.trim().trim_matches('"'));
        if charset.is_some_and(|name| !is_one_of(name, &["utf-8", "utf8", "us-ascii"])) {
            return Err(BodyFlaw::Charset);
        }
    }
    // Some servers end the type at a comma or a blank.
    let named = named.split([',', ' ', '\t']).next().unwrap_or_default();
    let suffix = named.rsplit_once('+').map_or("", |(_, suffix)| suffix);
    Ok(
        if is_one_of(named, &["", "application/json", "text/json"]) || is_one_of(suffix, &["json"])
        {
            Kind::Json
        } else if is_one_of(named, &["application/x-www-form-urlencoded"]) {
            Kind::Form
        } else {
            Kind::Other
        },
    )
}

fn is_one_of(name: &str, known: &[&str]) -> bool {
    known.iter().any(|known| name.eq_ignore_ascii_case(known))
}

#[cfg(test)]
mod tests;

//! The one rule by which a body is read ahead of the decision about its request: how far, and when the
//! request is refused for it.

use http::HeaderMap;

use super::{BodyFacts, BodyFlaw, BodyReading, WantedFacts, check_fields_beside, check_query};
use crate::{Descriptor, Policy};

/// What is known of a body before it is read.
#[derive(Clone, Copy, Debug)]
pub struct UnreadBody<'h> {
    pub query: Option<&'h str>,
    pub headers: &'h HeaderMap,
    pub is_empty: bool,
    /// Its length in bytes, if that is announced.
    pub announced: Option<u64>,
    /// Whether another program has it: a proxy that asks about its request.
    pub is_elsewhere: bool,
}

#[derive(Debug)]
pub enum BodyAdmission {
    Known(BodyFacts),
    /// Once it has been read, up to its end or its bound.
    Reading(BoundedReading),
}

/// A body that is read up to the bound of the file.
#[derive(Debug)]
pub struct BoundedReading {
    reading: BodyReading,
    announced: Option<u64>,
    most: u64,
    /// The query of the request, where fields of a form are asked for.
    query: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BodyRefusal {
    /// It can be read in more than one way, or not at all.
    #[error(transparent)]
    Flaw(#[from] BodyFlaw),
    /// Its route, or the number of its calls, depends on more than is read: 413.
    #[error("the body is too long to find its route")]
    TooLong,
}

impl BodyRefusal {
    pub const fn status(self) -> u16 {
        match self {
            Self::Flaw(flaw) => flaw.status(),
            Self::TooLong => 413,
        }
    }
}

impl Policy {
    /// Begins to admit a body that is `asked` for something.
    pub fn admit_body(
        &self,
        asked: WantedFacts,
        body: UnreadBody<'_>,
    ) -> Result<BodyAdmission, BodyRefusal> {
        if body.is_elsewhere && !body.is_empty {
            return if asked.routes() {
                Err(BodyRefusal::TooLong)
            } else {
                Ok(BodyAdmission::Known(self.body_of_proxy()))
            };
        }
        check_query(asked, body.query)?;
        if body.is_empty {
            return Ok(BodyAdmission::Known(BodyFacts::none(&self.wanted)));
        }
        let reading = BodyReading::new(&self.wanted, asked, self.body, body.headers)?;
        Ok(match reading {
            Some(reading) => BodyAdmission::Reading(BoundedReading {
                reading,
                announced: body.announced,
                most: self.body.most as u64,
                query: body.query.filter(|_| asked.forms != 0).map(Box::from),
            }),
            None => BodyAdmission::Known(BodyFacts::unread(&self.wanted, body.announced)),
        })
    }

    /// What the whole `body` of a request says, as far as its route and limits ask for it.
    pub fn read_body(
        &self,
        request: &Descriptor<'_>,
        body: &[u8],
    ) -> Result<BodyFacts, BodyRefusal> {
        let asked = self.asked(&self.find_route(request));
        let announced = Some(body.len() as u64);
        if asked.is_empty() && !body.is_empty() {
            return Ok(BodyFacts::unread(&self.wanted, announced));
        }
        let sent = UnreadBody {
            query: request.query,
            headers: request.headers,
            is_empty: body.is_empty(),
            announced,
            is_elsewhere: false,
        };
        match self.admit_body(asked, sent)? {
            BodyAdmission::Known(facts) => Ok(facts),
            BodyAdmission::Reading(mut reading) => {
                if !reading.is_over() {
                    reading.feed(body)?;
                }
                reading.finish()
            }
        }
    }
}

impl BoundedReading {
    /// Whether no more is read. The beginning of a body that is too long is read, because it tells a
    /// batch from a single call.
    pub fn is_over(&self) -> bool {
        let too_long = self.announced.is_some_and(|length| length > self.most);
        self.reading.length > self.most || too_long && !self.reading.is_undecided()
    }

    pub fn feed(&mut self, piece: &[u8]) -> Result<(), BodyFlaw> {
        self.reading.feed(piece)
    }

    /// What the body says, or that it was not read because it is too long.
    pub fn finish(self) -> Result<BodyFacts, BodyRefusal> {
        if !self.is_over() {
            let facts = self.reading.finish()?;
            if let Some(query) = &self.query {
                check_fields_beside(&facts, query)?;
            }
            return Ok(facts);
        }
        if self.reading.asked.routes() || self.reading.may_be_batch() {
            return Err(BodyRefusal::TooLong);
        }
        Ok(BodyFacts::unread(&self.reading.wanted, self.announced))
    }
}

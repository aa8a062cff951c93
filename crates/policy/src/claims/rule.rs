//! A limit as the file names it: how it is split into buckets, what a request costs, and which
//! requests count. `claims` computes what a request draws from it.

use std::borrow::Cow;
use std::sync::Arc;

use http::StatusCode;

use super::count::{Count, StatusMatch};
use super::prices::{ModelPrices, PriceIndex, Prices};
use crate::body::usage::{PerToken, Usage};
use crate::body::{BodyFacts, SentBody};
use tollgate_limit::{Limit, Micros};

/// A limit as the file names it: its variants, how it is split into buckets, and what a request costs.
#[derive(Clone, Debug)]
pub struct Rule {
    pub name: Arc<str>,
    /// The numbers for callers without a tier of their own.
    pub live: Arc<Limit>,
    /// The numbers per tier, sorted by tier name.
    pub tiers: Vec<(Arc<str>, Arc<Limit>)>,
    /// The candidate, judged together with the live variant and only counted.
    pub candidate: Option<Arc<Limit>>,
    pub scope: Scope,
    /// Whether nothing may ever exceed the limit: a request whose cost is stated above the highest,
    /// or cannot be read, never fits.
    pub ceiling: bool,
    pub cost: Cost,
    pub settle: Option<Settle>,
    /// The prices by which its units are money: then a cost that the body says is tokens of output.
    pub prices: Option<ModelPrices>,
    pub count: Count,
    /// Response statuses (of the upstream or our own 502/504) after which the charge is given back.
    pub refund_on: Vec<StatusMatch>,
    pub refuse_status: StatusCode,
    /// How long a request waits in line for units that others have reserved; zero: it does not.
    pub max_wait: Micros,
}

impl Rule {
    /// Every variant, in the order in which they are numbered: its own numbers, the tiers, the candidate.
    pub fn variants(&self) -> impl Iterator<Item = &Arc<Limit>> {
        let tiers = self.tiers.iter().map(|(_, limit)| limit);
        std::iter::once(&self.live)
            .chain(tiers)
            .chain(&self.candidate)
    }

    /// The buckets that one request asks because of it: its own, and the candidate's.
    pub fn buckets(&self) -> usize {
        1 + usize::from(self.candidate.is_some())
    }

    /// Whether its refusals say that a budget is used up (402), not that requests come too fast.
    pub fn is_budget(&self) -> bool {
        self.refuse_status == StatusCode::PAYMENT_REQUIRED
    }

    /// What it counts, where that is not requests.
    pub fn unit(&self) -> Option<Cow<'static, str>> {
        if let Some(prices) = &self.prices {
            return Some(format!("{}-millionths", prices.prices.currency).into());
        }
        let unit = match (&self.settle.as_ref().map(|settle| &settle.from), &self.cost) {
            (Some(SettleFrom::Json(usage)), _) if !usage.last_events().is_empty() => "tokens",
            (Some(SettleFrom::Bytes { per: 1 }), _) => "content-bytes",
            (None, Cost::ContentLength { per: 1, .. }) => "content-bytes",
            (None, Cost::Fixed(1)) => return None,
            _ => "units",
        };
        Some(unit.into())
    }

    /// Units that a request is charged whatever its cost is; `None`: its cost is charged.
    pub fn estimate(&self) -> Option<u64> {
        self.settle.as_ref().and_then(|settle| settle.estimate)
    }

    /// Whether a request is charged the most that it may come to, until its response is known.
    pub fn reserves(&self) -> bool {
        self.settle.is_some() && self.estimate().is_none()
    }

    pub(crate) fn per_token(&self) -> PerToken {
        self.settle.as_ref().map_or(PerToken::ONE, Settle::reserved)
    }

    /// The least and the most that a request with one call is charged by its cost, before there is
    /// a response. With prices the input, which `cost` does not bound, comes on top.
    pub fn cost_bounds(&self, of_route: Option<&Cost>) -> (u64, u64) {
        let cost = of_route.unwrap_or(&self.cost);
        cost.bounds(self.settle.as_ref(), self.prices.as_ref())
    }

    /// The most that a request with one call and a body of at most `bytes` is charged by its cost,
    /// before there is a response.
    pub fn most_charged(&self, of_route: Option<&Cost>, bytes: u64) -> u64 {
        match (of_route.unwrap_or(&self.cost), &self.prices) {
            (Cost::Body(cost), Some(its)) => its.prices.dearest(cost.most, bytes),
            (cost, _) => cost.bounds(self.settle.as_ref(), None).1,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    Everyone,
    /// One bucket for each combination of these parts.
    Identities(Vec<ScopePart>),
}

impl Scope {
    /// The parts of its buckets' keys; none: one bucket for all callers.
    pub fn parts(&self) -> &[ScopePart] {
        match self {
            Self::Everyone => &[],
            Self::Identities(parts) => parts,
        }
    }

    pub fn identities(&self) -> impl Iterator<Item = usize> {
        self.parts().iter().filter_map(|part| match part {
            ScopePart::Identity(identity) => Some(*identity),
            _ => None,
        })
    }

    /// Whether each bucket belongs to one caller, so that its level says nothing about others.
    pub fn is_of_caller(&self) -> bool {
        let is_caller = |part| matches!(part, &ScopePart::Address | &ScopePart::Identity(_));
        self.parts().iter().any(is_caller)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScopePart {
    /// The client's address (IPv6 by prefix).
    Address,
    /// A named identity, by index in [`Policy::identities`](crate::Policy::identities).
    Identity(usize),
    Route,
    Method,
    /// The host as the route names it, so that clients cannot invent others: all names below
    /// `*.example.com` are one.
    Host,
    /// The descriptor with its domain, where a rate limit service is asked. A request of a route
    /// has none.
    Descriptor,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Cost {
    Fixed(u64),
    /// Read from a request header. Absent: `default`; not a plain number: `most`; a number is
    /// clamped to `least` and `most`.
    Header {
        name: http::HeaderName,
        default: u64,
        least: u64,
        most: u64,
    },
    /// The request's Content-Length in steps of `per` bytes, rounded up and clamped to `least` and
    /// `most`. Unknown length: `most`.
    ContentLength {
        per: u64,
        least: u64,
        most: u64,
    },
    Body(Box<BodyCost>),
}

/// A cost that is read from the request's body: the largest of the numbers at `paths`, which `most`
/// bounds, times the largest of those at `times`, and a unit for every `plus` bytes of the body. A batch costs the sum of its
/// calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyCost {
    /// The members, by the names that lead to them.
    pub paths: Vec<Vec<String>>,
    /// The members by whose largest number the cost is multiplied.
    pub times: Vec<Vec<String>>,
    /// Bytes of the body for each unit that is added.
    pub plus: Option<u64>,
    pub default: u64,
    pub least: u64,
    /// The highest cost of a call with one output: also where a member is no number, and of a body
    /// that was not read or is not JSON.
    pub most: u64,
}

impl BodyCost {
    pub fn members(&self) -> impl Iterator<Item = &Vec<String>> {
        self.paths.iter().chain(&self.times)
    }

    /// Units for a request with this body, with so many for each token that it states, and for each
    /// that is added for its bytes. More tokens than `most` cost as much as `most` may; `times`
    /// multiplies both.
    pub fn units(&self, body: SentBody<'_>, each: PerToken) -> u64 {
        let calls = body.calls();
        let most = self.most.max(self.least).saturating_mul(calls);
        let units = match self.stated(body) {
            Some(stated) if stated.output <= most => {
                let outputs = stated.output.saturating_mul(stated.times);
                let units = outputs.saturating_mul(each.output);
                units.saturating_add(stated.added.saturating_mul(each.input))
            }
            stated => {
                let times = stated.map_or(1, |stated| stated.times);
                most.saturating_mul(times)
                    .saturating_mul(self.dearest(each))
            }
        };
        units.max(self.least.saturating_mul(calls))
    }

    pub(crate) fn dearest(&self, each: PerToken) -> u64 {
        match self.plus {
            Some(_) => each.greatest(),
            None => each.output,
        }
    }

    /// Whether the body states more than `most` for one output, or cannot be read. `whole`: what its
    /// bytes add is within `most`, too.
    pub(crate) fn is_beyond(&self, body: SentBody<'_>, whole: bool) -> bool {
        let most = self.most.saturating_mul(body.calls());
        self.stated(body).is_none_or(|stated| {
            let added = if whole { stated.added } else { 0 };
            stated.output.saturating_add(added) > most
        })
    }

    /// Whether the body may ask for any number of outputs, since it cannot be read.
    pub(crate) fn hides_times(&self, body: SentBody<'_>) -> bool {
        !self.times.is_empty() && self.stated(body).is_none()
    }

    /// What the body states; `None`: it cannot be read.
    fn stated(&self, body: SentBody<'_>) -> Option<Stated> {
        let calls = body.calls();
        let bytes = match (self.plus, body.length) {
            (None, _) => 0,
            (Some(per), Some(length)) => length.div_ceil(per.max(1)),
            (Some(_), None) => return None,
        };
        let of = |path: &Vec<String>| body.facts.and_then(|facts| facts.member(path));
        if body.facts.is_some_and(BodyFacts::is_opaque) {
            return None;
        }
        let mut largest = None;
        for member in self.paths.iter().filter_map(of) {
            if member.unreadable {
                return None;
            }
            if member.stated > 0 {
                let unsaid = self.default.saturating_mul(calls - member.stated);
                let said = member.sum.saturating_add(unsaid);
                // The calls of a batch may state it in different members, so these add up.
                largest = match largest {
                    Some(so_far) if calls > 1 => Some(said.saturating_add(so_far)),
                    so_far => so_far.max(Some(said)),
                };
            }
        }
        let output = largest.unwrap_or_else(|| self.default.saturating_mul(calls));
        let mut times = 1;
        for member in self.times.iter().filter_map(of) {
            if member.unreadable || member.stated > 1 {
                return None;
            }
            times = times.max(member.sum);
        }
        Some(Stated {
            output,
            times,
            added: bytes,
        })
    }
}

struct Stated {
    output: u64,
    times: u64,
    added: u64,
}

/// How a charge is corrected from the response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    pub from: SettleFrom,
    /// Units charged at admission; `None`: the cost of the request is reserved, the most that it
    /// may come to.
    pub estimate: Option<u64>,
    /// The highest cost of a response. What was reserved for the response counts instead if it is more.
    pub most: u64,
    /// Bytes per unit of a response that the client breaks off; `None`: such a response costs
    /// `most`, or its reservation.
    pub broken_off_per: Option<u64>,
    /// Whether a complete response (2xx) without a reported cost costs `most`; otherwise the estimate.
    pub untold_costs_most: bool,
    /// Whether the usage of a streamed chat completion is asked for where its client does not.
    pub ask: bool,
}

impl Settle {
    /// The cost that the body states by these numbers at the paths of its [`Usage`]; `None`: it
    /// states none. With prices it is money: by the price at that place, otherwise by the dearest.
    pub fn stated(
        &self,
        numbers: &[Option<u64>],
        prices: Option<&(Arc<Prices>, Option<PriceIndex>)>,
    ) -> Option<u64> {
        match (&self.from, prices) {
            (SettleFrom::Json(usage), Some((prices, model))) => {
                prices.of_response(*model, usage, numbers)
            }
            (SettleFrom::Json(usage), None) => usage.units(numbers),
            (SettleFrom::Header(_) | SettleFrom::Bytes { .. }, _) => None,
        }
    }

    pub fn reserved(&self) -> PerToken {
        match &self.from {
            SettleFrom::Json(usage) => usage.reserved,
            SettleFrom::Header(_) | SettleFrom::Bytes { .. } => PerToken::ONE,
        }
    }

    /// Whether a stream is complete only with the last event of its format.
    pub fn ends_streams(&self) -> bool {
        matches!(&self.from, SettleFrom::Json(usage) if !usage.last_events().is_empty())
    }

    /// The highest cost of a response for which `charged` units were charged at admission.
    pub fn most_after(&self, charged: u64) -> u64 {
        // A batch was charged the estimate of each of its calls, which may be more.
        self.most.max(charged)
    }

    /// The minimum cost of a response that the client broke off after `bytes` bytes. A reservation
    /// is kept whole: how much of it the upstream had used is not known.
    pub fn broken_off(&self, bytes: u64, charged: u64) -> u64 {
        if self.estimate.is_none() {
            return charged;
        }
        let per = match self.from {
            SettleFrom::Bytes { per } => Some(per),
            SettleFrom::Header(_) | SettleFrom::Json(_) => self.broken_off_per,
        };
        per.map_or(self.most_after(charged), |per| bytes.div_ceil(per.max(1)))
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SettleFrom {
    Header(http::HeaderName),
    /// Bytes of response body sent, in steps of `per`, rounded up.
    Bytes {
        per: u64,
    },
    /// Numbers in the JSON body, or in the data of its server-sent events.
    Json(Arc<Usage>),
}

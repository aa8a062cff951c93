//! Settles the charges of a request when its response is known: corrects estimates, refunds
//! failures.
//!
//! A charge is lowered only for effects that the upstream alone caused ([`Cause`]): a caller that
//! breaks its request off never pays less than one that stays.

pub mod field;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use http::{HeaderMap, Method, StatusCode};

use super::{Cause, Credit, Permit};
use field::{Carrier, FieldScanner};
use tollgate_policy::claims::number;
use tollgate_policy::prices::{PriceIndex, Prices};
use tollgate_policy::{Claims, Count, Policy, Rule, Settle, SettleFrom, StatusMatch};

/// The charges of one request that its response can still change.
#[derive(Debug, Default)]
pub struct Owed {
    /// Empty for most requests, and then without an allocation.
    charges: Vec<Charge>,
}

/// The head of a response, as far as charges depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'r> {
    /// The party that caused it.
    pub cause: Cause,
    /// Its status; for the gateway's own response to a gRPC call the status that it would have
    /// without gRPC.
    pub status: StatusCode,
    /// Its headers.
    pub headers: &'r HeaderMap,
    /// Whether the caller asked for a response without a readable body: by HEAD, or for a tunnel.
    pub unreadable: bool,
}

#[derive(Debug)]
struct Charge {
    name: Arc<str>,
    count: Count,
    refund_on: Arc<[StatusMatch]>,
    settle: Option<Settle>,
    reading: Reading,
    /// The prices of a limit that counts money, and the place of the model's; `None`: the dearest.
    prices: Option<(Arc<Prices>, Option<PriceIndex>)>,
    /// The prices of other models that the response names: it costs the dearest.
    named: Vec<PriceIndex>,
    /// Whether the response is of a kind that states its cost; an error seldom does.
    priced: bool,
    /// The permission to charge less than the estimate, once the response is there.
    credit: Option<Credit>,
}

/// The source of the real cost.
#[derive(Debug)]
enum Reading {
    /// There is no response yet, or the client may have caused that none states its cost.
    BrokenOff,
    /// The charge is final.
    Settled,
    /// The number of bytes sent.
    Bytes { per: u64 },
    /// A member of the body.
    Field(Box<FieldScanner>),
    /// The response does not contain it.
    Missing,
}

/// Whether a response can change the charge under `rule`.
pub fn is_open(rule: &Rule) -> bool {
    rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty()
}

impl Owed {
    /// The open charges of a request under `rules`. Rules whose charge is final at once cost
    /// nothing here.
    pub fn new<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let charges = rules
            .filter(|rule| is_open(rule))
            .map(|rule| Charge {
                name: Arc::clone(&rule.name),
                count: rule.count.clone(),
                refund_on: rule.refund_on.as_slice().into(),
                settle: rule.settle.clone(),
                prices: (rule.prices.as_ref()).map(|its| (Arc::clone(&its.prices), None)),
                named: Vec::new(),
                reading: Reading::BrokenOff,
                priced: false,
                credit: None,
            })
            .collect();
        Self { charges }
    }

    /// The same, at the prices of the models that the request asks for. They are kept until the
    /// response is settled: another file changes nothing for it.
    #[must_use]
    pub fn at_prices(mut self, claims: &Claims, policy: &Policy) -> Self {
        for drawn in claims
            .charges()
            .iter()
            .filter(|drawn| drawn.price.is_some())
        {
            let name = &policy.rules[drawn.rule].name;
            let mut charges = self.charges.iter_mut();
            let charge = charges.find(|charge| charge.name == *name);
            if let Some((_, model)) = charge.and_then(|charge| charge.prices.as_mut()) {
                *model = drawn.price;
            }
        }
        self
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Whether the body must be read for its cost.
    pub fn reads_body(&self) -> bool {
        let reads = |charge: &Charge| {
            matches!(
                &charge.settle,
                Some(Settle {
                    from: SettleFrom::Json(_),
                    ..
                })
            )
        };
        self.charges.iter().any(reads)
    }

    /// Handles the response's head: refunds charges that do not count, and corrects those that the
    /// head prices.
    pub fn on_head(&mut self, permit: &mut Permit, head: Head<'_>) {
        for charge in &mut self.charges {
            charge.on_head(permit, head);
        }
    }

    /// Handles a piece of the body.
    pub fn on_data(&mut self, piece: &Bytes) {
        for charge in &mut self.charges {
            if let Reading::Field(scanner) = &mut charge.reading {
                scanner.feed(piece);
            }
        }
    }

    /// Handles the end of the body after `bytes` bytes, or a missing response. `whole`: the body is
    /// complete.
    pub fn on_end(self, permit: &mut Permit, bytes: u64, whole: bool) {
        for mut charge in self.charges {
            if let Some(settle) = charge.settle.take() {
                charge.on_end(permit, &settle, bytes, whole);
            }
        }
    }
}

impl Owed {
    /// Settles by what a trusted program reports in place of a response: its status, and the cost
    /// for each limit. Where it reports nothing, what the limit says of responses without a cost
    /// applies.
    pub fn on_report(
        self,
        permit: &mut Permit,
        status: Option<StatusCode>,
        cost: impl Fn(&str) -> Option<u64>,
    ) {
        for charge in self.charges {
            let cost = cost(&charge.name);
            charge.on_report(permit, status, cost);
        }
    }

    /// Whether a report may state a cost for the limit of this name.
    pub fn is_settled_by_cost(&self, limit: &str) -> bool {
        let settles = |charge: &Charge| &*charge.name == limit && charge.settle.is_some();
        self.charges.iter().any(settles)
    }
}

/// Removes request headers that could make the response omit its cost: a body that is read must be
/// complete and plain text.
pub fn want_readable(method: &Method, headers: &mut HeaderMap) {
    for name in [http::header::ACCEPT_ENCODING, RANGE, IF_RANGE] {
        headers.remove(name);
    }
    // On other methods these are preconditions that protect a write.
    if matches!(*method, Method::GET | Method::HEAD) {
        headers.remove(IF_NONE_MATCH);
        headers.remove(IF_MODIFIED_SINCE);
    }
}

impl Charge {
    fn on_head(&mut self, permit: &mut Permit, head: Head<'_>) {
        let Head {
            cause,
            status,
            headers,
            unreadable,
        } = head;
        self.credit = cause.credit();
        if self.refund_uncounted(permit, status) {
            self.reading = Reading::Settled;
            return;
        }
        let Some(settle) = &self.settle else { return };
        let answered = status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS;
        self.priced = status.is_success() && cause == Cause::Upstream;
        self.reading = match (cause, &settle.from) {
            (Cause::Client, _) => Reading::BrokenOff,
            (Cause::Gateway, _) => Reading::Settled,
            (Cause::Upstream, SettleFrom::Header(name)) => {
                match headers.get_all(name).iter().filter_map(number).max() {
                    Some(told) => {
                        self.settle(permit, settle, told);
                        Reading::Settled
                    }
                    None => Reading::Missing,
                }
            }
            (Cause::Upstream, SettleFrom::Bytes { per }) => Reading::Bytes { per: *per },
            (Cause::Upstream, SettleFrom::Json(_)) if unreadable && answered => Reading::BrokenOff,
            (Cause::Upstream, SettleFrom::Json(usage)) => {
                let plain = headers
                    .get(CONTENT_ENCODING)
                    .is_none_or(|coding| coding.as_bytes() == b"identity");
                let kind = headers
                    .get(CONTENT_TYPE)
                    .and_then(|value| Carrier::of(value.to_str().ok()?));
                match (plain, kind) {
                    (true, Some(carrier)) => {
                        let (paths, ends) = (usage.paths(), usage.last_events());
                        let scanner = FieldScanner::new(carrier, paths, ends);
                        Reading::Field(Box::new(scanner.with_texts(usage.models())))
                    }
                    _ => Reading::Missing,
                }
            }
        };
    }

    fn on_end(mut self, permit: &mut Permit, settle: &Settle, bytes: u64, whole: bool) {
        let mut streamed = false;
        let (told, whole) = match std::mem::replace(&mut self.reading, Reading::Settled) {
            Reading::Settled => return,
            Reading::BrokenOff => (None, false),
            Reading::Bytes { per } => (Some(bytes.div_ceil(per.max(1))), whole),
            Reading::Field(scanner) => {
                streamed = scanner.is_stream();
                let done = scanner.is_done();
                if let Some((prices, model)) = &self.prices {
                    self.named = prices.named_by_response(*model, scanner.texts());
                }
                let told = self.stated(settle, &scanner.finish());
                // What an unfinished stream has stated is less than the cost.
                if streamed && !done && settle.ends_streams() {
                    self.credit = None;
                }
                (told, whole || done)
            }
            Reading::Missing => (None, true),
        };
        match (told, whole) {
            (Some(told), true) => self.settle(permit, settle, told),
            (told, false) => {
                self.credit = None;
                let charged = permit.charged(&self.name).unwrap_or(0);
                let charged = self.raised(settle, charged);
                let least = settle.broken_off(bytes, charged);
                self.count_over(permit, settle, told.unwrap_or(0));
                let cost = told.map_or(least, |told| told.max(least));
                self.correct(permit, cost.min(settle.most_after(charged)));
            }
            (None, true) if self.priced => self.untold(permit, settle, streamed),
            (None, true) => {}
        }
    }

    /// The cost that a response states by these numbers: at the price of the model that the request
    /// asks for, or of one that the response names if that is dearer.
    fn stated(&self, settle: &Settle, numbers: &[Option<u64>]) -> Option<u64> {
        let asked = settle.stated(numbers, self.prices.as_ref());
        let Some((prices, _)) = &self.prices else {
            return asked;
        };
        let named = self.named.iter().map(|place| {
            let its = (Arc::clone(prices), Some(*place));
            settle.stated(numbers, Some(&its))
        });
        named.fold(asked, Option::max)
    }

    /// What was reserved, as much as it would be for the dearest model that the response names: a
    /// caller may ask for it by the name of a cheaper one.
    fn raised(&self, settle: &Settle, reserved: u64) -> u64 {
        match &self.prices {
            Some((prices, asked)) if settle.estimate.is_none() => {
                prices.raised(reserved, *asked, &self.named)
            }
            _ => reserved,
        }
    }

    fn on_report(mut self, permit: &mut Permit, status: Option<StatusCode>, cost: Option<u64>) {
        self.credit = Cause::Upstream.credit();
        if status.is_some_and(|status| self.refund_uncounted(permit, status)) {
            return;
        }
        let Some(settle) = self.settle.take() else {
            return;
        };
        match cost {
            Some(cost) => self.settle(permit, &settle, cost),
            None if status.is_none_or(|status| status.is_success()) => {
                self.untold(permit, &settle, false);
            }
            None => {}
        }
    }

    /// Refunds the charge if a response with this status does not count; returns whether it did.
    fn refund_uncounted(&self, permit: &mut Permit, status: StatusCode) -> bool {
        let counts =
            self.count.counts(status) && !self.refund_on.iter().any(|range| range.matches(status));
        let (false, Some(credit)) = (counts, self.credit) else {
            return false;
        };
        let units = permit.charged(&self.name).unwrap_or(0);
        permit.refund(&self.name, units, credit);
        true
    }

    /// Settles a response that should state its cost and does not.
    fn untold(&self, permit: &mut Permit, settle: &Settle, streamed: bool) {
        let limit = &*self.name;
        if settle.untold_costs_most {
            let charged = permit.charged(limit).unwrap_or(0);
            self.correct(permit, settle.most_after(charged));
        } else {
            let charged = permit.charged(limit).unwrap_or(0);
            let raised = self.raised(settle, charged);
            if raised > charged {
                self.correct(permit, raised);
            }
            if !permit.unsettled(limit) {
                return;
            }
            let charged = permit.charged(limit);
            let kept = match settle.estimate {
                Some(_) => "the estimate",
                None => "its whole reservation",
            };
            let hint = if streamed {
                ": OpenAI's streams state it where the request says \"stream_options\": {\"include_usage\": true}"
            } else {
                ""
            };
            tracing::warn!(
                limit,
                charged,
                "a response does not state its cost: {kept} stays charged{hint}"
            );
        }
    }

    /// Settles at the cost `told` that the response states.
    fn settle(&self, permit: &mut Permit, settle: &Settle, told: u64) {
        let limit = &*self.name;
        let Some(reserved) = permit.charged(limit) else {
            return;
        };
        let actual = told.min(settle.most_after(self.raised(settle, reserved)));
        permit.settled(limit, actual);
        self.count_over(permit, settle, told);
        self.correct(permit, actual);
    }

    /// Counts what a response that states the cost `told` used above its reservation.
    fn count_over(&self, permit: &Permit, settle: &Settle, told: u64) {
        let limit = &*self.name;
        let reserved = permit.charged(limit).unwrap_or(0);
        let over = told.saturating_sub(reserved);
        if settle.estimate.is_none() && over > 0 && permit.over_reserved(limit, over) {
            tracing::warn!(
                limit,
                reserved,
                over,
                "a response costs more than was reserved for it: does the upstream obey the maximum that the request states?"
            );
        }
    }

    /// Changes the charge to `actual`: more always, less only with permission.
    fn correct(&self, permit: &mut Permit, actual: u64) {
        let Some(charged) = permit.charged(&self.name) else {
            return;
        };
        match (actual.checked_sub(charged), self.credit) {
            (Some(more), _) => permit.charge_more(&self.name, more),
            (None, Some(credit)) => permit.refund(&self.name, charged - actual, credit),
            (None, None) => {}
        }
    }
}

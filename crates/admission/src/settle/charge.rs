//! One charge that a response can still change: what it comes to, by what the response says.

use std::sync::Arc;

use http::StatusCode;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};

use super::Head;
use super::field::{Carrier, FieldScanner};
use tollgate_limiter::{Cause, Credit, Permit};
use tollgate_policy::body::usage::Weights;
use tollgate_policy::claims::number;
use tollgate_policy::claims::prices::{PriceIndex, Prices};
use tollgate_policy::{Count, Settle, SettleFrom, StatusMatch, is_charged, is_selection};

#[derive(Debug)]
pub(super) struct Charge {
    pub(super) name: Arc<str>,
    pub(super) count: Count,
    pub(super) refund_on: Arc<[StatusMatch]>,
    pub(super) settle: Option<Settle>,
    pub(super) reading: Reading,
    /// The prices of a limit that counts money, and the place of the model's; `None`: the dearest.
    pub(super) prices: Option<(Arc<Prices>, Option<PriceIndex>)>,
    /// Whether the model that the response names holds also where it is the cheaper one.
    pub(super) by_response: bool,
    /// The prices of other models that the response names: it costs the dearest.
    pub(super) named: Vec<PriceIndex>,
    /// Whether the response is of a kind that states its cost; an error seldom does.
    pub(super) priced: bool,
    /// The permission to charge less than the estimate, once the response is there.
    pub(super) credit: Option<Credit>,
    /// What the response states, once it has ended.
    pub(super) tokens: Option<Tokens>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tokens {
    /// The model that the response names, or else the name of the price of the one that was asked for; empty: limits
    /// without prices do not know it.
    pub model: Box<str>,
    /// In the order of [`TokenKind::ALL`](tollgate_policy::body::usage::TokenKind::ALL).
    pub counts: Weights,
}

#[derive(Debug)]
pub(super) enum Reading {
    /// There is no response yet, or the client may have caused that none states its cost.
    BrokenOff,
    Settled,
    /// The number of bytes sent.
    Bytes {
        per: u64,
    },
    Field(Box<FieldScanner>),
    /// The response does not contain it.
    Missing,
}

impl Charge {
    pub(super) fn on_head(&mut self, permit: &mut Permit, head: Head<'_>) {
        let Head {
            cause,
            status,
            headers,
            unreadable,
        } = head;
        // What a silent upstream has done may be billed all the same.
        let is_for_work = self.settle.is_some() && cause == Cause::Silence;
        self.credit = cause.credit().filter(|_| !is_for_work);
        if self.refund_uncounted(permit, status) {
            self.reading = Reading::Settled;
            return;
        }
        let Some(settle) = &self.settle else { return };
        let answered = status.is_success() || status == StatusCode::SWITCHING_PROTOCOLS;
        let upstreams = matches!(cause, Cause::Upstream | Cause::Early);
        self.priced = answered && upstreams;
        self.reading = match (cause, &settle.from) {
            (Cause::Client, _) => Reading::BrokenOff,
            (Cause::Gateway | Cause::Silence, _) => Reading::Settled,
            (Cause::Upstream | Cause::Early, SettleFrom::Header(name)) => {
                // One that cannot be read may be the largest.
                let reported: Option<Vec<_>> = headers.get_all(name).iter().map(number).collect();
                match reported.and_then(|reported| reported.into_iter().max()) {
                    Some(reported) => {
                        self.settle(permit, settle, reported);
                        Reading::Settled
                    }
                    None => Reading::Missing,
                }
            }
            (Cause::Upstream | Cause::Early, SettleFrom::Bytes { per }) => {
                // The caller asked for fewer bytes than the resource has.
                if unreadable || is_selection(status) {
                    self.credit = None;
                }
                Reading::Bytes { per: *per }
            }
            (Cause::Upstream | Cause::Early, SettleFrom::Json(_)) if unreadable && answered => {
                Reading::BrokenOff
            }
            (Cause::Upstream | Cause::Early, SettleFrom::Json(usage)) => {
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

    pub(super) fn on_end(&mut self, permit: &mut Permit, settle: &Settle, bytes: u64, whole: bool) {
        let mut streamed = false;
        let (reported, whole) = match std::mem::replace(&mut self.reading, Reading::Settled) {
            Reading::Settled => return,
            Reading::BrokenOff => (None, false),
            Reading::Bytes { per } => (Some(bytes.div_ceil(per.max(1))), whole),
            Reading::Field(scanner) => {
                streamed = scanner.is_stream();
                if let Some((prices, model)) = &self.prices {
                    self.named = prices.named_by_response(*model, scanner.texts());
                }
                let is_done = scanner.is_done();
                let model = self.model(scanner.texts().next());
                let numbers = scanner.finish();
                if let SettleFrom::Json(usage) = &settle.from {
                    let counts = usage.tokens(&numbers);
                    self.tokens = counts.map(|counts| Tokens { model, counts });
                }
                let reported = self.stated(settle, &numbers);
                // Where the format is unknown, a text that the caller asked for may look like the end.
                let done = is_done && (reported.is_some() || settle.ends_streams());
                // What an unfinished stream has stated is less than the cost.
                if streamed && !done && settle.ends_streams() {
                    self.credit = None;
                }
                (reported, whole || done)
            }
            Reading::Missing => (None, true),
        };
        match (reported, whole) {
            (Some(reported), true) => self.settle(permit, settle, reported),
            (reported, false) => {
                self.credit = None;
                let charged = permit.charged(&self.name).unwrap_or(0);
                let charged = self.raised(settle, charged);
                let least = settle.broken_off(bytes, charged);
                self.count_over(permit, settle, reported.unwrap_or(0));
                let cost = reported.map_or(least, |reported| reported.max(least));
                self.correct(permit, cost.min(settle.most_after(charged)));
            }
            (None, true) if self.priced => self.untold(permit, settle, streamed),
            (None, true) => {}
        }
    }

    fn model(&self, stated: Option<&str>) -> Box<str> {
        let asked = self.prices.as_ref().and_then(|(prices, asked)| {
            let price = prices.get((*asked)?)?;
            Some(&*price.name)
        });
        let name = stated.or(asked).unwrap_or_default();
        name.chars().take(MODEL_MAX).collect()
    }

    /// The cost that a response states by these numbers: at the price of the model that the request
    /// asks for, or of one that the response names if that is dearer or alone holds.
    fn stated(&self, settle: &Settle, numbers: &[Option<u64>]) -> Option<u64> {
        let asked = settle.stated(numbers, self.prices.as_ref());
        let Some((prices, _)) = &self.prices else {
            return asked;
        };
        let named = self.named.iter().map(|place| {
            let its = (Arc::clone(prices), Some(*place));
            settle.stated(numbers, Some(&its))
        });
        let least = asked.filter(|_| !self.by_response || self.named.is_empty());
        named.fold(least, Option::max)
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

    pub(super) fn on_report(
        mut self,
        permit: &mut Permit,
        status: Option<StatusCode>,
        cost: Option<u64>,
    ) {
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
        let is_charged = is_charged(&self.count, &self.refund_on, status);
        let (false, Some(credit)) = (is_charged, self.credit) else {
            return false;
        };
        let units = permit.charged(&self.name).unwrap_or(0);
        permit.refund(&self.name, units, credit);
        true
    }

    /// Settles a response that should state its cost and does not.
    fn untold(&self, permit: &mut Permit, settle: &Settle, streamed: bool) {
        let limit = &*self.name;
        let charged = permit.charged(limit).unwrap_or(0);
        if settle.untold_costs_most {
            self.correct(permit, settle.most_after(charged));
            return;
        }
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
        let hint = match streamed {
            true => {
                ": OpenAI's streams state it where the request says \"stream_options\": {\"include_usage\": true}; `ask = true` of `settle` adds that"
            }
            false => "",
        };
        tracing::warn!(
            limit,
            charged,
            "a response does not state its cost: {kept} stays charged{hint}"
        );
    }

    /// Settles at the cost `reported` that the response states.
    fn settle(&self, permit: &mut Permit, settle: &Settle, reported: u64) {
        let limit = &*self.name;
        let Some(reserved) = permit.charged(limit) else {
            return;
        };
        let actual = reported.min(settle.most_after(self.raised(settle, reserved)));
        permit.settled(limit, actual);
        self.count_over(permit, settle, reported);
        self.correct(permit, actual);
    }

    /// Counts what a response that states the cost `reported` used above its reservation.
    fn count_over(&self, permit: &Permit, settle: &Settle, reported: u64) {
        let limit = &*self.name;
        let reserved = permit.charged(limit).unwrap_or(0);
        let over = reported.saturating_sub(reserved);
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

/// The longest name of a model that is kept, in characters.
const MODEL_MAX: usize = 128;

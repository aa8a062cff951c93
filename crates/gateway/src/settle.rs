//! What a request still owes when its response is known: estimates corrected, failures given back.
//!
//! A charge is lowered only for what the upstream alone brought about ([`Cause`]): a caller that breaks its request off
//! never pays less than one that stays.

pub mod field;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{
    CONTENT_ENCODING, CONTENT_TYPE, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE,
};
use http::{HeaderMap, Method, StatusCode};

use field::{Carrier, FieldScanner};
use tollgate_limiter::{Cause, Credit, Permit};
use tollgate_policy::claims::number;
use tollgate_policy::{Count, Rule, Settle, SettleFrom, StatusMatch};

/// The charges of one request that its response can still change.
#[derive(Debug, Default)]
pub struct Owed {
    /// Empty for most requests, and then without memory of its own.
    charges: Vec<Charge>,
}

/// The head of a response, as far as charges depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'r> {
    /// Who brought it about.
    pub cause: Cause,
    /// Its status; of the gateway's own response to a gRPC call what it would be without gRPC.
    pub status: StatusCode,
    /// Its headers.
    pub headers: &'r HeaderMap,
    /// Whether the caller asked for a response without a body that can be read: by HEAD, or for a tunnel.
    pub unreadable: bool,
}

#[derive(Debug)]
struct Charge {
    name: Arc<str>,
    count: Count,
    refund_on: Arc<[StatusMatch]>,
    settle: Option<Settle>,
    reading: Reading,
    /// Whether the response is of a kind that says what it cost: an error seldom does.
    priced: bool,
    /// Leave to charge less than the estimate, once the response is there.
    credit: Option<Credit>,
}

/// How the real cost is being learnt.
#[derive(Debug)]
enum Reading {
    /// There is no response yet, or the client may have seen to it that there is none that says its cost.
    BrokenOff,
    /// What is charged stays charged.
    Settled,
    /// From the bytes sent.
    Bytes { per: u64 },
    /// From a field of the body.
    Field(FieldScanner),
    /// It stands nowhere.
    Missing,
}

/// Whether a response can change what a request is charged under `rule`.
pub fn is_open(rule: &Rule) -> bool {
    rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty()
}

impl Owed {
    /// What a request under `rules` owes. Rules whose charge is final at once cost nothing here.
    pub fn new<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let charges = rules
            .filter(|rule| is_open(rule))
            .map(|rule| Charge {
                name: Arc::clone(&rule.name),
                count: rule.count.clone(),
                refund_on: rule.refund_on.as_slice().into(),
                settle: rule.settle.clone(),
                reading: Reading::BrokenOff,
                priced: false,
                credit: None,
            })
            .collect();
        Self { charges }
    }

    /// Whether nothing is open.
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Whether the body is read for its cost.
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

    /// The response's head is known: charges that do not count are given back, those it prices are corrected.
    pub fn on_head(&mut self, permit: &mut Permit, head: Head<'_>) {
        for charge in &mut self.charges {
            charge.on_head(permit, head);
        }
    }

    /// A piece of the body goes out.
    pub fn on_data(&mut self, piece: &Bytes) {
        for charge in &mut self.charges {
            if let Reading::Field(scanner) = &mut charge.reading {
                scanner.feed(piece);
            }
        }
    }

    /// The body has ended after `bytes` bytes, or there was no response at all. `whole`: nothing of it is missing.
    pub fn on_end(self, permit: &mut Permit, bytes: u64, whole: bool) {
        for mut charge in self.charges {
            if let Some(settle) = charge.settle.take() {
                charge.on_end(permit, &settle, bytes, whole);
            }
        }
    }
}

/// Takes away what would have the response leave its cost out: a body that is read comes whole and as plain text.
pub fn want_readable(method: &Method, headers: &mut HeaderMap) {
    for name in [http::header::ACCEPT_ENCODING, RANGE, IF_RANGE] {
        headers.remove(name);
    }
    // On other methods they are conditions that protect what is written.
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
        let counts =
            self.count.counts(status) && !self.refund_on.iter().any(|range| range.matches(status));
        if let (false, Some(credit)) = (counts, self.credit) {
            let units = permit.charged(&self.name).unwrap_or(0);
            permit.refund(&self.name, units, credit);
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
                        self.settle(permit, told.min(settle.most));
                        Reading::Settled
                    }
                    None => Reading::Missing,
                }
            }
            (Cause::Upstream, SettleFrom::Bytes { per }) => Reading::Bytes { per: *per },
            (Cause::Upstream, SettleFrom::Json(_)) if unreadable && answered => Reading::BrokenOff,
            (Cause::Upstream, SettleFrom::Json(path)) => {
                let plain = headers
                    .get(CONTENT_ENCODING)
                    .is_none_or(|coding| coding.as_bytes() == b"identity");
                let kind = headers
                    .get(CONTENT_TYPE)
                    .and_then(|value| Carrier::of(value.to_str().ok()?));
                match (plain, kind) {
                    (true, Some(carrier)) => {
                        Reading::Field(FieldScanner::new(carrier, path.as_slice().into()))
                    }
                    _ => Reading::Missing,
                }
            }
        };
    }

    fn on_end(mut self, permit: &mut Permit, settle: &Settle, bytes: u64, whole: bool) {
        let (told, whole) = match std::mem::replace(&mut self.reading, Reading::Settled) {
            Reading::Settled => return,
            Reading::BrokenOff => (None, false),
            Reading::Bytes { per } => (Some(bytes.div_ceil(per.max(1))), whole),
            Reading::Field(scanner) => {
                let whole = whole || scanner.is_done();
                (scanner.finish(), whole)
            }
            Reading::Missing => (None, true),
        };
        match (told, whole) {
            (Some(told), true) => self.settle(permit, told.min(settle.most)),
            (told, false) => {
                self.credit = None;
                let least = settle.broken_off(bytes);
                self.correct(
                    permit,
                    told.map_or(least, |told| told.max(least)).min(settle.most),
                );
            }
            (None, true) if self.priced => {
                if settle.untold_costs_most {
                    self.correct(permit, settle.most);
                } else if permit.unsettled(&self.name) {
                    let (limit, estimate) = (&*self.name, settle.estimate);
                    tracing::warn!(
                        limit,
                        estimate,
                        "an answer does not say what it cost: the estimate stays charged"
                    );
                }
            }
            (None, true) => {}
        }
    }

    /// The response says that it cost `actual`.
    fn settle(&self, permit: &mut Permit, actual: u64) {
        permit.settled(&self.name, actual);
        self.correct(permit, actual);
    }

    /// Brings what was charged to `actual`: more without further ado, less where there is leave to.
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

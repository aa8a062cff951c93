//! Settles the charges of a request when its response is known: corrects estimates, refunds
//! failures.
//!
//! A charge is lowered only for effects that the upstream alone caused ([`Cause`]): a caller that
//! breaks its request off never pays less than one that stays.

mod charge;
pub mod field;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{ACCEPT_ENCODING, IF_MODIFIED_SINCE, IF_NONE_MATCH, IF_RANGE, RANGE};
use http::{HeaderMap, Method, StatusCode};

use crate::under_way::Reservation;
pub use charge::Tokens;
use charge::{Charge, Reading};
use tollgate_limiter::{Cause, Permit};
use tollgate_policy::{Claims, Count, Policy, Rule, Settle, SettleFrom, drop_lookalikes};

/// The charges of one request that its response can still change.
#[derive(Debug, Default)]
pub struct Owed {
    /// Empty for most requests, and then without an allocation.
    charges: Vec<Charge>,
    /// What is reserved until the charges are settled, at most one for each budget.
    pub(crate) reservations: Box<[Reservation]>,
}

/// What a request used of one limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Used {
    pub limit: Arc<str>,
    /// What it is charged in the end.
    pub units: u64,
    /// The currency in millionths of which `units` are; `None`: they are no money.
    pub currency: Option<Arc<str>>,
    /// `None`: its response states no tokens.
    pub tokens: Option<Tokens>,
}

/// The head of a response, as far as charges depend on it.
#[derive(Clone, Copy, Debug)]
pub struct Head<'r> {
    pub cause: Cause,
    /// Its status; of the gateway's own response to a gRPC call the one without gRPC.
    pub status: StatusCode,
    pub headers: &'r HeaderMap,
    /// Whether the caller asked for a response without a readable body: by HEAD, or for a tunnel.
    pub unreadable: bool,
}

/// Whether a response can change the charge under `rule`.
pub fn is_open(rule: &Rule) -> bool {
    rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty()
}

impl Owed {
    /// The open charges of a request under `rules`; most rules' charges are final at once.
    pub fn new<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let charges = rules
            .filter(|rule| is_open(rule))
            .map(|rule| Charge {
                name: Arc::clone(&rule.name),
                count: rule.count.clone(),
                refund_on: rule.refund_on.as_slice().into(),
                settle: rule.settle.clone(),
                prices: (rule.prices.as_ref()).map(|its| (Arc::clone(&its.prices), None)),
                by_response: false,
                named: Vec::new(),
                reading: Reading::BrokenOff,
                priced: false,
                credit: None,
                tokens: None,
            })
            .collect();
        Self {
            charges,
            reservations: Box::default(),
        }
    }

    /// Notes the prices of the models that the request asks for, or where `by_response` says so of
    /// those that the response names. They are kept until the response is settled: another file
    /// changes nothing for it.
    pub(crate) fn price(&mut self, claims: &Claims, policy: &Policy, by_response: bool) {
        let charges = claims.charges().iter();
        for drawn in charges.filter(|drawn| drawn.price.is_some()) {
            let name = &policy.rules[drawn.rule].name;
            let mut charges = self.charges.iter_mut();
            if let Some(charge) = charges.find(|charge| charge.name == *name)
                && let Some((_, model)) = &mut charge.prices
            {
                *model = drawn.price;
                charge.by_response = by_response;
            }
        }
    }

    pub(crate) fn hold(&mut self, reservation: Reservation) {
        let mut all = std::mem::take(&mut self.reservations).into_vec();
        all.push(reservation);
        self.reservations = all.into();
    }

    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Whether the body must be read for its cost.
    pub fn reads_body(&self) -> bool {
        let mut settles = self.charges.iter().filter_map(|one| one.settle.as_ref());
        settles.any(|settle| matches!(settle.from, SettleFrom::Json(_)))
    }

    /// Refunds charges that do not count by the response's head, and corrects those that it prices.
    pub fn on_head(&mut self, permit: &mut Permit, head: Head<'_>) {
        for charge in &mut self.charges {
            charge.on_head(permit, head);
        }
        let mut settling = self.charges.iter().filter(|one| one.settle.is_some());
        if settling.all(|charge| matches!(charge.reading, Reading::Settled)) {
            self.reservations = Box::default();
        }
    }

    pub fn on_data(&mut self, piece: &Bytes) {
        for charge in &mut self.charges {
            if let Reading::Field(scanner) = &mut charge.reading {
                scanner.feed(piece);
            }
        }
    }

    /// Withdraws the permission to lower a charge at the end of the response, because the caller may
    /// have caused how it ends.
    pub fn withdraw_credit(&mut self) {
        for charge in &mut self.charges {
            charge.credit = None;
        }
    }

    /// Handles the end of the body after `bytes` bytes, or a missing response. `whole`: the body is
    /// complete. Returns what was used of each limit that responses settle.
    pub fn on_end(self, permit: &mut Permit, bytes: u64, whole: bool) -> Vec<Used> {
        let mut used = Vec::new();
        for mut charge in self.charges {
            if let Some(settle) = charge.settle.take() {
                charge.on_end(permit, &settle, bytes, whole);
                count_used(permit, &charge.name, &settle);
                let currency = charge.prices.as_ref().map(|(prices, _)| &prices.currency);
                used.push(Used {
                    units: permit.charged(&charge.name).unwrap_or(0),
                    currency: currency.cloned(),
                    limit: charge.name,
                    tokens: charge.tokens,
                });
            }
        }
        used
    }

    /// Settles by what a trusted program reports in place of a response: its status, and the cost
    /// for each limit. Where it reports nothing, what the limit says of responses without a cost applies.
    pub fn on_report(
        self,
        permit: &mut Permit,
        status: Option<StatusCode>,
        cost: impl Fn(&str) -> Option<u64>,
    ) {
        for charge in self.charges {
            let cost = cost(&charge.name);
            let (name, settle) = (Arc::clone(&charge.name), charge.settle.clone());
            charge.on_report(permit, status, cost);
            settle.inspect(|settle| count_used(permit, &name, settle));
        }
    }

    /// Whether a report may state a cost for the limit of this name.
    pub fn is_settled_by_cost(&self, limit: &str) -> bool {
        let settles = |charge: &Charge| &*charge.name == limit && charge.settle.is_some();
        self.charges.iter().any(settles)
    }
}

/// Counts what is used of a limit that was reserved. (What is not reserved is used, as its bucket says.)
fn count_used(permit: &Permit, limit: &str, settle: &Settle) {
    if settle.estimate.is_none() {
        permit.count_used(limit);
    }
}

/// Removes request headers that could make the response omit its cost: a body that is read must be
/// complete and plain text. Headers whose names imitate theirs are removed too, because some servers
/// read them as those.
pub fn want_readable(method: &Method, headers: &mut HeaderMap) {
    // On other methods these are preconditions that protect a write.
    let conditions = match *method {
        Method::GET | Method::HEAD => &[IF_NONE_MATCH, IF_MODIFIED_SINCE][..],
        _ => &[],
    };
    let unwanted = [ACCEPT_ENCODING, RANGE, IF_RANGE];
    let unwanted = || unwanted.iter().chain(conditions);
    for name in unwanted() {
        headers.remove(name);
    }
    drop_lookalikes(headers, |real| unwanted().any(|name| name.as_str() == real));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readable_headers_that_imitate_a_removed_one_are_removed_too() {
        let left = |method: Method, names: &[&'static str]| -> Vec<String> {
            let mut headers = HeaderMap::new();
            for name in names {
                headers.append(*name, http::HeaderValue::from_static("x"));
            }
            want_readable(&method, &mut headers);
            headers.keys().map(ToString::to_string).collect()
        };
        let of_all = ["accept_encoding", "accept.encoding", "if_range", "range"];
        assert!(left(Method::POST, &of_all).is_empty());
        let of_reads = ["if_none_match", "if.modified-since", "if~none~match"];
        assert!(left(Method::GET, &of_reads).is_empty());
        assert_eq!(left(Method::PUT, &of_reads), of_reads);
        let others = ["accept_language", "accept-encodings", "x_range"];
        assert_eq!(left(Method::GET, &others), others);
    }
}

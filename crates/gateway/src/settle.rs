//! What a request still owes when its response is known: estimates corrected, failures given back.

pub mod field;

use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, StatusCode};

use field::{Carrier, FieldScanner};
use tollgate_limit::Change;
use tollgate_limiter::Permit;
use tollgate_policy::{Count, Rule, Settle, SettleFrom, StatusMatch};

/// The charges of one request that its response can still change.
#[derive(Debug, Default)]
pub struct Owed {
    /// Empty for most requests, and then without memory of its own.
    charges: Vec<Charge>,
}

#[derive(Debug)]
struct Charge {
    name: Arc<str>,
    count: Count,
    refund_on: Arc<[StatusMatch]>,
    settle: Option<Settle>,
    reading: Reading,
    /// Whether the answer is of a kind that says what it cost: an error seldom does.
    priced: bool,
}

/// How the real cost is being learnt.
#[derive(Debug)]
enum Reading {
    /// It is not, or is known already.
    Nothing,
    /// From the bytes sent.
    Bytes { per: u64 },
    /// From a field of the body.
    Field(FieldScanner),
    /// It stands nowhere.
    Missing,
}

impl Owed {
    /// What a request under `rules` owes. Rules whose charge is final at once cost nothing here.
    pub fn new<'r>(rules: impl Iterator<Item = &'r Rule>) -> Self {
        let charges = rules
            .filter(|rule| rule.settle.is_some() || rule.count != Count::All || !rule.refund_on.is_empty())
            .map(|rule| Charge {
                name: Arc::clone(&rule.name),
                count: rule.count.clone(),
                refund_on: rule.refund_on.as_slice().into(),
                settle: rule.settle.clone(),
                reading: Reading::Nothing,
                priced: false,
            })
            .collect();
        Self { charges }
    }

    /// Whether nothing is open.
    pub(crate) fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Whether the body must arrive uncompressed to be read.
    pub(crate) fn reads_body(&self) -> bool {
        let reads = |charge: &Charge| matches!(&charge.settle, Some(Settle { from: SettleFrom::Json(_), .. }));
        self.charges.iter().any(reads)
    }

    /// The response's head is known: charges that do not count are given back, those it prices are corrected.
    pub fn on_head(&mut self, permit: &mut Permit, status: StatusCode, headers: &HeaderMap) {
        for charge in &mut self.charges {
            charge.on_head(permit, status, headers);
        }
    }

    /// A piece of the body goes out.
    pub(crate) fn on_data(&mut self, piece: &Bytes) {
        for charge in &mut self.charges {
            if let Reading::Field(scanner) = &mut charge.reading {
                scanner.feed(piece);
            }
        }
    }

    /// The body has ended after `bytes` bytes, whole or not: what it told is charged.
    pub(crate) fn on_end(self, permit: &mut Permit, bytes: u64) {
        for charge in self.charges {
            let told = match charge.reading {
                Reading::Nothing => continue,
                Reading::Bytes { per } => Some(bytes.div_ceil(per.max(1))),
                Reading::Field(scanner) => scanner.finish(),
                Reading::Missing => None,
            };
            match (told, &charge.settle) {
                (Some(told), Some(settle)) => correct(permit, &charge.name, told.min(settle.most)),
                (None, Some(settle)) if charge.priced && permit.unsettled(&charge.name) => {
                    let limit = &*charge.name;
                    let estimate = settle.estimate;
                    tracing::warn!(limit, estimate, "an answer does not say what it cost: the estimate stays charged");
                }
                _ => {}
            }
        }
    }
}

impl Charge {
    fn on_head(&mut self, permit: &mut Permit, status: StatusCode, headers: &HeaderMap) {
        let matches = |matches: &[StatusMatch]| {
            let status = status.as_u16();
            matches.iter().any(|range| (range.from..=range.to).contains(&status))
        };
        let counts = match &self.count {
            Count::All => true,
            Count::Statuses(statuses) => matches(statuses),
        };
        if !counts || matches(&self.refund_on) {
            let units = permit.charged(&self.name).unwrap_or(0);
            permit.settle_rule(&self.name, Change::Refund { units });
            return;
        }
        let Some(settle) = &self.settle else { return };
        self.priced = status.is_success();
        match &settle.from {
            SettleFrom::Header(name) => {
                let told = headers.get(name).and_then(|value| value.to_str().ok()?.trim().parse::<u64>().ok());
                match told {
                    Some(told) => correct(permit, &self.name, told.min(settle.most)),
                    None => self.reading = Reading::Missing,
                }
            }
            SettleFrom::Bytes { per } => self.reading = Reading::Bytes { per: *per },
            SettleFrom::Json(path) => {
                let plain = headers.get(CONTENT_ENCODING).is_none_or(|coding| coding.as_bytes() == b"identity");
                let kind = headers.get(CONTENT_TYPE).and_then(|value| Carrier::of(value.to_str().ok()?));
                self.reading = match (plain, kind) {
                    (true, Some(carrier)) => Reading::Field(FieldScanner::new(carrier, path.as_slice().into())),
                    _ => Reading::Missing,
                };
            }
        }
    }
}

/// Brings what was charged to `actual`.
fn correct(permit: &mut Permit, rule: &str, actual: u64) {
    let Some(charged) = permit.charged(rule) else { return };
    let change = match actual.checked_sub(charged) {
        Some(more) => Change::Charge { more },
        None => Change::Refund { units: charged - actual },
    };
    permit.settle_rule(rule, change);
}

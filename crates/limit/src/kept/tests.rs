//! A bucket in a store that gateways of different numbers use.

mod bounds;
mod debts;
mod forgotten;
mod smaller_numbers;

use super::*;
use crate::bucket::Level;
use crate::fixtures::RATES;
use crate::limit_spec::Align;
use crate::{Kind, Micros, Terms, Verdict};

const START: u64 = 1_760_000_000_000_000;
const SECOND: u64 = 1_000_000;

fn terms(kind: Kind, amount: u64, period: u64, burst: Option<u64>) -> Terms {
    Terms {
        kind,
        amount,
        period: Micros(period),
        burst,
        align: Align::FirstHit,
        debt: 0,
        max_wait: Micros::ZERO,
        shared: true,
    }
}

fn made(kind: Kind, amount: u64, burst: u64) -> Algorithm {
    let burst = matches!(kind, Kind::TokenBucket | Kind::Interval).then_some(burst);
    Algorithm::new(&terms(kind, amount, SECOND, burst)).expect("representable")
}

/// A bucket in a store, which gateways of any numbers use.
struct Row {
    kept: Option<StoredBucket>,
    now: Timestamp,
}

impl Row {
    fn new() -> Self {
        Self {
            kept: None,
            now: Timestamp::from_micros(START),
        }
    }

    fn pass(&mut self, micros: u64) {
        self.now = self.now.after(Micros(micros));
        // As stores do: what is full again is deleted.
        self.kept.take_if(|kept| is_forgotten(kept, self.now));
    }

    fn draw(&mut self, limit: &Algorithm, cost: u64) -> bool {
        let mut found = match &self.kept {
            Some(kept) => kept.under(limit, self.now),
            None => StoredBucket::full(limit.clone()),
        };
        let Ok(granted) = limit.judge(found.state(), cost, self.now) else {
            return false;
        };
        found.grant(granted.next);
        if cost > 0 {
            self.kept = Some(found);
        }
        true
    }

    fn drain(&mut self, limit: &Algorithm) -> u64 {
        (0..).take_while(|_| self.draw(limit, 1)).count() as u64
    }

    fn settle(&mut self, by: &Algorithm, change: Change) {
        let mut kept = self
            .kept
            .take()
            .unwrap_or_else(|| StoredBucket::full(by.clone()));
        kept.settle(by, change, self.now);
        self.kept = Some(kept).filter(|kept| !is_forgotten(kept, self.now));
    }
}

fn is_forgotten(kept: &StoredBucket, now: Timestamp) -> bool {
    kept.expiry().is_some_and(|expiry| expiry <= now)
}

//! What callers have used of limits that responses settle, for the metrics: the series of listed callers,
//! up to a bound.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;

use tollgate_admission::settle::Used;
use tollgate_policy::body::usage::{TokenKind, Weights};
use tollgate_telemetry::metrics::Samples;

/// What was used since the start, by limit and caller.
#[derive(Debug, Default)]
pub struct Usage(Mutex<HashMap<(Arc<str>, Arc<str>), Sum>>);

#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    units: u64,
    tokens: Weights,
}

impl Usage {
    /// Adds what a request has used. `caller`: its name, if it is listed.
    pub(crate) fn count(&self, caller: Option<&Arc<str>>, used: &[Used]) {
        let mut sums = self.0.lock();
        for one in used {
            let mut of = (Arc::clone(&one.limit), caller.cloned().unwrap_or_default());
            if sums.len() >= SERIES_MAX && !sums.contains_key(&of) {
                of.1 = Arc::default();
            }
            let sum = sums.entry(of).or_default();
            sum.units = sum.units.saturating_add(one.units);
            let counts = one.tokens.iter().flat_map(|tokens| tokens.counts);
            for (sum, count) in sum.tokens.iter_mut().zip(counts) {
                *sum = sum.saturating_add(count);
            }
        }
    }

    pub fn samples(&self, to: &mut Samples) {
        let mut sums: Vec<_> = self
            .0
            .lock()
            .iter()
            .map(|(of, sum)| (of.clone(), *sum))
            .collect();
        sums.sort_by(|(one, _), (other, _)| one.cmp(other));
        for ((limit, caller), sum) in sums {
            let labels = [("limit", &*limit), ("caller", &*caller)];
            let help = "Units that requests of a listed caller are charged in the end where responses settle the limit, in millionths of the currency if it counts money; of all others with an empty caller";
            to.counter("limit_caller_units", help, &labels, sum.units);
            let help = "Tokens that responses state, by kind, of a listed caller";
            for (kind, count) in TokenKind::ALL.into_iter().zip(sum.tokens) {
                let labels = [&labels[..], &[("kind", kind.words())]].concat();
                to.counter("limit_caller_tokens", help, &labels, count);
            }
        }
    }
}

/// The most limits and callers that have series of their own: of callers beyond them there is one for each limit.
const SERIES_MAX: usize = 1_000;

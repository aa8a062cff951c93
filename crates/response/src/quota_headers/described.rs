//! The constant parts of a limit's quota headers, written when the file is read.

use super::number;
use tollgate_limit::{Algorithm, Limit};
use tollgate_policy::Rule;

#[derive(Debug)]
pub(super) struct Described {
    pub(super) name: Box<[u8]>,
    pub(super) policy: Box<[u8]>,
    pub(super) legacy_policy: Box<[u8]>,
    pub(super) quota: u64,
    pub(super) concurrent: bool,
    /// Whether a client may have several of its buckets.
    pub(super) partitioned: bool,
}

impl Described {
    pub(super) fn new(limit: &Limit, rule: Option<&Rule>) -> Self {
        let (quota, window, concurrent) = match limit.algorithm.quota() {
            Some(quota) => {
                let most = most_at_once(&limit.algorithm, quota.burst, quota.amount);
                // The window in which the rate yields the quota: ceil(most x period / amount).
                let micros = (u128::from(most) * u128::from(quota.period.0))
                    .div_ceil(u128::from(quota.amount.max(1)));
                (
                    most,
                    u64::try_from(micros.div_ceil(1_000_000))
                        .unwrap_or(u64::MAX)
                        .max(1),
                    false,
                )
            }
            None => (limit.algorithm.greatest_cost(), 0, true),
        };
        let name: Box<[u8]> = quoted(&limit.name).into();
        let mut policy = name.to_vec();
        policy.extend_from_slice(b";q=");
        number(&mut policy, quota);
        let mut legacy_policy = Vec::new();
        number(&mut legacy_policy, quota);
        if concurrent {
            policy.extend_from_slice(b";qu=\"concurrent-requests\"");
        } else {
            if let Some(unit) = rule.and_then(Rule::unit) {
                policy.extend_from_slice(b";qu=");
                policy.extend_from_slice(&quoted(&unit));
            }
            for value in [&mut policy, &mut legacy_policy] {
                value.extend_from_slice(b";w=");
                number(value, window);
            }
        }
        Self {
            name,
            policy: policy.into(),
            legacy_policy: legacy_policy.into(),
            quota,
            concurrent,
            partitioned: rule.is_some_and(|rule| rule.scope.parts().len() > 1),
        }
    }
}

/// The most a caller can use at once: the burst if there is one, the amount for windows and logs.
const fn most_at_once(algorithm: &Algorithm, burst: u64, amount: u64) -> u64 {
    match algorithm {
        Algorithm::SlidingWindow(_) | Algorithm::SlidingLog(_) => amount,
        _ => burst,
    }
}

/// A structured-field string (RFC 9651 3.3.3): printable ASCII, with quotes and backslashes
/// escaped. Other characters of the name are left out.
fn quoted(name: &str) -> Vec<u8> {
    let mut out = Vec::with_capacity(name.len() + 2);
    out.push(b'"');
    for byte in name.bytes() {
        match byte {
            b'"' | b'\\' => out.extend_from_slice(&[b'\\', byte]),
            b' '..=b'~' => out.push(byte),
            _ => {}
        }
    }
    out.push(b'"');
    out
}

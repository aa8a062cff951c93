//! Computes what a request draws from: one claim for each of its route's limits, on its caller's
//! bucket. Does not draw.

pub(crate) mod admission;
mod cost;
pub(crate) mod count;
pub mod domains;
pub(crate) mod lookup;
pub(crate) mod plan;
mod planned;
pub mod prices;
pub(crate) mod rule;
mod wildcard;

use std::sync::Arc;

use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;

use super::identity::{Caller, Resolved};
use super::{Policy, Rule, Sought};
use prices::{ModelPrice, PriceIndex};
use tollgate_limit::key::is_within_share;
use tollgate_limit::{CLAIMS_MAX, Claim, KeyBytes, Limit, Mode};

pub use super::body::SentBody;
pub use cost::{body_length, number};

/// A request would draw from more buckets than one draw supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the descriptors of a request draw from at most {CLAIMS_MAX} buckets")]
pub struct TooManyBuckets;

impl Policy {
    /// Whether one draw can decide about these claims. (Those of a route are checked when the policy
    /// is built.)
    pub fn check_buckets(&self, claims: &Claims) -> Result<(), TooManyBuckets> {
        if claims.charges().len() > CLAIMS_MAX {
            Err(TooManyBuckets)
        } else {
            Ok(())
        }
    }
}

/// The identities of a request, as far as its route needs them.
#[derive(Clone, Debug, Default)]
pub struct Identified {
    /// Whether the client's address is exempt: it is never limited.
    pub exempt: bool,
    /// The known caller that gives the tier; otherwise the first known caller.
    pub caller: Option<Arc<Caller>>,
    /// Every identity the route needs, resolved, in the order of the file.
    pub resolved: SmallVec<[Resolved; 2]>,
    /// The key under each of the route's scopes; `None` when one of its identities is skipped.
    keys: SmallVec<[Option<KeyBytes>; 2]>,
    /// The time of the request, in seconds since the Unix epoch.
    pub(super) at: u64,
}

impl Identified {
    /// The tier: of the known caller, otherwise of a client identified by its address.
    pub fn tier(&self) -> Option<&Arc<str>> {
        match &self.caller {
            Some(caller) => caller.tier.as_ref(),
            None => self
                .resolved
                .iter()
                .find_map(|one| one.address_tier.as_ref()),
        }
    }

    /// The name of the numbers that apply: the caller's own if it has some, otherwise its tier's.
    pub fn numbers(&self) -> Option<&Arc<str>> {
        let own = self
            .caller
            .as_ref()
            .and_then(|caller| caller.numbers.as_ref());
        own.or_else(|| self.tier())
    }
}

/// What one request draws from. Owned, so that it can outlive the request and settle when the
/// response ends.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    /// By the plan's scopes; empty where an identity is skipped, and then no charge uses it.
    keys: SmallVec<[KeyBytes; 2]>,
    charges: SmallVec<[Charge; 3]>,
    /// A limit, by index in [`Policy::rules`], that refuses the model of the request.
    pub(super) unpriced: Option<usize>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The rule, by index in [`Policy::rules`].
    pub rule: usize,
    /// The variant, by index in [`Policy::limits`].
    pub limit: usize,
    pub cost: u64,
    /// Whether its refusal refuses the request.
    pub enforced: bool,
    pub price: Option<PriceIndex>,
    key: usize,
}

impl Claims {
    pub fn is_empty(&self) -> bool {
        self.charges.is_empty()
    }

    /// Whether a limit refuses the request, because the model that it asks for has no price.
    pub fn refuses_model(&self) -> bool {
        self.unpriced.is_some()
    }

    /// Leaves what a refusal with this status is charged on: removes the limits that do not count
    /// it, and [reservations](Claims::drop_reservations).
    pub fn retain_counting(&mut self, policy: &Policy, status: StatusCode) {
        self.charges
            .retain(|charge| policy.rules[charge.rule].count.counts(status));
        self.drop_reservations(policy);
    }

    /// Removes the limits that reserve the most that a request may come to: a request that never
    /// reaches an upstream comes to nothing, and without credentials it must not use up a budget.
    pub fn drop_reservations(&mut self, policy: &Policy) {
        self.charges
            .retain(|charge| !policy.rules[charge.rule].reserves());
    }

    /// The charges of a request that a caller makes on one limit, by index in [`Policy::rules`];
    /// none if that is off. `cost`: `None` is what the limit says of a request without headers.
    pub fn on_limit(policy: &Policy, rule: usize, caller: &Sought, cost: Option<u64>) -> Self {
        let mut claims = Self::default();
        let named = &policy.rules[rule];
        let limit = named.variant(caller.numbers(named));
        if limit.mode == Mode::Off {
            return claims;
        }
        claims.keys.push(caller.key.clone());
        let cost = cost.unwrap_or_else(|| {
            let model = Some(ModelPrice::Dearest);
            named.price(limit, None, &HeaderMap::new(), None.into(), model)
        });
        let charge = Charge {
            rule,
            limit: limit.index,
            cost,
            enforced: is_enforced(limit, &caller.key),
            price: None,
            key: 0,
        };
        claims.push(named, limit, charge);
        claims
    }

    /// Adds the charges of another request, which is decided together with this one. Charges on the
    /// same bucket become one.
    pub fn join(&mut self, other: &Self) {
        for charge in &other.charges {
            self.add(other.key(charge), *charge);
        }
    }

    /// Adds `charge` on `limit`, a variant of `rule`, and the same on the candidate.
    fn push(&mut self, rule: &Rule, limit: &Limit, charge: Charge) {
        debug_assert_eq!(charge.limit, limit.index);
        self.charges.push(charge);
        let candidate = rule.candidate.as_ref();
        if let Some(candidate) = candidate.filter(|candidate| candidate.mode != Mode::Off) {
            self.charges.push(Charge {
                limit: candidate.index,
                enforced: false,
                ..charge
            });
        }
    }

    /// The charges, in the order of the route's limits, each live one before its candidate.
    pub fn charges(&self) -> &[Charge] {
        &self.charges
    }

    pub fn key(&self, charge: &Charge) -> &KeyBytes {
        &self.keys[charge.key]
    }

    /// Adds a charge, or its units to the charge on the same bucket, which is then enforced if
    /// either is; returns its position. The caller then asks [`Policy::check_buckets`].
    pub(super) fn add(&mut self, key: &[u8], charge: Charge) -> usize {
        let same = |known: &Charge| known.limit == charge.limit && self.keys[known.key][..] == *key;
        if let Some(place) = self.charges.iter().position(same) {
            let known = &mut self.charges[place];
            known.cost = known.cost.saturating_add(charge.cost);
            known.enforced |= charge.enforced;
            // Two models: their response costs the dearest price.
            known.price = known.price.filter(|price| charge.price == Some(*price));
            return place;
        }
        self.keys.push(KeyBytes::from_slice(key));
        let key = self.keys.len() - 1;
        self.charges.push(Charge { key, ..charge });
        self.charges.len() - 1
    }

    /// The claims for the store, in the order of [`Claims::charges`], on these limits by index.
    pub fn list<'a>(&'a self, limits: &'a [Arc<Limit>]) -> SmallVec<[Claim<'a>; 4]> {
        let claim = |charge: &Charge| Claim {
            enforced: charge.enforced,
            ..Claim::new(&limits[charge.limit], &self.keys[charge.key], charge.cost)
        };
        self.charges.iter().map(claim).collect()
    }
}

pub(super) fn is_enforced(limit: &Limit, key: &[u8]) -> bool {
    limit.mode == Mode::Enforce && is_within_share(key, limit.enforce_for)
}

impl Rule {
    /// The variant with this name: a tier's numbers, or a caller's own.
    pub fn variant(&self, numbers: Option<&Arc<str>>) -> &Arc<Limit> {
        let place =
            numbers.and_then(|tier| self.tiers.binary_search_by(|(name, _)| name.cmp(tier)).ok());
        place.map_or(&self.live, |place| &self.tiers[place].1)
    }
}

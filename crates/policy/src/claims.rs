//! Computes what a request draws from: one claim for each of its route's limits, on its caller's
//! bucket. Does not draw.

use std::sync::Arc;

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, StatusCode};
use smallvec::SmallVec;

use super::body::BodyFacts;
use super::identity::{Caller, Evidence, IdentityRefusal, Resolved};
use super::plan::Plan;
use super::prices::{ModelPrice, ModelPrices, PriceIndex};
use super::route::{Match, Pattern};
use super::usage::PerToken;
use super::{Cost, Policy, Rule, Settle, Sought};
use tollgate_limit::key::is_within_share;
use tollgate_limit::{Algorithm, CLAIMS_MAX, Claim, KeyBytes, Limit, Mode};

/// A request would draw from more buckets than one draw supports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the descriptors of a request draw from at most {CLAIMS_MAX} buckets, those with the blocks of penalties among them"
)]
pub struct TooManyBuckets;

impl Policy {
    /// Whether one draw can decide about these claims. (Those of a route are checked when the policy
    /// is built.)
    ///
    /// # Errors
    /// If they need more buckets than one draw supports.
    pub fn check_buckets(&self, claims: &Claims) -> Result<(), TooManyBuckets> {
        let buckets = |charge: &Charge| self.limits[charge.limit].buckets();
        let all: usize = claims.charges().iter().map(buckets).sum();
        if all > CLAIMS_MAX {
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

/// One limit a request is charged on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The rule, by index in [`Policy::rules`].
    pub rule: usize,
    /// The variant, by index in [`Policy::limits`].
    pub limit: usize,
    /// Units.
    pub cost: u64,
    /// Whether its refusal refuses the request.
    pub enforced: bool,
    /// The price of the model that the request asks for.
    pub price: Option<PriceIndex>,
    key: usize,
}

/// The body of a request, as far as costs depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub struct SentBody<'b> {
    /// Its length in bytes, if known.
    pub length: Option<u64>,
    /// What it says, if that was read.
    pub facts: Option<&'b BodyFacts>,
}

impl SentBody<'_> {
    /// The number of calls that it makes: the elements of a batch, otherwise 1.
    pub fn calls(self) -> u64 {
        self.facts.map_or(1, BodyFacts::calls)
    }

    /// The most bytes that it is taken to have; `None`: there is no bound.
    pub(super) fn most_bytes(self) -> Option<u64> {
        self.length
            .or_else(|| self.facts.and_then(BodyFacts::assumed_length))
    }
}

/// A body that was not read.
impl From<Option<u64>> for SentBody<'_> {
    fn from(length: Option<u64>) -> Self {
        Self {
            length,
            facts: None,
        }
    }
}

impl Claims {
    /// Whether nothing is drawn.
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
            let key = other.key(charge);
            let same =
                |known: &&mut Charge| known.limit == charge.limit && self.keys[known.key] == *key;
            if let Some(known) = self.charges.iter_mut().find(same) {
                known.cost = known.cost.saturating_add(charge.cost);
                // Two models: their response costs the dearest price.
                known.price = known.price.filter(|price| charge.price == Some(*price));
                continue;
            }
            self.keys.push(key.clone());
            let key = self.keys.len() - 1;
            self.charges.push(Charge { key, ..*charge });
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

    /// The key a charge is drawn under.
    pub fn key(&self, charge: &Charge) -> &KeyBytes {
        &self.keys[charge.key]
    }

    /// Adds a charge with a key of its own; returns its position.
    pub(super) fn push_keyed(
        &mut self,
        rule: usize,
        limit: usize,
        key: KeyBytes,
        cost: u64,
        enforced: bool,
    ) -> usize {
        self.keys.push(key);
        let key = self.keys.len() - 1;
        self.charges.push(Charge {
            rule,
            limit,
            cost,
            enforced,
            price: None,
            key,
        });
        self.charges.len() - 1
    }

    /// Adds units to the charge at `place`, which is enforced if either is.
    pub(super) fn raise(&mut self, place: usize, cost: u64, enforced: bool) {
        let charge = &mut self.charges[place];
        charge.cost = charge.cost.saturating_add(cost);
        charge.enforced |= enforced;
    }

    /// The claims for the store, in the order of [`Claims::charges`].
    pub fn list<'a>(&'a self, policy: &'a Policy) -> SmallVec<[Claim<'a>; 4]> {
        let claim = |charge: &Charge| Claim {
            enforced: charge.enforced,
            ..Claim::new(
                &policy.limits[charge.limit],
                &self.keys[charge.key],
                charge.cost,
            )
        };
        let mut list = SmallVec::new();
        self.charges
            .iter()
            .for_each(|charge| list.push(claim(charge)));
        list
    }
}

impl Plan {
    /// Resolves every identity the route needs, and the key under each of its scopes, into
    /// `identified`.
    pub(super) fn identify(
        &self,
        evidence: Evidence<'_, '_>,
        identified: &mut Identified,
    ) -> Result<(), IdentityRefusal> {
        for &identity in &self.identities {
            identified.resolved.push(evidence.resolve(identity)?);
        }
        self.finish(evidence, identified);
        Ok(())
    }

    /// The same from the address alone: limits by other identities get no key.
    pub(super) fn place(&self, evidence: Evidence<'_, '_>, identified: &mut Identified) {
        for &identity in self
            .identities
            .iter()
            .filter(|identity| evidence.identities[**identity].is_address())
        {
            identified.resolved.extend(evidence.resolve(identity));
        }
        self.finish(evidence, identified);
    }

    fn finish(&self, evidence: Evidence<'_, '_>, identified: &mut Identified) {
        let client = evidence.request.client;
        identified.exempt = client.is_some_and(|client| evidence.address.exempt.contains(client));
        identified.at = evidence.now;
        let known = || {
            identified
                .resolved
                .iter()
                .filter_map(|one| one.caller.as_ref())
        };
        identified.caller = known()
            .find(|caller| caller.tier.is_some())
            .or_else(|| known().next())
            .cloned();
        for scope in &self.scopes {
            identified
                .keys
                .push(scope.key(evidence, &identified.resolved));
        }
    }

    /// Adds the charges of a request with this body to one of the route's targets.
    pub(super) fn claims(
        &self,
        (target, matched): (usize, &Match<'_>),
        policy: &Policy,
        who: &Identified,
        headers: &HeaderMap,
        body: SentBody<'_>,
        claims: &mut Claims,
    ) {
        let pattern = &policy.routes[matched.route].pattern;
        if who.exempt {
            return;
        }
        for key in &who.keys {
            claims
                .keys
                .push(KeyBytes::from_slice(key.as_deref().unwrap_or_default()));
        }
        for charge in self.charges.iter().filter(|charge| charge.is_of(target)) {
            let rule = &policy.rules[charge.rule];
            let limit = rule.variant(who.numbers());
            let Some(key) = &who.keys[charge.scope] else {
                continue;
            };
            if limit.mode == Mode::Off {
                continue;
            }
            let enforced = is_enforced(limit, key);
            let model = rule.model_price(pattern, matched, body);
            if model == Some(ModelPrice::Refused) && enforced {
                claims.unpriced = Some(charge.rule);
                continue;
            }
            let cost = rule.price(limit, charge.cost.as_ref(), headers, body, model);
            claims.push(
                rule,
                limit,
                Charge {
                    rule: charge.rule,
                    limit: limit.index,
                    cost,
                    enforced,
                    price: model.and_then(ModelPrice::place),
                    key: charge.scope,
                },
            );
        }
    }
}

impl Plan {
    /// The key of a rule's bucket; `None` when one of its identities is skipped, or the rule is
    /// off.
    pub(super) fn key_of<'w>(&self, rule: usize, who: &'w Identified) -> Option<&'w KeyBytes> {
        let charge = self.charges.iter().find(|charge| charge.rule == rule)?;
        who.keys[charge.scope].as_ref()
    }
}

/// Whether a refusal of `limit` counts for this key.
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

    /// The price at which a request that takes this route is charged, where the limit counts money.
    pub fn model_price(
        &self,
        pattern: &Pattern,
        matched: &Match<'_>,
        body: SentBody<'_>,
    ) -> Option<ModelPrice> {
        let prices = self.prices.as_ref()?;
        // The input of a body without a known length has no bound, and cannot be reserved.
        if self.reserves() && body.most_bytes().is_none() {
            return Some(ModelPrice::Refused);
        }
        Some(prices.of(pattern, matched, body))
    }

    /// What a request is charged at admission: the estimate of `settle` if it has one, otherwise
    /// the route's cost, otherwise the limit's. `model`: the price, where the limit counts money.
    ///
    /// Each call of a batch costs what a request with that call alone would cost. The places of a
    /// concurrency limit are taken by requests.
    ///
    /// What exceeds the highest cost, or cannot be read, costs a ceiling more than `limit`, a variant
    /// of this rule, can ever grant.
    pub fn price(
        &self,
        limit: &Limit,
        of_route: Option<&Cost>,
        headers: &HeaderMap,
        body: SentBody<'_>,
        model: Option<ModelPrice>,
    ) -> u64 {
        if let Algorithm::InFlight(_) = self.live.algorithm {
            return of_route.unwrap_or(&self.cost).units(headers, body);
        }
        let cost = of_route.unwrap_or(&self.cost);
        if self.ceiling && self.estimate().is_none() && cost.is_beyond(headers, body) {
            return limit.algorithm.greatest_cost().saturating_add(1);
        }
        match (self.estimate(), cost) {
            (Some(estimate), _) => estimate.saturating_mul(body.calls()),
            (None, Cost::Body(cost)) => match &self.prices {
                Some(prices) => prices.reserve(cost, body, model.unwrap_or(ModelPrice::Dearest)),
                None => cost.units(body, self.per_token()),
            },
            (None, cost) => {
                let units = cost.units(headers, body).saturating_mul(body.calls());
                units.saturating_mul(self.per_token().greatest())
            }
        }
    }
}

impl Cost {
    /// Units for a request with these headers and this body.
    pub fn units(&self, headers: &HeaderMap, body: SentBody<'_>) -> u64 {
        match self {
            Self::Fixed(units) => *units,
            Self::Header {
                name,
                default,
                least,
                most,
            } => {
                let given = stated_in(headers, name).unwrap_or(*default);
                given.clamp(*least, (*most).max(*least))
            }
            Self::ContentLength { per, least, most } => {
                let units = body
                    .length
                    .map_or(*most, |bytes| bytes.div_ceil((*per).max(1)));
                units.clamp(*least, (*most).max(*least))
            }
            Self::Body(cost) => cost.units(body, PerToken::ONE),
        }
    }

    /// The lowest and the highest cost of a request with one call, under a limit that is settled and
    /// priced like this.
    pub fn bounds(&self, settle: Option<&Settle>, prices: Option<&ModelPrices>) -> (u64, u64) {
        let each = settle.map_or(PerToken::ONE, Settle::reserved);
        match (self, prices) {
            (Self::Fixed(units), _) => (*units, *units),
            (Self::Header { least, most, .. } | Self::ContentLength { least, most, .. }, _) => {
                let each = each.greatest();
                (least.saturating_mul(each), most.saturating_mul(each))
            }
            (Self::Body(cost), Some(its)) => (0, its.prices.dearest_output(cost.most)),
            (Self::Body(cost), None) => {
                let most = cost.most.saturating_mul(cost.dearest(each));
                (cost.least, most.max(cost.least))
            }
        }
    }

    /// Whether a request states more than the highest cost, or a cost that cannot be read.
    fn is_beyond(&self, headers: &HeaderMap, body: SentBody<'_>) -> bool {
        match self {
            Self::Fixed(_) => false,
            Self::Header { name, most, .. } => {
                stated_in(headers, name).is_some_and(|units| units > *most)
            }
            Self::ContentLength { per, most, .. } => body
                .length
                .is_none_or(|bytes| bytes.div_ceil((*per).max(1)) > *most),
            Self::Body(cost) => cost.is_beyond(body),
        }
    }
}

/// The cost in a header. With several values the highest counts: a cheap second line must not lower
/// the first. An unreadable value is the largest number, because an upstream may still be able to
/// read it.
fn stated_in(headers: &HeaderMap, name: &http::HeaderName) -> Option<u64> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| number(line).unwrap_or(u64::MAX)).max()
}

/// The length of the body that a request with these headers announces (RFC 9112 section 6.3): zero
/// without any announcement, `None` if it is known only at the body's end.
pub fn body_length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    let mut lines = headers.get_all(CONTENT_LENGTH).iter();
    match (lines.next(), lines.next()) {
        (None, _) => Some(0),
        (Some(line), None) => number(line),
        _ => None,
    }
}

/// A number of units in a header: digits only; a number that is too large counts as the maximum.
pub fn number(value: &HeaderValue) -> Option<u64> {
    let digits = value.as_bytes().trim_ascii();
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let add = |sum: u64, digit: &u8| {
        sum.saturating_mul(10)
            .saturating_add(u64::from(digit - b'0'))
    };
    Some(digits.iter().fold(0, add))
}

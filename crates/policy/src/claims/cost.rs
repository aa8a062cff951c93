//! What a request costs on a limit: by the numbers of the file, its headers and its body.

use http::header::{CONTENT_LENGTH, HeaderValue, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName};

use tollgate_limit::hex::percent_decoded;
use tollgate_limit::{Algorithm, Limit};

use crate::body::usage::PerToken;
use crate::body::{BodyFacts, SentBody};
use crate::claims::prices::{ModelPrice, ModelPrices};
use crate::identity::source::{Source, only_line};
use crate::routes::{Match, Pattern, Route};
use crate::{BodyCost, Cost, Rule, Settle};

impl Rule {
    /// The price at which a request to this target of its route is charged, where the limit counts money.
    pub fn model_price(
        &self,
        route: &Route,
        target: usize,
        matched: &Match<'_>,
        body: SentBody<'_>,
    ) -> Option<ModelPrice> {
        let prices = self.prices.as_ref()?;
        // The input of a body without a known length has no bound, and cannot be reserved.
        if self.reserves() && body.most_bytes().is_none() {
            return Some(ModelPrice::Refused);
        }
        let of_target = route.over_limit(target).and_then(|over| over.model);
        let asked = || prices.of(&route.pattern, matched, body);
        Some(of_target.map_or_else(asked, ModelPrice::At))
    }

    /// What a request is charged at admission: the estimate of `settle` if it has one, otherwise
    /// the route's cost, otherwise the limit's. `model`: the price, where the limit counts money.
    ///
    /// Each call of a batch costs what a request with that call alone would cost. The places of a
    /// concurrency limit are taken by requests.
    ///
    /// What a ceiling or a reservation cannot bound, because it exceeds the highest cost or cannot be
    /// read, costs more than `limit`, a variant of this rule, can ever grant.
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
        if self.is_unbounded(cost, headers, body) {
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

    /// Whether nothing bounds what a request costs that is charged by `cost`.
    fn is_unbounded(&self, cost: &Cost, headers: &HeaderMap, body: SentBody<'_>) -> bool {
        match cost {
            _ if self.estimate().is_some() => false,
            _ if self.ceiling => cost.is_beyond(headers, body),
            // Where another program has the body, its highest cost is all that is known.
            Cost::Body(_) if body.facts.is_none_or(BodyFacts::is_elsewhere) => false,
            Cost::ContentLength { .. } if body.length.is_none() => false,
            Cost::Body(cost) if !self.reserves() => cost.hides_times(body),
            Cost::Body(cost) => cost.is_beyond(body, false),
            cost => self.reserves() && cost.is_beyond(headers, body),
        }
    }
}

impl Cost {
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
            (Self::Body(cost), Some(its)) => (0, its.prices.dearest(cost.most, 0)),
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
            Self::Body(cost) => cost.is_beyond(body, true),
        }
    }
}

impl ModelPrices {
    /// What names the model on a route with this pattern.
    pub fn source(&self, pattern: &Pattern) -> Option<&Source> {
        let has = |source: &&Source| match source {
            Source::Path(name) => pattern.capture(name).is_some(),
            _ => true,
        };
        self.models.iter().find(has)
    }

    /// The price for a request that takes this route, with this body.
    pub(crate) fn of(
        &self,
        pattern: &Pattern,
        matched: &Match<'_>,
        body: SentBody<'_>,
    ) -> ModelPrice {
        match self.source(pattern) {
            Some(Source::Path(name)) => {
                let place = pattern.capture(name);
                let segment = place.and_then(|place| matched.captures.get(place));
                let segment = percent_decoded(segment.map_or("", |text| *text).as_bytes(), false);
                match std::str::from_utf8(&segment) {
                    Ok(model) => self.of_name(model),
                    Err(_) => self.of_unread(),
                }
            }
            Some(member) => self.of_body(member, body),
            None => self.of_unread(),
        }
    }

    /// The price for a request whose body names the model.
    fn of_body(&self, member: &Source, body: SentBody<'_>) -> ModelPrice {
        let Some(facts) = body.facts else {
            // A request without a body names no model.
            return if body.length == Some(0) {
                self.of_unknown()
            } else {
                self.of_unread()
            };
        };
        if facts.is_elsewhere() {
            return ModelPrice::Dearest;
        }
        if facts.is_opaque() {
            return self.of_unread();
        }
        match facts.value(member) {
            Some(model) => match std::str::from_utf8(&model) {
                Ok(model) => self.of_name(model),
                Err(_) => self.of_unread(),
            },
            None => self.of_unknown(),
        }
    }

    fn of_name(&self, model: &str) -> ModelPrice {
        // An upstream may end the name there.
        if model.trim().contains(char::is_control) {
            return self.of_unread();
        }
        let place = self.prices.of_model(model);
        place.map_or_else(|| self.of_unknown(), ModelPrice::At)
    }

    /// The price for a request that names no model, or one without a price.
    fn of_unknown(&self) -> ModelPrice {
        self.unknown.map_or(ModelPrice::Refused, ModelPrice::At)
    }

    /// The price for a request whose model cannot be read. A client can cause that, so the price of
    /// unknown models does not hold: the model may be the dearest.
    const fn of_unread(&self) -> ModelPrice {
        match self.unknown {
            Some(_) => ModelPrice::Dearest,
            None => ModelPrice::Refused,
        }
    }

    /// The most that a request with this body may cost at this price.
    pub(crate) fn reserve(&self, cost: &BodyCost, body: SentBody<'_>, model: ModelPrice) -> u64 {
        let output = cost.units(body, PerToken::ONE);
        let bytes = body.most_bytes().unwrap_or(0);
        match model.place().and_then(|place| self.prices.get(place)) {
            Some(price) => price.of_request(output, bytes),
            None => self.prices.dearest(output, bytes),
        }
    }
}

/// The cost in a header. With several values the highest counts: a cheap second line must not lower
/// the first. An unreadable value is the largest number, because an upstream may still be able to
/// read it.
fn stated_in(headers: &HeaderMap, name: &HeaderName) -> Option<u64> {
    let lines = headers.get_all(name).iter();
    lines.map(|line| number(line).unwrap_or(u64::MAX)).max()
}

/// The length of the body that a request with these headers announces (RFC 9112 section 6.3): zero
/// without any announcement, `None` if it is known only at the body's end.
pub fn body_length(headers: &HeaderMap) -> Option<u64> {
    if headers.contains_key(TRANSFER_ENCODING) {
        return None;
    }
    only_line(headers, &CONTENT_LENGTH)
        .ok()?
        .map_or(Some(0), number)
}

/// A number of units in a header: digits only; a number that is too large counts as the maximum.
pub fn number(value: &HeaderValue) -> Option<u64> {
    let digits = value.to_str().ok()?.trim_ascii();
    let is_number = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    is_number.then(|| digits.parse().unwrap_or(u64::MAX))
}

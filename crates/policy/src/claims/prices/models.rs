//! The price at which a request is charged, by what it says of its model.

use std::sync::Arc;

use crate::body::usage::PerToken;

use super::{PriceIndex, Prices};
use crate::claims::SentBody;
use crate::claims::rule::BodyCost;
use crate::identity::source::Source;
use crate::routes::Pattern;
use crate::routes::router::Match;
use tollgate_limit::hex::percent_decoded;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelPrices {
    pub prices: Arc<Prices>,
    /// What names the model: the first that a route has. A member of the body, which every route
    /// has, or a segment of the path.
    pub models: Vec<Source>,
    /// The price of models without one, by its place; `None`: requests for them are refused.
    pub unknown: Option<PriceIndex>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ModelPrice {
    At(PriceIndex),
    /// The dearest of all, because the model is not known here.
    Dearest,
    Refused,
}

impl ModelPrice {
    /// The place of the price; `None`: the dearest.
    pub const fn place(self) -> Option<PriceIndex> {
        match self {
            Self::At(place) => Some(place),
            Self::Dearest | Self::Refused => None,
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

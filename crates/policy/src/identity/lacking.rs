//! What a request that is refused for its body lacks, in a sentence for its client. It names what the
//! file names, and repeats nothing that the client sent.

use tollgate_limit::printable::printable;

use super::source::Source;
use super::{IdentityReason, IdentityRefusal};
use crate::routes::router::Match;
use crate::{Policy, SentBody};

impl Policy {
    pub(crate) fn lacking(
        &self,
        refusal: IdentityRefusal,
        matched: &Match<'_>,
        body: SentBody<'_>,
    ) -> IdentityRefusal {
        let is_known = match body.facts {
            Some(facts) => !facts.is_elsewhere(),
            None => body.length == Some(0),
        };
        let lacking = match refusal.reason {
            _ if !is_known => None,
            IdentityReason::MissingInBody => self.key_lacking(&refusal, body),
            IdentityReason::ModelUnknown => self.price_lacking(&refusal, matched, body),
            _ => None,
        };
        IdentityRefusal { lacking, ..refusal }
    }

    fn key_lacking(&self, refusal: &IdentityRefusal, body: SentBody<'_>) -> Option<String> {
        let mut identities = self.identities.iter();
        let identity = identities.find(|one| one.name == refusal.identity)?;
        let has = |source: &Source| {
            let value = body.facts.and_then(|facts| facts.value(source));
            value.is_some()
        };
        let lacks = |source: &&Source| source.is_of_body() && !has(source);
        let names: Vec<String> = identity.sources.iter().filter(lacks).map(quoted).collect();
        if names.is_empty() {
            return None;
        }
        let names = names.join(if identity.first_of { " or " } else { " and " });
        let lacks = || format!("The body lacks a value of {names}.");
        Some(self.unread(body, &names).unwrap_or_else(lacks))
    }

    fn price_lacking(
        &self,
        refusal: &IdentityRefusal,
        matched: &Match<'_>,
        body: SentBody<'_>,
    ) -> Option<String> {
        let mut rules = self.rules.iter();
        let rule = rules.find(|rule| rule.name == refusal.identity)?;
        let pattern = &self.routes[matched.route].pattern;
        let source = rule.prices.as_ref()?.source(pattern)?;
        let name = quoted(source);
        if rule.reserves() && body.most_bytes().is_none() {
            return Some(
                "The request does not announce the length of its body, on which its cost depends."
                    .to_owned(),
            );
        }
        if source.is_of_body() {
            if let Some(unread) = self.unread(body, &name) {
                return Some(unread);
            }
            if body.facts.is_none_or(|facts| facts.value(source).is_none()) {
                return Some(format!("The body lacks a value of {name}."));
            }
        }
        Some(format!("The model that {name} names has no price here."))
    }

    /// Why the body was not read for these members; `None`: it was.
    fn unread(&self, body: SentBody<'_>, names: &str) -> Option<String> {
        let facts = body.facts?;
        let most = self.body.most;
        if facts.is_skipped() {
            return Some(match facts.length() {
                Some(length) if length > most as u64 => format!(
                    "The body has {length} bytes; {names} is read from a body of at most {most} bytes."
                ),
                Some(_) => format!("The body is compressed, so that {names} is not read from it."),
                None => format!(
                    "The body has more than {most} bytes, or is compressed, so that {names} is not read from it."
                ),
            });
        }
        let is_other = facts.is_opaque() && names.starts_with("`json:");
        is_other.then(|| format!("The body is not sent as JSON, so that it lacks {names}."))
    }
}

fn quoted(source: &Source) -> String {
    format!("`{}`", printable(&source.words()))
}

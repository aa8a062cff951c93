//! The rules for descriptors: those of `[[decide.rules]]`, and files of envoyproxy/ratelimit.

mod envoy_files;
mod own_rules;

use std::sync::Arc;

use super::limits::{Limits, Surroundings};
use crate::context::Context;
use crate::declare::forms;
use crate::rate::{Rate as Written, Unit, rate};
use crate::raw::{RawFile, RuleOfDescriptors};
use crate::source::{At, Place};
use crate::text::Text;
use tollgate_limit::Rate;
use tollgate_policy::Domains;
use tollgate_policy::domains::{DescriptorRule, Step};

pub use envoy_files::EnvoyFile;
pub(crate) use envoy_files::EnvoyFiles;

forms! {
    /// A rate that a request may ask for.
    OverrideText -> Rate = override_rate;
}

fn override_rate(text: &At<Text>, context: &mut Context<'_>) -> Option<Rate> {
    match rate(text.as_str()) {
        Ok(Written::Per { rate, .. }) => Some(rate),
        Ok(Written::Unlimited) => {
            let title = "an override is a rate";
            context.error(title, text.place, "Envoy cannot ask for this");
            None
        }
        Err(flaw) => {
            context.flaw(flaw, text);
            None
        }
    }
}

/// The rates that a request may ask for, with their places.
pub(crate) fn overrides(rates: &[Rate], context: &Context<'_>) -> Vec<At<Written>> {
    let place = |index| context.place(&format!("decide.overrides[{index}]"));
    let at = |(index, rate): (usize, &Rate)| At {
        value: Written::Per {
            rate: *rate,
            unit: Unit::Span,
            currency: None,
        },
        place: place(index).unwrap_or_default(),
    };
    rates.iter().enumerate().map(at).collect()
}

/// Compiles the rules; the limits of files are added to `limits`.
pub(crate) fn domains(
    rules: &[RuleOfDescriptors],
    files: &[EnvoyFile],
    raw: &RawFile,
    limits: &mut Limits,
    around: &Surroundings<'_>,
    context: &mut Context<'_>,
) -> Domains {
    let mut made = Made {
        domains: Domains::default(),
        places: Vec::new(),
    };
    for (index, rule) in rules.iter().enumerate() {
        own_rules::compile(rule, index, raw, limits, &mut made, context);
    }
    for file in files {
        file.compile(limits, &mut made, around, context);
    }
    let charged: Vec<usize> = made
        .domains
        .rules()
        .flat_map(|rule| rule.limits.clone())
        .collect();
    for index in charged {
        // A peer may give units back, and a request that a quota refuses gives back what it took.
        let rule = &mut limits.rules[index];
        for limit in std::iter::once(&mut rule.live).chain(rule.candidate.as_mut()) {
            Arc::make_mut(limit).refundable = true;
        }
    }
    made.domains
}

/// The rules so far, and where each was written.
struct Made {
    domains: Domains,
    places: Vec<(String, Vec<Step>, Place)>,
}

impl Made {
    fn insert(
        &mut self,
        domain: &str,
        steps: Vec<Step>,
        rule: DescriptorRule,
        place: Place,
        context: &mut Context<'_>,
    ) {
        if self.domains.insert(domain, &steps, rule) {
            self.places.push((domain.to_owned(), steps, place));
            return;
        }
        let key = |steps: &[Step]| -> Vec<(String, Option<String>)> {
            let step = |step: &Step| (step.key.clone(), step.value.clone());
            steps.iter().map(step).collect()
        };
        let first = self
            .places
            .iter()
            .find(|(other, path, _)| other == domain && key(path) == key(&steps));
        let title = format!("two rules of domain `{domain}` are for one descriptor");
        context.twice(title, place, first.map_or(place, |(_, _, place)| *place));
    }
}

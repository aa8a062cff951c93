//! The rules for descriptors: those of `[[decide.rules]]`, and files of envoyproxy/ratelimit.

mod envoy_files;
mod own_rules;

use std::collections::HashMap;
use std::sync::Arc;

use super::limits::{Limits, Surroundings};
use crate::raw::{RawFile, RuleOfDescriptors};
use crate::reading::{At, Context, Place};
use crate::settings::EnvoyFile;
use crate::values::rate::{Rate as Written, Unit};
use tollgate_limit::Rate;
use tollgate_policy::Domains;
use tollgate_policy::claims::domains::{DescriptorRule, Step};

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

pub(crate) struct Compiler<'c, 'e> {
    raw: &'c RawFile,
    /// The limits; those of files of envoyproxy/ratelimit are added.
    limits: &'c mut Limits,
    around: &'c Surroundings<'c>,
    context: &'c mut Context<'e>,
    domains: Domains,
    places: HashMap<Descriptor, Place>,
    /// Where the limits were written, by name.
    named: HashMap<String, Place>,
}

/// A domain, with the keys and values of a rule.
type Descriptor = (String, Vec<(String, Option<String>)>);

impl<'c, 'e> Compiler<'c, 'e> {
    pub(crate) fn new(
        raw: &'c RawFile,
        limits: &'c mut Limits,
        around: &'c Surroundings<'c>,
        context: &'c mut Context<'e>,
    ) -> Self {
        let named = limits.written.iter();
        let named = named.map(|limit| (limit.name.value.clone(), limit.name.place));
        Self {
            raw,
            named: named.collect(),
            limits,
            around,
            context,
            domains: Domains::default(),
            places: HashMap::new(),
        }
    }

    pub(crate) fn domains(mut self, rules: &[RuleOfDescriptors], files: &[EnvoyFile]) -> Domains {
        for (index, rule) in rules.iter().enumerate() {
            self.own_rule(rule, index);
        }
        for file in files {
            self.file(file);
        }
        self.named_rate();
        for index in self.domains.rules().flat_map(|rule| &rule.limits) {
            // A peer may give units back, and a request that a quota refuses gives back what it took.
            let rule = &mut self.limits.rules[*index];
            for limit in std::iter::once(&mut rule.live).chain(rule.candidate.as_mut()) {
                Arc::make_mut(limit).refundable = true;
            }
        }
        self.domains
    }

    /// Adds the rule of descriptors that name their own rate and reach no other rule.
    fn named_rate(&mut self) {
        let Some(first) = self.around.described.1.first() else {
            return;
        };
        if let Written::Per { rate, .. } = first.value {
            let name = first.with("overrides".to_owned());
            let limits = self.limit(name, rate, false);
            self.domains.named_rate = Some(DescriptorRule {
                limits,
                path: Arc::from("overrides"),
                ..DescriptorRule::default()
            });
        }
    }

    fn insert(&mut self, domain: &str, steps: &[Step], rule: DescriptorRule, place: Place) {
        let free = self.domains.insert(domain, steps, rule);
        let key = |step: &Step| (step.key.clone(), step.value.clone());
        let descriptor = (domain.to_owned(), steps.iter().map(key).collect());
        let first = *self.places.entry(descriptor).or_insert(place);
        if !free {
            let title = format!("two rules of domain `{domain}` are for one descriptor");
            self.context.twice(title, place, first);
        }
    }
}

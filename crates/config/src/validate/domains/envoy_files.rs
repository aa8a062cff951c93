//! The rules of files of envoyproxy/ratelimit, and the limits that these make.

use std::sync::Arc;

use super::Compiler;
use crate::rate_limit_yaml::{Descriptor, Quota};
use crate::reading::At;
use crate::settings::EnvoyFile;
use crate::validate::limits::{Written, window_of_clock};
use tollgate_limit::{Mode, Rate};
use tollgate_policy::claims::domains::{DescriptorRule, Step};

struct Within<'w> {
    file: &'w EnvoyFile,
    domain: &'w str,
    steps: &'w [Step],
    /// The name of a limit here: the domain, keys and values, joined as in the service's metrics.
    name: String,
}

impl Compiler<'_, '_> {
    pub(super) fn file(&mut self, file: &EnvoyFile) {
        for document in &file.documents {
            self.domains.add(&document.domain);
            let within = Within {
                file,
                domain: &document.domain,
                steps: &[],
                name: document.domain.clone(),
            };
            self.descriptors(&document.descriptors, &within);
        }
    }

    fn descriptors(&mut self, list: &[Descriptor], within: &Within<'_>) {
        for descriptor in list {
            let mut steps = within.steps.to_vec();
            steps.push(Step {
                key: descriptor.key.clone(),
                value: descriptor.value.clone(),
                shared: descriptor.share_threshold,
            });
            let name = match &descriptor.value {
                Some(value) => format!("{}.{}_{value}", within.name, descriptor.key),
                None => format!("{}.{}", within.name, descriptor.key),
            };
            if let Some(written) = &descriptor.rate_limit {
                let place = within.file.place(written.place, self.context);
                let mut rule = DescriptorRule {
                    name: written.name.as_deref().map(Arc::from),
                    replaces: written
                        .replaces
                        .iter()
                        .map(|name| name.as_str().into())
                        .collect(),
                    quota: descriptor.quota_mode,
                    path: Arc::from(name.as_str()),
                    ..DescriptorRule::default()
                };
                match written.quota {
                    Quota::Unlimited | Quota::Broken => {}
                    Quota::Per { requests: 0, .. } => rule.refuses = !descriptor.shadow_mode,
                    Quota::Per { requests, period } => {
                        let value = name.clone();
                        let rate = Rate::new(requests, period);
                        rule.limits = self.limit(At { value, place }, rate, descriptor.shadow_mode);
                    }
                }
                self.insert(within.domain, &steps, rule, place);
            } else {
                self.domains.exempt(within.domain, &steps);
            }
            let below = Within {
                steps: &steps,
                name,
                ..*within
            };
            self.descriptors(&descriptor.descriptors, &below);
        }
    }

    pub(super) fn limit(&mut self, name: At<String>, rate: Rate, shadow: bool) -> Vec<usize> {
        let (limits, context) = (&mut *self.limits, &mut *self.context);
        if let Some(known) = self.named.get(&name.value) {
            let title = format!("two limits would be called `{}`", name.value);
            context
                .twice(title, name.place, *known)
                .note("a limit of a file is called by its domain, keys and values");
            return Vec::new();
        }
        self.named.insert(name.value.clone(), name.place);
        let mode = if shadow { Mode::Shadow } else { Mode::Enforce };
        let Some((rule, amounts)) = window_of_clock(&name, rate, mode, self.around, context) else {
            return Vec::new();
        };
        limits.rules.push(rule);
        limits.written.push(Written {
            name,
            per: vec!["descriptor".to_owned()],
            amounts,
        });
        vec![limits.rules.len() - 1]
    }
}

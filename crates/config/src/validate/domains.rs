//! The rules for descriptors: those of `[[decide.rules]]`, and files of envoyproxy/ratelimit.

use std::sync::Arc;

use serde_json::Value;

use super::limits::{Limits, Surroundings, window_of_clock};
use crate::context::Context;
use crate::include::{cannot_read, matches};
use crate::lists::OneOrMany;
use crate::rate::{Rate as Written, Unit, rate};
use crate::rate_limit_yaml::{self, Descriptor, Position, Quota, RateLimitFile};
use crate::raw::{RawFile, RuleOfDescriptors};
use crate::reader::{Node, Read};
use crate::schema::Defs;
use crate::source::{At, Place};
use crate::text::{Text, texts};
use crate::validate::names_of;
use tollgate_limit::{Kind, Micros, Mode, Rate};
use tollgate_policy::domains::{ADDRESS_KEYS, DescriptorRule, Step};
use tollgate_policy::{Cost, Count, Domains, Rule, Scope, ScopePart};

texts! {
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
        },
        place: place(index).unwrap_or_default(),
    };
    rates.iter().enumerate().map(at).collect()
}

/// Files of envoyproxy/ratelimit, read.
pub(crate) enum EnvoyFiles {}

/// The documents of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyFile {
    /// Its number among the texts.
    text: u32,
    documents: Vec<RateLimitFile>,
}

impl Read for EnvoyFiles {
    type Value = Vec<EnvoyFile>;

    fn read(node: Node<'_>, context: &mut Context<'_>) -> Option<Vec<EnvoyFile>> {
        let patterns = OneOrMany::<Text>::read(node, context)?;
        let mut files = Vec::new();
        for pattern in patterns {
            if context.is_sealed() {
                continue;
            }
            let whole = context.path(&pattern);
            if pattern.as_str().contains('*') {
                // Files that match later are watched for.
                context.files.push(whole.clone());
            }
            let paths = match matches(&whole) {
                Ok(paths) => paths,
                Err(title) => {
                    context.error(title, pattern.place, "read here");
                    continue;
                }
            };
            if paths.is_empty() {
                let title = format!("no file matches `{}`", whole.display());
                context.warning(title, pattern.place, "no rules are read here");
            }
            for path in paths {
                context.files.push(path.clone());
                match crate::read_text(&path) {
                    Ok(text) => files.extend(file(&path.display().to_string(), text, context)),
                    Err(error) => {
                        let title = cannot_read(&path, &error);
                        context.error(title, pattern.place, "read here");
                    }
                }
            }
        }
        Some(files)
    }

    fn schema(defs: &mut Defs) -> Value {
        OneOrMany::<Text>::schema(defs)
    }
}

fn file(name: &str, text: String, context: &mut Context<'_>) -> Option<EnvoyFile> {
    let read = rate_limit_yaml::read(name, &text);
    let number = context.sources.add(name, text, std::path::Path::new(""));
    match read {
        Ok((documents, mistakes)) => {
            for mistake in mistakes {
                let title = format!("{}: {}", mistake.what, mistake.why);
                let place = place(number, mistake.place, context);
                context.error(title, place, "here");
            }
            Some(EnvoyFile {
                text: number,
                documents,
            })
        }
        Err(error) => {
            let position = Position {
                line: error.line,
                column: error.column,
            };
            let place = place(number, position, context);
            context.error("this is not YAML", place, error.what);
            None
        }
    }
}

/// The rest of the line at a position.
fn place(text: u32, at: Position, context: &Context<'_>) -> Place {
    let source = &context.sources.of(text).text;
    let mut before = 0;
    for line in source.split_inclusive('\n').take(at.line.saturating_sub(1)) {
        before += line.len();
    }
    let line = source[before..].lines().next().unwrap_or_default();
    let skip: usize = line
        .chars()
        .take(at.column.saturating_sub(1))
        .map(char::len_utf8)
        .sum();
    let end = line.split(" #").next().unwrap_or(line).trim_end().len();
    Place::new(text, before + skip..before + end.max(skip))
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
        own(rule, index, raw, limits, &mut made, context);
    }
    for file in files {
        for document in &file.documents {
            made.domains.add(&document.domain);
            let within = Within {
                text: file.text,
                domain: &document.domain,
                steps: &[],
                name: document.domain.clone(),
            };
            descriptors(
                &document.descriptors,
                &within,
                limits,
                &mut made,
                around,
                context,
            );
        }
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

/// A rule of `[[decide.rules]]`.
fn own(
    rule: &RuleOfDescriptors,
    index: usize,
    raw: &RawFile,
    limits: &Limits,
    made: &mut Made,
    context: &mut Context<'_>,
) {
    let whole = format!("decide.rules[{index}]");
    let at = |key: &str, context: &Context<'_>| {
        let place = context.place(&format!("{whole}.{key}"));
        place.or_else(|| context.place(&whole)).unwrap_or_default()
    };
    if rule.domain.is_empty() {
        let place = at("domain", context);
        context.error("a domain has a name", place, "it is empty");
    }
    if rule.descriptor.is_empty() || rule.descriptor.len() > rate_limit_yaml::DEEPEST {
        let place = at("descriptor", context);
        let title = format!("a descriptor has 1 to {} entries", rate_limit_yaml::DEEPEST);
        context.error(title, place, "here");
        return;
    }
    for (entry, written) in rule.descriptor.iter().enumerate() {
        let pattern = written
            .value
            .as_deref()
            .is_some_and(|value| value.contains('*'));
        if written.share_threshold && !pattern {
            let place = at(&format!("descriptor[{entry}].share_threshold"), context);
            let title = "`share_threshold` is for values with `*`";
            context.error(title, place, "this entry has no such value");
        }
        if written.key.is_empty() || written.key.contains('*') {
            let place = at(&format!("descriptor[{entry}].key"), context);
            let title = "a key has a name, without `*`";
            context.error(title, place, "`*` is for values");
        }
    }
    let mut charged = Vec::new();
    for (entry, name) in rule.limits.iter().enumerate() {
        let place = at(&format!("limits[{entry}]"), context);
        let names = names_of(&raw.limits);
        match limits.rules.iter().position(|known| *known.name == **name) {
            Some(known) if charged.contains(&known) => {
                let title = format!("a rule names limit `{name}` twice");
                context.error(title, place, "again here");
            }
            Some(known) => {
                check_limit(&limits.rules[known], rule, place, context);
                charged.push(known);
            }
            None if names.contains(&name.as_str()) => {}
            None => context.unknown("limit", name, place, &names),
        }
    }
    let steps = rule.descriptor.iter().map(|entry| Step {
        key: entry.key.clone(),
        value: entry.value.clone(),
        shared: entry.share_threshold,
    });
    let compiled = DescriptorRule {
        name: rule.name.as_deref().map(Arc::from),
        replaces: rule
            .replaces
            .iter()
            .map(|name| Arc::from(name.as_str()))
            .collect(),
        limits: charged,
        path: Arc::from(rule.domain.as_str()),
        refuses: false,
        quota: rule.quota_mode,
    };
    let place = at("descriptor", context);
    made.insert(&rule.domain, steps.collect(), compiled, place, context);
}

/// A limit of a rule must be decidable from a descriptor alone, and when it arrives.
fn check_limit(limit: &Rule, rule: &RuleOfDescriptors, place: Place, context: &mut Context<'_>) {
    let name = &limit.name;
    let parts = match &limit.scope {
        Scope::Everyone => &[][..],
        Scope::Identities(parts) => parts,
    };
    let by_request = parts.iter().any(|part| {
        matches!(
            part,
            ScopePart::Identity(_) | ScopePart::Route | ScopePart::Method | ScopePart::Host
        )
    });
    let has_address = rule
        .descriptor
        .iter()
        .any(|entry| ADDRESS_KEYS.contains(&entry.key.as_str()));
    let why = if by_request {
        "a descriptor has no request that its `per` could be read from"
    } else if parts.contains(&ScopePart::Address) && !has_address {
        "its `per` is an address, and no entry is `remote_address` or `masked_remote_address`"
    } else if !matches!(limit.cost, Cost::Fixed(_)) {
        "its cost is read from an HTTP request"
    } else if limit.settle.is_some() || limit.count != Count::All || !limit.refund_on.is_empty() {
        "it is corrected by a response, which the service does not see"
    } else if limit.live.algorithm.kind() == Kind::InFlight {
        "it counts requests in progress, whose end the service does not see"
    } else if limit.live.algorithm.max_wait() > Micros::ZERO {
        "it holds requests, and the service only decides about them"
    } else if limit.live.algorithm.follows().is_some() {
        "it follows an upstream, which the service does not see"
    } else {
        return;
    };
    context
        .error(
            format!("limit `{name}` cannot decide about descriptors"),
            place,
            why,
        )
        .help("write another limit, such as per = \"descriptor\" with a rate");
}

/// The path to descriptors of a file.
struct Within<'w> {
    text: u32,
    domain: &'w str,
    steps: &'w [Step],
    /// The name of a limit here: the domain, keys and values, joined as in the service's metrics.
    name: String,
}

fn descriptors(
    list: &[Descriptor],
    within: &Within<'_>,
    limits: &mut Limits,
    made: &mut Made,
    around: &Surroundings<'_>,
    context: &mut Context<'_>,
) {
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
            let place = place(within.text, written.place, context);
            let mut rule = DescriptorRule {
                name: written.name.as_deref().map(Arc::from),
                replaces: written
                    .replaces
                    .iter()
                    .map(|name| Arc::from(name.as_str()))
                    .collect(),
                quota: descriptor.quota_mode,
                path: Arc::from(name.as_str()),
                ..DescriptorRule::default()
            };
            match written.quota {
                Quota::Unlimited | Quota::Broken => {}
                Quota::Per { requests: 0, .. } => rule.refuses = !descriptor.shadow_mode,
                Quota::Per { requests, period } => {
                    let name = At {
                        value: name.clone(),
                        place,
                    };
                    rule.limits = limit(
                        name,
                        (requests, period),
                        descriptor.shadow_mode,
                        limits,
                        around,
                        context,
                    );
                }
            }
            made.insert(within.domain, steps.clone(), rule, place, context);
        }
        let below = Within {
            text: within.text,
            domain: within.domain,
            steps: &steps,
            name,
        };
        descriptors(
            &descriptor.descriptors,
            &below,
            limits,
            made,
            around,
            context,
        );
    }
}

/// Adds the limit of a descriptor; returns its index.
fn limit(
    name: At<String>,
    (requests, period): (u64, Micros),
    shadow: bool,
    limits: &mut Limits,
    around: &Surroundings<'_>,
    context: &mut Context<'_>,
) -> Vec<usize> {
    if let Some(known) = limits
        .written
        .iter()
        .find(|known| known.name.value == name.value)
    {
        let title = format!("two limits would be called `{}`", name.value);
        context
            .twice(title, name.place, known.name.place)
            .note("a limit of a file is called by its domain, keys and values");
        return Vec::new();
    }
    let mode = if shadow { Mode::Shadow } else { Mode::Enforce };
    let rate = Rate::new(requests, period);
    let Some((rule, amounts)) = window_of_clock(&name, rate, mode, around, context) else {
        return Vec::new();
    };
    limits.rules.push(rule);
    limits.written.push(super::limits::Written {
        name,
        per: vec!["descriptor".to_owned()],
        amounts,
    });
    vec![limits.rules.len() - 1]
}

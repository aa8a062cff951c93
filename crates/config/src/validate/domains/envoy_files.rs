//! Files of envoyproxy/ratelimit: their rules and the limits that these make.

use std::sync::Arc;

use super::Compiler;
use crate::context::Context;
use crate::declare::forms;
use crate::files::{cannot_read, matches, read_text};
use crate::lists::OneOrMany;
use crate::rate_limit_yaml::{self, Descriptor, Position, Quota, RateLimitFile};
use crate::source::{At, Place};
use crate::text::Text;
use crate::validate::limits::{Written, window_of_clock};
use tollgate_limit::{Mode, Rate};
use tollgate_policy::claims::domains::{DescriptorRule, Step};

forms! {
    /// Files of envoyproxy/ratelimit, read.
    EnvoyFiles -> Vec<EnvoyFile> as OneOrMany<Text> = |patterns, context| Some(files(patterns, context));
}

/// The documents of one file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyFile {
    /// The number of its text among the sources.
    text: u32,
    lines: Vec<usize>,
    documents: Vec<RateLimitFile>,
}

fn files(patterns: &[At<Text>], context: &mut Context<'_>) -> Vec<EnvoyFile> {
    let mut files = Vec::new();
    if context.sealed {
        return files;
    }
    for pattern in patterns {
        let whole = context.path(pattern);
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
            match read_text(&path) {
                Ok(text) => files.extend(file(&path.display().to_string(), text, context)),
                Err(error) => {
                    let title = cannot_read(&path, &error);
                    context.error(title, pattern.place, "read here");
                }
            }
        }
    }
    let descriptors: usize = files.iter().map(EnvoyFile::descriptors).sum();
    if let Some(pattern) = patterns.last().filter(|_| descriptors > DESCRIPTORS_MAX) {
        let title = format!("{descriptors} descriptors are too many: at most {DESCRIPTORS_MAX}");
        context.error(title, pattern.place, "read here");
    }
    files
}

fn file(name: &str, text: String, context: &mut Context<'_>) -> Option<EnvoyFile> {
    let read = rate_limit_yaml::read(name, &text);
    let ends = text.match_indices('\n').map(|(end, _)| end + 1);
    let lines: Vec<usize> = std::iter::once(0).chain(ends).collect();
    let number = context.sources.add(name, text, std::path::Path::new(""));
    match read {
        Ok((documents, mistakes)) => {
            let file = EnvoyFile {
                text: number,
                lines,
                documents,
            };
            for mistake in mistakes {
                let title = format!("{}: {}", mistake.what, mistake.why);
                let place = file.place(mistake.place, context);
                context.error(title, place, "here");
            }
            Some(file)
        }
        Err(error) => {
            let position = Position {
                line: error.line,
                column: error.column,
            };
            let file = EnvoyFile {
                text: number,
                lines,
                documents: Vec::new(),
            };
            let place = file.place(position, context);
            context.error("this is not YAML", place, error.what);
            None
        }
    }
}

impl EnvoyFile {
    fn descriptors(&self) -> usize {
        fn count(list: &[Descriptor]) -> usize {
            let within = list.iter().map(|one| count(&one.descriptors));
            list.len() + within.sum::<usize>()
        }
        let documents = self.documents.iter();
        documents.map(|document| count(&document.descriptors)).sum()
    }

    /// The rest of the line at a position.
    fn place(&self, at: Position, context: &Context<'_>) -> Place {
        let source = &context.sources.of(self.text).text;
        let line = at.line.saturating_sub(1).min(self.lines.len() - 1);
        let before = self.lines[line];
        let line = source[before..].lines().next().unwrap_or_default();
        let skip: usize = line
            .chars()
            .take(at.column.saturating_sub(1))
            .map(char::len_utf8)
            .sum();
        let end = line.split(" #").next().unwrap_or(line).trim_end().len();
        Place::new(self.text, before + skip..before + end.max(skip))
    }
}

/// The most descriptors of all files. A limit takes 25 KB, and 1 KB of each scrape.
const DESCRIPTORS_MAX: usize = 10_000;

struct Within<'w> {
    file: &'w EnvoyFile,
    domain: &'w str,
    steps: &'w [Step],
    /// The name of a limit here: the domain, keys and values, joined as in the service's metrics.
    name: String,
}

impl Compiler<'_, '_> {
    /// Adds the rules of a file, and their limits.
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

    /// Adds the limit of a descriptor; returns its index.
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

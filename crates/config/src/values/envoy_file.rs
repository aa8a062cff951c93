//! Files of envoyproxy/ratelimit that `decide.envoy` names.

use crate::files::{cannot_read, matches, read_text};
use crate::rate_limit_yaml::{self, Descriptor, Position, RateLimitFile};
use crate::reading::{At, Context, OneOrMany, Place, Text, forms};

forms! {
    EnvoyFiles -> Vec<EnvoyFile> as OneOrMany<Text> = |patterns, context| Some(files(patterns, context));
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EnvoyFile {
    /// The number of its text among the sources.
    text: u32,
    lines: Vec<usize>,
    pub(crate) documents: Vec<RateLimitFile>,
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
    let mut file = EnvoyFile {
        text: number,
        lines,
        documents: Vec::new(),
    };
    let (documents, mistakes) = read
        .map_err(|error| {
            let (line, column) = (error.line, error.column);
            let place = file.place(Position { line, column }, context);
            context.error("this is not YAML", place, error.what);
        })
        .ok()?;
    for mistake in mistakes {
        let title = format!("{}: {}", mistake.what, mistake.why);
        let place = file.place(mistake.place, context);
        context.error(title, place, "here");
    }
    file.documents = documents;
    Some(file)
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
    pub(crate) fn place(&self, at: Position, context: &Context<'_>) -> Place {
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
